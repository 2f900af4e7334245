"""Calls by the clock, in the process that makes them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aot.bench.contender import Call

Clock = Callable[[], float]

WINDOW_SECONDS, WINDOW_RUNS = 0.02, 3
"""How long a window of warm-up lasts at least, and how many runs it has."""
WINDOWS = 3
"""So many windows in a row have to agree."""
AGREE = 0.03
"""How far apart their medians may be, as a share of the smallest."""
WARM_LIMIT = 5.0
"""Seconds after which warm-up ends, steady or not."""

CHUNK_SECONDS = 0.02
"""Between looks at the clock, while calls follow one another."""


@dataclass(frozen=True)
class Warm:
    """How a warm-up went. once: seconds of a run, the least median of the last windows, for what else the
    machine does only adds; runs: how many there were."""

    once: float
    runs: int
    steady: bool


def once(call: Call, clock: Clock = time.perf_counter) -> float:
    """Seconds from the call to its result: what somebody who waits for it sees."""
    started = clock()
    call.enqueue()
    call.synchronize()
    return clock() - started


def warmed(call: Call, clock: Clock = time.perf_counter) -> Warm:
    """Run until the medians of the last windows agree, or the limit is over."""
    began, runs = clock(), 0
    medians: list[float] = []
    while True:
        window: list[float] = []
        opened = clock()
        while len(window) < WINDOW_RUNS or clock() - opened < WINDOW_SECONDS:
            window.append(once(call, clock))
        runs += len(window)
        medians.append(median(window))
        last = medians[-WINDOWS:]
        steady = len(last) == WINDOWS and max(last) - min(last) <= AGREE * min(last)
        if steady or clock() - began >= WARM_LIMIT:
            return Warm(min(last), runs, steady)


def block(call: Call, runs: int, clock: Clock = time.perf_counter) -> list[float]:
    """Seconds of consecutive runs, each by itself. Another's block came before: a tenth more runs, and at least one,
    go ahead that do not count."""
    for _ in range(max(1, runs // 10)):
        once(call, clock)
    return [once(call, clock) for _ in range(runs)]


def back_to_back(call: Call, seconds: float, estimate: float, clock: Clock = time.perf_counter) -> tuple[int, float]:
    """(calls, seconds) of calls that do not wait for one another, for about so many `seconds`; one run takes about
    `estimate`."""
    chunk, calls = max(1, round(CHUNK_SECONDS / max(estimate, 1e-9))), 0
    once(call, clock)
    started = clock()
    while clock() - started < seconds:
        for _ in range(chunk):
            call.enqueue()
        calls += chunk
    call.synchronize()
    return calls, clock() - started
