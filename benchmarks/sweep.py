"""Every family of models that three libraries hold: exported, equal to eager at several sizes, and built.

    python benchmarks/sweep.py [--library NAME] [--only MODEL] [--resume] [--jobs N] [--until graph]

Each model is the smallest of its family, with random weights and the Dims that it allows, and goes the way that a
user's would: `aot build model.py --precision fp32 --backend tensorrt_rtx --target sm89`, in a process of its own.
`exported`: torch.export and the translation held every Dim. `equal`: the graph gives on onnxruntime what eager
gives, at the minimum, the optimum and the maximum of every Dim and at a size never used before. `built`: an engine
came out. Writes benchmarks/results/sweep-models.json after each model. `--show MODEL` prints its model.py instead.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from _result import ROOT, commit, write
from sweep import page, worker
from sweep.member import Library

LIBRARIES = ("torchvision", "detectors", "timm", "transformers", "modules")
NAME = "sweep-models"
RESULT = ROOT / "benchmarks/results" / f"{NAME}.json"
COMMAND = "python benchmarks/sweep.py"

Key = tuple[str, str]


def main() -> int:
    """Try the models asked for; exit code 1 where the share of a library is below its goal."""
    arguments = _arguments()
    libraries: list[Library] = [
        importlib.import_module(f"sweep.{name}").LIBRARY for name in arguments.library or LIBRARIES
    ]
    wanted = [
        (library.name, member)
        for library in libraries
        for member in library.members
        if not arguments.only or member.name in arguments.only
    ]
    if arguments.show:
        print(next(m.declaration() for _, m in wanted if m.name == arguments.show))
        return 0
    rows = _earlier()
    todo = [(library, member) for library, member in wanted if _undone(rows.get((library, member.name)), arguments)]
    os.environ["OMP_NUM_THREADS"] = "1"
    context = worker.start(libraries)
    at = commit()  # rows of earlier runs may be of another
    order = [(library.name, member.name) for library in libraries for member in library.members]
    with ThreadPoolExecutor(max_workers=arguments.jobs) as pool:
        running = [
            pool.submit(worker.tried, context, library, member, arguments.timeout, arguments.until)
            for library, member in todo
        ]
        for done, future in enumerate(as_completed(running), start=1):
            row = {**future.result(), "commit": at}
            rows[row["library"], row["model"]] = row
            print(f"[{done}/{len(todo)}] {page.line(row)}", flush=True)
            write(NAME, _ordered(rows, order), COMMAND)
    kept = _ordered(rows, order)
    page.update(ROOT / "benchmarks/README.md", kept)
    print(page.table(kept), *page.misses(kept), sep="\n")
    return 0 if page.reached(kept) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", action="append", choices=LIBRARIES, help="this library only; may be repeated")
    parser.add_argument("--only", action="append", metavar="MODEL", help="this model only; may be repeated")
    parser.add_argument("--resume", action="store_true", help="leave out the models that have a row already")
    parser.add_argument("--misses", action="store_true", help="only the models whose row is a miss")
    parser.add_argument("--jobs", type=int, default=1, help="how many models side by side (default: 1)")
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds for one model (default: 240)")
    parser.add_argument("--until", choices=("graph",), help="build no engines")
    parser.add_argument("--show", metavar="MODEL", help="print the model.py of a model, and do nothing")
    return parser.parse_args()


def _earlier() -> dict[Key, dict[str, Any]]:
    """The rows written before, by library and model."""
    if not RESULT.exists():
        return {}
    return {(row["library"], row["model"]): row for row in json.loads(RESULT.read_text())["rows"]}


def _undone(row: dict[str, Any] | None, arguments: argparse.Namespace) -> bool:
    """Whether a model still has to be tried."""
    if row is None:
        return not arguments.misses
    unfinished = row["built"] is None and arguments.until is None
    if arguments.misses:
        return row["reason"] is not None
    return unfinished or not arguments.resume


def _ordered(rows: dict[Key, dict[str, Any]], order: Sequence[Key]) -> list[dict[str, Any]]:
    """Rows in the order of the libraries' lists; those of other libraries keep their place."""
    rank = {key: index for index, key in enumerate(order)}
    place = {library: index for index, library in enumerate(LIBRARIES)}
    return [rows[key] for key in sorted(rows, key=lambda key: (place.get(key[0], 9), rank.get(key, 0)))]


if __name__ == "__main__":
    sys.exit(main())
