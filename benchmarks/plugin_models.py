"""Whole models with kernels of plugins, as engines in CUDA graphs: against eager, the same engine without, and torch.

    python benchmarks/plugin_models.py prepare FOLDER [--only MODEL]    needs no GPU: writes FOLDER/MODEL.aot
    python benchmarks/plugin_models.py measure FOLDER [--only MODEL]    on a GPU, with TensorRT
    python benchmarks/plugin_models.py table                            of the kept result, in Markdown

The models are those of plugins/models, a file each that `aot build` takes: `prepare` is `aot build --until graph` in
FP16 for sm90, with kernels. `measure` finishes each artifact, builds it once more with every plugin's function in the
place of its node, and runs both beside the module in FP16, eager and compiled by torch: at three sizes, in turns, as
CUDA graphs, with the L2 cache overwritten before each run. Errors are against the module in FP32. Each model has a
process of its own; rows are written to benchmarks/results/plugin-models.json as they come.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _result import ROOT, write
from precision.worker import Worker

sys.path.insert(0, str(ROOT))
NAME = "plugin-models"
TOOLS: dict[str, str | None] = {
    "eager": None,
    "compile": "default",
    "compile-max-autotune": "max-autotune-no-cudagraphs",
}
"""torch's ways to run a module; all are captured in CUDA graphs of our own."""
Row = dict[str, Any]


def kept(name: str = NAME) -> list[Row]:
    """The rows of the result; none where there is no such file."""
    path = ROOT / "benchmarks/results" / f"{name}.json"
    return list(json.loads(path.read_text())["rows"]) if path.is_file() else []


def prepare(folder: Path, models: Sequence[str], target: str) -> bool:
    """Write FOLDER/MODEL.aot for each. Whether all were accepted."""
    from plugins.whole import MODELS, described

    folder.mkdir(parents=True, exist_ok=True)
    codes = []
    for name in models:
        small = described(name).SMALL
        dims = [f"--dim={dim}={low}:{opt}:{high}" for dim, (low, opt, high) in small.items()]
        command = [sys.executable, "-m", "aot", "build", str(MODELS / f"{name}.py"), *dims, "--precision", "fp16"]
        command += ["--until", "graph", "--target", target, "--backend", "tensorrt", "-o", str(folder / f"{name}.aot")]
        codes.append(subprocess.run(command, check=False, cwd=ROOT).returncode)
    return not any(codes)


def measure(folder: Path, models: Sequence[str], seconds: float, worker: Any = Worker) -> bool:
    """Measure the models one after the other, each step in so many seconds; whether every engine with kernels ran."""
    rows, ran = kept(), True
    for name in models:
        one = worker(0, daemon=False)
        found: list[Row] = []
        with tempfile.TemporaryDirectory(prefix="aot-models-") as output:
            for row in measured(one, name, folder, Path(output), seconds):
                found.append({"model": name, **row})
                print(json.dumps(found[-1]), flush=True)
                write(NAME, [row for row in rows if row["model"] != name] + found)
        one.close()
        ran = ran and not any("reason" in row for row in found if row["tool"] == "aot")
        rows = [row for row in rows if row["model"] != name] + found
    return ran


def measured(one: Any, name: str, folder: Path, output: Path, seconds: float) -> Iterator[Row]:
    """The rows of one model as they come: of the two engines, then of every tool at every size."""
    from plugins import whole

    for tool, step in (("aot", whole.launching), ("aot-expanded", whole.expanded)):
        try:
            yield {"tool": tool, **one.call(step, (name, folder, output), seconds)}
        except RuntimeError as error:
            yield {"tool": tool, "reason": str(error)}
    try:
        yield from one.call(whole.measured, (name, output, TOOLS), seconds)
    except RuntimeError as error:
        yield {"tool": "aot", "reason": str(error)}


def text(rows: Sequence[Row]) -> str:
    """One line for each model and size, what did not run and why, in Markdown."""
    tools = ["aot", "aot-expanded", *TOOLS]
    lines = ["| model | sizes | " + " | ".join(f"{tool}, ms" for tool in tools) + " | cosine of aot |"]
    lines.append("|---" * (len(tools) + 3) + "|")
    cells: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        if "sizes" in row:
            sizes = ", ".join(f"{dim} {size}" for dim, size in row["sizes"].items())
            cells.setdefault((row["model"], sizes), {})[row["tool"]] = row
    for (model, sizes), found in cells.items():
        own = found.get("aot", {})
        times = [f"{found[tool]['ms']:.4f}" if "ms" in found.get(tool, {}) else "-" for tool in tools]
        cosine = f"{own['cosine']:.6f}" if "cosine" in own else "-"
        lines.append(f"| {model} | {sizes} | {' | '.join(times)} | {cosine} |")
    failed = [f"- {row['model']}, {row['tool']}: {row['reason']}" for row in rows if row.get("reason")]
    return "\n".join([*lines, *(["", "What did not run, and why:", "", *dict.fromkeys(failed)] if failed else [])])


def main() -> int:
    """Prepare, measure, or show the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    one = steps.add_parser("prepare", help="write the prepared artifacts; needs no GPU")
    two = steps.add_parser("measure", help="finish, run and time them")
    steps.add_parser("table", help="the kept result, in Markdown")
    for step in (one, two):
        step.add_argument("folder", type=Path)
        step.add_argument("--only", action="append", metavar="MODEL", help="this model only; may be repeated")
    one.add_argument("--target", default="sm90", help="what kernels are compiled for (default: sm90)")
    two.add_argument("--timeout", type=float, default=120, help="seconds for one step of a model (default: 120)")
    arguments = parser.parse_args()
    if arguments.step == "table":
        print(text(kept()))
        return 0
    from plugins.whole import names

    models = arguments.only or names()
    if arguments.step == "prepare":
        return 0 if prepare(arguments.folder, models, arguments.target) else 1
    return 0 if measure(arguments.folder.resolve(), models, arguments.timeout) else 1


if __name__ == "__main__":
    sys.exit(main())
