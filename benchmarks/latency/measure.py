"""Every cell: its engines, built for its size, then `aot bench`; rows are written as they come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _result import ROOT, write

from latency.cells import PRECISIONS, Cell

Row = dict[str, Any]
AOT = [sys.executable, "-c", "import sys; from aot.cli import main; sys.exit(main())"]
NAME = "runtime-latency"
_APART = ("name", "sizes")


@dataclass(frozen=True)
class Options:
    """folder: the prepared artifacts. budget: seconds after which nothing new is begun. effort: of `aot bench`."""

    folder: Path
    against: Sequence[str]
    budget: float
    seconds: float = 3.0
    again: bool = False
    name: str = NAME


def prepare(folder: Path, model: str, precision: str) -> Path:
    """The prepared artifact of a model, made unless it is there. Raises RuntimeError with what aot said.

    Its accuracy is a row's figure, not a condition.
    """
    target = folder / f"{model}-{precision}.aot"
    if not target.exists():
        lenient = ["--no-search", "--budget", "cosine=0", "--budget", "relative_l2=100"]
        _aot("build", f"latency.models:{model}", "--precision", precision, "--until", "graph", *lenient, "-o", target)
    return target


def build(prepared: Path, cell: Cell, output: Path) -> None:
    """The engine for one size, on this machine's GPU. Raises RuntimeError with what aot said."""
    dims = [word for dim in cell.dims for word in ("--dim", dim)]
    _aot("build", prepared, *dims, "-o", output)


def _aot(*arguments: object) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks"), *sys.path])
    done = subprocess.run(
        [*AOT, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(" ".join(done.stderr.split())[-400:])


def engines(cell: Cell, folder: Path, work: Path) -> tuple[list[Path], list[Row]]:
    """The artifacts that `aot bench` is given; rows for those that cannot be built, with the reason."""
    built, failed = [], []
    for precision in PRECISIONS[cell.model]:
        output = work / f"{cell.model}-{precision}.aot"
        try:
            build(prepare(folder, cell.model, precision), cell, output)
            built.append(output)
        except RuntimeError as error:
            failed.append({"tool": "aot", "precision": precision, "p50_ms": None, "reason": str(error)})
    return built, failed


def compare(cell: Cell, artifacts: Sequence[Path], options: Options) -> list[Row]:
    """The rows of `aot bench` at the cell's size; torch computes in FP16, as the engines do where they can."""
    from aot.bench import bench
    from aot.bench.measuring import Effort
    from aot.progress import Silent
    from aot.run import Run
    from aot.store import Store

    asked = bench.Options(
        [str(path) for path in artifacts],
        model=f"latency.models:{cell.model}",
        against=options.against,
        sizes=[cell.sizes],
        precision="fp16",
        effort=Effort(None, options.seconds),
    )
    return list(bench.bench(asked, Run(Store(), Silent()))["rows"])


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a row is of."""
    return tuple(row.get(field) for field in ("model", "batch", "length", "tool", "precision"))


def kept(name: str) -> list[Row]:
    """The rows of the kept result."""
    path = ROOT / "benchmarks/results" / f"{name}.json"
    return list(json.loads(path.read_text())["rows"]) if path.exists() else []


def measure(
    cells: Sequence[Cell],
    options: Options,
    clock: Callable[[], float] = time.monotonic,
    build_all: Callable[[Cell, Path, Path], tuple[list[Path], list[Row]]] = engines,
    bench: Callable[[Cell, Sequence[Path], Options], list[Row]] = compare,
) -> list[Row]:
    """Measure the cells that the kept result lacks, until the budget is spent; returns all rows."""
    from aot.errors import AotError

    started = clock()
    rows = {key(row): row for row in kept(options.name)}
    for cell in cells:
        about = {"model": cell.model, "batch": cell.batch, "length": cell.length}
        if not options.again and _complete(about, options.against, rows):
            continue
        if clock() - started > options.budget:
            print(f"the budget is spent before {cell.label}; the same command goes on", flush=True)
            break
        with tempfile.TemporaryDirectory() as scratch:
            artifacts, found = build_all(cell, options.folder, Path(scratch))
            try:
                found += bench(cell, artifacts, options)
            except AotError as error:
                found.append({"tool": "bench", "precision": None, "p50_ms": None, "reason": str(error)})
        for row in found:
            whole = about | {field: value for field, value in row.items() if field not in _APART}
            rows[key(whole)] = whole
            print(json.dumps(whole), flush=True)
        write(options.name, list(rows.values()))
    return list(rows.values())


def _complete(about: Mapping[str, Any], against: Sequence[str], rows: Mapping[tuple[Any, ...], Row]) -> bool:
    """Whether each contender and each engine has a row already."""
    here = [row for row in rows.values() if all(row.get(field) == value for field, value in about.items())]
    engines = {row["precision"] for row in here if row["tool"] == "aot"}
    return engines >= set(PRECISIONS[about["model"]]) and {row["tool"] for row in here} >= set(against)
