"""Custom operators whose implementation is made of torch's functions: the implementation takes the operator's place.

`torch.library.custom_op` hides its body from the export, which needs only what the outputs look like. A body that can
be traced is ordinary torch code. One that cannot (it calls a compiled kernel, numpy or Triton) stays an operator, and
needs a plugin or a translation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS

from aot.frontend.bridge import experts, graft


def body(op: Any) -> Callable[..., Any] | None:
    """The Python implementation of a custom operator, ours where its own cannot be traced; None for any other
    operator, or one that changes its arguments."""
    if not isinstance(op, torch._ops.OpOverload) or op._schema.is_mutable:
        return None
    if op._schema.name in experts.BODIES:
        return experts.BODIES[op._schema.name]
    definition = OPDEFS.get(op._schema.name)
    return None if definition is None else definition._init_fn


def expanded(node: torch.fx.Node, implementation: Callable[..., Any]) -> bool:
    """Put the implementation in the place of the node, which is left as it is where that cannot be traced."""
    before = node.prev
    try:
        result = graft.grafted(node, implementation, graft.bound(node))
    except Exception:  # noqa: BLE001  the implementation is the user's code, and not written to be traced
        return False
    steps = []
    step = node.prev
    while step is not before:
        steps.append(step)
        step = step.prev
    if any(isinstance(step.target, torch._ops.HigherOrderOperator) for step in steps):
        for step in steps:
            node.graph.erase_node(step)
        return False
    graft.replace(node, result)
    return True
