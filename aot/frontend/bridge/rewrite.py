"""The rewrites of the bridge, applied to a program before torch.onnx sees it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from aot.errors import ExportError
from aot.frontend import lines
from aot.frontend.bridge import REWRITES, TRANSLATIONS, custom, graft, pairs, sizes
from aot.frontend.failures import at_line

# Operators that take functions and that neither torch.onnx translates nor torch takes apart.
_WITHOUT = ("flex_attention", "triton_kernel_wrapper", "associative_scan", "map_impl", "hints_wrapper", "local_map")


class _Declined(Exception):
    """The op's own translation is right for these arguments."""


def rewritten(
    program: torch.export.ExportedProgram, kept: Callable[[object], bool] = lambda _: False
) -> torch.export.ExportedProgram:
    """The program with our rewrites in place, over the same weights; the given one is left as it is.

    kept: which custom operators stay, though their implementation could take their place. Raises ExportError for an
    operator that takes functions and has no translation, and for what a rewrite does not cover, with the line.
    """
    program = copied(program)
    for module in _modules(program):
        _expand_custom(module.graph, kept)
        _copy_out(module.graph)
    if pairs.touches(program):
        program = pairs.paired(program)
    for module in _modules(program):
        _refuse_higher_order(module.graph)
        for node in _due(module.graph):
            _rewrite(node)
        sizes.settle(module.graph)
        module.graph.eliminate_dead_code()
        module.recompile()
    return program


def copied(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """A program of its own graph, over the same weights."""
    root = copy.deepcopy(program.graph_module)
    for made, node in zip(root.graph.nodes, program.graph_module.graph.nodes, strict=True):
        made.name = node.name  # copying renames what is called as a builtin: `input`
    return torch.export.ExportedProgram(
        root=root,
        graph=root.graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=dict(program.constants),
        verifiers=program.verifiers,
    )


def _modules(program: torch.export.ExportedProgram) -> list[torch.fx.GraphModule]:
    """The program's graph and those of its branches and loops."""
    return [module for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]


def _copy_out(graph: torch.fx.Graph) -> None:
    """What the branches of `torch.cond` return, as copies: torch.onnx refuses one that returns its input or a part."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.cond):
        for branch in node.args[1:3]:
            body = getattr(graph.owning_module, branch.target)
            output = body.graph.output_node()
            with body.graph.inserting_before(output):
                output.args = torch.fx.map_arg(output.args, _copied)
            body.recompile()


def _copied(value: torch.fx.Node) -> torch.fx.Node:
    if not isinstance(value.meta.get("val"), torch.Tensor):
        return value
    made = value.graph.call_function(torch.ops.aten.clone.default, (value,))
    made.meta = dict(value.meta)
    return made


def _refuse_higher_order(graph: torch.fx.Graph) -> None:
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator) and str(node.target).startswith(_WITHOUT):
            raise _refusal(str(node.target), node)


def _refusal(what: str, node: torch.fx.Node) -> ExportError:
    line = lines.of_node(node)
    return ExportError.of(
        at_line(
            "op without translation",
            f"there is no ONNX translation of {what}",
            "write that step with other torch functions, or provide a plugin for it",
            line,
        )
    )


def _expand_custom(graph: torch.fx.Graph, kept: Callable[[object], bool]) -> None:
    """Custom operators by their implementations, those within them too, but for those that are kept."""
    seen: set[torch.fx.Node] = set()
    while due := [n for n in graph.nodes if n.op == "call_function" and n.target not in TRANSLATIONS and n not in seen]:
        seen.update(due)
        bodies = [(node, custom.body(node.target)) for node in due if not kept(node.target)]
        if not any([custom.expanded(node, body) for node, body in bodies if body is not None]):
            break


def _due(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function" and node.target in REWRITES]


def _rewrite(node: torch.fx.Node) -> None:
    def once(*args: Any) -> Any:
        result = REWRITES[node.target](*args)
        if result is NotImplemented:
            raise _Declined
        return result

    try:
        result = graft.grafted(node, once, graft.bound(node))
    except _Declined:
        return
    except NotImplementedError as error:
        raise _refusal(str(error), node) from error
    graft.replace(node, result)
