"""The command `aot` in a process of its own, so that a crash of a vendor's library costs one row."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What a command did. code: its exit code, minus a signal's number, None where its time was over.

    said: its JSON object, {} where there is none. errors: the end of standard error.
    """

    code: int | None
    said: dict[str, Any]
    errors: str
    seconds: float

    @property
    def reason(self) -> str:
        """One line on why it did not succeed."""
        if self.code is None:
            return "out of time"
        if self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}"
        error = self.said.get("error")
        if isinstance(error, dict):
            where = f" [{error['where']}]" if error.get("where") else ""
            return f"{error['what']}{where}"
        if self.said.get("reasons"):
            return str(self.said["reasons"][0])
        return (self.errors.strip().splitlines() or ["it gives no reason"])[-1]


def context() -> Any:
    """What makes processes: a server that has imported what every command needs, and is forked."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(
        ["aot.pipeline", "aot.cli._main", "onnx", "onnxscript.optimizer", "onnxscript.rewriter"]
    )
    return made


def call(processes: Any, arguments: Sequence[str], folder: Path, timeout: float) -> Answer:
    """`aot ARGUMENTS --json`, run in `folder`, whose `store` it keeps its store in."""
    started = time.perf_counter()
    process = processes.Process(target=_work, args=(str(folder), [*arguments, "--json"]))
    process.start()
    process.join(timeout)
    code = process.exitcode
    if code is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    seconds = round(time.perf_counter() - started, 1)
    text = (folder / "out").read_text() if (folder / "out").exists() else ""
    try:
        said = json.loads(text)
    except ValueError:
        said = {}
    errors = (folder / "err").read_text(errors="replace")[-2000:] if (folder / "err").exists() else ""
    return Answer(code, said, errors, seconds)


def _work(folder: str, arguments: list[str]) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ["XDG_CACHE_HOME"] = f"{folder}/store"
    for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
        file = os.open(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(file, stream.fileno())
    from aot.cli._main import call as run

    code = run(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
