"""One pass over the data: parts of it run side by side, each in a thread that then counts what the values are."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from aot.errors import CalibrationError
from aot.statistics import Level, NotFinite, Statistics

if TYPE_CHECKING:
    import numpy as np

    from aot.arrays import Arrays
    from aot.backends.onnxruntime_tap import Tap
    from aot.observe import Observed

# Bytes of observed values that a part holds, and how many parts run at a time: while one is counted, another runs.
MEMORY = 1 << 25
BESIDE = 2
# Values looked at at a time: for the largest they are still in the cache where they were read for the smallest.
_CHUNK = 1 << 18


def watch(
    model: Path,
    batches: Iterable[tuple[int, Arrays]],
    level: Level,
    done: Callable[[int], None],
    memory: int = MEMORY,
    threads: int = 0,
) -> Statistics:
    """What every float value of the ONNX file is on numbered batches; those that layers read at `level`.

    A batch is held at a time, cut so that the observed values of a part take at most about `memory` bytes. The counts
    of a large feature map are those of a lattice of its places (`Observed.lattice`), its extremes those of all of them.
    `done` is told each batch's number. threads: at work at a time, 0 for one a core.

    Raises Unfit, a CalibrationError, for the first value in graph order that is NaN or infinite.
    """
    from aot.backends.onnxruntime_tap import Tap
    from aot.observe import float_values

    observed = float_values(model, gains=level >= Level.WEIGHTED)
    places = {name: observed.lattice.get(name, 1) for name in observed.readings} if level > Level.EXTREMES else {}
    threads = threads or os.cpu_count() or 1
    beside = min(BESIDE, threads)
    # Those that run share what else there is: one thread each needs nobody to wait for.
    tap = Tap(model, observed.values, observed.cut, places, threads - beside + 1)
    watcher = _Watcher(tap, observed, level)
    running: deque[tuple[int | None, Future[None]]] = deque()

    def finish() -> None:
        number, future = running.popleft()
        future.result()
        if number is not None:
            done(number)

    pool = ThreadPoolExecutor(beside)
    try:
        for number, batch in batches:
            parts = list(observed.parts(batch, memory, beside))
            for index, part in enumerate(parts):
                last = number if index == len(parts) - 1 else None
                running.append((last, pool.submit(watcher.look, part, number)))
                if len(running) > beside:  # one waits, so that nobody does for it
                    finish()
        while running:
            finish()
    finally:
        pool.shutdown(cancel_futures=True)
    return watcher.statistics


class Unfit(CalibrationError):
    """A value is NaN or infinite. batch: its number."""

    def __init__(self, name: str, batch: int, where: str) -> None:
        super().__init__(
            f"value '{name}' is NaN or infinite on calibration batch {batch}",
            where=where,
            fix="check the batch and the model in FP32 at this place: a range cannot be taken from it",
        )
        self.name, self.batch = name, batch

    def __reduce__(self) -> tuple[type[Unfit], tuple[str, int, str]]:
        """So that it can come from another process."""
        return Unfit, (self.name, self.batch, self.where or "")


@dataclass
class _Watcher:
    """Runs parts and counts what it sees, in any number of threads: one at a time takes a value into account."""

    tap: Tap
    observed: Observed
    level: Level
    statistics: Statistics = field(init=False)

    def __post_init__(self) -> None:
        self.statistics = Statistics(alias=dict(self.observed.alias))
        self._locks = {name: Lock() for name in self.observed.values}

    def look(self, part: Arrays, number: int) -> None:
        """Run one part of a batch, and take into account what its values are."""
        observed = self.observed
        values, sampled = self.tap(part)
        # In graph order: the first value that is not finite is where it began.
        for name in observed.values:
            array = values.pop(name)
            if not array.size:
                continue
            low, high = _extremes(array)
            count = array.size
            if name in observed.cut:
                low, count = 0.0, count * math.prod(int(dim or 0) for dim in observed.shapes[name][2:])
            with self._locks[name]:
                try:
                    self.statistics.extremes(name, low, high, count)
                except NotFinite as error:
                    raise Unfit(name, number, observed.places[name]) from error
                reading = observed.readings.get(name)
                if reading is None or self.level == Level.EXTREMES:
                    continue
                if name in observed.cut:
                    array = sampled.pop(name)
                elif (step := observed.lattice.get(name, 1)) > 1:
                    array = array[:, :, ::step, ::step]
                self.statistics.detail(name, array, self.level, reading)


def _extremes(array: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The smallest and the largest value; NaN where there is one, so that no copy of the tensor tells whether."""
    import numpy as np

    if not array.flags.c_contiguous or array.size <= _CHUNK:
        return float(array.min()), float(array.max())
    flat = array.reshape(-1)
    chunks = [flat[start : start + _CHUNK] for start in range(0, flat.size, _CHUNK)]
    ends = np.array([(chunk.min(), chunk.max()) for chunk in chunks], np.float64)
    return float(ends[:, 0].min()), float(ends[:, 1].max())
