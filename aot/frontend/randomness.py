"""Random numbers inside a model: no engine draws those that eager draws, so none may reach an output.

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

from typing import Any

import torch

from aot.breaks import Break
from aot.frontend import lines
from aot.frontend.failures import at_line

_DROPOUT = {"dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "native_dropout"}
_DROPOUT |= {f"{name}_" for name in _DROPOUT}
_WITH_DROPOUT = {"scaled_dot_product_attention": "dropout_p"}
_IN_TRAINING = {"rrelu", "rrelu_", "rrelu_with_noise"}


def drawn(program: torch.export.ExportedProgram) -> list[Break]:
    """A Break for every random op that an output depends on, in the order of the program."""
    reaching = _reaching(program)
    return [reason for node in program.graph.nodes if node in reaching for reason in _reason(node)]


def _reason(node: torch.fx.Node) -> list[Break]:
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    name = node.target._schema.name.rpartition("::")[2]
    given = _arguments(node)
    active = given.get("train", given.get("training")) is True and given.get("p", 1.0) != 0.0
    rate = given.get(_WITH_DROPOUT.get(name, ""), 0.0)
    at = lines.of_node(node)
    if (name in _DROPOUT and active) or rate:
        return [
            at_line(
                "active dropout",
                "dropout stays active: it is called with training=True, whatever model.eval() says"
                if name in _DROPOUT
                else f"attention drops {rate:.0%} of its weights: dropout_p is given, whatever model.eval() says",
                "pass training=self.training (dropout_p=self.p if self.training else 0.0), or use nn.Dropout",
                at,
            )
        ]
    if name in _DROPOUT or name in _WITH_DROPOUT or (name in _IN_TRAINING and not active):
        return []
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return []
    return [
        at_line(
            "random numbers",
            f"forward draws random numbers with {name}: an engine would draw others than torch, or none at all",
            "take the noise as an input of forward (then the caller draws it), or draw it once in __init__ and keep "
            "it in a buffer",
            at,
        )
    ]


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _reaching(program: torch.export.ExportedProgram) -> set[torch.fx.Node]:
    """The nodes that an output is computed from. What is changed in place counts through the node that changes it."""
    left: list[torch.fx.Node] = list(program.graph.output_node().all_input_nodes)
    found: set[torch.fx.Node] = set()
    while left:
        node = left.pop()
        if node in found:
            continue
        found.add(node)
        left += node.all_input_nodes
        left += [user for user in node.users if _changes(user, node)]
    return found


def _changes(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Whether `user` writes into the memory of `node`."""
    schema = getattr(user.target, "_schema", None)
    if schema is None:
        return False
    return any(
        argument.alias_info is not None and argument.alias_info.is_write and given is node
        for argument, given in zip(schema.arguments, user.args, strict=False)
    )
