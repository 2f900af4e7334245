"""Writing a result: what was measured, when, from which commit, on which machine, with which versions."""

from __future__ import annotations

import datetime
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aot import toolchain

ROOT = Path(__file__).resolve().parent.parent
TOOLS = (
    *("aot-engine", "torch", "torchvision", "transformers", "onnx", "onnx-ir", "onnxscript", "onnxslim", "onnxsim"),
    *("onnxruntime", "onnxruntime-gpu", "polygraphy"),
    *("tensorrt", "tensorrt-cu12-bindings", "tensorrt-cu13-bindings", "tensorrt-rtx-cu13"),
)
# What benchmarks write themselves.
WRITTEN = (":!benchmarks/results", ":!benchmarks/README.md")


def write(benchmark: str, rows: Sequence[Mapping[str, Any]], command: str | None = None) -> Path:
    """Write `benchmarks/results/NAME.json`, one row a measurement; returns its path. `command`: how to repeat it."""
    machine = toolchain.machine()
    found = {tool: toolchain.version(tool) for tool in TOOLS}
    result = {
        "benchmark": benchmark,
        "command": command or _command(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "machine": {
            "cpu": machine.cpu,
            "gpu": machine.gpu.name if machine.gpu else None,
            "driver": machine.driver,
        },
        "versions": {
            "python": sys.version.split()[0],
            **{tool: version for tool, version in found.items() if version is not None},
        },
        "rows": list(rows),
    }
    path = ROOT / "benchmarks/results" / f"{benchmark}.json"
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n")
    partial.replace(path)  # a run that is killed here leaves the rows before
    return path


def _command() -> str:
    return shlex.join(["python", str(Path(sys.argv[0]).resolve().relative_to(ROOT)), *sys.argv[1:]])


def commit() -> str | None:
    """The commit measured, `-dirty` where the tree differs from it in more than results; None outside a repository."""
    try:
        named = _git("describe", "--always", "--abbrev=12")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *WRITTEN)
    except (OSError, subprocess.CalledProcessError):
        return None
    return named + ("-dirty" if changed else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
