"""Milliseconds on the GPU, of several things that are run in turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

LEAST, MOST = 15, 100
"""Rounds, however long they take."""


def in_turns(runs: Sequence[Callable[[], None]], seconds: float = 0.2, hopeless: float = math.inf) -> list[list[float]]:
    """Milliseconds of every run of each, between two CUDA events; the first round, a warm-up, is left out.

    Before each the L2 cache is overwritten: in a model something else ran before. That takes longer than it takes to
    enqueue what follows, so that the GPU does not wait in between. seconds: about how long all of it takes. hopeless:
    what takes so many times as long as the fastest in the first round is not run again, and that time is its only one.
    """
    import torch

    cuda: Any = torch.cuda
    spoiled = torch.empty(2 * getattr(cuda.get_device_properties(0), "L2_cache_size", 1 << 27), dtype=torch.int8)
    spoiled = spoiled.cuda()
    first = _round(runs, spoiled)
    cuda.synchronize()
    warm = [begin.elapsed_time(end) for begin, end in first]
    again = worth_repeating(warm, hopeless)
    # Overwriting the cache is not among what is counted, and takes its share.
    once = sum(warm[place] + 0.05 for place in again) / 1e3
    several = [runs[place] for place in again]
    rounds = [_round(several, spoiled) for _ in range(min(max(int(seconds / once), LEAST), MOST))]
    cuda.synchronize()
    found = [[ms] for ms in warm]
    for column, place in enumerate(again):
        found[place] = [one[column][0].elapsed_time(one[column][1]) for one in rounds]
    return found


def worth_repeating(warm: Sequence[float], hopeless: float) -> list[int]:
    """The places of the times that are at most `hopeless` times the least."""
    return [place for place, ms in enumerate(warm) if ms <= hopeless * min(warm)]


def _round(runs: Sequence[Callable[[], None]], spoiled: torch.Tensor) -> list[tuple[Any, Any]]:
    import torch

    cuda: Any = torch.cuda
    events = []
    for run in runs:
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        spoiled.zero_()
        begin.record()
        run()
        end.record()
        events.append((begin, end))
    return events
