"""The kernels of the vision plugins as PTX."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from aot.plugins import _compiler
from aot.plugins.compiling import jobs
from aot.plugins.loading import load
from tests.plugins.kernels import BUILT_IN

FIXED = {
    "ms_deform_attn": {"heads": 8, "width": 32, "levels": 4, "points": 4},
    "deform_conv2d": {"channels": 64, "out_channels": 64, "kernel_h": 3, "kernel_w": 3, "offsets": 18, "taps": 9},
    "grid_sample_3d": {"channels": 16},
    "bev_pool": {"channels": 80},
    "local_correlation": {"channels": 64},
}
"""The sizes that are constants; all others vary."""
ROWS_OF_MEMORY = ("ms_deform_attn", "deform_conv2d", "grid_sample_3d", "bev_pool", "local_correlation")
"""The ops whose channels are last."""


@pytest.mark.parametrize("op", FIXED)
def test_it_compiles_for_every_architecture_and_spills_next_to_nothing(
    op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, which has imported torch already."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    plugin = load(BUILT_IN / f"{op}.py")
    wanted = [
        job
        for target in ("sm80", "sm90", "sm100", "sm120")
        for job in jobs(plugin, target, FIXED[op])
        if job.dtypes[0] == "float16" and job.dtypes[1] in ("float16", "float32", "int64")
    ]
    assert len(wanted) == 4
    for job in wanted:
        made = _compiler.compiled(plugin, asdict(job), plugin.configs[0])
        assert made["spilled"] <= 16
        if op in ROWS_OF_MEMORY:
            assert "ld.global.v4.b32" in made["code"]  # eight channels at once
