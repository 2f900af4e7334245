"""The command `aot` in a process of its own, so that a crash of a vendor's library costs one row and not the run."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
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
        lines = [
            line for line in self.errors.splitlines() if line.strip() and not line.startswith("This is a bug in aot")
        ]
        return lines[-1] if lines else "it gives no reason"


class Worker:
    """One process that runs commands one after the other; it is started again after a command that ended it."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._pipe: Any = None

    def call(self, arguments: Sequence[str], folder: Path, timeout: float) -> Answer:
        """`aot ARGUMENTS --json`, run in `folder`, in whose `store` it keeps its store."""
        if self._process is None:
            self._pipe, theirs = self._context.Pipe()
            self._process = self._context.Process(target=_work, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        started = time.perf_counter()
        self._pipe.send((str(folder), [*arguments, "--json"]))
        code: int | None = None
        if self._pipe.poll(timeout):
            try:
                code = self._pipe.recv()
            except EOFError:
                self._process.join()
                code = self._process.exitcode or -signal.SIGKILL
                self._process = None
        else:
            self.close()
        seconds = round(time.perf_counter() - started, 2)
        text = (folder / "out").read_text() if (folder / "out").exists() else ""
        try:
            said = json.loads(text)
        except ValueError:
            said = {}
        errors = (folder / "err").read_text(errors="replace")[-2000:] if (folder / "err").exists() else ""
        return Answer(code, said, errors, seconds)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def _work(pipe: Any) -> None:
    os.environ["COLUMNS"] = "400"
    from aot.cli._main import call

    while True:
        folder, arguments = pipe.recv()
        os.chdir(folder)
        os.environ["XDG_CACHE_HOME"] = f"{folder}/store"
        for name, stream in (("out", 1), ("err", 2)):
            file = os.open(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(file, stream)
            os.close(file)
        pipe.send(call(arguments))
