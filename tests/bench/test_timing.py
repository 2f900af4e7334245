"""Calls by a clock that only they move."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import TYPE_CHECKING

import pytest

from aot.bench import timing
from aot.bench.contender import Call

if TYPE_CHECKING:
    from aot.arrays import Arrays


class Fake(Call):
    """Starting a run takes `start` seconds and the run itself what `durations` says next; it works through its queue
    one run after the other, as a GPU does."""

    def __init__(self, durations: Iterator[float], start: float = 0.0) -> None:
        self.now, self.runs = 0.0, 0
        self._free = 0.0
        self._durations, self._start = durations, start

    def clock(self) -> float:
        return self.now

    def enqueue(self) -> None:
        self.now += self._start
        self._free = max(self._free, self.now) + next(self._durations)
        self.runs += 1

    def synchronize(self) -> None:
        self.now = max(self.now, self._free)

    def outputs(self) -> Arrays:
        raise NotImplementedError


def test_a_run_lasts_from_its_start_to_its_result() -> None:
    call = Fake(repeat(0.25), start=0.125)
    assert timing.once(call, call.clock) == 0.375


def test_a_block_leaves_out_the_runs_that_come_after_anothers_block() -> None:
    call = Fake(chain([9.0, 9.0], repeat(1.0)))
    assert timing.block(call, 20, call.clock) == [1.0] * 20
    assert call.runs == 22


@pytest.mark.parametrize("runs", [1, 5])
def test_at_least_one_is_left_out(runs: int) -> None:
    call = Fake(chain([9.0], repeat(1.0)))
    assert timing.block(call, runs, call.clock) == [1.0] * runs


def test_warm_up_ends_once_three_windows_agree() -> None:
    compiling, settling = [3.0], [0.02, 0.018, 0.016, 0.014, 0.012, 0.011]
    call = Fake(chain(compiling, settling, repeat(0.0101)))
    warm = timing.warmed(call, call.clock)
    assert warm.steady
    assert warm.once == pytest.approx(0.0101)
    assert 7 < warm.runs < 30


def test_warm_up_that_never_agrees_ends_at_the_limit_and_says_so() -> None:
    growing = (0.01 * 1.1**number for number in range(10_000))
    call = Fake(growing)
    warm = timing.warmed(call, call.clock)
    assert not warm.steady
    assert timing.WARM_LIMIT <= call.now < timing.WARM_LIMIT * 1.5


def test_fast_calls_fill_a_window_of_time() -> None:
    call = Fake(repeat(0.0001))
    assert timing.warmed(call, call.clock).runs >= timing.WINDOWS * timing.WINDOW_SECONDS / 0.0001


@pytest.mark.parametrize(("start", "run"), [(0.003, 0.001), (0.001, 0.003)])
def test_back_to_back_the_slower_of_starting_and_running_counts(start: float, run: float) -> None:
    call = Fake(repeat(run), start)
    calls, seconds = timing.back_to_back(call, 1.0, start + run, call.clock)
    assert calls / seconds == pytest.approx(1 / 0.003, rel=0.01)
    assert seconds >= 1.0
