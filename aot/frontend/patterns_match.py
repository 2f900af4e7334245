"""Finding a pattern in a program: the same ops on the same values, whatever stands around them.

Casts to the dtype that a value has, copies and the like are looked through on both sides; sums and products are taken
either way round. Numbers must be the same where the pattern was traced at the program's sizes; before, any integer
may stand for another, since most follow from sizes.

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import torch

from aot.frontend.bridge.graft import bound
from aot.frontend.patterns_trace import Pattern

_ATEN = torch.ops.aten
_CASTS = {
    _ATEN.to.dtype, _ATEN.to.dtype_layout, _ATEN.to.device, _ATEN.to.other, _ATEN._to_copy.default,
    _ATEN.type_as.default,
}  # fmt: skip
_COPIES = {_ATEN.alias.default, _ATEN.clone.default, _ATEN.contiguous.default, _ATEN.detach.default}
_COMMUTE = {_ATEN.add.Tensor, _ATEN.mul.Tensor}
_IDLE = ("cudnn_enable", "cudnn_enabled")
"""Arguments that say where an op may run."""
_ASSERTIONS = {_ATEN._assert_tensor_metadata.default}


@dataclass(frozen=True)
class Match:
    """values: node of the pattern -> node of the program. attributes: what stands in the holes."""

    values: Mapping[torch.fx.Node, torch.fx.Node] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def with_value(self, node: torch.fx.Node, value: torch.fx.Node) -> Match:
        """And this node for that."""
        return Match({**self.values, node: value}, self.attributes)

    def with_attribute(self, name: str, value: Any) -> Match:
        """And this in that hole."""
        return Match(self.values, {**self.attributes, name: value})


def matches(pattern: Pattern, value: torch.fx.Node) -> Iterator[Match]:
    """The ways in which `value` is the pattern's first output: more than one where it is symmetrical."""
    return _node(pattern, pattern.outputs[0], value, Match())


def plain(node: torch.fx.Node) -> torch.fx.Node:
    """The value behind casts that change nothing, and copies."""
    while is_plain(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def is_plain(node: torch.fx.Node) -> bool:
    """Whether a node only hands its first argument on."""
    if node.target in _COPIES:
        return True
    if node.target == _ATEN.slice.Tensor:  # x[:, :, ::2] takes the first two axes whole
        _, _, start, end, step = bound(node)
        return start in (None, 0) and end in (None, sys.maxsize) and step == 1
    before = node.args[0] if node.target in _CASTS else None
    return isinstance(before, torch.fx.Node) and _dtype(before) == _dtype(node)


def users(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """What reads the value of a node, through casts that change nothing; what only asserts does not count."""
    for user in node.users:
        if is_plain(user):
            yield from users(user)
        elif user.target not in _ASSERTIONS:
            yield user


def is_assertion(node: torch.fx.Node) -> bool:
    """Whether a node computes nothing."""
    return node.target in _ASSERTIONS


def _dtype(node: torch.fx.Node) -> Any:
    return getattr(node.meta.get("val"), "dtype", None)


def _node(pattern: Pattern, node: torch.fx.Node, value: Any, found: Match) -> Iterator[Match]:
    if not isinstance(value, torch.fx.Node):
        return
    node, value = plain(node), plain(value)
    known = found.values.get(node)
    if known is not None:
        if known is value:
            yield found
    elif node.op == "placeholder":
        yield found.with_value(node, value)
    elif value.op == "call_function" and _same_op(node, value):
        for given in _orders(node):
            for one in _all(pattern, given, _operands(value), found):
                yield one.with_value(node, value)


def _same_op(node: torch.fx.Node, value: torch.fx.Node) -> bool:
    if node.target in _CASTS:
        return value.target in _CASTS and _dtype(node) == _dtype(value)
    return node.target == value.target


def _operands(node: torch.fx.Node) -> tuple[Any, ...]:
    if node.target in _CASTS:
        return node.args[:1]
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.args
    names = [argument.name for argument in node.target._schema.arguments]
    return tuple(value for name, value in zip(names, bound(node), strict=True) if name not in _IDLE)


def _orders(node: torch.fx.Node) -> Iterator[tuple[Any, ...]]:
    operands = _operands(node)
    if node.target not in _COMMUTE:
        yield operands
        return
    for pair in permutations(operands[:2]):
        yield (*pair, *operands[2:])


def _all(pattern: Pattern, nodes: Sequence[Any], values: Sequence[Any], found: Match) -> Iterator[Match]:
    if len(nodes) != len(values):
        return
    if not nodes:
        yield found
        return
    for one in _one(pattern, nodes[0], values[0], found):
        yield from _all(pattern, nodes[1:], values[1:], one)


def _one(pattern: Pattern, node: Any, value: Any, found: Match) -> Iterator[Match]:
    if isinstance(node, torch.fx.Node):
        yield from _node(pattern, node, value, found)
    elif isinstance(node, list | tuple):
        if isinstance(value, list | tuple):
            yield from _all(pattern, node, value, found)
    else:
        yield from _constant(pattern, node, value, found)


def _constant(pattern: Pattern, constant: Any, value: Any, found: Match) -> Iterator[Match]:
    hole = next((hole for hole in pattern.holes if _number(constant) and hole.value == constant), None)
    if hole is not None:
        if _number(value) and found.attributes.get(hole.name, value) == value:
            yield found.with_attribute(hole.name, type(hole.value)(value))
    elif not pattern.exact and type(constant) is int and (type(value) is int or isinstance(value, torch.fx.Node)):
        yield found  # it may follow from a size
    elif (type(constant) is type(value) or (_number(constant) and _number(value))) and constant == value:
        yield found


def _number(value: Any) -> bool:
    return type(value) in (int, float)
