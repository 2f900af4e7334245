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
    """A layer of one of the types `ops` in the format `form` stays wide where `holds`.

    `reason` may use {layer}. source: where it is known from. slow: kernels take such a layer, but nobody has seen them
    to be faster than those of the compute dtype; a recipe can ask for it all the same (`placement.slow`). told: what
    is said once of all such layers, with what to do instead; empty: nothing.
    """

    form: str
    ops: tuple[str, ...]
    holds: Callable[[Layer], bool]
    reason: str
    versions: Versions
    source: str
    slow: bool = False
    told: str = ""

    def why(self, layer: Layer) -> str:
        """Why that layer stays wide."""
        asking = "; placement.slow quantizes it all the same" if self.slow else ""
        return f"{self.reason.format(layer=layer)}; {self.versions}{asking}"


@dataclass(frozen=True)
class Wide:
    """An operator that stays FP32 in networks of the dtype `compute`."""

    compute: str
    op: str
    reason: str
    versions: Versions


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
_BUILT = (
    f"{_SUPPORT}. TensorRT-RTX 1.7 builds other sizes too (tests/precision/test_engine.py), with which kernels is not "
    "seen; Model Optimizer quantizes them"
)
_MODELOPT = "Model Optimizer leaves the same layers out (modelopt.onnx.quantization.graph_utils)"
_MEASURED = "measured on an H200: quantized and dequantized in kernels of their own, convolved in FP16"

# Of what was not measured nothing speaks for FP8, so it counts as slow too:
# - TensorRT 10.3 on an RTX 4090, no faster than FP16: https://github.com/NVIDIA/TensorRT/issues/4081
# - TensorRT 10.12 on an H100, no FP8 kernels for 32 channels and more: https://github.com/NVIDIA/TensorRT/issues/4560
# - TensorRT to 10.12, INT8 recommended for networks with grouped convolutions: the limitations in
#   https://docs.nvidia.com/deeplearning/tensorrt/10.12.0/getting-started/release-notes.html
# - TensorRT-RTX 1.5, the first FP8 convolution ends the process: https://github.com/NVIDIA/TensorRT-RTX/issues/35
# - TensorRT 11: neither a measurement nor a statement found.
_CONVOLUTIONS = (
    "measured on an H200 with TensorRT 10.6 (benchmarks/results/precision-engines.json): dense, grouped, depthwise, "
    "one weight scale or one a channel, with and without bias, Relu, residual and quantized output"
)

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
        ("Conv",),
        lambda layer: True,
        "FP8 convolutions take longer than FP16 ones",
        _TENSORRT,
        _CONVOLUTIONS,
        slow=True,
        told="FP8 convolutions took 7 to 19 times as long as FP16 ones (ResNet-50 on an H200, TensorRT 10.6; other "
        "versions were not measured); --precision int8 is the faster choice for such a model",
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
        "FP8 matrix kernels are for sizes in multiples of 16 ({layer.inputs} to {layer.outputs} here)",
        _TENSORRT,
        _BUILT,
        slow=True,
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


def refusing(form: str, layer: Layer, *, slow: bool) -> Rule | None:
    """The rule by which the layer stays wide; None where it can be quantized to that format. slow: whether layers may
    be quantized that are slower so."""
    for rule in RULES:
        asked = rule.form == form and layer.node.op_type in rule.ops and not (rule.slow and slow)
        if asked and rule.holds(layer):
            return rule
    return None


def stays_wide(compute: str, op: str) -> str | None:
    """Why an operator type stays FP32 in a network of that dtype; None where it need not."""
    for rule in WIDE:
        if (rule.compute, rule.op) == (compute, op):
            return f"{rule.reason}; {rule.versions}"
    return None


def slow(form: str, ops: Mapping[str, int]) -> list[str]:
    """What is known to be slower quantized. ops: how many layers of each type are in that format."""
    return [
        f"{ops[op]} {op} in {form}: {rule.told}"
        for rule in RULES
        for op in rule.ops
        if rule.form == form and rule.told and ops.get(op)
    ]
