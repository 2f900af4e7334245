"""What no engine can be made of: values that are not tensors of numbers, and the ops that make them."""

from __future__ import annotations

import onnx_ir as ir

from aot.errors import GraphError

_SEQUENCES = frozenset(
    ["ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt", "SequenceConstruct",
     "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap", "SplitToSequence"]
)  # fmt: skip
_RANDOM = frozenset(
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"]
)
_STRINGS = frozenset(["RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"])
_DOMAINS = {
    "ai.onnx.ml": "classical machine learning, which runs on the CPU: cut it off the model, and run it before or after",
    "ai.onnx.preview.training": "training: export the model in eval mode",
    "ai.onnx.training": "training: export the model in eval mode",
}


def refuse(model: ir.Model, where: str) -> None:
    """Raise GraphError for the first node that makes or takes sequences, optionals or strings, or is of a domain
    that is not inference on tensors."""
    for node in model.graph.all_nodes():
        reason = _reason(node)
        if reason:
            what, fix = reason
            op = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            raise GraphError(f"no engine has {op}: {what}", where=f"node '{node.name}' ({op}) in {where}", fix=fix)


def refuse_random(model: ir.Model, where: str) -> None:
    """Raise GraphError for the first node that draws random numbers: nothing made of it can be compared with it."""
    for node in model.graph.all_nodes():
        if node.domain == "" and node.op_type in _RANDOM:
            raise GraphError(
                f"{node.op_type} draws random numbers, so that no two runs agree",
                where=f"node '{node.name}' ({node.op_type}) in {where}",
                fix="export the model with the noise as an input, or cut the graph there and make one of it",
            )


def _reason(node: ir.Node) -> tuple[str, str] | None:
    cut = "cut the model before or after it, and do that part outside of the engine"
    if node.domain in _DOMAINS:
        what, _, fix = _DOMAINS[node.domain].partition(": ")
        return f"domain {node.domain} is {what}", fix
    if node.domain:
        return None
    if node.op_type in _SEQUENCES:
        return "it works on sequences or optionals, and an engine has tensors of numbers only", cut
    strings = any(v is not None and v.dtype == ir.DataType.STRING for v in (*node.inputs, *node.outputs))
    if node.op_type in _STRINGS or strings:
        return "it works on strings, and an engine has tensors of numbers only", cut
    return None
