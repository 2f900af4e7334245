"""What the vendor's kernels take, as data: one line a rule, tried in order, the first that applies decides.

A graph is quantized before it is known which version builds it, so every rule holds for each of them that it names;
a rule goes when the oldest version that is supported no longer needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aot.precision.layers import Layer


@dataclass(frozen=True)
class Versions:
    """Releases of a vendor's library in which something was seen or is documented; `last` None: still so."""

    library: str
    first: str
    last: str | None = None

    def __str__(self) -> str:
        if self.last is None:
            return f"{self.library} {self.first} and later"
        return (
            f"{self.library} {self.first}" if self.first == self.last else f"{self.library} {self.first} to {self.last}"
        )


@dataclass(frozen=True)
class Rule:
    """A layer of one of the types `ops` in the format `form` stays wide where `refuses` holds.

    `reason` may use {layer}. source: where it is known from.
    """

    form: str
    ops: tuple[str, ...]
    refuses: Callable[[Layer], bool]
    reason: str
    versions: Versions
    source: str


@dataclass(frozen=True)
class Wide:
    """An operator that stays FP32 in networks of the dtype `compute`."""

    compute: str
    op: str
    reason: str
    versions: Versions


@dataclass(frozen=True)
class Slow:
    """Layers of the type `op` that were seen to take longer in the format `form` than in FP16. fix: what to do."""

    form: str
    op: str
    seen: str
    versions: Versions
    fix: str


def _not_sixteens(layer: Layer) -> bool:
    """Sizes that are not known (a dynamic length) count as fitting."""
    return (layer.inputs or 0) % 16 != 0 or (layer.outputs or 0) % 16 != 0


def _below_sixteen(layer: Layer) -> bool:
    return min(layer.inputs or 16, layer.outputs or 16) < 16


def _is_attention(layer: Layer) -> bool:
    """Of attention's two products it is the first that rules are asked about: a head's elements by tokens."""
    return layer.weight is None


_TENSORRT = Versions("TensorRT", "10.6")
_SUPPORT = (
    "the support matrix: FP8 matrix kernels are tensor-core kernels with an alignment of 16 bytes; so are cuBLASLt's"
)
_MODELOPT = "Model Optimizer leaves the same layers out (modelopt.onnx.quantization.graph_utils)"
_MEASURED = "measured on an H200: quantized and dequantized in kernels of their own, convolved in FP16"

RULES: tuple[Rule, ...] = (
    Rule(
        "fp8",
        ("Conv",),
        lambda layer: layer.groups > 1,
        "FP8 convolution kernels take no groups ({layer.groups} here)",
        _TENSORRT,
        _MEASURED,
    ),
    Rule(
        "fp8",
        ("Conv",),
        _below_sixteen,
        "FP8 convolution kernels take at least 16 channels ({layer.inputs} to {layer.outputs} here)",
        _TENSORRT,
        _MODELOPT,
    ),
    Rule(
        "fp8",
        ("Conv",),
        lambda layer: layer.taps > 32,
        "FP8 convolution kernels take filters of at most 32 taps ({layer.taps} here)",
        _TENSORRT,
        _MODELOPT,
    ),
    Rule(
        "fp8",
        ("ConvTranspose",),
        lambda layer: True,
        "there are no FP8 kernels for transposed convolution",
        _TENSORRT,
        _SUPPORT,
    ),
    Rule(
        "fp8",
        ("MatMul", "Gemm"),
        _not_sixteens,
        "FP8 matrix kernels take sizes in multiples of 16 ({layer.inputs} to {layer.outputs} here)",
        _TENSORRT,
        _SUPPORT,
    ),
    Rule(
        "fp8",
        ("MatMul",),
        lambda layer: _is_attention(layer) and (layer.inputs or 0) > 256,
        "fused FP8 attention takes heads of at most 256 elements ({layer.inputs} here)",
        _TENSORRT,
        _MODELOPT,
    ),
    Rule(
        "int8",
        ("MatMul",),
        lambda layer: _is_attention(layer) and (layer.outputs or 0) > 512,
        "fused INT8 attention takes at most 512 tokens ({layer.outputs} here)",
        _TENSORRT,
        _MODELOPT,
    ),
)

WIDE: tuple[Wide, ...] = (
    Wide(
        "bf16",
        "ConvTranspose",
        "there is no BF16 kernel for transposed convolution",
        Versions("TensorRT-RTX", "1.7", "1.7"),
    ),
)

SLOW: tuple[Slow, ...] = (
    Slow(
        "fp8",
        "Conv",
        "quantizes in kernels of its own and convolves in FP16, ResNet-50 on an H200 in seven times the time",
        Versions("TensorRT", "10.6", "10.6"),
        "for a convolutional network take int8, or --precision auto, which measures",
    ),
)


def refusal(form: str, layer: Layer) -> str | None:
    """Why the layer cannot be quantized to that format; None where it can."""
    for rule in RULES:
        if rule.form == form and layer.node.op_type in rule.ops and rule.refuses(layer):
            return f"{rule.reason.format(layer=layer)}; {rule.versions}"
    return None


def stays_wide(compute: str, op: str) -> str | None:
    """Why an operator type stays FP32 in a network of that dtype; None where it need not."""
    for rule in WIDE:
        if (rule.compute, rule.op) == (compute, op):
            return f"{rule.reason}; {rule.versions}"
    return None


def slow(form: str, ops: Mapping[str, int]) -> list[str]:
    """What was seen to be slower quantized. ops: how many layers of each type are in that format."""
    return [
        f"{ops[one.op]} {one.op} in {form}: {one.versions} {one.seen}; {one.fix}"
        for one in SLOW
        if one.form == form and ops.get(one.op)
    ]
