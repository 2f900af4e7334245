"""Arithmetic with sizes as whole numbers, where it is about whole numbers.

torch.onnx divides sizes with ONNX's Div, which rounds towards zero: `-(-n // 4)` comes out one short. And it computes
`floor(n * (16 / m))` in FP32, where 41 * (16 / 41) is below 16.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true


def settle(graph: torch.fx.Graph) -> None:
    """Correct the arithmetic on sizes in a graph, in place."""
    for node in list(graph.nodes):
        if node.op == "call_function":
            _settle(node)


def _settle(node: torch.fx.Node) -> None:
    whole = _whole(node)
    if whole is not None:
        number, over, under = whole
        node.target, node.args = operator.floordiv, (_insert(node, operator.mul, number, over), under)
    elif node.target is operator.floordiv and all(map(_is_int, node.args)) and not _never_negative(node.args[0]):
        number, divisor = node.args
        rest = _insert(node, operator.mod, number, divisor)
        node.args = (_insert(node, operator.sub, number, rest), divisor)  # divides without a rest


def _whole(node: torch.fx.Node) -> Any:
    """(n, a, b) of floor(n * (a / b)), all of them sizes that are not negative."""
    product = node.args[0] if node.target in (math.floor, torch.sym_int, math.trunc) else None
    if not isinstance(product, torch.fx.Node) or product.target is not operator.mul:
        return None
    for number, ratio in (product.args, product.args[::-1]):
        if isinstance(ratio, torch.fx.Node) and ratio.target is operator.truediv:
            parts: Any = (number, *ratio.args)
            if all(map(_is_int, parts)) and all(map(_never_negative, parts)):
                return parts
    return None


def _insert(node: torch.fx.Node, target: Callable[[Any, Any], Any], *args: Any) -> torch.fx.Node:
    with node.graph.inserting_before(node):
        made = node.graph.call_function(target, args)
    made.meta = {key: value for key, value in node.meta.items() if key != "unbacked_bindings"}
    made.meta["val"] = target(*map(_value, args))
    return made


def _value(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument


def _is_int(argument: Any) -> bool:
    return isinstance(_value(argument), int | torch.SymInt)


def _never_negative(argument: Any) -> bool:
    return bool(statically_known_true(_value(argument) >= 0))
