"""Linear layers over one input as one matrix product: queries, keys and values; gate and up of a gated MLP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import constant, dims, made_by, nodes, only_user

# What lies between the gate and the product with the other half, in whatever pieces an export wrote it.
_ACTIVATION = (
    *("Sigmoid", "Gelu", "Relu", "Tanh", "Erf", "Swish", "HardSwish", "HardSigmoid", "Elu", "LeakyRelu", "Softplus"),
    *("Mul", "Div", "Add", "Pow", "Clip"),
)


class _Linear(NamedTuple):
    """x · weight [K, N] + bias [N]; `result` is the output of `last`, which is the Add where there is a bias."""

    product: ir.Node
    last: ir.Node
    weight: ir.Value
    bias: ir.Value | None

    @property
    def result(self) -> ir.Value:
        return self.last.outputs[0]

    @property
    def width(self) -> int:
        return int(self.weight.shape[1])  # type: ignore[index, arg-type]


def _own(value: ir.Value | None, node: ir.Node) -> bool:
    """Whether `value` is a weight that only `node` reads: one that others read as well would be stored twice."""
    return value is not None and value.const_value is not None and value.is_initializer() and only_user(value) is node


def _linear(product: ir.Node) -> _Linear | None:
    weight, result = product.inputs[1], product.outputs[0]
    if result.is_graph_output() or weight is None or weight.is_graph_input() or weight.const_value is None:
        return None
    if not _own(weight, product):
        return None
    if len(weight.const_value.shape) != 2 or weight.dtype is None or weight.dtype.bitwidth < 16:
        return None
    add = only_user(result)
    if add is None or add.domain or add.op_type != "Add" or add.graph is not product.graph:
        return _Linear(product, product, weight, None)
    bias = add.inputs[1 - tuple(add.inputs).index(result)]
    fits = bias is not None and bias.const_value is not None and not bias.is_graph_input()
    if not fits or dims(bias) != (weight.const_value.shape[1],) or add.outputs[0].is_graph_output():
        return _Linear(product, product, weight, None)
    return _Linear(product, add, weight, bias)


def _siblings(model: ir.Model) -> Iterator[list[_Linear]]:
    """The linear layers over each value that more than one reads, in graph order."""
    readers: dict[tuple[int, int], list[_Linear]] = {}
    for node in nodes(model, "MatMul"):
        x = node.inputs[0]
        found = _linear(node) if x is not None and len(x.uses()) > 1 else None
        if found is not None:
            readers.setdefault((id(x), id(node.graph)), []).append(found)
    return (group for group in readers.values() if len(group) > 1)


def _joined(model: ir.Model, parts: Sequence[ir.Value | None], sizes: Sequence[int]) -> ir.Value:
    """The constants beside each other along the last axis, zeros for one that is missing.

    They are read when the graph is written, so that large weights stay on disk till then.
    """
    like = next(part for part in parts if part is not None)
    tensors = [part.const_value if part is not None else None for part in parts]
    assert like.const_value is not None
    dtype, lead = like.const_value.dtype, tuple(map(int, like.const_value.shape))[:-1]  # type: ignore[arg-type]

    def join() -> ir.TensorProtocol:
        zeros = (np.zeros((*lead, size), dtype.numpy()) for size in sizes)
        arrays = [z if t is None else t.numpy() for t, z in zip(tensors, zeros, strict=True)]
        return ir.tensor(np.concatenate(arrays, axis=-1), dtype=dtype)

    value = constant(model, f"{like.name}_joined", np.zeros((0,), dtype.numpy()))
    shape = ir.Shape((*lead, sum(sizes)))
    value.const_value = ir.LazyTensor(join, dtype=dtype, shape=shape, name=value.name)
    value.shape = shape
    return value


def _merge(model: ir.Model, layers: Sequence[_Linear]) -> None:
    """Put one product, one bias and one Split in front of the first of `layers`, and its parts in their places."""
    first = layers[0].product
    assert first.graph is not None
    sizes = [layer.width for layer in layers]
    made = [ir.node("MatMul", [first.inputs[0], _joined(model, [layer.weight for layer in layers], sizes)])]
    if any(layer.bias is not None for layer in layers):
        bias = _joined(model, [layer.bias for layer in layers], sizes)
        made.append(ir.node("Add", [made[-1].outputs[0], bias]))
    # From opset 13 on, the sizes are an input.
    given = {"split": sizes} if model.opset_imports.get("", 0) < 13 else {}
    widths = [] if given else [constant(model, f"{first.outputs[0].name}_widths", np.array(sizes, np.int64))]
    split = ir.node("Split", [made[-1].outputs[0], *widths], {"axis": -1, **given}, num_outputs=len(sizes))
    made.append(split)
    for node, like in zip(made, (first, layers[0].last, first), strict=False):
        node.name = f"{like.name or like.outputs[0].name}_{node.op_type}"
        node.metadata_props.update(like.metadata_props)
    shape, dtype = dims(layers[0].result), layers[0].result.type
    for node in made:
        for value in node.outputs:
            value.type = dtype
    if shape is not None:
        for node in made[:-1]:
            node.outputs[0].shape = ir.Shape((*shape[:-1], sum(sizes)))
    for layer, part in zip(layers, split.outputs, strict=True):
        part.name, part.shape = f"{layer.result.name}_part", layer.result.shape
    first.graph.insert_before(first, made)
    for layer, part in zip(layers, split.outputs, strict=True):
        ir.convenience.replace_all_uses_with(layer.result, part)


def _to_heads(layer: _Linear) -> bool:
    """Whether only a Reshape that splits the channels into heads reads the layer."""
    reader = only_user(layer.result)
    before = dims(layer.result)
    after = dims(reader.outputs[0]) if reader is not None and reader.op_type == "Reshape" else None
    return before is not None and after is not None and len(after) > len(before)


@graph_pass(
    float_only=True,
    anchors=("MatMul",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S,4] x) => (float[B,S,2,2] q, float[B,S,1,2] k, float[B,S,1,2] v)
    <float[4,4] a = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, float[4] z = {1, 2, 3, 4},
     float[4,2] b = {8, 7, 6, 5, 4, 3, 2, 1}, float[4,2] c = {1, 3, 5, 7, 2, 4, 6, 8}, float[2] w = {5, 6},
     int64[4] two = {0, 0, 2, 2}, int64[4] one = {0, 0, 1, 2}>
    { m = MatMul(x, a)  n = Add(m, z)  q = Reshape(n, two)  i = MatMul(x, b)  k = Reshape(i, one)
      j = MatMul(x, c)  o = Add(j, w)  v = Reshape(o, one) }
    """,
)
def merge_qkv(model: ir.Model, skip: Skip) -> int:
    """x·A + a, x·B + b, x·C + c = the parts of x·[A B C] + [a b c], for layers whose channels become heads.

    It pays where the bias is present (5 nodes become 3, 6 become 3), and on a GPU where each of the products is too
    small to fill it: short sequences, small batches, the narrow keys and values of grouped queries. (On an H200 with
    TensorRT 10.6, BERT-base in FP16 at 64 x 128 takes as long with as without, and is built sooner.) The products are
    the same numbers. Not for INT8 and FP8, which were seen to build with products of their own. Only the layers of one
    attention are merged. It runs behind `fold_scale`, for a scale of the queries alone must be in their weight first,
    and before `split_heads`.
    """
    changed = 0
    for group in _siblings(model):
        attentions: dict[ir.Node | None, list[_Linear]] = {}
        for layer in group:
            if _to_heads(layer):
                attentions.setdefault(_attention(layer.result), []).append(layer)
        changed += sum(_merge_alike(model, layers) for layers in attentions.values())
    return changed


