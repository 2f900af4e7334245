"""The contract of a way to run a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aot.arrays import Arrays


@dataclass(frozen=True)
class Job:
    """What a process is to run, as it is sent there.

    source: the artifact, the model as `aot build` takes it, or the ONNX file. dims: see `Request.dims`.
    precision: what torch, or a provider that can choose, computes in. threads: how many a contender on the CPU has.
    """

    tool: str
    source: str
    precision: str
    gpu: bool
    threads: int
    dims: Mapping[str, tuple[int, int, int]]


class Call(ABC):
    """The model on given inputs, which lie where the contender would have them from a caller that is its friend:
    in GPU memory for one on the GPU. There its outputs stay as well."""

    @abstractmethod
    def enqueue(self) -> None:
        """Start one run. A contender that cannot but wait for the result does."""

    def synchronize(self) -> None:  # noqa: B027  most contenders have nothing to wait for
        """Wait for all that was started."""

    @abstractmethod
    def outputs(self) -> Arrays:
        """What the last run gave, by name, copied to the host."""


class Contender(ABC):
    """One way to run a model, in a process of its own. Made once its libraries are imported; see `calls/`.

    label: what it is, for people, with its version and where it runs. precision: what it computes in. Both are known
    after `load`.
    """

    label: str
    precision: str

    @abstractmethod
    def load(self) -> None:
        """From a file or a declaration to something that can be called."""

    @abstractmethod
    def place(self, inputs: Mapping[str, Any]) -> Call:
        """The model on these inputs."""
