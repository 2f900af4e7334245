"""How many times a call makes the CPU start something on the GPU: kernels, or graphs of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from aot.errors import TargetError

if TYPE_CHECKING:
    from aot.bench.contender import Call

CALLS = 3
"""How many are looked at; the median counts."""
_MOVES = ("Memcpy", "Memset")


def counted(call: Call) -> int:
    """Launches of one call, seen by CUPTI through torch's profiler, whoever makes them.

    It slows every later call of the process. Raises TargetError where torch is not installed or sees nothing.
    """
    if importlib.util.find_spec("torch") is None:
        raise TargetError(
            "launches are counted by torch's profiler, and torch is not installed", fix="pip install torch"
        )
    from torch.profiler import ProfilerActivity, profile

    found = []
    for _ in range(CALLS + 1):
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            call.enqueue()
            call.synchronize()
        found.append(launches(seen.profiler.kineto_results.events()))
    middle = sorted(found[1:])[CALLS // 2]  # the first time the profiler is still being set up
    if not middle:
        raise TargetError("torch's profiler saw no kernel", fix="is CUPTI of this CUDA version installed?")
    return middle


def launches(events: Iterable[Any]) -> int:
    """What was launched, of kineto's events.

    All that one launch makes the GPU do carries its correlation id, so a graph counts once, however many kernels it
    has; copies and fills count only inside a graph.
    """
    return len({event.correlation_id() for event in events if _is_kernel(event)})


def _is_kernel(event: Any) -> bool:
    on_gpu = str(event.device_type()).endswith("CUDA")
    return on_gpu and event.correlation_id() != 0 and not str(event.name()).startswith(_MOVES)
