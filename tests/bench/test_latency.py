"""benchmarks/latency.py: which cells there are, what is kept, where it goes on. Nothing is built or timed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import _result
from latency import measure as measuring
from latency.cells import PRECISIONS, Cell, cells
from latency.measure import Options, Row, measure
from latency.page import text

from aot.errors import UsageError

EAGER = ("eager",)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_result, "ROOT", tmp_path)
    monkeypatch.setattr(_result, "_command", lambda: "latency.py measure")
    monkeypatch.setattr(measuring, "ROOT", tmp_path)
    (tmp_path / "benchmarks").mkdir()


def result(folder: Path) -> list[Row]:
    return list(json.loads((folder / "benchmarks/results/runtime-latency.json").read_text())["rows"])


def built(cell: Cell, folder: Path, work: Path) -> tuple[list[Path], list[Row]]:
    return [work / f"{precision}.aot" for precision in PRECISIONS[cell.model]], []


def benched(cell: Cell, artifacts: Sequence[Path], options: Options) -> list[Row]:
    rows = [{"tool": "aot", "name": path.stem, "precision": path.stem, "p50_ms": 1.0} for path in artifacts]
    return [*rows, *({"tool": tool, "name": tool, "precision": "fp16", "p50_ms": 2.0} for tool in options.against)]


def ticking(step: float) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += step


def test_every_model_is_measured_at_three_batches_and_text_at_three_lengths_batch_1_first() -> None:
    every = cells()
    assert len(every) == len({(cell.model, cell.batch, cell.length) for cell in every})
    by_model = {model: [cell for cell in every if cell.model == model] for model in PRECISIONS}
    assert {model: len(found) for model, found in by_model.items()} == {
        model: 9 if model in ("bert_base", "minilm", "llama_1b") else 3 for model in PRECISIONS
    }
    assert {cell.batch for cell in every} == {1, 8, 64}
    assert {cell.length for cell in every} == {None, 16, 128, 512}
    assert [cell.model for cell in every[: len(PRECISIONS)]] == list(PRECISIONS)
    assert {cell.batch for cell in every[: len(PRECISIONS)]} == {1}


def test_an_engine_is_tuned_for_its_cell_and_takes_the_smallest_reference() -> None:
    assert Cell("bert_base", {"batch": 8, "seq": 128}).dims == ["batch=1:8:8", "seq=16:128:128"]


def test_rows_are_kept_and_what_is_complete_is_not_measured_again(tmp_path: Path) -> None:
    some = [cell for cell in cells() if cell.model == "resnet50"][:2]
    measured: list[str] = []

    def noted(cell: Cell, artifacts: Sequence[Path], options: Options) -> list[Row]:
        measured.append(cell.label)
        return benched(cell, artifacts, options)

    options = Options(tmp_path, EAGER, budget=100)
    measure(some[:1], options, build_all=built, bench=noted)
    measure(some, options, build_all=built, bench=noted)
    assert measured == ["resnet50 1", "resnet50 64"]
    rows = result(tmp_path)
    assert [(row["batch"], row["tool"], row["precision"]) for row in rows] == [
        (1, "aot", "fp16"), (1, "aot", "int8"), (1, "eager", "fp16"),
        (64, "aot", "fp16"), (64, "aot", "int8"), (64, "eager", "fp16"),
    ]  # fmt: skip
    assert rows[0] == {
        "model": "resnet50",
        "batch": 1,
        "length": None,
        "tool": "aot",
        "precision": "fp16",
        "p50_ms": 1.0,
    }
    measure(some[:1], Options(tmp_path, ("eager", "compile-default"), budget=100), build_all=built, bench=noted)
    assert measured[2:] == ["resnet50 1"]  # another contender was asked for


def test_no_cell_is_begun_beyond_the_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = [cell for cell in cells() if cell.model == "resnet50"]
    clock = ticking(50)
    measure(some, Options(tmp_path, EAGER, budget=100), lambda: next(clock), built, benched)
    assert {row["batch"] for row in result(tmp_path)} == {1, 64}
    assert "the budget is spent before resnet50 8" in capsys.readouterr().out


def test_an_engine_that_is_not_built_and_a_bench_that_refuses_are_rows(tmp_path: Path) -> None:
    def failing(cell: Cell, folder: Path, work: Path) -> tuple[list[Path], list[Row]]:
        return [], [{"tool": "aot", "precision": "fp16", "p50_ms": None, "reason": "no kernel"}]

    def refusing(*_: Any) -> list[Row]:
        raise UsageError("nothing to run")

    measure([Cell("resemblyzer", {"batch": 1})], Options(tmp_path, EAGER, 100), build_all=failing, bench=refusing)
    assert [row["reason"] for row in result(tmp_path)] == ["no kernel", "nothing to run"]


def test_the_table_has_a_line_for_each_cell_and_a_dash_for_what_is_missing() -> None:
    about = {"model": "minilm", "batch": 8, "length": 128}
    rows = [
        about | {"tool": "aot", "precision": "fp8", "p50_ms": 0.12345},
        about | {"tool": "eager", "precision": "fp16", "p50_ms": 4.0},
    ]
    assert text(rows, "p50_ms").splitlines()[2] == "| minilm | 8 | 128 | 4 | - | - | - | - | - | 0.1235 |"
