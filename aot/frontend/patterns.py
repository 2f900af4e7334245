"""Ops of plugins in the place of what a model computes without them: patterns, found and replaced in a program.

A plugin's PATTERNS say what it replaces, as functions in torch. Each is found in two steps: first at sizes of its own,
integers standing for any, then traced again on the very values that were found, where everything must be the same. An
intermediate value that something else reads, and that is no output of the plugin, forbids it. Whether an op takes the
place of what was found is decided by `aot.plugins.replacing`; that the graph still does what the model does is compared
in every build.

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from aot import content
from aot.errors import PluginError
from aot.frontend import lines, patterns_trace
from aot.frontend.bridge.rewrite import copied
from aot.frontend.origins import portable
from aot.frontend.patterns_match import Match, is_assertion, is_plain, matches, plain, users
from aot.frontend.patterns_trace import Pattern
from aot.frontend.plugins import dtype_of, registered
from aot.frontend.quiet import silenced
from aot.plugins.loading import Plugin, load
from aot.plugins.replacing import Replacing
from aot.plugins.sizes import varying


@dataclass(frozen=True)
class Place:
    """A place where a pattern occurs, and whether the plugin's op was put there, and why.

    node: what the program calls the first result. module, source: where the model computes it.
    """

    plugin: str
    node: str
    replaced: bool
    why: str
    module: str
    source: str


class _Refused(Exception):
    """The pattern is there, and the op cannot take its place."""


def replaced(
    program: torch.export.ExportedProgram, replacing: Replacing, project: Path | None
) -> tuple[torch.export.ExportedProgram, list[dict[str, Any]]]:
    """(the program with ops in the place of patterns, the `Place`s as plain data); the given one is left as it is.

    Raises PluginError for a plugin that is broken, or a pattern that cannot be traced.
    """
    if not replacing.names:
        return program, []
    files = content.names("plugins", project)
    program = copied(program)
    modules = [one for one in program.graph_module.modules() if isinstance(one, torch.fx.GraphModule)]

    def everywhere() -> list[Place]:
        return [
            place
            for plugin in [load(files[name]) for name in replacing.names]
            for function in plugin.patterns
            for module in modules
            for place in _in_graph(module.graph, plugin, function, replacing, project)
        ]

    # torch logs what fails, and a pattern may fail at sizes that it is not for.
    places = silenced(everywhere)
    for module in modules:
        module.graph.lint()
        module.recompile()
    return program, [asdict(place) for place in places]


def _in_graph(
    graph: torch.fx.Graph,
    plugin: Plugin,
    function: Callable[..., Any],
    replacing: Replacing,
    project: Path | None,
) -> Iterator[Place]:
    dtypes = {_dtype(node) for node in graph.nodes} - {None}
    for chosen in plugin.schema.combinations():
        if not dtypes.issuperset(plugin.schema.dtypes(plugin.schema.inputs, chosen)):
            continue
        pattern = patterns_trace.example(plugin, function, chosen)
        for node in list(graph.nodes):
            if node.op != "call_function" or node._erased:
                continue
            found = _found(plugin, function, pattern, node)
            if found is None:
                continue
            name, origin = node.name, _origin(node, project)
            try:
                taken, why = replacing.judged(plugin, *found.described(), project)
                if taken:
                    found.replace()
            except _Refused as refused:
                taken, why = False, str(refused)
            yield Place(plugin.name, name, taken, why, *origin)


def _found(plugin: Plugin, function: Callable[..., Any], pattern: Pattern, node: torch.fx.Node) -> _Occurrence | None:
    """The pattern whose first output is this node, at the node's own sizes."""
    for likely in matches(pattern, node):
        given = {name: likely.values[placeholder] for placeholder, name in pattern.inputs.items()}
        attributes = {**pattern.attributes, **likely.attributes}
        values = {name: value.meta.get("val") for name, value in given.items()}
        tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
        if len(tensors) < len(given):
            continue
        try:
            exact = patterns_trace.instance(plugin, function, tensors, attributes)
        except PluginError:
            continue  # it is written for other ranks or sizes
        for match in matches(exact, node):
            if all(match.values[plain(hole)] is given[name] for hole, name in exact.inputs.items()):
                return _Occurrence(plugin, exact, match, given, attributes)
    return None


