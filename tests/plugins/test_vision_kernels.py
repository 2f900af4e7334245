"""The kernels of the vision plugins as PTX."""

from __future__ import annotations

import pytest

from aot.plugins.compiling import compile_all, jobs
from aot.plugins.header import read
from tests.plugins.kernels import BUILT_IN

FIXED = {
    "ms_deform_attn": {"heads": 8, "width": 32, "levels": 4, "points": 4},
    "deform_conv2d": {"channels": 64, "out_channels": 64, "kernel_h": 3, "kernel_w": 3, "offsets": 18, "taps": 9},
    "grid_sample_3d": {"channels": 16},
    "bev_pool": {"channels": 80},
    "local_correlation": {"channels": 64},
}
"""The sizes that are constants; all others vary."""
ROWS_OF_MEMORY = ("ms_deform_attn", "bev_pool", "local_correlation")
"""The ops whose channels are last."""


@pytest.mark.parametrize("op", FIXED)
def test_it_compiles_for_every_architecture_and_spills_next_to_nothing(op: str) -> None:
    header = read(BUILT_IN / f"{op}.py")
    wanted = [
        job
        for target in ("sm80", "sm90", "sm100", "sm120")
        for job in jobs(header, target, FIXED[op])
        if job.dtypes[0] == "float16" and job.dtypes[1] in ("float16", "float32", "int64")
    ]
    assert len(wanted) == 4
    for one in compile_all(header, wanted):
        assert one.spilled <= 16
        if op in ROWS_OF_MEMORY:
            assert "ld.global.v4.b32" in one.code  # eight channels at once
