"""A pattern of a plugin as a graph: its function, traced on tensors, with holes where attributes stand.

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from aot.errors import PluginError
from aot.plugins import cases
from aot.plugins.loading import Plugin


@dataclass(frozen=True)
class Hole:
    """Stands for an attribute while a pattern is traced: a number that nobody writes, and the attribute's name."""

    name: str
    value: int | float


@dataclass(frozen=True)
class Pattern:
    """A traced pattern. inputs: placeholder -> name in SCHEMA. outputs: in SCHEMA's order.

    attributes: those that are settled. holes: those that a program says. exact: sizes are those of a program.
    """

    inputs: Mapping[torch.fx.Node, str]
    outputs: tuple[torch.fx.Node, ...]
    attributes: Mapping[str, Any]
    holes: tuple[Hole, ...]
    exact: bool


def example(plugin: Plugin, function: Callable[..., Any], chosen: Mapping[str, str]) -> Pattern:
    """The pattern at sizes of its own, to be found at any. chosen: name of TYPES -> dtype.

    Raises PluginError for a function that fails, or that does not show every input and attribute.
    """
    dtypes = plugin.schema.dtypes(plugin.schema.inputs, chosen)
    settled, holes = _attributes(plugin, function)
    values = {**settled, **{hole.name: hole.value for hole in holes}}
    failed: list[PluginError] = []
    for shapes, _ in cases.occurring(plugin):
        given = {
            one.name: torch.ones(shapes[one.name], dtype=getattr(torch, dtype))
            for one, dtype in zip(plugin.schema.inputs, dtypes, strict=True)
        }
        try:
            graph = _graph(plugin, function, given, values, "fake")
        except PluginError as error:
            failed.append(error)  # it may be written for some of the sizes alone
            continue
        return _pattern(plugin, function, graph, tuple(given), settled, holes)
    raise failed[0]


def instance(
    plugin: Plugin, function: Callable[..., Any], given: Mapping[str, torch.Tensor], attributes: Mapping[str, Any]
) -> Pattern:
    """The pattern on the fake tensors of a program, with the attributes that it was found with."""
    graph = _graph(plugin, function, given, attributes, "symbolic")
    return _pattern(plugin, function, graph, tuple(given), attributes, None)


def _attributes(plugin: Plugin, function: Callable[..., Any]) -> tuple[dict[str, Any], tuple[Hole, ...]]:
    """(attributes that the function settles, by a default or by not taking them; holes for the others)."""
    parameters = inspect.signature(function).parameters
    settled: dict[str, Any] = {}
    holes = []
    for place, one in enumerate(plugin.schema.attributes):
        if one.name not in parameters:
            settled[one.name] = one.default
        elif parameters[one.name].default is not inspect.Parameter.empty:
            settled[one.name] = parameters[one.name].default
        else:
            holes.append(Hole(one.name, 0.7310585786300049 + place if one.kind == "float" else 1_000_003 + place))
    return settled, tuple(holes)


def _graph(
    plugin: Plugin,
    function: Callable[..., Any],
    given: Mapping[str, torch.Tensor],
    values: Mapping[str, Any],
    mode: Literal["fake", "symbolic"],
) -> torch.fx.Graph:
    """What the function does, inputs in the order of `given`. Raises PluginError for whatever it raises."""
    taken = inspect.signature(function).parameters
    constants = {name: value for name, value in values.items() if name in taken}

    def call(*tensors: torch.Tensor) -> Any:
        made = function(**dict(zip(given, tensors, strict=True)), **constants)
        return tuple(made) if isinstance(made, tuple | list) else (made,)

    fakes = (one for one in given.values() if isinstance(one, FakeTensor))
    within: AbstractContextManager[Any] = next((one.fake_mode for one in fakes), nullcontext())
    with plugin.calling("PATTERNS"), torch.no_grad(), warnings.catch_warnings(), within:
        warnings.simplefilter("ignore")
        graph: torch.fx.Graph = make_fx(call, tracing_mode=mode, pre_dispatch=True)(*given.values()).graph
    graph.eliminate_dead_code()
    return graph


def _pattern(
    plugin: Plugin,
    function: Callable[..., Any],
    graph: torch.fx.Graph,
    names: tuple[str, ...],
    settled: Mapping[str, Any],
    holes: tuple[Hole, ...] | None,
) -> Pattern:
    """The graph as a pattern; holes None: at a program's sizes. Raises PluginError where it does not show everything.

    Everything must be seen from the first output, where the search begins.
    """
    outputs = tuple(graph.output_node().args[0])  # type: ignore[arg-type]
    declared = plugin.schema.outputs
    if len(outputs) != len(declared) or not all(isinstance(one, torch.fx.Node) for one in outputs):
        raise _wrong(plugin, function, f"it returns {len(outputs)} values, and SCHEMA {len(declared)} tensors")
    inputs = dict(zip(graph.find_nodes(op="placeholder"), names, strict=True))
    seen = _behind(outputs[0])
    for node, name in inputs.items():
        if node not in seen:
            raise _wrong(plugin, function, f"its first output does not depend on '{name}'")
    for one, tensor in zip(outputs, declared, strict=True):
        if one not in seen:
            raise _wrong(plugin, function, f"its first output is not computed from '{tensor.name}'")
    constants = pytree.tree_leaves([(node.args, node.kwargs) for node in seen])
    for hole in holes or ():
        if hole.value not in constants:
            raise _wrong(plugin, function, f"'{hole.name}' stands nowhere in it as it is given")
    return Pattern(inputs, outputs, settled, holes or (), holes is None)


def _behind(node: torch.fx.Node) -> set[torch.fx.Node]:
    """The node, and all that it is computed from."""
    seen, left = {node}, [node]
    while left:
        new = [before for before in left.pop().all_input_nodes if before not in seen]
        seen.update(new)
        left += new
    return seen


def _wrong(plugin: Plugin, function: Callable[..., Any], what: str) -> PluginError:
    return plugin.error(f"pattern {function.__name__}: {what}", function.__name__)