@dataclass(frozen=True)
class _Occurrence:
    """A pattern in a program. given: the nodes of the inputs, by name."""

    plugin: Plugin
    pattern: Pattern
    match: Match
    given: Mapping[str, torch.fx.Node]
    attributes: Mapping[str, Any]

    @cached_property
    def outputs(self) -> tuple[torch.fx.Node, ...]:
        """What the op's outputs take the place of."""
        return tuple(self.match.values[plain(node)] for node in self.pattern.outputs)

    @cached_property
    def inner(self) -> set[torch.fx.Node]:
        """What the op computes instead, outputs included."""
        return {value for node, value in self.match.values.items() if node.op == "call_function"}

    @cached_property
    def squeezed(self) -> dict[str, int]:
        """input -> how many axes of size 1 it has in front of those that SHAPES knows: broadcast, they say nothing."""
        found = {}
        for name, node in self.given.items():
            axes, shape = self.plugin.shapes[name], node.meta["val"].shape
            extra = len(shape) - len(axes)
            ones = axes[:1] != ("...",) and extra > 0 and all(size == 1 for size in shape[:extra])
            found[name] = extra if ones else 0
        return found

    @property
    def shapes(self) -> dict[str, tuple[Any, ...]]:
        """Of the op's inputs."""
        return {name: tuple(node.meta["val"].shape[self.squeezed[name] :]) for name, node in self.given.items()}

    def described(self) -> tuple[tuple[str, ...], dict[str, tuple[int | None, ...]]]:
        """(dtypes, shapes) of the inputs, None for a size that varies. Raises _Refused where the op takes other ones,
        where its kernel wants a size fixed that varies, or where something else reads a value within."""
        sizes = {
            name: tuple(varying(name, axis) if type(size) is not int else size for axis, size in enumerate(shape))
            for name, shape in self.shapes.items()
        }
        try:
            self.plugin.bind(sizes)
            self.plugin.launch(sizes, self.attributes, self.plugin.configs[0])
        except PluginError as error:
            raise _Refused(error.what) from error
        for value in self.inner.difference(self.outputs):
            outside = next((user for user in users(value) if user not in self.inner), None)
            if outside is not None:
                raise _Refused(f"'{outside.name}' reads '{value.name}', a value within it")
        dtypes = tuple(dtype_of(node.meta["val"]) for node in self.given.values())
        shapes = {
            name: tuple(size if type(size) is int else None for size in shape) for name, shape in self.shapes.items()
        }
        return dtypes, shapes

    def replace(self) -> None:
        """Put the op there. Raises _Refused where its outputs are others, or are read before its inputs are there."""
        graph = self.outputs[0].graph
        order = {node: place for place, node in enumerate(graph.nodes)}
        ours = self._ours()
        readers = [user for value in self.outputs for user in value.users if user not in ours]
        if not readers:
            raise _Refused("nothing reads its results")
        first = min(readers, key=order.__getitem__)
        late = next((node for node in self.given.values() if order[node] >= order[first]), None)
        if late is not None:
            raise _Refused(f"'{first.name}' reads a result before '{late.name}' is there")
        made = self._call(graph, first)
        names = [value.name for value in self.outputs]
        for value, result in zip(self.outputs, made, strict=True):
            value.replace_all_uses_with(result, delete_user_cb=lambda user: user not in ours)
        for node in sorted(ours, key=order.__getitem__, reverse=True):
            graph.erase_node(node)
        for name, result in zip(names, made, strict=True):
            if result.users:
                result.name = name  # a program knows its outputs by name
            else:
                graph.erase_node(result)

    def _ours(self) -> set[torch.fx.Node]:
        """The nodes that go, with the casts and assertions between them."""
        found, left = set(self.inner), list(self.inner)
        while left:
            node = left.pop()
            for user in node.users:
                idle = is_assertion(user) or (is_plain(user) and all(one in self.inner for one in users(user)))
                if user not in found and idle:
                    found.add(user)
                    left.append(user)
        return found

    def _call(self, graph: torch.fx.Graph, before: torch.fx.Node) -> list[torch.fx.Node]:
        """The op's outputs as nodes. Raises _Refused where they are not what they replace."""
        op = registered(self.plugin)
        last = self.outputs[0]
        kept = {key: value for key, value in last.meta.items() if key != "val"}

        def add(target: Any, *args: Any) -> torch.fx.Node:
            values = torch.fx.map_arg(args, lambda node: node.meta["val"])
            with last.meta["val"].fake_mode:
                value = target(*values)
            node = graph.call_function(target, args)
            node.meta = {**kept, "val": value}
            return node

        with graph.inserting_before(before):
            inputs = [
                add(torch.ops.aten.squeeze.dims, node, list(range(self.squeezed[name])))
                if self.squeezed[name]
                else node
                for name, node in self.given.items()
            ]
            made = add(op, *inputs, *(self.attributes[one.name] for one in self.plugin.schema.attributes))
            several = len(self.outputs) > 1
            results = [add(operator.getitem, made, i) for i in range(len(self.outputs))] if several else [made]
        for value, result in zip(self.outputs, results, strict=True):
            old, new = value.meta["val"], result.meta["val"]
            if old.dtype != new.dtype or list(map(str, old.shape)) != list(map(str, new.shape)):
                for node in reversed([*inputs, made, *results]):
                    if node not in self.given.values() and not node._erased:
                        graph.erase_node(node)
                raise _Refused(f"it gives {_told(new)}, and the model {_told(old)}")
        return results


def _told(tensor: torch.Tensor) -> str:
    return f"{dtype_of(tensor)} [{', '.join(map(str, tensor.shape))}]"


def _dtype(node: torch.fx.Node) -> str | None:
    value = node.meta.get("val")
    return dtype_of(value) if isinstance(value, torch.Tensor) else None


def _origin(node: torch.fx.Node, project: Path | None) -> tuple[str, str]:
    """(module, source line) of a node; empty where not known."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    line = lines.of_node(node)
    return str(stack[-1][0]) if stack else "", f"{portable(line.file, project)}:{line.line}" if line else ""


def facts(places: list[dict[str, Any]], replacing: Replacing) -> dict[str, Any]:
    """What an export says of patterns: where they occur, and a warning where one that was asked for was not used."""
    warnings = []
    for name in replacing.asked:
        own = [place for place in places if place["plugin"] == name]
        if not own:
            warnings.append(f"{name} replaces nothing: no pattern of it occurs in the model")
        reasons = Counter(place["why"] for place in own if not place["replaced"])
        warnings += [f"{name} leaves {count} of {len(own)} places as they are: {why}" for why, count in reasons.items()]
    return {"replaced": places, "warnings": warnings}
