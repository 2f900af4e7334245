"""One pass over the data: the graph is run, and what its values are is counted while the next part runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from aot.errors import CalibrationError
from aot.statistics import Level, NotFinite, Statistics

if TYPE_CHECKING:
    from aot.arrays import Arrays
    from aot.observe import Observed

# Bytes of observed values held at a time, twice: of the part that is looked at, and of the one that runs.
MEMORY = 1 << 26


def watch(
    model: Path,
    batches: Iterable[tuple[int, Arrays]],
    level: Level,
    done: Callable[[int], None],
    memory: int = MEMORY,
    threads: int = 0,
) -> Statistics:
    """What every float value of the ONNX file is on numbered batches; those that layers read at `level`.

    A batch is held at a time, cut so that its observed values take at most about `memory` bytes. The counts of a large
    feature map are those of a lattice of its places (`Observed.lattice`), its extremes those of all of them. `done` is
    told each batch's number. threads: of the run, 0 leaves it to onnxruntime.

    Raises Unfit, a CalibrationError, for the first value in graph order that is NaN or infinite.
    """
    from aot.backends.onnxruntime_tap import Tap
    from aot.observe import float_values

    observed = float_values(model)
    places = {name: observed.lattice.get(name, 1) for name in observed.readings} if level > Level.EXTREMES else {}
    tap = Tap(model, observed.values, observed.cut, places, threads)
    statistics = Statistics(alias=dict(observed.alias))
    with ThreadPoolExecutor(1) as ahead:
        last = None
        for number, (values, sampled) in _ahead(ahead, tap, observed, batches, memory):
            if last is not None and number != last:
                done(last)
            last = number
            _take(statistics, observed, values, sampled, level, number)
        if last is not None:
            done(last)
    return statistics


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


def _ahead(
    pool: ThreadPoolExecutor,
    tap: Callable[[Arrays], tuple[Arrays, Arrays]],
    observed: Observed,
    batches: Iterable[tuple[int, Arrays]],
    memory: int,
) -> Iterator[tuple[int, tuple[Arrays, Arrays]]]:
    """What each part of each batch gives; the next one runs while the last is being looked at."""
    waiting = None
    for number, batch in batches:
        for part in observed.parts(batch, memory):
            running = (number, pool.submit(tap, part))
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = running
    if waiting is not None:
        yield waiting[0], waiting[1].result()


def _take(
    statistics: Statistics, observed: Observed, values: Arrays, sampled: Arrays, level: Level, number: int
) -> None:
    # In graph order: the first value that is not finite is where it began.
    for name in observed.values:
        array, reading = values.pop(name), observed.readings.get(name)
        if not array.size:
            continue
        try:
            if name in observed.cut:
                height, width = (int(dim or 0) for dim in observed.shapes[name][2:])
                statistics.extremes(name, 0.0, float(array.max()), array.size * height * width)
            else:
                statistics.extremes(name, float(array.min()), float(array.max()), array.size)
        except NotFinite as error:
            raise Unfit(name, number, observed.places[name]) from error
        if reading is None or level == Level.EXTREMES:
            continue
        if name in observed.cut:
            array = sampled[name]
        elif (step := observed.lattice.get(name, 1)) > 1:
            array = array[:, :, ::step, ::step]
        statistics.detail(name, array, level, reading)
