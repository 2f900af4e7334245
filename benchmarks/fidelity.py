"""Fidelity of quantized models against onnxruntime and ModelOpt, on real data that nothing was calibrated on.

    python benchmarks/fidelity.py [--only MODEL] [--tool TOOL] [--resume] [--keep FOLDER]

Each tool quantizes each model that has trained weights from the same batches, in a process of its own. A row has the
least cosine and the largest relative L2 of the outputs against the model in FP32, the model's own figure, and how many
layers are quantized and how many stay wide. Needs what `make bench-calibration` installs; what cannot run is listed
with its reason. Writes benchmarks/results/calib-fidelity.json and the tables of benchmarks/README.md; exit code 1
where a peer is closer with as few wide layers, or a floor is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from _result import ROOT, commit, write
from calibration import apart, fidelity_page
from calibration.models import MODELS
from calibration.tools import JUDGED

NAME = "calib-fidelity"
RESULT = ROOT / "benchmarks/results" / f"{NAME}.json"
EMPTY = ("quantized", "wide", "qdq", "nodes", "cosine", "relative_l2", "figure", "wanted", "figure_name", "reason")
Key = tuple[str, str]
Row = dict[str, Any]
MODELS_JUDGED = [name for name, model in MODELS.items() if model.judged]


def main() -> int:
    """Measure what is asked for, and write."""
    arguments = _arguments()
    at, ordered = commit(), list(_earlier().values())
    for model in arguments.only or MODELS_JUDGED:
        rows = _earlier()
        tools = [t for t in arguments.tool or JUDGED if not (arguments.resume and (model, t) in rows)]
        found = _judged(model, tools, arguments.keep) if tools else []
        for row in found:
            print(fidelity_page.line(row), flush=True)
        # Read again: another run may have written meanwhile.
        rows = _earlier() | {(model, row["tool"]): {**row, "commit": at} for row in found}
        ordered = [rows[model, tool] for model in MODELS_JUDGED for tool in JUDGED if (model, tool) in rows]
        write(NAME, ordered, "python benchmarks/fidelity.py")
    fidelity_page.update(ROOT / "benchmarks/README.md", ordered)
    print(fidelity_page.text(ordered))
    return 1 if fidelity_page.misses(ordered) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=MODELS_JUDGED, metavar="MODEL", help="may be repeated")
    parser.add_argument("--tool", action="append", choices=JUDGED, help="may be repeated; rows of the others stay")
    parser.add_argument("--resume", action="store_true", help="leave out what has a row already")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the quantized files, in MODEL/TOOL")
    return parser.parse_args()


def _earlier() -> dict[Key, Row]:
    """The rows written before, by model and tool."""
    rows = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else []
    return {(row["model"], row["tool"]): row for row in rows}


def _judged(model: str, tools: list[str], keep: Path | None) -> list[Row]:
    """A row for each of the tools."""
    figure = MODELS[model].figure
    rows = {tool: {"model": model, "tool": tool, **dict.fromkeys(EMPTY)} for tool in tools}
    for row in rows.values():
        row["figure_name"] = figure.name if figure is not None else None
    with tempfile.TemporaryDirectory(dir=apart.CACHE) as temporary:
        files: dict[str, Path] = {}
        try:
            folder = apart.made(model)
            for tool in tools:
                place = (keep.resolve() / model if keep else Path(temporary)) / tool
                place.mkdir(parents=True, exist_ok=True)
                try:
                    apart.quantize("JUDGED", tool, folder, place / "out.onnx")
                    files[tool] = place / "out.onnx"
                except apart.NoResultError as failed:
                    rows[tool]["reason"] = f"failed: {failed}"
            found, _ = apart.run("calibration.judging", model, folder, *files.values())
        except apart.NoResultError as failed:
            return [{**row, "reason": row["reason"] or f"not run: {failed}"} for row in rows.values()]
    for tool, one in zip(files, found["found"], strict=True):
        rows[tool] |= {**one, "wanted": found["wanted"]}
    return list(rows.values())


if __name__ == "__main__":
    sys.exit(main())
