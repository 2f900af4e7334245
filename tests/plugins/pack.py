"""The built-in plugins by kind, each kind with a file of its own that runs its kernels: the files run side by side."""

from __future__ import annotations

from collections.abc import Sequence

from aot.plugins.checking import Checked, check
from aot.plugins.header import read
from tests.plugins.kernels import BUILT_IN

NORMS = [f"{norm}{dtype}" for norm in ("add_layer_norm", "add_rms_norm", "swiglu") for dtype in ("", "_fp8", "_int8")]
PRODUCTS = ["attention", "gemm_epilogue", "gemm_quant", "gemm_requant", "gemm_residual"]
SEQUENCES = ["nms", "rotary", "scatter_reduce", "segment_reduce", "selective_scan"]
VISION = ["bev_pool", "deform_conv2d", "grid_sample_3d", "local_correlation", "ms_deform_attn"]


def checked_together(names: Sequence[str]) -> dict[str, Checked]:
    """What the interpreter finds, by name: in one process, for importing torch takes longer than many a plugin."""
    found = check([read(BUILT_IN / f"{name}.py") for name in names])
    return dict(zip(names, found, strict=True))


def assert_right(found: Checked) -> None:
    """Every case is as the reference, FP16 is among them, and some size may vary in an engine."""
    assert [(case.what, case.failures) for case in found.failed] == []
    if "float16" not in found.unchecked:  # as where an output is FP8, which a GPU has to check
        assert any("float16" in case.what for case in found.cases)
    assert found.varying
