"""What builds and runs engines. Implementations are in `backends/`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.backends import NAMES
from aot.config import EngineOptions, Precision
from aot.declaration import ModelSpec
from aot.errors import unknown
from aot.profile import Profile
from aot.progress import Progress
from aot.toolchain import Machine

if TYPE_CHECKING:
    from aot.arrays import Arrays
    from aot.timing_cache import TimingCaches


@dataclass(frozen=True)
class Job:
    """Everything one engine is built from. graph: the final ONNX file; target: `sm89`, ... or `cpu`."""

    graph: Path
    spec: ModelSpec
    precision: Precision
    profiles: Sequence[Profile]
    target: str
    options: EngineOptions


class Session(AbstractContextManager["Session"]):
    """An engine that is loaded: `session(inputs) -> outputs`, numpy in and out."""

    def __call__(self, inputs: Mapping[str, Any]) -> Arrays:
        """Run once. Raises EngineError for a missing input, a wrong dtype, or shapes that it does not take."""
        raise NotImplementedError


class Backend(ABC):
    """One vendor's builder and runtime. `name` is what `--backend` takes; `suffix` ends its engine files."""

    name: str
    suffix: str

    @abstractmethod
    def version(self) -> str | None:
        """The installed version, None where it is not installed. Imports nothing heavy."""

    @abstractmethod
    def targets(self, machine: Machine) -> tuple[str, ...]:
        """What it can build for on this machine, best first."""

    @abstractmethod
    def check(self, precision: Precision, target: str, machine: Machine) -> None:
        """Raise TargetError, with the way out, for what cannot be built here. A pure function of its arguments
        and the installed version."""

    @abstractmethod
    def check_graph(self, graph: Path, precision: Precision, target: str) -> None:
        """Raise GraphError that names the first node that the target cannot take and what to do."""

    @abstractmethod
    def build(self, job: Job, plan: Path, caches: TimingCaches | None, progress: Progress) -> Mapping[str, Any]:
        """Write the engine to `plan`; return facts: origin (GPU and driver, or None), timing_cache (used, saved)."""

    @abstractmethod
    def can_run(self, target: str, machine: Machine) -> str | None:
        """None where an engine for `target` runs on this machine; else the reason why not, one clause."""

    @abstractmethod
    def open(self, plan: Path, spec: ModelSpec, profiles: Sequence[Profile]) -> Session:
        """Load an engine. Raises EngineError for one of another GPU or version, naming both."""


def get(name: str) -> Backend:
    """The backend of that name. Raises UsageError with the nearest name."""
    if name not in NAMES:
        raise unknown("backend", name, NAMES)
    backend = import_module(f"aot.backends.{name}").BACKEND
    assert isinstance(backend, Backend)
    return backend
