"""Kernels of the built-in plugins on this machine's GPU, against their references and as tuning takes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot import toolchain
from aot.plugins import tuned
from aot.plugins.checking import Checked, check
from aot.plugins.header import Header, read
from aot.plugins.loading import load
from aot.plugins.tuning import tune

PACK = sorted((Path(__file__).parents[2] / "plugins").glob("[a-z]*.py"))
LIMITS = {"float32": 5e-5, "float16": 2e-3, "bfloat16": 1e-2}


@pytest.fixture(scope="module")
def checked() -> dict[str, Checked]:
    """Every plugin, by name: their kernels compile side by side."""
    found = check([read(file) for file in PACK], device="gpu")
    return {one.plugin.partition("::")[2]: one for one in found}


@pytest.mark.parametrize("name", [file.stem for file in PACK])
def test_a_kernel_computes_its_reference_in_every_dtype(name: str, checked: dict[str, Checked]) -> None:
    found = checked[name]
    assert [(case.what, case.failures) for case in found.failed] == []
    assert found.missed == 0
    for case in found.cases:
        worst = max(limit for dtype, limit in LIMITS.items() if dtype in case.what)
        assert case.relative <= worst, case.what
    for dtypes in read(Path(found.file)).schema.types.values():
        assert all(any(dtype in case.what for case in found.cases) for dtype in dtypes)


@pytest.mark.parametrize("name", ["add_rms_norm", "add_layer_norm", "rotary"])
def test_offsets_beyond_32_bits_are_right(name: str, checked: dict[str, Checked]) -> None:
    (huge,) = [case for case in checked[name].cases if "more than 2^31 elements" in case.what]
    assert huge.failures == ()
    assert huge.relative <= LIMITS["bfloat16"]


def test_tuning_finds_a_config_that_is_used_from_then_on(tmp_path: Path) -> None:
    header: Header = read(next(file for file in PACK if file.stem == "add_rms_norm"))

    (found,) = tune([header], {"...": 4096, "width": 4096}, "bfloat16")

    (entry,) = found.entries
    assert found.failed == ()
    assert entry.tried == len(load(header.file).configs)
    assert entry.ms > 0.013  # four tensors of 4096 x 4096 in BF16 are 134 MB, and no memory moves 10 TB/s
    gpu = toolchain.machine().gpu
    assert gpu is not None
    assert (entry.gpu, entry.target) == (gpu.name, gpu.target)
    tuned.write(header, tmp_path / "plugins", [entry])
    shapes = {"x": (4000, 4096), "residual": (4000, 4096), "weight": (4096,)}
    best = tuned.best(header, gpu.target, ("bfloat16",) * 3, shapes, gpu=gpu.name, project=tmp_path)
    assert best == entry.config
