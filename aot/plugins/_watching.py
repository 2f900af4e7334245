"""A process that runs code of plugins, watched: one that says nothing for too long, or crashes, tells where it was.

Such a process calls `tell_where` first. Python's faulthandler then writes the stack to standard error where the process
crashes, and where it is asked to.
"""

from __future__ import annotations

import faulthandler
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 300.0
"""Seconds without an answer after which a process is ended."""
_GRACE = 2.0
"""Seconds that it has for writing its stack."""
_DUMP = re.compile(r"^(?:Fatal Python error|Current thread|Thread 0x|Stack \(most recent)", re.M)


def tell_where() -> None:
    """Write this process's stack to standard error where it crashes, or on SIGUSR1."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)


class Watch:
    """Ends a process that says nothing for `seconds`; `over` says that it did."""

    def __init__(self, process: subprocess.Popen[str], seconds: float) -> None:
        self.over = False
        self._process, self._seconds = process, seconds
        self._timer: threading.Timer | None = None

    def heard(self) -> None:
        """Wait anew."""
        self.done()
        self._timer = threading.Timer(self._seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def done(self) -> None:
        """Wait no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self.over = True
        self._process.send_signal(signal.SIGUSR1)
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()


@contextmanager
def watched(process: subprocess.Popen[str], seconds: float) -> Iterator[Watch]:
    """A watch over the process, within."""
    watch = Watch(process, seconds)
    watch.heard()
    try:
        yield watch
    finally:
        watch.done()


def line_in(file: Path, said: str) -> str | None:
    """`file:line` of the innermost line of a file in the stack that a process has written; None where it has none."""
    found = re.search(rf'File "{re.escape(str(file))}", line (\d+)', said)
    return None if found is None else f"{file}:{found[1]}"


def last_words(said: str) -> str | None:
    """What a process said last, its stack left out."""
    before = _DUMP.split(said)[0].strip().splitlines()
    if before:
        return before[-1]
    fatal = re.search(r"^Fatal Python error: (.+)$", said, re.M)
    return None if fatal is None else fatal[1]
