"""A process that runs one contender, from the outside: a command at a time, over a pipe.

A process each, because memory and the first call cannot be told apart otherwise: libraries, caches and allocators that
one contender has warmed up would serve the next. A crash costs one row, and threads and GPU contexts of those that wait
are idle.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from aot.bench.contender import Job

PATIENCE = 1800.0
"""Seconds that one command may take: `torch.compile` with autotuning is known to take many minutes."""
POLL = 0.005
"""Seconds between looks at what is watched."""
_SAID = 300
"""How many characters of what a process wrote are kept, from its end."""
_MAIN = "import sys; from aot.bench.serving import main; main(int(sys.argv[1]))"


class Failed(Exception):
    """A contender cannot go on; the text is the reason, one line."""


class Worker:
    """The process. Its standard output and error go to a file, for nobody asked for what its libraries say; an
    interrupt of the terminal does not reach it, for it is ours to end it."""

    def __init__(self, job: Job) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="aot-bench-")
        self._said = Path(self._scratch.name) / "said"
        self._pipe, theirs = Pipe()
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _MAIN, str(theirs.fileno())],  # nothing of the current folder is imported
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, **self._environment(job)},
            )
        theirs.close()
        self._pipe.send(job)

    def _environment(self, job: Job) -> dict[str, str]:
        """What was compiled earlier is not found, as in a new container, and what is compiled now goes when we go."""
        caches = {
            name: str(Path(self._scratch.name) / name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        }
        path = os.pathsep.join(one for one in sys.path if one)
        return {**caches, "OMP_NUM_THREADS": str(job.threads), "PYTHONPATH": path}

    @property
    def pid(self) -> int:
        """Its number, as the system knows it."""
        return self._process.pid

    def send(self, command: str, *arguments: Any) -> None:
        """Begin a command of `serving.Served`."""
        try:
            self._pipe.send((command, arguments))
        except OSError:
            raise Failed(self._ended()) from None

    def receive(self, watch: Callable[[], None] | None = None) -> Any:
        """The answer to the command sent last. `watch` is called again and again meanwhile.

        Raises Failed with the contender's reason, the signal that ended its process, or that its time is over.
        """
        limit = time.monotonic() + PATIENCE
        while not self._pipe.poll(POLL if watch else 1.0):
            if watch:
                watch()
            if self._process.poll() is not None and not self._pipe.poll():  # its own processes may hold the other end
                raise Failed(self._ended())
            if time.monotonic() > limit:
                raise Failed(f"not done after {PATIENCE:g} s")
        try:
            failed, answer = self._pipe.recv()
        except (EOFError, OSError):
            raise Failed(self._ended()) from None
        if failed:
            raise Failed(answer)
        return answer

    def ask(self, command: str, *arguments: Any, watch: Callable[[], None] | None = None) -> Any:
        """Send and receive."""
        self.send(command, *arguments)
        return self.receive(watch)

    def close(self) -> None:
        """End the process and what it started, and remove what it wrote."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._pipe.close()
        self._scratch.cleanup()

    def _ended(self) -> str:
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        said = " ".join(self._said.read_text(errors="replace").split())[-_SAID:]
        hint = " (out of memory?)" if how == "SIGKILL" else ""
        return f"its process ended: {how}{hint}" + (f": {said}" if said else "")
