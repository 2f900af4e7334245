"""Calibration against onnxruntime and ModelOpt: how long it takes and how much memory, on the same files and batches.

    python benchmarks/calibration.py [--only MODEL] [--tool TOOL] [--resume]

`forward` runs the same batches through onnxruntime on the CPU. Every other tool goes from the file to a quantized one,
in a process of its own with as many threads as it takes by itself; the seconds of calibration alone are given as well.
Making a session is no part of those, for any tool. Tools take turns; what takes less than 20 s is run three times, and
the median kept. Memory is the most that a process and its children had resident, imports and mapped files included.
Needs what `make bench-calibration` installs; what cannot run is listed with its reason. Writes
benchmarks/results/calibration.json and the table of benchmarks/README.md; exit code 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from _result import ROOT, commit, write
from calibration import apart, page
from calibration.layers import layers_of
from calibration.models import MODELS
from calibration.tools import TIMED

NAME = "calibration"
RESULT = ROOT / "benchmarks/results" / f"{NAME}.json"
RUNS, LONG = 3, 20.0
"""How often a tool runs that takes less than so many seconds."""
Key = tuple[str, str]
Row = dict[str, Any]
MODELS_TIMED = [name for name, model in MODELS.items() if model.timed]


def main() -> int:
    """Measure what is asked for, and write."""
    arguments = _arguments()
    at, ordered = commit(), list(_earlier().values())
    for model in arguments.only or MODELS_TIMED:
        rows = _earlier()
        tools = [t for t in arguments.tool or TIMED if not (arguments.resume and (model, t) in rows)]
        found = _measured(model, tools) if tools else []
        for row in found:
            print(page.line(row), flush=True)
        # Read again: another run may have written meanwhile.
        rows = _earlier() | {(model, row["tool"]): {**row, "commit": at} for row in found}
        ordered = [rows[model, tool] for model in MODELS_TIMED for tool in TIMED if (model, tool) in rows]
        write(NAME, ordered, "python benchmarks/calibration.py")
    page.update(ROOT / "benchmarks/README.md", ordered)
    print(page.text(ordered))
    return 1 if page.misses(ordered) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=MODELS_TIMED, metavar="MODEL", help="may be repeated")
    parser.add_argument("--tool", action="append", choices=TIMED, help="may be repeated; rows of the others stay")
    parser.add_argument("--resume", action="store_true", help="leave out what has a row already")
    return parser.parse_args()


def _earlier() -> dict[Key, Row]:
    """The rows written before, by model and tool."""
    rows = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else []
    return {(row["model"], row["tool"]): row for row in rows}


def _measured(model: str, tools: list[str]) -> list[Row]:
    """A row for each of the tools, which take turns."""
    try:
        folder = apart.made(model)
    except apart.NoResultError as failed:
        return [_row(model, tool, reason=f"not run: {failed}") for tool in tools]
    runs: dict[str, list[dict[str, Any]]] = {tool: [] for tool in tools}
    rows: dict[str, Row] = {}
    for turn in range(RUNS):
        for tool in tools:
            if tool in rows or (turn and runs[tool][0]["seconds"] > LONG):
                continue
            with tempfile.TemporaryDirectory(dir=apart.CACHE) as temporary:
                target = Path(temporary) / "out.onnx"
                try:
                    runs[tool].append(apart.quantize("TIMED", tool, folder, target))
                except apart.NoResultError as failed:
                    rows[tool] = _row(model, tool, reason=f"failed: {failed}")
                    continue
                if target.exists():
                    runs[tool][0].setdefault("layers", layers_of(target).to_json())
    return [rows.get(tool) or _summed(model, tool, runs[tool]) for tool in tools]


def _summed(model: str, tool: str, runs: list[dict[str, Any]]) -> Row:
    """The medians of some runs."""
    alone = [run["calibration"] for run in runs if run["calibration"] is not None]
    return _row(
        model,
        tool,
        seconds=round(statistics.median(run["seconds"] for run in runs), 3),
        runs=[round(run["seconds"], 3) for run in runs],
        calibration=round(statistics.median(alone), 3) if alone else None,
        peak_mb=round(statistics.median(run["peak"] for run in runs) / 1e6),
        **runs[0].get("layers", {}),
    )


def _row(model: str, tool: str, **found: Any) -> Row:
    keys = ("seconds", "runs", "calibration", "peak_mb", "quantized", "wide", "qdq", "nodes", "reason")
    return {"model": model, "tool": tool, **dict.fromkeys(keys), **found}


if __name__ == "__main__":
    sys.exit(main())