def _attention(value: ir.Value) -> ir.Node | None:
    """The product with the values of the attention that `value` is a part of; None where none is found near.

    Decoders read one memory in every layer: what belongs to other layers must not be computed, and kept, at once.
    """
    stack, seen, weighted = [value], set[ir.Node](), None
    while stack:
        for use in stack.pop().uses():
            node = use.node
            if node in seen or len(seen) > 64:
                continue
            seen.add(node)
            if node.domain == "" and node.op_type == "MatMul":
                scores = [reader.node for reader in node.outputs[0].uses()]
                weighted = weighted or node
                if not any(_near_softmax(reader) for reader in scores):
                    return node
            stack += node.outputs
    return weighted


def _near_softmax(node: ir.Node | None) -> bool:
    """Whether a Softmax follows, with scales and masks at most in between."""
    while node is not None and node.domain == "" and node.op_type in ("Add", "Mul", "Div", "Where", "Cast", "Reshape"):
        node = only_user(node.outputs[0])
    return node is not None and node.domain == "" and node.op_type == "Softmax"


def _merge_alike(model: ir.Model, layers: Sequence[_Linear]) -> int:
    """Merge those of one dtype; the number of sites."""
    key: Callable[[_Linear], int] = lambda layer: int(layer.weight.dtype or 0)  # noqa: E731
    groups = [list(group) for _, group in groupby(sorted(layers, key=key), key)]
    merged = [group for group in groups if len(group) > 1]
    for group in merged:
        _merge(model, group)
    return len(merged)


@graph_pass(
    float_only=True,
    anchors=("MatMul",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,S,2] x) => (float[B,S,3] y) <float[2,3] a = {1, 2, 3, 4, 5, 6}, float[2,3] b = {6, 5, 4, 3, 2, 1}>
    { g = MatMul(x, a)  u = MatMul(x, b)  s = Sigmoid(g)  w = Mul(g, s)  y = Mul(w, u) }
    """,
)
def merge_gate_up(model: ir.Model, skip: Skip) -> int:
    """f(x·G) ⊙ (x·U): both products are the halves of x·[G U].

    No node less without biases, one less with them. It pays on a GPU where one product is too small to fill it.
    """
    changed = 0
    for group in _siblings(model):
        for gate in group:
            up = next((one for one in group if one is not gate and _gated(gate, one)), None)
            if up is not None and up.weight.dtype == gate.weight.dtype and up.width == gate.width:
                _merge(model, [gate, up] if group.index(gate) < group.index(up) else [up, gate])
                changed += 1
                break
    return changed


def _gated(gate: _Linear, up: _Linear) -> bool:
    """Whether `up` is only multiplied, with a function of `gate` alone."""
    product = only_user(up.result)
    if product is None or product.domain or product.op_type != "Mul" or product.inputs[0] is product.inputs[1]:
        return False
    (other,) = (value for value in product.inputs if value is not up.result)
    seen, stack, reached = set[int](), [other], False
    while stack:
        value = stack.pop()
        if value is None or id(value) in seen or value.const_value is not None:
            continue
        seen.add(id(value))
        if value is gate.result:
            reached = True
            continue
        node = made_by(value, *_ACTIVATION)
        if node is None or len(seen) > 16:
            return False
        stack.extend(node.inputs)
    return reached
