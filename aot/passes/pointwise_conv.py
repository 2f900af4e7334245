"""A linear layer over the channels of an image, for which they were brought to the end and back."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from aot.graph import Skip, graph_pass
from aot.passes._edit import constant, dims, made_by, nodes, only_user, replace
from aot.passes._formulas import is_single
from aot.passes._views import VIEWS, Layout, Size, chain


@graph_pass(
    float_only=True,
    anchors=("MatMul",),
    example="""
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[B,2,3,4] x) => (float[B,3,3,4] y)
    <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}, int64[3] flat = {0, 0, -1},
     int64[4] image = {0, 3, 3, 4}>
    { r = Reshape(x, flat)  t = Transpose<perm = [0, 2, 1]>(r)  m = MatMul(t, w)  a = Add(m, b)
      u = Transpose<perm = [0, 2, 1]>(a)  y = Reshape(u, image) }
    """,
)
def pointwise_conv(model: ir.Model, skip: Skip) -> int:
    """Views that bring the channels of x [B, C, ...] to the end, x·W + b, and views that bring them back to the second
    place are a convolution with kernels of one pixel: Conv(x, Wt, b).
    """
    changed = 0
    for node in nodes(model, "MatMul"):
        weight, view = node.inputs[1], made_by(node.inputs[0], *VIEWS)
        if view is None or weight is None or weight.const_value is None or len(weight.const_value.shape) != 2:
            continue
        if only_user(weight) is not node or weight.is_graph_input() or only_user(view.outputs[0]) is not node:
            continue
        add, bias = _biased(node)
        onwards = _onwards(add or node)
        ahead = chain(view)
        x = ahead[0].inputs[0]
        shape, after = dims(x), dims(onwards[-1].outputs[0]) if onwards else None
        if x is None or shape is None or after is None or len(shape) != len(after) or len(shape) not in (3, 4, 5):
            continue
        if not onwards or ahead[0].graph is not node.graph or not is_single(weight):
            continue
        if not _last(shape, ahead) or not _second(onwards, [Size.of(dim) for dim in shape]):
            continue
        inputs = [x, _kernels(model, weight, len(shape) - 2), *([bias] if bias is not None else [])]
        replace(onwards[-1], "Conv", inputs, {"kernel_shape": [1] * (len(shape) - 2)}, like=node)
        changed += 1
    return changed


def _biased(node: ir.Node) -> tuple[ir.Node | None, ir.Value | None]:
    """The Add of a bias behind a product, and the bias."""
    add, result = only_user(node.outputs[0]), node.outputs[0]
    if add is None or add.domain or add.op_type != "Add" or add.graph is not node.graph:
        return None, None
    bias = add.inputs[1 - tuple(add.inputs).index(result)]
    weight = node.inputs[1]
    columns = weight.const_value.shape[1] if weight is not None and weight.const_value is not None else None
    fits = bias is not None and bias.const_value is not None and not bias.is_graph_input() and dims(bias) == (columns,)
    return (add, bias) if fits else (None, None)


def _onwards(node: ir.Node) -> list[ir.Node]:
    """The views behind a node, each reading what nothing else does."""
    found: list[ir.Node] = []
    reader = only_user(node.outputs[0])
    while reader is not None and reader.graph is node.graph and made_by(reader.outputs[0], *VIEWS) is reader:
        found.append(reader)
        reader = only_user(reader.outputs[0])
    return found


def _last(shape: tuple[int | str | None, ...], ahead: list[ir.Node]) -> bool:
    """Whether the views bring axis 1 to the end and leave the others in their order."""
    layout = Layout.of(shape)
    if layout is None or not all(map(layout.apply, ahead)):
        return False
    batch, channels, *rest = layout.before
    moved = [*batch, *(factor for dim in rest for factor in dim), *channels]
    return layout.after[-1] == channels and [factor for dim in layout.after for factor in dim] == moved


def _second(onwards: list[ir.Node], wanted: list[Size | None]) -> bool:
    """Whether the views bring the last axis to the second place, between dims of the wanted sizes."""
    layout = Layout.of(dims(onwards[0].inputs[0]))
    if layout is None or not all(map(layout.apply, onwards)) or len(layout.after) != len(wanted):
        return False
    channels = layout.before[-1]
    flat = [factor for dim in layout.before[:-1] for factor in dim]
    batch, second, *rest = layout.after
    moved = [*batch, *(factor for dim in rest for factor in dim)]
    sizes = [layout.size(dim) for dim in layout.after]
    around = [sizes[0], *sizes[2:]] == [wanted[0], *wanted[2:]]
    return second == channels and channels != [] and moved == flat and around


def _kernels(model: ir.Model, weight: ir.Value, axes: int) -> ir.Value:
    """The weight [C, N] as kernels [N, C, 1, ...]; it is read when the graph is written."""
    tensor = weight.const_value
    assert tensor is not None
    inputs, outputs = (int(size) for size in tensor.shape.numpy())
    shape = (outputs, inputs, *(1,) * axes)

    def turn() -> ir.TensorProtocol:
        return ir.tensor(np.ascontiguousarray(tensor.numpy().T).reshape(shape), dtype=tensor.dtype)

    value = constant(model, f"{weight.name}_kernels", np.zeros(0, tensor.dtype.numpy()))
    value.shape = ir.Shape(shape)
    value.const_value = ir.LazyTensor(turn, dtype=tensor.dtype, shape=ir.Shape(shape), name=value.name)
    return value
