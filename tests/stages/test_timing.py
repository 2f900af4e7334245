"""How long engines run: what is measured, and when it is measured again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot import toolchain
from aot.backends import onnxruntime as backend
from aot.run import Run
from aot.stages.timing import FEWEST, MOST, in_turns, time_engines
from aot.toolchain import Machine
from tests.tiny import PLAN, SPEC, WEIGHT, Workshop

PROFILES = ({"batch": (1, 1, 2)}, {"batch": (2, 3, 4)})


def clock(milliseconds: float, calls: list[int]) -> Callable[[int], float]:
    """An engine whose every run takes so long."""

    def run(times: int) -> float:
        calls.append(times)
        return times * milliseconds / 1e3

    return run


class TestTurns:
    def test_the_answer_is_the_time_of_one_run(self) -> None:
        assert in_turns({"a": clock(2.0, []), "b": clock(0.25, [])}) == {"a": 2.0, "b": 0.25}

    def test_a_short_run_is_repeated_until_a_sample_lasts_five_milliseconds(self) -> None:
        calls: list[int] = []
        in_turns({"a": clock(0.01, calls)})
        assert calls == [1, 1, *[500] * MOST]

    def test_a_long_run_is_taken_a_few_times_only(self) -> None:
        calls: list[int] = []
        in_turns({"a": clock(3000.0, calls)})
        assert calls == [1, 1, *[1] * FEWEST]

    def test_a_machine_that_is_slow_for_a_while_slows_all_of_them(self) -> None:
        done: list[str] = []

        def drifting(name: str) -> Callable[[int], float]:
            def run(times: int) -> float:
                done.append(name)
                return times * (1.0 if len(done) < 50 else 3.0) * 1e-2

            return run

        found = in_turns({"a": drifting("a"), "b": drifting("b")})

        assert done[4:8] == ["a", "b", "a", "b"]
        assert found["a"] == found["b"]

    def test_an_odd_sample_does_not_count(self) -> None:
        samples = iter([1e-2] * 5 + [9.0] + [1e-2] * 100)
        assert in_turns({"a": lambda times: next(samples)}) == {"a": 10.0}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    monkeypatch.setattr("aot.stages.timing.SECONDS", 0.05)
    return Workshop(tmp_path / "store")


class TestStage:
    def test_every_engine_is_timed_at_the_optimum_of_every_profile(
        self, shop: Workshop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken: list[tuple[int, ...]] = []
        stopwatch = backend.CpuSession.stopwatch

        def watched(self: backend.CpuSession, inputs: Mapping[str, Any]) -> Callable[[int], float]:
            taken.append(inputs["x"].shape)
            return stopwatch(self, inputs)

        monkeypatch.setattr(backend.CpuSession, "stopwatch", watched)
        engines = {"fp16": shop.cpu_engine(), "int8": shop.cpu_engine(WEIGHT * 2)}

        facts = time_engines(shop.run, engines, SPEC, replace(PLAN, profiles=PROFILES)).facts

        assert facts["sizes"] == [{"batch": 1}, {"batch": 3}]
        assert facts["on"] == toolchain.machine().cpu
        assert {name: len(ms) for name, ms in facts["ms"].items()} == {"fp16": 2, "int8": 2}
        assert taken == [(1, 3), (1, 3), (3, 3), (3, 3)]

    def test_times_are_kept_for_the_machine_and_its_driver(
        self, shop: Workshop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engines = {"fp16": shop.cpu_engine(), "int8": shop.cpu_engine(WEIGHT * 2)}

        def timed(run: Run) -> bool:
            return time_engines(run, engines, SPEC, PLAN).entry.cached

        assert not timed(shop.run)
        assert timed(shop.run)
        monkeypatch.setattr(toolchain, "machine", lambda: Machine(None, None, "another CPU"))
        assert not timed(shop.run)
        monkeypatch.setattr(toolchain, "machine", lambda: Machine(None, "a new driver", "another CPU"))
        assert not timed(shop.run)
        assert timed(shop.run)


def test_a_stopwatch_runs_as_often_as_it_is_told(shop: Workshop) -> None:
    with backend.BACKEND.open(shop.cpu_engine().plan, SPEC, PLAN.profiles) as session:
        run = session.stopwatch({"x": np.ones((2, 3), np.float32)})
        counted: list[None] = []
        inner = session._session  # type: ignore[attr-defined]

        class Counting:
            def run(self, outputs: list[str], feed: dict[str, np.ndarray]) -> object:
                counted.append(None)
                return inner.run(outputs, feed)

        session._session = Counting()  # type: ignore[attr-defined]
        assert run(7) > 0
        assert len(counted) == 7
