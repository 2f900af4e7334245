"""Graph surgery against its peers: onnxslim, onnxsim, ONNXScript's optimizer and aot, on the same files.

    python benchmarks/surgery.py [--only MODEL] [--tool TOOL] [--resume] [--keep FOLDER]

Each tool rewrites each model in a process of its own, with one thread. A row has the nodes before and left (all but
Constant, subgraphs included), CPU seconds of the rewriting alone (median of three runs where one takes less than
5 s), the peak of memory over what the imports take, and the largest difference of any output to the original's on
onnxruntime, without onnxruntime's own rewrites, at two sizes of every Dim. Models are exported into build/surgery
once; needs what `make bench-surgery` installs, and says of a model whose package is missing that it was not run.
Writes benchmarks/results/surgery.json and the tables of benchmarks/README.md; exit code 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _result import ROOT, commit, write
from surgery import page
from surgery.models import MODELS
from surgery.tools import TOOLS

NAME = "surgery"
RESULT = ROOT / "benchmarks/results" / f"{NAME}.json"
CACHE = ROOT / "build/surgery"
TIMEOUT = 600.0
"""Seconds for one tool on one model, imports and saving included."""

Key = tuple[str, str]
Row = dict[str, Any]


def main() -> int:
    """Measure what is asked for, and write."""
    arguments = _arguments()
    tools, rows, at = arguments.tool or list(TOOLS), _earlier(), commit()
    for model in arguments.only or MODELS:
        todo = [tool for tool in tools if not (arguments.resume and (model, tool) in rows)]
        for row in _measured(model, todo, arguments.keep) if todo else ():
            rows[model, row["tool"]] = {**row, "commit": at}
            print(page.line(row), flush=True)
        ordered = [rows[model, tool] for model in MODELS for tool in TOOLS if (model, tool) in rows]
        write(NAME, ordered, "python benchmarks/surgery.py")
    page.update(ROOT / "benchmarks/README.md", ordered)
    print(page.text(ordered))
    return 1 if page.misses(ordered) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=MODELS, metavar="MODEL", help="may be repeated")
    parser.add_argument("--tool", action="append", choices=TOOLS, help="may be repeated; rows of the others stay")
    parser.add_argument("--resume", action="store_true", help="leave out what has a row already")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the rewritten files, as MODEL/TOOL.onnx")
    return parser.parse_args()


def _earlier() -> dict[Key, Row]:
    """The rows written before, by model and tool."""
    rows = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else []
    return {(row["model"], row["tool"]): row for row in rows}


def _measured(model: str, tools: list[str], keep: Path | None) -> list[Row]:
    """A row for each of the tools."""
    try:
        original = _made(model)
    except _NoResultError as failed:
        return [_row(model, tool, reason=f"not run: {failed}") for tool in tools]
    rows, files = {}, {}
    with tempfile.TemporaryDirectory() as temporary:
        for tool in tools:
            file = (keep.resolve() / model if keep else Path(temporary)) / f"{tool}.onnx"
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                found = _apart("surgery.rewriting", tool, original, file)
            except _NoResultError as failed:
                rows[tool] = _row(model, tool, reason=f"failed: {failed}")
                continue
            files[tool] = file
            rows[tool] = _row(
                model,
                tool,
                before=found["before"],
                nodes=found["nodes"],
                seconds=round(statistics.median(found["seconds"]), 3),
                runs=[round(seconds, 3) for seconds in found["seconds"]],
                peak_mb=round(found["peak"] / 1e6),
            )
        try:
            compared = _apart("surgery.difference", model, original, *files.values())
        except _NoResultError as failed:
            compared = {"differences": [f"not compared: {failed}"] * len(files), "noise": None}
    for tool, difference in zip(files, compared["differences"], strict=True):
        rows[tool] |= {"reason" if isinstance(difference, str) else "difference": difference}
        rows[tool]["noise"] = compared["noise"]
    return [rows[tool] for tool in tools]


def _row(model: str, tool: str, **found: Any) -> Row:
    empty = dict.fromkeys(("before", "nodes", "seconds", "runs", "peak_mb", "difference", "noise", "reason"))
    return {"model": model, "tool": tool, **empty, **found}


def _made(model: str) -> Path:
    """The model's file, made where it is not there. Raises _NoResultError where it cannot be made."""
    folder = CACHE / model
    if not folder.exists():
        partial = CACHE / f"{model}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _apart("surgery.models", model, partial / "model.onnx")
        partial.rename(folder)
    return folder / "model.onnx"


class _NoResultError(Exception):
    """Why a process gave no result."""


def _apart(module: str, *arguments: str | Path) -> Any:
    """What `python -m MODULE ARGUMENTS...` prints, as data. Raises _NoResultError where it ends in any other way."""
    path = [ROOT, ROOT / "benchmarks", CACHE / "packages"]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = {**os.environ, **threads, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise _NoResultError("out of time") from None
    if done.returncode < 0:
        raise _NoResultError(f"killed by {signal.Signals(-done.returncode).name}")
    if done.returncode:
        raise _NoResultError(next(iter(reversed(done.stderr.strip().splitlines())), "it gives no reason"))
    return json.loads(done.stdout) if done.stdout else None


if __name__ == "__main__":
    sys.exit(main())
