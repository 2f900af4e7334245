"""What `aot explain` finds, as frozen data. `Explanation.to_json` is what `--json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from aot.backend import Unsupported
from aot.breaks import Break

Counts = Mapping[str, int]
"""Op type -> how many nodes."""


@dataclass(frozen=True)
class Refusal:
    """Why something cannot be built at all: an AotError as data."""

    what: str
    where: str | None
    fix: str | None


@dataclass(frozen=True)
class Ops:
    """The nodes by support.

    native: the vendor has it; of a node whose function takes its place, the function's nodes count. plugin: a plugin
    implements it, the vendor's or the project's, and its kernel is launched. rewriting: the backend
    would not take it as exported, and a rewrite or cast of aot's puts something else there; it is counted in the
    exported graph, the others in the final one. none: nothing implements it.
    """

    native: Counts
    plugin: Counts
    rewriting: Counts
    none: Counts


@dataclass(frozen=True)
class Called:
    """A node of a plugin. does: whether its `kernel` is launched or its `function` takes its place; why: one clause."""

    node: str
    op: str
    module: str
    source: str
    does: Literal["kernel", "function"]
    why: str


@dataclass(frozen=True)
class Target:
    """One target. None as `target`: any that the backend builds for.

    asked: what the answer comes from: `parser` (the vendor's own, installed here), `table` (what is known of the
    vendor's ops) or `session` (onnxruntime's). refused: why nothing is built for the target whatever the graph.
    notes: what to know that is no obstacle. plugins: the nodes of plugins, in the graph's order.
    """

    target: str | None
    backend: str
    version: str | None
    asked: str | None
    refused: Refusal | None
    ops: Ops | None
    unsupported: tuple[Unsupported, ...]
    notes: tuple[str, ...]
    plugins: tuple[Called, ...] = ()

    @property
    def ok(self) -> bool | None:
        """Whether an engine for it can be built, as far as can be known; None where no graph came to be."""
        if self.refused is not None:
            return False
        return None if self.ops is None else not self.unsupported

    def to_json(self) -> dict[str, Any]:
        """Plain data, with `ok`."""
        return {**asdict(self), "unsupported": [one.to_json() for one in self.unsupported], "ok": self.ok}


@dataclass(frozen=True)
class Group:
    """Nodes of one op type that compute in one precision for one reason; `nodes`: their names."""

    op: str
    precision: str
    reason: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Precision:
    """What the ops can take, before any range is known.

    compute: the dtype of what is not quantized. quantized: op type -> nodes that would be. wide: the layers that
    could be quantized and are not, and the nodes kept in a wider dtype than `compute`, by reason.
    """

    name: str
    compute: str
    quantized: Counts
    wide: tuple[Group, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Memory:
    """Estimates, in bytes.

    engine: the plan's size. weights: the constants of the final graph. activations: the largest sum of values that
    live at once, at every Dim's maximum, were nothing fused: an upper bound. build: what the builder needs of the
    host's memory. unknown: how many values have a size that is not known before the model runs, and are left out.
    """

    engine: int
    weights: int
    activations: int
    build: int
    unknown: int


@dataclass(frozen=True)
class Ranges:
    """One optimization profile: Dim -> (min, opt, max), and what the inputs' shapes are at the three."""

    dims: Mapping[str, tuple[int, int, int]]
    inputs: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]


@dataclass(frozen=True)
class Remark:
    """A node to know of: a size that values decide, control flow, or what a plugin could replace (`op` its name).

    node: empty where it is said of the whole graph."""

    node: str
    op: str
    module: str
    source: str
    note: str


@dataclass(frozen=True)
class Explanation:
    """Everything that was found. nodes: {exported, final}; None and empty for what a break left unknown.

    refusals: what ends a build beside the breaks and the targets. routes: ways around what is refused, by name.
    seconds: of the whole command, of which `aot build` need not repeat the export and the rewrites.
    """

    model: str
    breaks: tuple[Break, ...]
    refusals: tuple[Refusal, ...]
    targets: tuple[Target, ...]
    precision: Precision | None
    memory: Memory | None
    profiles: tuple[Ranges, ...]
    remarks: tuple[Remark, ...]
    routes: Mapping[str, str]
    nodes: Mapping[str, int]
    seconds: float

    @property
    def accepted(self) -> bool:
        """Whether a build would pass, as far as can be known: where no target was named, for one backend at least."""
        if self.breaks or self.refusals:
            return False
        named = [target for target in self.targets if target.target is not None]
        return all(one.ok for one in named) if named else any(one.ok for one in self.targets)

    def to_json(self) -> dict[str, Any]:
        """Plain data, with `accepted` and each target's `ok`."""
        data = {"model": self.model, "accepted": self.accepted, **asdict(self)}
        data["targets"] = [target.to_json() for target in self.targets]
        return data
