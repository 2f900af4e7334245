"""Recurrent layers kept whole: torch.export takes them apart step by step, and so fixes the length of the sequence.

While a module is traced, `nn.LSTM`, `nn.GRU` and `nn.RNN` call an op of ours instead of torch's. It says only what
its outputs look like, so the length stays free; it is translated to ONNX's LSTM, GRU and RNN, one a layer.

The gates lie in another order: torch i f g o, ONNX i o f c; torch r z n, ONNX z r h. ONNX has no projection
(`proj_size`): with h = P m, where m is what the cell puts out, R h = (R P) m, so a layer with projection is one
without whose recurrent weight is R P and whose output goes through P. Its first step needs R h0; it comes in as
additional features of the input that are h0 at the first step of the direction and 0 elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnxscript import opset20
from torch import Tensor

# onnxscript types each operand by the ONNX types allowed, which values recorded while tracing do not carry.
op: Any = opset20

# kind -> (ONNX op, order of the gates in ONNX as places in torch's, activations, ONNX's further attributes)
_KINDS: dict[str, tuple[str, list[int], dict[str, Any]]] = {
    "lstm": ("LSTM", [0, 3, 1, 2], {}),
    "gru": ("GRU", [1, 0, 2], {"linear_before_reset": 1}),
    "rnn_tanh": ("RNN", [0], {"activations": ["Tanh"]}),
    "rnn_relu": ("RNN", [0], {"activations": ["Relu"]}),
}


@torch.library.custom_op("aot::recurrent", mutates_args=())
def recurrent(
    kind: str,
    x: Tensor,
    states: list[Tensor],
    weights: list[Tensor],
    biases: bool,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> list[Tensor]:
    """torch's own layers under one name. x [L, N, I], or [N, L, I] with `batch_first`; states h0 and for an LSTM c0,
    [layers * directions, N, H]. Returns the outputs [L, N, directions * H] and the last states."""
    hx: Any = tuple(states) if kind == "lstm" else states[0]
    run = getattr(torch._VF, kind)
    return [made.clone() for made in run(x, hx, weights, biases, layers, 0.0, False, bidirectional, batch_first)]


@recurrent.register_fake
def _(
    kind: str,
    x: Tensor,
    states: list[Tensor],
    weights: list[Tensor],
    biases: bool,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> list[Tensor]:
    size = states[0].shape[-1] * (2 if bidirectional else 1)
    return [x.new_empty((x.shape[0], x.shape[1], size)), *(torch.empty_like(state) for state in states)]


@contextmanager
def kept_whole() -> Iterator[None]:
    """For as long as it lasts, recurrent layers in eval mode are one op each, and packing a sequence raises."""

    def whole(kind: str) -> Any:
        original = getattr(torch._VF, kind)

        def call(x: Tensor, hx: Any, weights: Any, *rest: Any) -> Any:
            if len(rest) != 6 or rest[3]:  # packed, or training
                return original(x, hx, weights, *rest)
            biases, layers, _, _, bidirectional, batch_first = rest
            states = list(hx) if kind == "lstm" else [hx]
            return tuple(recurrent(kind, x, states, list(weights), biases, layers, bidirectional, batch_first))

        return call

    def packed(*_: Any) -> Any:
        raise RuntimeError("pack_padded_sequence: its sizes depend on values")

    ours = {**{name: whole(name) for name in _KINDS}, "_pack_padded_sequence": packed}
    before = {name: vars(torch._VF).get(name) for name in ours}
    for name, function in ours.items():
        setattr(torch._VF, name, function)
    try:
        yield
    finally:
        for name, held in before.items():
            if held is None:
                delattr(torch._VF, name)
            else:
                setattr(torch._VF, name, held)


def translated(
    kind: str,
    x: Any,
    states: Any,
    weights: Any,
    biases: bool,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Translate `aot::recurrent`: a node of ONNX a layer, over x [L, N, I]."""
    ways = 2 if bidirectional else 1
    parts = len(weights) // (layers * ways)
    projected = parts % 2 == 1
    given = [[_at(state, layer * ways, ways) if layers > 1 else state for state in states] for layer in range(layers)]
    hidden = op.Transpose(x, perm=[1, 0, 2]) if batch_first else x
    last: list[list[Any]] = []
    for layer in range(layers):
        first = layer * ways * parts
        held = [list(weights[first + way * parts : first + (way + 1) * parts]) for way in range(ways)]
        hidden, ends = _layer(kind, hidden, given[layer], held, biases, projected)
        last.append(ends)
    outputs = [op.Transpose(hidden, perm=[1, 0, 2]) if batch_first else hidden]
    for ends in zip(*last, strict=True):
        outputs.append(op.Concat(*ends, axis=0) if layers > 1 else ends[0])
    return outputs


