"""What the vendor's kernels take, as data: one line a rule, tried in order, the first that applies decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aot.precision.layers import Layer


@dataclass(frozen=True)
class Rule:
    """A layer of type `op` in the format `form` stays wide where `refuses` holds. `reason` may use {layer}."""

    form: str
    op: str
    refuses: Callable[[Layer], bool]
    reason: str


def _not_sixteens(layer: Layer) -> bool:
    return (layer.inputs or 0) % 16 != 0 or (layer.outputs or 0) % 16 != 0


RULES: tuple[Rule, ...] = (
    Rule("fp8", "Conv", lambda layer: layer.groups > 1, "FP8 convolution kernels take no groups ({layer.groups} here)"),
    Rule(
        "fp8",
        "Conv",
        _not_sixteens,
        "FP8 convolution kernels take channels in multiples of 16 ({layer.inputs} to {layer.outputs} here)",
    ),
    Rule("fp8", "ConvTranspose", lambda layer: True, "there are no FP8 kernels for transposed convolution"),
    Rule(
        "fp8",
        "MatMul",
        lambda layer: layer.weight is not None and _not_sixteens(layer),
        "FP8 matrix kernels take sizes in multiples of 16 ({layer.inputs} to {layer.outputs} here)",
    ),
    Rule(
        "fp8",
        "Gemm",
        _not_sixteens,
        "FP8 matrix kernels take sizes in multiples of 16 ({layer.inputs} to {layer.outputs} here)",
    ),
)

# (compute dtype, operator type): kept FP32, because.
WIDE: dict[tuple[str, str], str] = {
    ("bf16", "ConvTranspose"): "TensorRT-RTX 1.7 finds no BF16 kernel for transposed convolution",
}


def refusal(form: str, layer: Layer) -> str | None:
    """Why the layer cannot be quantized to that format; None where it can."""
    for rule in RULES:
        if rule.form == form and rule.op == layer.node.op_type and rule.refuses(layer):
            return rule.reason.format(layer=layer)
    return None
