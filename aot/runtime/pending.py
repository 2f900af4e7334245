"""Calls that were submitted and are not over yet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import Any


class Pending(ABC):
    """The answer to `submit`. Its inputs must not be changed before it is done."""

    @abstractmethod
    def done(self) -> bool:
        """Whether `result` would return at once."""

    @abstractmethod
    def result(self) -> dict[str, Any]:
        """The outputs by name, the same ones however often it is asked; waits. Raises what the call raised."""


class Working(Pending):
    """A call that another thread works on."""

    def __init__(self, future: Future[dict[str, Any]]) -> None:
        self._future = future

    def done(self) -> bool:
        """See Pending.done."""
        return self._future.done()

    def result(self) -> dict[str, Any]:
        """See Pending.result."""
        return self._future.result()
