"""The pass contract: a function that edits an `onnx_ir.Model` in place and says how many sites it changed.

`@graph_pass` makes a `Pass` of such a function. Its docstring states the algebra: what is replaced by what, and
why both are equal. Its `example` is a tiny graph in ONNX's text form that the pass changes; from it a test is
made that holds every pass to the contract: at least one site changes, a second run changes nothing, the checker
passes, and the numbers stay equal.

`run_passes` runs passes in order, each until it finds nothing more to do (or once, where it says that one sweep is
enough), and the list again while something changed. A pass says which ops it looks for (`anchors`); where the graph
holds none of them it costs nothing. All constants are initializers of the main graph from the beginning, and dims of
inputs have names. After every change what nothing reads is removed, and the dtypes and shapes of what is new are
inferred, so that a pass may rely on them; those that need none (`blind`) come first, since what is gone is not asked
for. Dims that may be known better by then are asked for once the list is through. A node that a pass made without
saying where it comes from inherits the origin of what it replaced (`aot.origins.inherit` has the rule).

A value keeps its name as long as it holds the same numbers: by the names a rewrite is compared with what it replaced
(`aot.graph.check`). One that holds others should have another name; else only what reads it shows that all is well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import onnx_ir as ir

from aot import origins
from aot.graph.constants import lift_constants, read_small
from aot.graph.dims import named_inputs
from aot.graph.shapes import complete, infer_shapes
from aot.graph.state import STATE, State, inner_graphs, walk
from aot.origins import Origin

__all__ = [
    "Applied",
    "Pass",
    "Skip",
    "discard",
    "drop_unread",
    "graph_pass",
    "infer_shapes",
    "run_passes",
]

Skip = Callable[[ir.Node, str], None]
Rewrite = Callable[[ir.Model, Skip], int]
Watch = Callable[["Pass", State, State], None]

_ROUNDS = 50
"""Of one pass."""
_TURNS = 6
"""Of the whole list."""


@dataclass(frozen=True)
class Pass:
    """A graph rewrite; see the module's docstring.

    name: the function's name. example: a model in ONNX's text form. narrow_only: it is run only for builds that
    compute in a type narrower than FP32, since FP32 does not need what it does. float_only: it is left out of builds in
    INT8 and FP8, whose kernels are found by forms that it changes. anchors: the op types of the standard
    domain of which a graph must hold one for the pass to change anything; empty: any graph. blind: it needs to know no
    dtypes and shapes. in_one_sweep: it finds all there is at once, so that in a list it is asked again only where the
    whole list is.
    """

    name: str
    rewrite: Rewrite
    example: str
    narrow_only: bool = False
    float_only: bool = False
    anchors: tuple[str, ...] = ()
    blind: bool = False
    in_one_sweep: bool = False

    @property
    def algebra(self) -> str:
        """What is replaced by what, and why both are equal."""
        return (self.rewrite.__doc__ or "").strip()

    def __call__(self, model: ir.Model, skip: Skip | None = None) -> int:
        """Edit `model` in place until nothing is left to do; return the number of sites changed.

        `skip(node, reason)` hears of every site that looked right and was left alone. Raises RuntimeError when
        the pass never settles, which is a bug in the pass.
        """
        return self.settle(State.of(model, inferred=True), skip)[0]

    def can_change(self, state: State) -> bool:
        """Whether the graph holds any of the ops that the pass looks for."""
        return not self.anchors or not state.ops.keys().isdisjoint(self.anchors)

    def settle(
        self, state: State, skip: Skip | None = None, watch: Watch | None = None, *, one_of_many: bool = False
    ) -> tuple[int, State]:
        """As a call of the pass, on the model of `state`, which is its present one; the new state comes back, too.

        `watch(pass, before, after)` sees every change. one_of_many: it will be called again, if it changes anything.
        """
        total = 0
        for _ in range(_ROUNDS):
            if not self.can_change(state):
                return total, state
            reasons: dict[str, tuple[ir.Node, str]] = {}
            state.model.meta[STATE] = state
            try:
                sites = self.rewrite(state.model, lambda node, why, r=reasons: r.update({node.name or "": (node, why)}))  # type: ignore[misc]
            finally:
                del state.model.meta[STATE]
            if not sites:
                for node, why in reasons.values():
                    if skip is not None:
                        skip(node, why)
                return total, state
            total += sites
            before, state = state, _tidied(state)
            if watch is not None:
                watch(self, before, state)
            if one_of_many and self.in_one_sweep:
                return total, state
        raise RuntimeError(f"pass '{self.name}' still changes the graph after {_ROUNDS} rounds")


def graph_pass(
    *,
    example: str,
    narrow_only: bool = False,
    float_only: bool = False,
    anchors: tuple[str, ...] = (),
    blind: bool = False,
    in_one_sweep: bool = False,
) -> Callable[[Rewrite], Pass]:
    """Make a `Pass` of a function `(model, skip) -> sites changed`."""

    def declare(rewrite: Rewrite) -> Pass:
        return Pass(rewrite.__name__, rewrite, example, narrow_only, float_only, anchors, blind, in_one_sweep)

    return declare


@dataclass
class Applied:
    """What one pass did: the sites it changed, its seconds, and the reason for each node that it left alone.

    seconds: of the pass and of what was tidied after it; `watch` is not counted.
    """

    name: str
    sites: int = 0
    seconds: float = 0.0
    skipped: dict[str, str] = field(default_factory=dict)


def run_passes(passes: Iterable[Pass], model: ir.Model, watch: Watch | None = None) -> list[Applied]:
    """Run `passes` over `model`, in place: in order, and again while one changes something.

    `watch(pass, before, after)` sees every change. A pass that the list holds more than once is counted once.
    """
    passes = tuple(passes)
    done = {one.name: Applied(one.name) for one in passes}
    with named_inputs(model):
        lift_constants(model)
        read_small(model)
        _run(passes, done, State.of(model), watch)
    return list(done.values())


def _run(passes: Sequence[Pass], done: Mapping[str, Applied], state: State, watch: Watch | None) -> None:
    for one in takewhile(lambda one: one.blind, passes):
        state = _timed(one, done[one.name], state, watch)  # what is gone is not asked for
    complete(state)
    seen: dict[str, State] = {}
    for _ in range(_TURNS):
        start = state
        for one in passes:
            if seen.get(one.name) is state:
                continue
            before, state = state, _timed(one, done[one.name], state, watch)
            if state is before or not one.in_one_sweep:
                seen[one.name] = state
        if state is start:
            if not complete(state):
                break
            seen.clear()  # the dims that passes found tell more of those behind them


def _timed(one: Pass, applied: Applied, state: State, watch: Watch | None) -> State:
    watched = 0.0

    def watching(one: Pass, before: State, after: State) -> None:
        nonlocal watched
        start = time.perf_counter()
        if watch is not None:
            watch(one, before, after)
        watched += time.perf_counter() - start

    applied.skipped.clear()  # what stands in the end counts
    if not one.can_change(state):
        return state
    start = time.perf_counter()
    said = applied.skipped
    sites, state = one.settle(state, lambda node, why: said.update({node.name or "": why}), watching, one_of_many=True)
    applied.sites += sites
    applied.seconds += time.perf_counter() - start - watched
    return state


def _tidied(before: State) -> State:
    """The state of the model after a change, once what nothing reads is gone and what is new is complete."""
    model = before.model
    if before.tidy:
        _drop_unread_since(before)
    else:
        drop_unread(model.graph)
    after = State.of(model, inferred=before.inferred, before=before)
    if before.tidy and any([_is_unread(node) for node in after.new]):
        drop_unread(model.graph)
        after = State.of(model, inferred=before.inferred, before=before)
    after.tidy = True
    changed = after.changed(before)
    if any([origins.of(node) is not None for node in before.nodes if node.metadata_props]):
        origins.inherit(model, _Origins(before), changed)
    if after.inferred:
        complete(after, changed)
    return after


def _drop_unread_since(before: State) -> None:
    """As `drop_unread`, of a graph of which `before` held nothing that is not read: only what lost a reader is asked,
    and the initializers that are new."""
    asked = [value for node, read in before.read.items() if node.inputs is not read for value in read]
    for at in before.graphs.values():
        asked += [before.values[key] for key in at.outputs if key]
    while asked:
        value = asked.pop()
        node = value.producer() if value is not None else None
        if node is None:
            if value is not None:
                _drop_initializer(value)
        elif node.graph is not None and _is_unread(node):
            asked += node.inputs
            for body in inner_graphs(node.attributes.data.values()):
                asked += [value for inner in walk(body, everywhere=True) for value in inner.inputs]
            discard(node)
    known, initializers = before.values, before.model.graph.initializers
    for value in [value for name, value in initializers.data.items() if known.get(name) is not value]:
        _drop_initializer(value)


def _drop_initializer(value: ir.Value) -> bool:
    """Remove an initializer that nothing reads; whether it was one."""
    if value.uses() or not value.is_initializer() or value.is_graph_output() or value.is_graph_input():
        return False
    assert value.graph is not None
    del value.graph.initializers[value.name or ""]
    return True


def _is_unread(node: ir.Node) -> bool:
    return not any([value.uses() or value.is_graph_output() for value in node.outputs])


class _Origins(Mapping[str, Origin]):
    """The origins of the values of a state, by name, read when they are asked for."""

    def __init__(self, state: State) -> None:
        self._maker = state.maker

    def __getitem__(self, name: str) -> Origin:
        origin = origins.of(self._maker[name])
        if origin is None:
            raise KeyError(name)
        return origin

    def __iter__(self) -> Iterator[str]:
        return iter(self._maker)

    def __len__(self) -> int:
        return len(self._maker)


def drop_unread(graph: ir.Graph) -> int:
    """Remove the nodes and the initializers that no output depends on, those of bodies included; returns how many."""
    removed = 0
    for node in reversed(graph):
        for value in node.outputs:
            if value.uses() or value.is_graph_output():
                break
        else:
            discard(node)
            removed += 1
            continue
        held = node.attributes.data
        for body in inner_graphs(held.values()) if held else ():
            removed += drop_unread(body)
    return removed + sum([_drop_initializer(value) for value in tuple(graph.initializers.data.values())])


def discard(node: ir.Node) -> None:
    """Remove a node that nothing reads, and what its bodies hold, which then reads nothing around it any more."""
    for body in inner_graphs(node.attributes.data.values()):
        body.outputs.clear()
        for inner in reversed(body):
            discard(inner)
    assert node.graph is not None
    node.graph.remove(node, safe=True)
