"""The rewrites of the bridge, applied to a program before torch.onnx sees it."""

from __future__ import annotations

import copy
from typing import Any

import torch

from aot.frontend.bridge import REWRITES, graft, pairs, sizes


class _Declined(Exception):
    """The op's own translation is right for these arguments."""


def rewritten(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with our rewrites in place, over the same weights; the given one is left as it is.

    Raises what a rewrite raises: NotImplementedError, with a sentence, for what it does not cover.
    """
    program = copied(program)
    if pairs.touches(program):
        program = pairs.paired(program)
    for module in _modules(program):
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
    graft.replace(node, result)
