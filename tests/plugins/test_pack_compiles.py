"""Every kernel of the pack to PTX for each architecture, in a narrow dtype: what TensorRT launches, without scratch."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.plugins.compiling import Job, compile_all
from aot.plugins.header import read

PLUGINS = Path(__file__).parent.parent.parent / "plugins"
ROWS = (None, 256)
GEMM = {"x": ROWS, "weight": (128, 256), "bias": (128,)}
KERNELS: dict[str, tuple[dict[str, tuple[int | None, ...]], str, dict[str, object], int]] = {
    "attention": (
        {"q": (None, None, 256), "k": (None, None, 128), "v": (None, None, 128), "mask": (None, None)},
        "bfloat16 bfloat16 bfloat16 bfloat16", {"heads": 4, "causal": True, "scale": 0.0}, 5,
    ),
    "gemm_epilogue": (GEMM, "float16 float16 float16", {"activation": "gelu"}, 8),
    "gemm_residual": ({**GEMM, "residual": (None, 128)}, "float16 float16 float16 float16", {}, 8),
    "gemm_quant": ({**GEMM, "scale": (128,)}, "int8 int8 float32 float16", {"activation": "silu"}, 7),
    "gemm_requant": (
        {**GEMM, "scale": (128,)}, "float8_e4m3fn float8_e4m3fn float32 bfloat16",
        {"y_scale": 0.1, "activation": "gelu_tanh"}, 7,
    ),
    "swiglu_fp8": ({"gate_up": ROWS}, "float16", {"scale": 0.1}, 0),
    "add_layer_norm_fp8": (
        {"x": ROWS, "residual": ROWS, "weight": (256,), "bias": (256,)},
        "float16 float16 float16 float16", {"scale": 0.1, "eps": 1e-5}, 6,
    ),
}  # fmt: skip
"""Shapes, dtypes, attributes and a config; SHAPES orders the inputs."""
FP8 = ["sm89", "sm90", "sm100", "sm120"]
ARCHITECTURES = {
    "gemm_requant": FP8, "swiglu_fp8": FP8, "add_layer_norm_fp8": FP8, "gemm_residual": ["sm80"], "gemm_quant": ["sm80"]
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_compiles_for_every_architecture_that_has_its_dtypes(name: str) -> None:
    shapes, dtypes, attributes, config = KERNELS[name]
    header = read(PLUGINS / f"{name}.py")
    shapes = {one.name: shapes[one.name] for one in header.schema.inputs}
    targets = ARCHITECTURES.get(name, ["sm80", "sm90", "sm120"])
    made = compile_all(header, [Job(target, shapes, tuple(dtypes.split()), attributes, config) for target in targets])
    assert [one.target for one in made] == targets
    assert all(one.spilled == 0 and one.shared <= 100 << 10 for one in made)
    if name == "attention":
        assert "wgmma" in made[targets.index("sm90")].code
        sizes = ((2, 300, 256), (2, 77, 128), (2, 77, 128), (2, 77))
        assert made[0].launched(sizes) == ((5 * 4 * 2, 1, 1), (300, 77))
