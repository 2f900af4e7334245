"""What a comparison stage says of a graph and of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from aot.config import Budget
from aot.errors import DeclarationError, EngineError, ExportError
from aot.sources.onnx_file import OnnxFile
from aot.stages.verify import _unsteady, rejudge, verify_engine, verify_export, verify_graph
from tests.tiny import PLAN, WEIGHT, Eager, Workshop, report_of

if TYPE_CHECKING:
    from aot.arrays import Arrays
    from aot.source import Runner


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path / "store")


def test_a_right_graph_is_accepted_over_all_cases(shop: Workshop) -> None:
    found = shop.prepared().checked.facts
    assert found["ran"]
    assert found["accepted"]
    assert found["cosine"] == pytest.approx(1.0, abs=1e-6)
    assert [case["sizes"] for case in found["cases"]] == [{"batch": 1}, {"batch": 3}]
    assert found["metric"] is None


def test_the_worst_case_decides_and_the_reason_names_case_and_output(shop: Workshop) -> None:
    wrong = WEIGHT.copy()
    wrong[:, 1] = -wrong[:, 1]
    report = shop.prepared(wrong).checked
    assert not report.facts["accepted"]
    detail = report_of(report)
    cosines = [case["outputs"]["y"]["cosine"] for case in detail["cases"]]
    assert report.facts["cosine"] == min(cosines)
    x = np.random.default_rng(3).normal(size=(3, 3)).astype(np.float32)
    a, b = (x @ WEIGHT).astype(np.float64).ravel(), (x @ wrong).astype(np.float64).ravel()
    assert cosines[1] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), rel=1e-5)
    assert any(reason.startswith("case 'b3', output 'y': cosine") for reason in report.facts["reasons"])


def test_the_models_own_metric_is_scored_for_both_and_its_drop_is_judged(shop: Workshop) -> None:
    final, references = shop.graph(), shop.references()
    for limit, accepted in ((0.05, True), (0.01, False)):
        plan = replace(PLAN, budget=Budget(metric=limit))
        facts = verify_graph(shop.run, Eager(iter((0.90, 0.87))), final, references, plan).facts
        assert facts["metric"] == pytest.approx({"eager": 0.90, "graph": 0.87, "drop": 0.03})
        assert facts["accepted"] is accepted


def test_a_metric_budget_without_a_metric_is_missed(shop: Workshop) -> None:
    plan = replace(PLAN, budget=Budget(metric=0.1))
    facts = verify_graph(shop.run, Eager(), shop.graph(), shop.references(), plan).facts
    assert facts["reasons"] == ["the budget limits the model's metric, and the model declares none"]


def test_a_metric_that_is_no_number_is_the_declarations_error(shop: Workshop) -> None:
    with pytest.raises(DeclarationError, match="metric of eager is nan"):
        verify_graph(shop.run, Eager(iter((float("nan"), 1.0))), shop.graph(), shop.references(), PLAN)


def test_an_engine_that_cannot_run_here_says_built_not_run(shop: Workshop) -> None:
    facts = verify_engine(shop.run, shop.engine("sm89"), shop.prepared(), PLAN).facts
    assert facts["ran"] is False
    assert facts["reason"].startswith("built, not run: ")
    assert facts["accepted"]


def test_an_engine_that_runs_is_compared_with_the_travelling_references(shop: Workshop) -> None:
    prepared = shop.prepared()
    good = verify_engine(shop.run, shop.cpu_engine(), prepared, PLAN).facts
    bad = verify_engine(shop.run, shop.cpu_engine(-WEIGHT), prepared, PLAN).facts
    assert (good["ran"], good["accepted"]) == (True, True)
    assert (bad["ran"], bad["accepted"], bad["cosine"]) == (True, False, pytest.approx(-1.0))


def test_an_engines_metric_is_not_run_without_the_source(shop: Workshop) -> None:
    prepared = shop.prepared()
    prepared = replace(prepared, spec=replace(prepared.spec, has_metric=True))
    facts = verify_engine(shop.run, shop.cpu_engine(), prepared, PLAN).facts
    assert facts["metric"] == {"ran": False, "reason": "not run: the model's source did not travel"}


def test_a_report_is_judged_again_under_another_budget(shop: Workshop) -> None:
    facts = shop.prepared(WEIGHT * np.float32(1.1)).checked.facts
    assert facts["accepted"]
    assert rejudge(facts, Budget(cosine=0.999)) == []
    assert rejudge(facts, Budget(relative_l2=0.05)) == ["relative_l2 0.1 is above 0.05"]


def test_an_export_that_differs_from_eager_ends_the_build_before_any_precision_is_given_up(shop: Workshop) -> None:
    right = verify_export(shop.run, Eager(), shop.graph(), shop.references(), PLAN, requantized=False).facts
    assert right["relative_l2"] < 1e-6
    wrong = shop.graph(WEIGHT * np.float32(1.002))
    with pytest.raises(ExportError, match=r"case 'b1', output 'y': relative_l2 0\.00[0-9]+") as caught:
        verify_export(shop.run, Eager(), wrong, shop.references(), PLAN, requantized=False)
    assert "state, randomness or a branch on a size in forward" in str(caught.value)


def test_of_a_file_that_differs_no_forward_is_blamed_but_what_can_be_given_and_left_out(shop: Workshop) -> None:
    class File(Eager):
        suspects = OnnxFile.suspects

    wrong = shop.graph(WEIGHT * np.float32(1.002))
    with pytest.raises(ExportError, match="the exported graph does not do what the model does") as caught:
        verify_export(shop.run, File(), wrong, shop.references(), PLAN, requantized=False)
    fix = caught.value.fix or ""
    assert "forward" not in fix
    assert all(option in fix for option in ("--dim NAME=MIN:OPT:MAX", "--verify-passes", "--without-pass"))


def test_an_export_is_held_no_closer_than_the_model_keeps_at_the_very_case_that_missed(shop: Workshop) -> None:
    class Shaky(Eager):
        """A model that answers a change in the last digit of its inputs with a change of a thousandth."""

        def eager(self) -> Runner:
            def run(inputs: Mapping[str, Any]) -> Arrays:
                return {"y": inputs["x"] @ WEIGHT * np.float32(1.001)}

            return run

    off = shop.graph(WEIGHT * np.float32(1.002))
    facts = verify_export(shop.run, Shaky(), off, shop.references(), PLAN, requantized=False).facts
    assert facts["accepted"]
    assert facts["moved"] == pytest.approx(1e-3, rel=1e-2)
    assert facts["budget"]["relative_l2"] == pytest.approx(4e-3, rel=1e-2)


def test_every_result_of_an_unsteady_graph_moves_in_its_last_digit(shop: Workshop, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    with _unsteady(shop.graph().model, tmp_path, Eager.spec, PLAN) as run:
        off = np.abs(run({"x": x})["y"] - x @ WEIGHT) / np.abs(x @ WEIGHT)
    assert 0 < off.max() < 4 * np.finfo(np.float32).eps
    assert list(tmp_path.glob("*.onnx")) == []


def test_an_engine_is_scored_with_the_models_metric_where_the_source_is_here(shop: Workshop) -> None:
    source = Eager(iter((0.90, 0.90, 0.90, 0.84)))
    prepared = replace(shop.prepared(), spec=source.spec)
    plan = replace(PLAN, budget=Budget(metric=0.05))
    engine = shop.cpu_engine()
    verify_graph(shop.run, source, shop.graph(), shop.references(), plan)
    facts = verify_engine(shop.run, engine, prepared, plan, source).facts
    assert facts["metric"] == pytest.approx({"eager": 0.90, "engine": 0.84, "drop": 0.06})
    assert facts["reasons"] == ["the metric fell from 0.9 to 0.84, by more than 0.05"]


def test_an_engine_is_compared_at_the_sizes_its_profiles_hold(shop: Workshop) -> None:
    narrow = replace(PLAN, profiles=({"batch": (2, 3, 4)},))
    facts = verify_engine(shop.run, shop.cpu_engine(), shop.prepared(), narrow).facts
    assert [case["sizes"] for case in facts["cases"]] == [{"batch": 3}]
    with pytest.raises(EngineError, match="no reference case fits any optimization profile"):
        verify_engine(shop.run, shop.cpu_engine(), shop.prepared(), replace(PLAN, profiles=({"batch": (4, 4, 4)},)))
