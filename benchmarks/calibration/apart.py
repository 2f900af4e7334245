"""Running a module in a process of its own, with the memory that it and its children take together."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _result import ROOT

from calibration import tools

CACHE = ROOT / "build/calibration"
MODELOPT = CACHE / "modelopt/bin/python"
TIMEOUT = 900.0
"""Seconds for one tool on one model."""
INTERVAL = 0.02
"""Seconds between two looks at the memory of the processes."""


class NoResultError(Exception):
    """Why a process gave no result."""


def made(model: str) -> Path:
    """The folder with a model's file and batches, made where it is not there. Raises NoResultError where it cannot."""
    folder = CACHE / model
    if not folder.exists():
        partial = CACHE / f"{model}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        run("calibration.models", model, partial)
        partial.rename(folder)
    return folder


def quantize(table: str, tool: str, folder: Path, target: Path) -> dict[str, Any]:
    """One run of a tool of `calibration.tools` over a folder of `made`; see `calibration.quantizing`.

    peak: with its children. Raises NoResultError.
    """
    python = MODELOPT if getattr(tools, table)[tool].apart else None
    if python is not None and not python.exists():
        raise NoResultError("ModelOpt's environment is not there: make bench-calibration")
    given = (table, tool, folder / "model.onnx", folder / "calibration", target)
    found, peak = run("calibration.quantizing", *given, python=python)
    return {**found, "peak": max(found["peak"], peak)}


def run(module: str, *arguments: str | Path, python: Path | None = None) -> tuple[Any, int]:
    """What `python -m MODULE ARGUMENTS...` prints, as data, and the most bytes resident in it and its children.

    Raises NoResultError where it ends in any other way.
    """
    path = [ROOT, ROOT / "benchmarks", ROOT / "build/surgery/packages"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [str(python or sys.executable), "-m", module, *map(str, arguments)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        # A group of its own, so that what it started ends with it.
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=said, start_new_session=True)
        peak, deadline = 0, time.monotonic() + TIMEOUT
        try:
            while process.poll() is None:
                peak = max(peak, resident(process.pid))
                if time.monotonic() > deadline:
                    raise NoResultError(f"out of time: {TIMEOUT:.0f} s")
                time.sleep(INTERVAL)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        out.seek(0)
        said.seek(0)
        if process.returncode < 0:
            raise NoResultError(f"killed by {signal.Signals(-process.returncode).name}")
        if process.returncode:
            lines = said.read().decode(errors="replace").strip().splitlines()
            raise NoResultError(_reason(lines))
        text = out.read()
        return (json.loads(text) if text else None), peak


def _reason(lines: list[str]) -> str:
    """The error that ended a process: the last line that is no continuation of one."""
    flush = [line for line in lines if line[:1] not in (" ", "\t", "")]
    return flush[-1] if flush else "it gives no reason"


def resident(pid: int) -> int:
    """Bytes resident in a process and all that descend from it; 0 for one that has gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    own = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), 0)
    return own + sum(resident(int(child)) for child in children)
