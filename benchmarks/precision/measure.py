"""Building and timing every cell: a worker for each GPU takes the next, and every row is written as it comes."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from _engine import make_noise
from _result import write

from precision.page import Row, kept, key
from precision.prepare import Cell
from precision.worker import Worker, inspect, make, times

# Seconds beside the build itself: the first of a process loads TensorRT.
START = 60


@dataclass(frozen=True)
class Options:
    """folder: the prepared graphs. timeout: seconds for one engine. level: the builder's optimization level."""

    folder: Path
    timeout: float = 180
    level: int = 3
    profile: bool = False


class Caller(Protocol):
    """A `Worker`, or what stands in for one."""

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], timeout: float) -> Any:
        """See `Worker.call`."""

    def close(self) -> None:
        """See `Worker.close`."""


def measure(
    cells: Sequence[Cell],
    recipes: Sequence[str],
    options: Options,
    *,
    gpus: int,
    name: str,
    missing: bool,
    worker: Callable[[int], Caller] = Worker,
) -> list[Row]:
    """Measure the cells and write the result, rows of other cells that it holds kept. Returns all rows."""
    make_noise(options.folder)
    rows = {key(row): row for row in kept(name)}
    if missing:
        cells = [cell for cell in cells if any(key(_about(cell, recipe)) not in rows for recipe in recipes)]
    waiting, lock = list(cells), threading.Lock()

    def note(found: Sequence[Row]) -> None:
        with lock:
            for row in found:
                rows[key(row)] = row
                print(json.dumps({field: row[field] for field in row if field not in _LONG}), flush=True)
            write(name, list(rows.values()))

    def work(gpu: int) -> None:
        one = worker(gpu)
        try:
            while True:
                with lock:
                    if not waiting:
                        return
                    cell = waiting.pop(0)
                for part in measured(cell, recipes, options, one):
                    note(part)
        finally:
            one.close()

    threads = [threading.Thread(target=work, args=(gpu,)) for gpu in range(gpus)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return list(rows.values())


# What a line on the terminal has no room for.
_LONG = ("wide", "qdq_layers", "reformats", "slowest")


def measured(cell: Cell, recipes: Sequence[str], options: Options, worker: Caller) -> Iterator[list[Row]]:
    """Yield rows of the cell as they come: each engine once it is built, then all again with their times."""
    rows: dict[str, Row] = {}
    with tempfile.TemporaryDirectory() as scratch:
        plans: dict[str, Path] = {}
        for recipe in recipes:
            graph = options.folder / f"{cell.model}.{recipe}.onnx"
            plan = Path(scratch) / f"{recipe}.plan"
            row = rows[recipe] = _about(cell, recipe) | {"level": options.level}
            try:
                row |= worker.call(make, (graph, cell.dims, plan, options.level), options.timeout + START)
                plans[recipe] = plan
                row |= {"built": True, **worker.call(inspect, (graph, cell.dims, plan, options.profile), START)}
                _keep(plan.with_suffix(".json"), options.folder / "layers", f"{cell.label} {recipe}")
            except RuntimeError as error:
                row |= {"built": recipe in plans, "reason": str(error)}
            yield [row]
        if plans:
            try:
                timed = worker.call(times, (plans, cell.dims), START * 2)
            except RuntimeError as error:
                timed = {recipe: {"reason": str(error)} for recipe in plans}
            yield [rows[recipe] | found for recipe, found in timed.items()]


def _about(cell: Cell, recipe: str) -> Row:
    sizes = {"batch": cell.batch} | ({} if cell.length is None else {"length": cell.length})
    return {"model": cell.model, "tool": "aot", "precision": recipe, **sizes}


def _keep(source: Path, folder: Path, label: str) -> None:
    """Keep what the inspector said in full, in the prepared folder."""
    folder.mkdir(exist_ok=True)
    (folder / f"{label.replace(' ', '-')}.json").write_text(source.read_text())
