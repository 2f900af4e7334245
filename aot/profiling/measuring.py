"""Timing a session twice: as it is, and layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aot.backend import LayerTime, Session

_SECONDS, _LEAST, _MOST = 1.0, 5, 200
_ROUNDS = 5


def measure(session: Session, inputs: Mapping[str, Any]) -> tuple[float, list[LayerTime], int]:
    """(milliseconds of a run without the profiler, the layers with it, how many runs each is the median of).

    As many runs as take about a second. Without the profiler runs follow one behind the other, in a few rounds, of
    which the median counts. Raises EngineError as a call does.
    """
    watch = session.stopwatch(inputs)
    watch(1)
    runs = max(_LEAST, min(_MOST, int(_SECONDS / max(watch(1), 1e-9))))
    each = max(runs // _ROUNDS, 1)
    plain = median(watch(each) / each for _ in range(_ROUNDS)) * 1000
    return plain, session.layer_times(inputs, runs), runs
