"""Which batches ranges are taken from, and which are kept back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aot.config import EngineOptions, Recipe, Verify
from aot.plan import Plan
from aot.records import Data
from aot.stages.collect import collect
from tests.sources.projects import LINEAR, Bench, write


def plan(**verify: object) -> Plan:
    from aot.config import Budget

    return Plan(
        precision="fp32",
        recipe=Recipe(precision="fp32"),
        profiles=({"batch": (1, 4, 8)},),
        backend=None,
        targets=(),
        engine=EngineOptions(),
        budget=Budget(),
        verify=Verify.model_validate(verify),
    )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "store")


def collected(bench: Bench, tmp_path: Path, count: int) -> Data:
    text = (
        LINEAR
        + f"""
    @linear.calibration
    def batches():
        for i in range({count}):
            yield {{"input": torch.full((1 + i % 3, 3), float(i))}}
"""
    )
    source = bench.open(write(tmp_path / "model.py", text))
    return collect(bench.run, source, plan())


@pytest.mark.parametrize(("count", "heldout"), [(1, []), (2, [1]), (3, [2]), (4, [3]), (9, [3, 7])])
def test_every_fourth_is_held_out_and_one_of_two(bench: Bench, tmp_path: Path, count: int, heldout: list[int]) -> None:
    data = collected(bench, tmp_path, count)
    assert [int(batch["input"][0, 0]) for batch in data.heldout()] == heldout
    rest = [i for i in range(count) if i not in heldout]
    assert [int(batch["input"][0, 0]) for batch in data.calibration()] == rest
    assert not data.facts["generated"]
    assert bool(bench.warnings) == (count == 1)


def test_the_sizes_are_known(bench: Bench, tmp_path: Path) -> None:
    assert collected(bench, tmp_path, 5).facts["sizes"] == {"batch": [1, 2, 3]}


def test_an_unchanged_source_collects_nothing(bench: Bench, tmp_path: Path) -> None:
    first = collected(bench, tmp_path, 5)
    again = collected(bench, tmp_path, 5)
    assert again.entry.cached
    assert again.key == first.key


def test_data_are_generated_where_none_are_declared_and_that_is_said(bench: Bench, tmp_path: Path) -> None:
    source = bench.open(write(tmp_path / "model.py", LINEAR))
    data = collect(bench.run, source, plan())
    assert data.facts["generated"]
    assert "generated" in bench.warnings[0]
    batches = list(data.calibration())
    assert {batch["input"].shape for batch in batches} == {(4, 3)}
    assert len({batch["input"].tobytes() for batch in batches}) == len(batches)
    np.testing.assert_array_equal(next(collect(bench.run, source, plan()).calibration())["input"], batches[0]["input"])
