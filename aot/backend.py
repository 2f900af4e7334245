"""What builds and runs engines. Implementations are in `backends/`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from aot import origins
from aot.backends import NAMES
from aot.config import EngineOptions, Precision
from aot.declaration import ModelSpec
from aot.errors import GraphError, unknown
from aot.origins import Origin
from aot.profile import Profile
from aot.progress import Progress
from aot.toolchain import Machine

if TYPE_CHECKING:
    from aot.arrays import Arrays
    from aot.runtime.kernels import Compiled
    from aot.timing_cache import TimingCaches

Launching = Literal["python", "ahead"]


@dataclass(frozen=True)
class Job:
    """Everything one engine is built from. graph: the final ONNX file; target: `sm89`, ... or `cpu`.

    leaving: the weights that a stripped plan leaves out, by name. timings: the one timing cache that it may be built
    with, where a lock says so.
    """

    graph: Path
    spec: ModelSpec
    precision: Precision
    profiles: Sequence[Profile]
    target: str
    options: EngineOptions
    leaving: Sequence[str] = ()
    timings: bytes | None = None


@dataclass(frozen=True)
class Unsupported:
    """A node that cannot be built. node and op are empty for what the backend says of the graph as a whole.

    reason: one clause. fix: what would help.
    """

    node: str
    op: str
    origin: Origin | None
    reason: str
    fix: str

    @property
    def where(self) -> str | None:
        """The node and where it comes from, one line."""
        return origins.where(self.node, self.op, self.origin) if self.node else None

    def to_json(self) -> dict[str, str]:
        """Plain data: {node, op, module, source, code, reason, fix}."""
        origin = self.origin or Origin()
        place = {"module": origin.module, "source": origin.place, "code": origin.code}
        return {"node": self.node, "op": self.op, **place, "reason": self.reason, "fix": self.fix}


@dataclass(frozen=True)
class LayerTime:
    """How long one layer of an engine takes in a run.

    layer: what the vendor calls it. ms: milliseconds, the median over the runs. nodes: names of the nodes of the ONNX
    graph that it says it is made of, the most telling ones first; some may not be the graph's. Empty: it does not say.
    """

    layer: str
    ms: float
    nodes: tuple[str, ...] = ()


class Session(AbstractContextManager["Session"]):
    """An engine that is loaded: `session(inputs) -> outputs`, numpy in and out."""

    def __call__(self, inputs: Mapping[str, Any]) -> Arrays:
        """Run once. Raises EngineError for a missing input, a wrong dtype, or shapes that it does not take."""
        raise NotImplementedError

    def stopwatch(self, inputs: Mapping[str, Any]) -> Callable[[int], float]:
        """A function that runs so many times, one after the other, and gives the seconds that took.

        Inputs and outputs stay where the engine has them: nothing is copied. It holds until the session is called
        again or asked for another. Raises EngineError as a call does.
        """
        raise NotImplementedError

    def layer_times(self, inputs: Mapping[str, Any], runs: int) -> list[LayerTime]:
        """The time of every layer, in the order in which they run, by the vendor's own profiler.

        The session runs slower from then on. Raises EngineError as a call does.
        """
        raise NotImplementedError


class Backend(ABC):
    """One vendor's builder and runtime. `name` is what `--backend` takes, `title` what people call it; `suffix` ends
    its engine files."""

    name: str
    title: str
    suffix: str

    @abstractmethod
    def version(self) -> str | None:
        """The installed version, None where it is not installed. Imports nothing heavy."""

    @abstractmethod
    def targets(self, machine: Machine) -> tuple[str, ...]:
        """What it can build for on this machine, best first."""

    @abstractmethod
    def suits(self, precision: Precision, target: str) -> None:
        """Raise TargetError for what it builds on no machine: another kind of target, a dtype the target lacks."""

    @abstractmethod
    def check(self, precision: Precision, target: str, machine: Machine) -> None:
        """Raise TargetError, with the way out, for what cannot be built here. A pure function of its arguments
        and the installed version."""

    @abstractmethod
    def judge(self) -> str:
        """Who answers `unsupported` on this machine: `parser` (the vendor's own), `session`, or `table`."""

    @abstractmethod
    def unsupported(self, graph: Path) -> list[Unsupported]:
        """Every node of the ONNX file that the backend cannot build, in the graph's order, without building.

        Empty: an engine will come of it, as far as can be known before. A `table` knows less than a `parser`. Raises
        GraphError for a file that is no graph, EngineError where the vendor's libraries do not load.
        """

    def check_graph(self, graph: Path) -> None:
        """Raise GraphError for the first node of `unsupported`, with what would help."""
        found = self.unsupported(graph)
        if found:
            more = f" (and {len(found) - 1} more: aot explain lists them)" if len(found) > 1 else ""
            raise GraphError(
                f"{self.title} {self.version()} does not take {found[0].op or 'the graph'}: {found[0].reason}{more}",
                where=found[0].where or str(graph),
                fix=found[0].fix,
            )

    def launches(self, version: str | None) -> Launching | None:
        """How an engine of that version launches kernels of plugins, None where it launches none.

        version None: of one that is not known yet. With `python` the process that runs the engine launches them; with
        `ahead` the engine does it by itself.
        """
        return None

    def with_kernels(self, graph: Path, kernels: Mapping[str, Sequence[Compiled]], folder: Path) -> Path:
        """Write the graph as the backend builds it below `folder`, kernels in the place of nodes; return its path.

        kernels: node name -> the kernels of one node, one for each way to run it, of which the builder takes the
        fastest. Only where `launches` says that the installed version does.
        """
        raise NotImplementedError

    @abstractmethod
    def build(self, job: Job, plan: Path, caches: TimingCaches | None, progress: Progress) -> Mapping[str, Any]:
        """Write the engine to `plan`; return facts: origin (GPU and driver, or None), timing_cache (used, saved).

        Beside it lie TIMING, the timing cache, and TACTICS, where the builder's machine can load it.
        """

    @abstractmethod
    def can_run(self, target: str, machine: Machine, hardware: str | None = None) -> str | None:
        """None where an engine for `target` runs on this machine; else the reason why not, one clause.

        hardware: its level of hardware compatibility.
        """

    @abstractmethod
    def open(self, plan: Path, spec: ModelSpec, profiles: Sequence[Profile], weights: Path | None = None) -> Session:
        """Load an engine. weights: the file that a stripped one takes its weights from.

        Raises EngineError for one of another GPU or version, naming both.
        """


def get(name: str) -> Backend:
    """The backend of that name. Raises UsageError with the nearest name."""
    if name not in NAMES:
        raise unknown("backend", name, NAMES)
    backend = import_module(f"aot.backends.{name}").BACKEND
    assert isinstance(backend, Backend)
    return backend
