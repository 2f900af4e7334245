"""The part of a graph that a pass rewrote, cut out of the graph before and after, so that both can be run.

A value that both graphs hold under one key is meant to be the same; where what makes it changed, that is to be shown.
For such a target both graphs are followed backwards. The walk ends at values that both hold, which are fed with the
same numbers, and goes on through what only one of them holds, through constants, and through the integers that shapes
are computed from, down to the Shape nodes, so that sizes fit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from aot.graph.state import State, write_constant, write_nodes, write_value

if TYPE_CHECKING:
    import onnx

LARGEST_PART = 400
"""Nodes of a part; beyond it the whole graph is as good."""
_LARGE = 1 << 10
"""Bytes beyond which a constant is fed, not written."""
_FED = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)
_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)


class TooLarge(Exception):
    """The part would have more than `LARGEST_PART` nodes."""


@dataclass(frozen=True)
class Target:
    """A value before and after, by key; the keys differ only where an output of a graph was put in another's place."""

    before: str
    after: str


@dataclass(frozen=True)
class Part:
    """Nodes of one state that compute `targets` from `free` values and `constants`."""

    state: State
    nodes: tuple[ir.Node, ...]
    targets: tuple[str, ...]
    free: tuple[str, ...]
    constants: tuple[str, ...]

    @property
    def weights(self) -> dict[str, ir.TensorProtocol]:
        """The large constants, which are fed instead of written."""
        found = ((key, self.state.constants[key]) for key in self.constants)
        return {key: t for key, t in found if t is not None and t.nbytes > _LARGE and t.dtype in _FED}

    def model(self) -> onnx.ModelProto:
        """As a model of its own: one input for each free value and for each of the `weights`, one output for each
        target, named by its place."""
        import onnx

        model = onnx.ModelProto(ir_version=max(self.state.model.ir_version or 0, 8))
        for domain, version in self.state.opsets.items():
            model.opset_import.add(domain=domain, version=version)
        for function in self.state.model.functions.values():
            model.functions.append(ir.serde.serialize_function(function))
        graph = model.graph
        graph.name = "part"
        weights = self.weights
        for key in (*self.free, *weights):
            write_value(graph.input.add(), key, self.state.values[key])
        for key in self.constants:
            tensor = self.state.constants[key]
            if key not in weights and tensor is not None:
                write_constant(graph.initializer.add(), key, tensor)
        write_nodes(graph, self.state, self.nodes)
        for number, key in enumerate(self.targets):
            graph.node.add(op_type="Identity", input=[key], output=[f"target/{number}"])
            graph.output.add(name=f"target/{number}")
        return model


def targets(before: State, after: State) -> list[Target]:
    """Every value that both states hold and that is not made from the same by the same node."""
    constants = {
        key
        for key, tensor in after.constants.items()
        if key in before.constants and before.constants[key] is not tensor
    }
    found: dict[str, None] = {}
    for one, other in ((after, before), (before, after)):
        for node, at in one.nodes.items():
            if other.nodes.get(node) != at or not constants.isdisjoint(at.inputs):
                found.update((key, None) for key in at.outputs if key)
    pairs = [Target(key, key) for key in found if key in before.values and key in after.values]
    for graph, at_end in after.graphs.items():
        if graph in before.graphs:
            outputs = zip(before.graphs[graph].outputs, at_end.outputs, strict=False)
            pairs += [Target(old, new) for old, new in outputs if old != new]
    return pairs


def parts(
    before: State, after: State, wanted: Sequence[Target], *, back: int = 0, forward: int = 0
) -> tuple[Part, Part]:
    """The parts of both states that compute `wanted`.

    back, forward: so many nodes more on either side, where facts about what surrounds the rewrite count. Raises
    TooLarge.
    """
    wanted, pulled = _ahead(before, after, wanted, forward)
    for _ in range(back + 1):
        while True:
            old = _walk(before, after, [target.before for target in wanted], pulled)
            new = _walk(after, before, [target.after for target in wanted], pulled)
            free = {*old.free, *new.free}
            grow = {key for key in free if _is_size(before, key) or _is_size(after, key)}
            if set(old.free) - set(new.free) and set(new.free) - set(old.free):
                grow |= set(old.free) ^ set(new.free)
            grow = {key for key in grow if key in before.maker or key in after.maker} - pulled
            if not grow:
                break
            pulled |= grow
        pulled |= free
    return old, new


def whole(state: State) -> Part:
    """The main graph."""
    outputs = state.graphs[state.model.graph].outputs
    return _walk(state, state, outputs, None)


def _walk(state: State, other: State, wanted: Sequence[str], pulled: Collection[str] | None) -> Part:
    """Backwards from `wanted`, past the keys in `pulled`; past all where that is None."""
    nodes: set[ir.Node] = set()
    free, constants = dict[str, None](), dict[str, None]()
    todo, seen = list(wanted), set(wanted)
    while todo:
        key = todo.pop()
        maker = state.maker.get(key)
        if key in state.constants and not state.values[key].is_graph_input():
            constants[key] = None
        elif maker is None or not (pulled is None or key in wanted or key in pulled or _one_sided(state, other, key)):
            free[key] = None
        elif maker not in nodes:
            nodes.add(maker)
            if pulled is not None and len(nodes) > LARGEST_PART:
                raise TooLarge
            more = [key for key in state.reads(maker) if key not in seen]
            seen.update(more)
            todo += more
    within = {node for node in nodes if not _holders(state, node) & nodes}
    return Part(
        state, tuple(node for node in state.nodes if node in within), tuple(wanted), tuple(free), tuple(constants)
    )


def _holders(state: State, node: ir.Node) -> set[ir.Node]:
    holder = state.graphs[state.nodes[node].graph].holder
    return set() if holder is None else {holder, *_holders(state, holder)}


def _one_sided(state: State, other: State, key: str) -> bool:
    """Whether a value is not simply the same in both: only one holds it, or one knows its contents."""
    if key not in other.values or key in other.constants:
        return True
    return any(one.maker[key].op_type == "Constant" for one in (state, other) if key in one.maker)


def _is_size(state: State, key: str) -> bool:
    """Whether a value may hold sizes or axes."""
    value = state.values.get(key)
    return value is not None and value.dtype in _INTEGERS and (value.shape is None or len(value.shape) <= 1)


def _ahead(before: State, after: State, wanted: Sequence[Target], steps: int) -> tuple[Sequence[Target], set[str]]:
    """What depends on `wanted` after so many nodes, or is an output before that; and the keys on the way."""
    ends = {key for graph in after.graphs.values() for key in graph.outputs}
    passed: set[str] = set()
    kept: dict[Target, None] = {}
    for _ in range(steps):
        ahead: dict[Target, None] = {}
        keys = {target.after for target in wanted}
        for node, at in after.nodes.items():
            if not keys.isdisjoint(after.reads(node)):
                ahead.update((Target(key, key), None) for key in at.outputs if key in before.values)
        kept.update((target, None) for target in wanted if target.after in ends)
        passed |= keys | {target.before for target in wanted}
        wanted = list(ahead)
    return [*kept, *wanted], passed