def _layer(kind: str, x: Any, states: list[Any], held: list[list[Any]], biases: bool, projected: bool) -> Any:
    """(outputs [L, N, directions * H], last states [directions, N, H]) of one layer.

    held: for each direction W_ih, W_hh, the biases if there are any, and the projection if there is one.
    """
    name, order, more = _KINDS[kind]
    ways, size = len(held), int(held[0][1].shape[0]) // len(order)
    inputs = [weights[0] for weights in held]
    recurrence = [weights[1] for weights in held]
    if projected:
        x, inputs, recurrence, states = _unprojected(x, states, held)
    w, r = (op.Concat(*(_gates(one, order) for one in several), axis=0) for several in (inputs, recurrence))
    b = None
    if biases:
        b = op.Concat(*(op.Concat(*(_gates(one, order) for one in weights[2:4]), axis=1) for weights in held), axis=0)
    attributes = {
        "hidden_size": size,
        "direction": "bidirectional" if ways == 2 else "forward",
        **{key: value * ways if isinstance(value, list) else value for key, value in more.items()},
    }
    y, *ends = getattr(op, name)(x, w, r, b, None, *states, **attributes)  # y [L, directions, N, H]
    if projected:
        turned = [op.Transpose(weights[-1], perm=[1, 0]) for weights in held]
        through = op.Concat(*(op.Unsqueeze(one, _ints(0)) for one in turned), axis=0)  # [directions, H, P]
        y, ends[0] = op.MatMul(y, through), op.MatMul(ends[0], through)
    y = op.Transpose(y, perm=[0, 2, 1, 3])
    return op.Reshape(y, _ints(0, 0, -1)), ends


def _unprojected(x: Any, states: list[Any], held: list[list[Any]]) -> Any:
    """(x, W, R, states) of the layer without projection; see the head of this file."""
    h0, c0 = states
    ways = len(held)
    zero = op.CastLike(op.Constant(value_float=0.0), x)
    length = op.Gather(op.Shape(x), _ints(0))
    steps = op.Range(op.Constant(value_int=0), op.Squeeze(length), op.Constant(value_int=1))
    parts = [x]
    for way in range(ways):
        first = op.Constant(value_int=0) if way == 0 else op.Sub(op.Squeeze(length), op.Constant(value_int=1))
        here = op.Unsqueeze(op.Equal(steps, first), _ints(1, 2))  # [L, 1, 1]
        parts.append(op.Where(here, _at(h0, way, 1), zero))
    inputs = []
    for way, weights in enumerate(held):
        none = op.Mul(weights[1], op.CastLike(op.Constant(value_float=0.0), weights[1]))
        inputs.append(op.Concat(weights[0], *(weights[1] if one == way else none for one in range(ways)), axis=1))
    recurrence = [op.MatMul(weights[1], weights[-1]) for weights in held]
    return op.Concat(*parts, axis=2), inputs, recurrence, [op.Sub(c0, c0), c0]


def _gates(weight: Any, order: list[int]) -> Any:
    """torch's weight [gates * H, ...] as ONNX has it: [1, gates * H, ...], gates in its order."""
    if len(order) > 1:
        parts = op.Split(weight, num_outputs=len(order), axis=0)
        weight = op.Concat(*(parts[place] for place in order), axis=0)
    return op.Unsqueeze(weight, _ints(0))


def _at(state: Any, first: int, count: int) -> Any:
    return op.Slice(state, _ints(first), _ints(first + count), _ints(0))


def _ints(*values: int) -> Any:
    return op.Constant(value_ints=list(values))


TRANSLATION = {torch.ops.aot.recurrent.default: translated}


def settle(model: ir.Model) -> None:
    """Compute the weights of recurrent layers, which the translation has left as operations on torch's."""
    found = [one for one in model.graph.all_nodes() if one.op_type in {"LSTM", "GRU", "RNN"}]
    for node in found:
        for place in (1, 2, 3):
            value = node.inputs[place]
            if value is None or value.const_value is not None:
                continue
            held = _computed(value)
            if held is not None:
                made = ir.Value(name=f"{node.name}_{'xWRB'[place]}", const_value=ir.tensor(held))
                made.shape, made.type = ir.Shape(held.shape), value.type
                model.graph.register_initializer(made)
                node.replace_input_with(place, made)
    if found:
        RemoveUnusedNodesPass()(model)


def _computed(value: ir.Value) -> Any:
    """A value that depends on weights only, as an array; None where it depends on more."""
    if value.const_value is not None:
        return value.const_value.numpy()
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "Constant":
        held = ir.convenience.get_const_tensor(value)
        return held.numpy() if held is not None else None
    given = [_computed(one) for one in node.inputs if one is not None]
    if any(one is None for one in given):
        return None
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    match node.op_type:
        case "Split":
            return np.split(given[0], len(node.outputs), axis)[node.outputs.index(value)]
        case "Concat":
            return np.concatenate(given, axis)
        case "Unsqueeze":
            return np.expand_dims(given[0], tuple(given[1]))
        case "MatMul":
            return np.matmul(given[0], given[1])
        case "Mul":
            return given[0] * given[1]
        case "Transpose":
            return np.transpose(given[0], node.attributes["perm"].as_ints())
        case "CastLike":
            return given[0].astype(given[1].dtype)
    return None
