"""The inside of a worker: makes a contender and obeys commands, one at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from aot.bench import launches, memory, timing
from aot.bench.contender import Call, Contender, Job
from aot.bench.tools import make
from aot.errors import AotError

if TYPE_CHECKING:
    from aot.arrays import Arrays


class Served:
    """The commands. Each answer is plain data or arrays."""

    def __init__(self, job: Job) -> None:
        # numpy is what every caller has; libraries beyond it are a contender's own.
        import numpy  # noqa: F401

        self._job = job
        self._before = memory.resident()
        self._contender: Contender | None = None
        self._call: Call | None = None

    def start(self) -> None:
        """Import what the contender needs. Raises AotError with the reason where it cannot run here."""
        self._contender = make(self._job)

    def first(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Load, place the inputs, call once: {seconds, load (the part of them that loading took), outputs, label,
        precision}."""
        assert self._contender is not None
        started = time.perf_counter()
        self._contender.load()
        loaded = time.perf_counter() - started
        self._call = self._contender.place(inputs)
        self._call.enqueue()
        self._call.synchronize()
        seconds = time.perf_counter() - started
        about = {"label": self._contender.label, "precision": self._contender.precision}
        return {"seconds": seconds, "load": loaded, "outputs": self._call.outputs(), **about}

    def warm(self) -> timing.Warm:
        """See `timing.warmed`."""
        return timing.warmed(self._placed())

    def block(self, runs: int) -> list[float]:
        """See `timing.block`."""
        return timing.block(self._placed(), runs)

    def back_to_back(self, seconds: float, estimate: float) -> tuple[int, float]:
        """See `timing.back_to_back`."""
        return timing.back_to_back(self._placed(), seconds, estimate)

    def host_bytes(self) -> int | None:
        """The most memory that this process had, above what it had before the contender's libraries."""
        most = memory.peak()
        return None if most is None or self._before is None else most - self._before

    def launches(self) -> int:
        """See `launches.counted`; nothing is timed after it."""
        return launches.counted(self._placed())

    def answers(self, inputs: Mapping[str, Any]) -> Arrays:
        """What the contender makes of other inputs."""
        assert self._contender is not None
        call = self._contender.place(inputs)
        call.enqueue()
        call.synchronize()
        return call.outputs()

    def _placed(self) -> Call:
        assert self._call is not None
        return self._call


def main(pipe: int) -> None:
    """Obey until the other end of the pipe, a file descriptor, is closed: first comes the job, then commands. An answer
    is (False, what the command gave) or (True, why it failed)."""
    os.set_inheritable(pipe, False)
    end = Connection(pipe)
    served = Served(end.recv())
    while True:
        try:
            command, arguments = end.recv()
            end.send(obeyed(served, command, arguments))
        except (EOFError, OSError):
            return


def obeyed(served: Served, command: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """The answer to one command."""
    try:
        return False, getattr(served, command)(*arguments)
    except AotError as error:
        return True, error.what + (f" ({error.fix})" if error.fix else "")
    except Exception as error:  # noqa: BLE001  whatever a contender raises is the reason that its row gives
        return True, f"{type(error).__name__}: {said(error)}"


def said(error: Exception) -> str:
    """What an exception says, on one line that is not too long."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:200]} ... {text[-90:]}"
