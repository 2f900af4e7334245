"""What runs a call: an engine that is loaded, or the final graph on onnxruntime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from aot.errors import EngineError
from aot.runtime.interchange import Array, Given
from aot.runtime.pending import Pending


def closed(where: str | None = None) -> EngineError:
    """The error for a call of what was closed."""
    return EngineError("the session is closed", where=where, fix="load the artifact again: aot.load(...)")


def unbound() -> EngineError:
    """The error for a run of a bound call that was closed."""
    return EngineError("the bound call is closed", fix="bind it again: session.bound(...)")


class Kept(ABC):
    """The states of one sequence of calls, where the executor has them. Calls take them and leave the next ones."""

    @abstractmethod
    def read(self) -> dict[str, Array]:
        """Copies on the host by name of the input, elements by their `bits`, once all calls are over."""

    @abstractmethod
    def write(self, values: Mapping[str, Array]) -> None:
        """Put others of the same shapes in their place, once all calls are over."""

    def close(self) -> None:  # noqa: B027 most have nothing to do
        """Give their memory back."""


@dataclass(slots=True)
class Call:
    """One call, checked. given: by name of the input, those that `kept` holds left out; the rest in the model's order.

    profile: the index of the optimization profile. like: the array whose kind and place the outputs take. mixed:
    whether others are of another kind or in another place. shapes: stands for the shapes of all inputs.
    """

    profile: int
    shapes: Hashable
    given: dict[str, Given]
    like: Given
    mixed: bool = False
    kept: Kept | None = None


class Binding(ABC):
    """A call whose inputs and outputs stay where the engine has them."""

    @abstractmethod
    def run(self) -> None:
        """Enqueue it once."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all that was enqueued is over. Raises EngineError for what failed."""

    @abstractmethod
    def outputs(self) -> dict[str, Any]:
        """Wait, and copy the outputs of the last run."""

    def close(self) -> None:  # noqa: B027 most have nothing to do
        """Give its memory back."""


class Executor(ABC):
    """Thread-safe: any number of calls at once. tells: what runs, `tensorrt 10.6.0`. over: whether it was closed."""

    tells: str
    over = False

    def ensure_open(self) -> None:
        """Raise EngineError where it was closed."""
        if self.over:
            raise closed()

    @abstractmethod
    def run(self, call: Call) -> dict[str, Any]:
        """Its outputs by name; those of states that are kept are left out.

        Arrays of the host are whole when it returns; those of a GPU are ready in the order of the caller's stream.
        Raises EngineError for what goes wrong while it runs.
        """

    @abstractmethod
    def submit(self, call: Call) -> Pending:
        """The same, without waiting for it."""

    @abstractmethod
    def bind(self, call: Call) -> Binding:
        """Make room for a call that is repeated."""

    @abstractmethod
    def keep(self, values: Mapping[str, Array]) -> Kept:
        """Put the states where calls find them. values: by name of the input, elements by their `bits`."""

    @abstractmethod
    def memory(self) -> dict[str, int]:
        """{device_bytes, host_bytes}: what it holds now."""

    @abstractmethod
    def close(self) -> None:
        """Wait for calls that are not over, and give everything back."""
