"""Putting a piece of torch code in the place of one node of an exported program.

The code is traced on the fake tensors that the node saw, so sizes stay symbolic; each traced node carries the line and
the module of the node it replaces.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

# What the exporter and origins read from a node, apart from its value.
_KEPT = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node", "torch_fn")


def grafted(node: torch.fx.Node, function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Insert `function(*args)` before `node`; return the result with fx nodes as leaves, `node` itself untouched.

    `args` is a tree whose leaves are fx nodes and constants. Raises what `function` raises, and ValueError where it
    makes a tensor of given values, before anything is inserted.
    """
    leaves, tree = pytree.tree_flatten(tuple(args), is_leaf=lambda leaf: isinstance(leaf, torch.fx.Node))
    given = [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]

    shape: list[pytree.TreeSpec] = []

    def call(*values: Any) -> list[Any]:
        left = iter(values)
        filled = [next(left) if isinstance(leaf, torch.fx.Node) else leaf for leaf in leaves]
        results, spec = pytree.tree_flatten(function(*pytree.tree_unflatten(filled, tree)))
        shape.append(spec)
        return results

    with torch.no_grad(), warnings.catch_warnings(), _mode(node):
        warnings.simplefilter("ignore")
        traced = make_fx(call, tracing_mode="symbolic", pre_dispatch=True)(*(leaf.meta["val"] for leaf in given))
    traced.graph.eliminate_dead_code()
    if any(traced.graph.find_nodes(op="get_attr")):
        raise ValueError(f"the replacement of {node.target} holds a tensor of its own, which a program must not")
    made = dict(zip(traced.graph.find_nodes(op="placeholder"), given, strict=True))
    with node.graph.inserting_before(node):
        for step in traced.graph.nodes:
            if step.op not in ("placeholder", "output"):
                made[step] = _copied(step, node, made)
    results: Any = traced.graph.output_node().args[0]
    found = [made[leaf] if isinstance(leaf, torch.fx.Node) else leaf for leaf in results]
    return pytree.tree_unflatten(found, shape[-1])


def _mode(node: torch.fx.Node) -> AbstractContextManager[Any]:
    """The mode of the program's fake tensors, for a replacement that makes all of its own."""
    fakes = (leaf for leaf in pytree.tree_leaves(node.meta.get("val")) if isinstance(leaf, FakeTensor))
    return next((fake.fake_mode for fake in fakes), nullcontext())


def _copied(step: torch.fx.Node, node: torch.fx.Node, made: dict[torch.fx.Node, torch.fx.Node]) -> torch.fx.Node:
    copied = node.graph.node_copy(step, lambda before: made[before])
    for key in _KEPT:
        copied.meta.pop(key, None)
        if key in node.meta:
            copied.meta[key] = node.meta[key]
    return copied


def replace(node: torch.fx.Node, result: Any) -> None:
    """Let every user of `node` read `result` instead, and remove `node`. A tuple is taken apart by its getitems."""
    if isinstance(result, torch.fx.Node):
        node.replace_all_uses_with(result)
    else:
        for user in list(node.users):
            user.replace_all_uses_with(result[user.args[1]])
            user.graph.erase_node(user)
    node.graph.erase_node(node)


def bound(node: torch.fx.Node) -> tuple[Any, ...]:
    """The arguments of an op's node by position, defaults filled in."""
    given = node.args
    schema: Any = node.target
    rest = schema._schema.arguments[len(given) :]
    return (*given, *(node.kwargs.get(a.name, a.default_value) for a in rest))
