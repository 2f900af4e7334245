"""The lanes of a plan: handed out, taken back, at most so many."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from aot.runtime.executor import closed
from aot.runtime.lanes import Lane


class Unfinished(Protocol):
    """A call that was submitted: it holds its lane until someone takes its outputs."""

    def finish(self) -> None:
        """Take them, and give the lane back."""


class Pool:
    """Lanes for calls at once, made when they are needed.

    A call on a stream of the caller's takes the lane that works on that stream, so that what it does is in order there
    without an event; it waits for the call of another thread that has it. Any other call takes any lane that is free.
    Where all are in use, the oldest call that was submitted is finished, or waited for.
    """

    def __init__(self, make: Callable[[int | None], Lane], most: int) -> None:
        self._make, self._most = make, most
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._idle: dict[int | None, list[Lane]] = {None: []}  # by stream; one that is here has a lane
        self.lanes: list[Lane] = []
        self._unfinished: deque[Unfinished] = deque()
        self._closed = False

    def take(self, stream: int | None) -> Lane:
        """A lane for one call; stream: the caller's, None for a call that may run anywhere."""
        while True:
            with self._lock:
                if self._closed:
                    raise closed()
                idle = self._idle.get(stream)
                if idle:
                    return idle.pop()
                lane = self._another(stream) if idle is None or stream is None else None
                if lane is not None:
                    return lane
                if not self._unfinished:
                    self._wait()
                    continue
                oldest = self._unfinished.popleft()
            oldest.finish()

    def _another(self, stream: int | None) -> Lane | None:
        """A new lane, or one of another stream that is free; None where all are in use."""
        if len(self.lanes) < self._most:
            lane = self._make(stream)
            self.lanes.append(lane)
        else:
            free = next((lanes for lanes in self._idle.values() if lanes), None)
            if free is None:
                return None
            free[0].settle()
            lane = free.pop(0)
            if lane.key is not None:
                del self._idle[lane.key]
            lane.move(stream)
        self._idle.setdefault(stream, [])
        return lane

    def _wait(self) -> None:
        """Until something changes."""
        self._waiting += 1
        try:
            self._changed.wait()
        finally:
            self._waiting -= 1

    def give(self, lane: Lane) -> None:
        """Take a lane back; what is on its stream need not be over."""
        with self._lock:
            self._idle[lane.key].append(lane)
            if self._waiting:
                self._changed.notify_all()

    def later(self, call: Unfinished) -> None:
        """Know a call that keeps its lane until it is finished."""
        with self._lock:
            self._unfinished.append(call)
            if self._waiting:
                self._changed.notify_all()

    def finished(self, call: Unfinished) -> None:
        """Forget it."""
        with self._lock:
            if call in self._unfinished:
                self._unfinished.remove(call)

    def close(self) -> None:
        """Finish what was submitted, wait until every lane is back, and give out none any more."""
        while True:
            with self._lock:
                self._closed = True
                if not self._unfinished:
                    while sum(map(len, self._idle.values())) < len(self.lanes):
                        self._wait()
                    return
                oldest = self._unfinished.popleft()
            oldest.finish()
