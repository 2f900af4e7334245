"""The stage that keeps nodes wide where the budget is missed: what it does again, what it says, what is packed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot import artifact
from aot.artifact import Prepared
from aot.cli import _main as cli
from aot.cli.build import describe
from aot.config import Budget, Recipe
from aot.progress import Silent
from aot.records import Repair
from aot.run import Run
from aot.search import trials
from aot.source import Runner
from aot.stages import repair as stage
from aot.stages import verify
from aot.stages.package import Result, package
from tests.search.planted import Array, Planted, quantized
from tests.tiny import Eager

WIDTH = 32


def planted(folder: Path, *, count: int = 4, lost: Sequence[int] = (2,), budget: Budget | None = None) -> Planted:
    """`count` layers, of which those in `lost` read a channel that is 3000 times the others."""
    random = np.random.default_rng(0)
    weights: dict[str, Any] = {
        f"w{i}": (random.normal(size=(WIDTH, WIDTH)) * np.sqrt(2 / WIDTH)).astype(np.float32) for i in range(count)
    }
    for i in lost:
        weights[f"w{i - 1}"][:, 5] = 3000 * np.abs(weights[f"w{i - 1}"][:, 5])
        weights[f"w{i}"][5, :] /= 3000
    body = " ".join(f"a{i} = MatMul({f'r{i - 1}' if i else 'x'}, w{i}) r{i} = Relu(a{i})" for i in range(count))
    body += f" y = Identity(r{count - 1})"

    def data(rows: int) -> Array:
        return random.normal(size=(rows, WIDTH)).astype(np.float32)

    guilty = frozenset(f"a{i}" for i in lost)
    wanted = budget or Budget(cosine=0.995)
    return Planted(folder, body, weights, data(64), [data(2), data(16)], quantized("int8"), wanted, guilty)


@dataclass
class Steps(Silent):
    """Keeps what a stage says it does."""

    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def step(self, done: int, total: int, what: str = "") -> None:
        self.said.append(what)


def made(one: Planted) -> int:
    """How many trials the store holds."""
    return len(list((one.folder / "trial").glob("*")))


def names(record: Repair) -> set[str]:
    return {row["node"] for row in record.facts["kept"]}


def test_an_unchanged_search_does_nothing_and_says_the_same(tmp_path: Path) -> None:
    one = planted(tmp_path)
    first, before = one.repaired(), made(one)
    one.run = Run(one.run.store, again_said := Silent())
    again = one.repaired()
    assert (first.entry.cached, again.entry.cached) == (False, True)
    assert made(one) == before == first.facts["trials"]
    assert again_said.warnings[0].startswith(
        "kept in fp16 so that the budget holds: node 'a2' (MatMul), module 'net.a2', net.py:7; without it cosine 0"
    )
    assert again_said.warnings[1].startswith("75.0% of the multiply-adds are still in int8 (before: 100.0%)")


def test_a_search_that_was_interrupted_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = planted(tmp_path)
    real, asked = verify.compare_case, 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 4:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(trials, "compare_case", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.repaired()
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "trial").glob("*")}
    assert kept
    assert names(one.repaired()) == {"a2"}
    assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in (tmp_path / "trial").glob("*")}.items()


def test_every_trial_is_told_with_its_number(tmp_path: Path) -> None:
    one = planted(tmp_path, count=12, lost=(3, 7))
    one.run.progress = steps = Steps()
    found = one.repaired()
    told = [what for what in steps.said if "kept wide: budget" in what]
    assert len(told) == found.facts["trials"]
    assert told[0] == "12 kept wide: budget kept, cosine 1.00000"
    assert any("budget missed" in what for what in told)


def test_several_guilty_nodes_are_found_one_by_one(tmp_path: Path) -> None:
    one = planted(tmp_path, count=12, lost=(3, 7))
    found = one.repaired()
    assert names(found) == one.guilty == {"a3", "a7"}
    for row in found.facts["kept"]:
        assert row["without"]["cosine"] < 0.995 <= found.facts["after"]["cosine"]
    assert found.facts["trials"] <= 1 + 4 + 2 * 2 * 3 + 2 * 2
    assert not found.facts["exhausted"]


def test_when_trials_run_out_what_was_not_tried_stays_wide_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = planted(tmp_path, count=12, lost=(3, 7))
    monkeypatch.setattr(stage, "TRIALS", 6)
    found = one.repaired()
    assert found.facts["met"]
    assert found.facts["exhausted"]
    assert found.facts["trials"] == 6
    assert names(found) >= one.guilty


class Scored(Eager):
    """Its metric: minus the mean error on one batch."""

    def __init__(self, x: Array, y: Array) -> None:
        super().__init__()
        self.x, self.y = x, y

    def eager(self) -> Runner:
        return lambda inputs: {"y": self.y}

    def score(self, run: Runner) -> float | None:
        return -float(np.abs(run({"x": self.x})["y"] - self.y).mean() / np.abs(self.y).mean())


def test_a_budget_on_the_models_own_metric_is_kept_too(tmp_path: Path) -> None:
    one = planted(tmp_path, budget=Budget(metric=0.05))
    case = next(one.references.cases())
    scored = Scored(case.inputs["x"], case.outputs["y"])
    scored.spec = replace(one.source.spec, has_metric=True)
    one.source = scored
    found = one.repaired()
    assert found.facts["before"]["missed"].startswith("the metric fell from -0 to -1, by more")
    assert names(found) == {"a2"}
    kept = replace(one.plan, recipe=found.applied(one.recipe))
    assert one.made(kept)[1].facts["metric"]["drop"] <= 0.05


def test_a_strict_recipe_and_fp32_leave_nothing_to_search(tmp_path: Path) -> None:
    assert stage.searchable(quantized("int8"))
    assert stage.searchable(Recipe(precision="bf16"))
    assert not stage.searchable(Recipe(precision="fp32"))
    assert not stage.searchable(quantized("fp8").model_copy(update={"strict": True}))


def packed(one: Planted, output: Path, search: Repair) -> Result:
    plan = replace(one.plan, recipe=search.applied(one.recipe))
    final, checked = one.made(plan)
    prepared = Prepared(one.source.spec, plan, 9, final, one.ranges, one.references, checked, search)
    return package(one.run, prepared, plan, [], [], output)


def test_the_artifact_carries_what_was_found_and_every_form_of_the_report_names_the_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = planted(tmp_path / "store")
    search = one.repaired()
    result = packed(one, tmp_path / "m.aot", search)
    assert result.accepted
    assert result.summary["search"] == search.facts
    back = artifact.load(str(tmp_path / "m.aot"))
    assert back.search == search
    assert back.plan.recipe.placement.keep == ("a2",)
    decisions = {d["node"]: d for d in back.final.facts["decisions"]}
    assert decisions["a2"]["precision"] == "fp16"
    assert "keeps 'a2' wide" in decisions["a2"]["reason"]
    errors = json.loads((tmp_path / "m.aot/search/layers.json").read_text())
    assert max(errors["rows"], key=lambda row: row["share"])["node"] == "a2"

    page, text = (tmp_path / "m.aot/report.html").read_text(), describe(result.summary)
    assert cli.call(["inspect", str(tmp_path / "m.aot")]) == 0
    assert "one node is kept wide for it" in capsys.readouterr().out
    for shown in ("Kept wide so that the budget holds", "net.a2", "net.py:7", "75.0% of the multiply-adds"):
        assert shown in page
    assert "warning: kept" not in text, "the table has it"
    for shown in ("one node is kept wide", "net.a2", "net.py:7", "an estimate, not a measurement", "int8  fp16"):
        assert shown in text


def test_where_no_set_is_enough_every_form_of_the_report_says_so(tmp_path: Path) -> None:
    one = replace(planted(tmp_path / "store"), folder=tmp_path / "off", off=300.0)
    search = one.repaired()
    result = packed(one, tmp_path / "m.aot", search)
    assert not result.accepted
    page = (tmp_path / "m.aot/report.html").read_text()
    assert "No choice of nodes to keep wide meets the budget" in page
    assert "even with every node in fp32" in page
    assert "no choice of nodes to keep wide can meet it" in describe(result.summary)
    assert artifact.load(str(tmp_path / "m.aot")).search == search
