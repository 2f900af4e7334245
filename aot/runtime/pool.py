"""The lanes of a plan: handed out, taken back, at most so many."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from aot.errors import EngineError
from aot.runtime.lanes import Lane


def closed() -> EngineError:
    """The error for a call of what was closed."""
    return EngineError("the session is closed", fix="load the artifact again: aot.load(...)")


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
        self._changed = threading.Condition(threading.Lock())
        self._waiting = 0
        self._free: list[Lane] = []
        self._by_stream: dict[int, Lane] = {}
        self.lanes: list[Lane] = []
        self._unfinished: deque[Unfinished] = deque()
        self._closed = False

    def take(self, stream: int | None) -> Lane:
        """A lane for one call; stream: the caller's, None for a call that may run anywhere."""
        while True:
            with self._changed:
                if self._closed:
                    raise closed()
                lane = self._next(stream)
                if lane is not None:
                    return lane
                if not self._unfinished:
                    self._waiting += 1
                    self._changed.wait()
                    self._waiting -= 1
                    continue
                oldest = self._unfinished.popleft()
            oldest.finish()

    def _next(self, stream: int | None) -> Lane | None:
        lane = self._by_stream.get(stream) if stream is not None else None
        if lane is not None:
            if lane not in self._free:
                return None
            self._free.remove(lane)
            return lane
        lane = next((one for one in reversed(self._free) if one.key == stream), None)
        if lane is None and len(self.lanes) < self._most:
            lane = self._make(stream)
            self.lanes.append(lane)
        elif lane is None and self._free:
            lane = self._free[0]  # the one that was not used for longest
            if lane.key is not None:
                del self._by_stream[lane.key]
            lane.settle()
            self._free.remove(lane)
            lane.move(stream)
        elif lane is not None:
            self._free.remove(lane)
        if lane is not None and stream is not None:
            self._by_stream[stream] = lane
        return lane

    def give(self, lane: Lane) -> None:
        """Take a lane back; what is on its stream need not be over."""
        with self._changed:
            self._free.append(lane)
            if self._waiting:
                self._changed.notify_all()

    def later(self, call: Unfinished) -> None:
        """Know a call that keeps its lane until it is finished."""
        with self._changed:
            self._unfinished.append(call)
            if self._waiting:
                self._changed.notify_all()

    def finished(self, call: Unfinished) -> None:
        """Forget it."""
        with self._changed:
            if call in self._unfinished:
                self._unfinished.remove(call)

    def close(self) -> None:
        """Finish what was submitted, wait until every lane is back, and give out none any more."""
        while True:
            with self._changed:
                self._closed = True
                if not self._unfinished:
                    self._waiting += 1
                    self._changed.wait_for(lambda: len(self._free) == len(self.lanes))
                    return
                oldest = self._unfinished.popleft()
            oldest.finish()
