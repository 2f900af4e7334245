"""Trying one model: `aot build` in a process of its own, so that a crash, a hang or a full memory costs one row."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweep.member import Library, Member

OPTIONS = ("--precision", "fp32", "--backend", "tensorrt_rtx", "--target", "sm89", "--json")
# Imported once, in the process that all workers are forked from.
PRELOADED = ("torch", "onnx", "onnx_ir", "onnxscript.rewriter", "sweep.warm")
PR_SET_PDEATHSIG = 1
MEMORY = 10 * 2**30
"""Bytes of its own that a worker may hold."""


def start(libraries: Sequence[Library]) -> Any:
    """What makes workers. `OMP_NUM_THREADS` has to be set before."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, *(name for library in libraries for name in library.imports)])
    return context


def tried(context: Any, library: str, member: Member, timeout: float, until: str | None) -> dict[str, Any]:
    """One row: what `aot build` made of a member within `timeout` seconds, in a store that is thrown away."""
    folder = Path(tempfile.mkdtemp(prefix="sweep-"))
    try:
        (folder / "model.py").write_text(member.declaration())
        options = [*OPTIONS, *(["--until", until] if until else [])]
        started = time.perf_counter()
        process = context.Process(target=_work, args=(str(folder), ["build", "model.py", *options, "-o", "out.aot"]))
        process.start()
        process.join(timeout)
        code = process.exitcode
        if code is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
        seconds = round(time.perf_counter() - started, 1)
        about = {"model": member.name, "library": library, "family": member.family}
        about["dims"] = {name: list(dim.bounds) for name, dim in member.dims.items()}
        return {**about, **_outcome(folder, code, timeout, until), "seconds": seconds}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _work(folder: str, arguments: list[str]) -> None:
    """In the worker: the command `aot`, its streams in files."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # no worker outlives the sweep
    os.chdir(folder)
    os.environ["XDG_CACHE_HOME"] = f"{folder}/store"
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.argv = ["aot", *arguments]
    from aot.cli import main

    main()


def _outcome(folder: Path, code: int | None, timeout: float, until: str | None) -> dict[str, Any]:
    """What the store and the answer of `aot` say: nodes, exported, equal, built (None: not tried), reason."""
    exported, equal = bool(_facts(folder, "export")), bool(_facts(folder, "verify"))
    built: bool | None = bool(_facts(folder, "build"))
    stage = "after the engine" if built else "at the engine" if equal else "before" if exported else "at the export"
    if stage == "before":
        stage = "at the comparison with eager"
    reason, notes = None, []
    answer = _answer(folder)
    if code is None:
        reason = f"not done after {timeout:.0f} s, {stage}"
    elif code < 0:
        reason = f"killed by {signal.Signals(-code).name} {stage}: {_last_line(folder)}"
    elif "error" in answer:
        said = answer["error"]
        reason = " | ".join(str(part) for part in (said["what"], said["where"], said["fix"]) if part)
    elif code:
        reason = "; ".join(answer.get("reasons", [])) or f"exit code {code} {stage}: {_last_line(folder)}"
    if reason is not None:  # paths of this machine say nothing elsewhere
        reason = re.sub(r"\S*/site-packages/", "", reason.replace(f"{folder}/", ""))
    if code == 1:
        equal = False
    elif code == 0:
        notes = [note for note in answer["warnings"] if "not judged" in note]
    nodes = _facts(folder, "quantize").get("nodes")
    row = {"nodes": nodes, "exported": exported, "equal": equal, "built": None if until and not reason else built}
    return {**row, "reason": reason, **({"notes": notes} if notes else {})}


def _facts(folder: Path, stage: str) -> dict[str, Any]:
    """The facts of the one finished entry of a stage, empty where there is none."""
    for entry in folder.glob(f"store/aot/{stage}/*/entry.json"):
        return dict(json.loads(entry.read_text())["facts"])
    return {}


def _answer(folder: Path) -> dict[str, Any]:
    """What `--json` printed, empty where nothing that can be read."""
    try:
        return dict(json.loads((folder / "out").read_text().splitlines()[-1]))
    except (OSError, ValueError, IndexError):
        return {}


def _last_line(folder: Path) -> str:
    try:
        lines = (folder / "err").read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
