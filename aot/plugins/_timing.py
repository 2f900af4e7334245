"""Milliseconds on the GPU, of several things that are run in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

LEAST, MOST = 15, 100
"""Rounds, however long they take."""


def in_turns(runs: Sequence[Callable[[], None]], seconds: float = 0.2) -> list[list[float]]:
    """Milliseconds of every run of each, between two CUDA events; the first round, a warm-up, is left out.

    Before each the L2 cache is overwritten: in a model something else ran before. That takes longer than it takes to
    enqueue what follows, so that the GPU does not wait in between. seconds: about how long all of it takes.
    """
    import torch

    cuda: Any = torch.cuda
    spoiled = torch.empty(2 * getattr(cuda.get_device_properties(0), "L2_cache_size", 1 << 27), dtype=torch.int8)
    spoiled = spoiled.cuda()
    first = _round(runs, spoiled)
    cuda.synchronize()
    # Overwriting the cache is not among what is counted, and takes its share.
    once = sum(begin.elapsed_time(end) + 0.05 for begin, end in first) / 1e3
    rounds = [_round(runs, spoiled) for _ in range(min(max(int(seconds / once), LEAST), MOST))]
    cuda.synchronize()
    return [[one[place][0].elapsed_time(one[place][1]) for one in rounds] for place in range(len(runs))]


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
