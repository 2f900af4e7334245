"""Layers that are linear in weight and bias, and a·x + b folded into them, before or behind."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from aot.passes._edit import array, attribute, before, constant, dims, made_by, only_user, replace
from aot.passes._edit import tensor as constant_tensor

Array = np.ndarray[Any, Any]

_MOST_CHANNELS = 1 << 16

# Elements of a weight that is kept as it was before rounding.
_KEPT = 1 << 20
_EXACT = "before rounding"
# Elements of a weight up to which it is multiplied at once.
_READ = 1 << 12
_SAME = ("SAME_UPPER", "SAME_LOWER")

LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True)
class Layer:
    """node: a layer with a constant weight. add: the Add of a MatMul's bias, None where there is none.

    weight and bias are the constants. rank: of the output, None where it is not known. inputs, outputs: channels.
    shape: of the weight.
    """

    node: ir.Node
    add: ir.Node | None
    weight: ir.Value
    bias: ir.Value | None
    rank: int | None
    inputs: int
    outputs: int
    shape: tuple[int, ...]

    @property
    def inner(self) -> int:
        """How many axes lie behind that of the channels, in the input as in the output."""
        return len(self.shape) - 2

    @property
    def result(self) -> ir.Value:
        """What comes out, bias included."""
        return (self.add or self.node).outputs[0]

    @property
    def shared(self) -> bool:
        """Whether something else reads the weight too, so that changing it would leave two in the file."""
        return len(self.weight.uses()) != 1 or self.weight.is_graph_output()

    @property
    def padded(self) -> bool:
        """Whether a convolution sees zeros beyond the borders of its input."""
        if self.node.op_type == "ConvTranspose":
            return True
        return any(attribute(self.node, "pads", ())) or attribute(self.node, "auto_pad", "NOTSET") in _SAME

    @property
    def narrow(self) -> bool:
        """Whether the weight is of FP16 or BF16."""
        return self.weight.dtype is not None and self.weight.dtype.bitwidth < 32


def read_layer(node: ir.Node | None) -> Layer | None:
    """The layer that `node` is; a MatMul is taken without the Add behind it. None for any other node, or where weight
    or bias are computed at run time or not in floating point."""
    if node is None or node.domain or node.op_type not in LAYERS:
        return None
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    tensor = constant_tensor(weight)
    if weight is None or tensor is None or not tensor.dtype.is_floating_point() or tensor.dtype.bitwidth < 16:
        return None
    if bias is not None and array(bias) is None:
        return None
    shape = tuple(size for size in tensor.shape if isinstance(size, int))
    if node.op_type == "MatMul":
        known = dims(node.outputs[0])
        rank = None if known is None else len(known)
        return Layer(node, None, weight, None, rank, shape[0], shape[1], shape) if len(shape) == 2 else None
    if node.op_type == "Gemm":
        inputs, outputs = reversed(shape) if attribute(node, "transB", 0) else shape
        return None if attribute(node, "transA", 0) else Layer(node, None, weight, bias, 2, inputs, outputs, shape)
    group = attribute(node, "group", 1)
    first, second = shape[:2]
    inputs, outputs = (second * group, first) if node.op_type == "Conv" else (first, second * group)
    return Layer(node, None, weight, bias, len(shape), inputs, outputs, shape)


def layer_of(value: ir.Value | None, reader: ir.Node) -> Layer | None:
    """The layer that computes `value` in the graph of `reader`, a MatMul together with the Add of its bias."""
    node = made_by(value, *LAYERS, "Add")
    if node is None or node.graph is not reader.graph:
        return None
    return _with_add(node) if node.op_type == "Add" else read_layer(node)


def layer_reading(value: ir.Value) -> Layer | None:
    """The layer whose data `value` is, where nothing else reads it; a MatMul together with the Add of its bias."""
    node, maker = only_user(value), value.producer()
    if node is None or maker is None or node.graph is not maker.graph or node.inputs[0] is not value:
        return None
    layer = read_layer(node)
    add = only_user(layer.result) if layer is not None and node.op_type == "MatMul" else None
    return (_with_add(add) if add is not None else None) or layer


def _with_add(add: ir.Node) -> Layer | None:
    """A MatMul and the Add of its bias, which is all that reads it; None for any other node."""
    for product, bias in (add.inputs, reversed(add.inputs)) if add.op_type == "Add" else ():
        layer = read_layer(made_by(product, "MatMul"))
        if layer is None or layer.node.graph is not add.graph or only_user(layer.result) is not add:
            continue
        if channel_vector(array(bias), layer.outputs, 0, layer.rank) is not None:
            return dataclasses.replace(layer, add=add, bias=bias)
    return None


class Affine(NamedTuple):
    """a·x + b. a, b: constants in FP64, shaped as they broadcast. dtype: of x."""

    x: ir.Value
    a: Array
    b: Array
    dtype: np.dtype[Any]


def scaled_or_shifted(node: ir.Node) -> ir.Value | None:
    """The x of an `affine` node; some nodes have one that are not affine after all."""
    if node.op_type == "Neg":
        return node.inputs[0]
    left, right = node.inputs
    first, second = constant_tensor(left) is None, constant_tensor(right) is None
    return None if first == second else left if first else right


def affine(node: ir.Node) -> Affine | None:
    """Neg, and Mul, Div, Add or Sub with a constant, as a·x + b.

    None for any other, where a or b is not finite, and where they are too many to be one a channel.
    """
    value, one, zero = scaled_or_shifted(node), np.ones(()), np.zeros(())
    if value is None:
        return None
    if node.op_type == "Neg":
        if value.dtype is None or not value.dtype.is_floating_point():
            return None
        return Affine(value, -one, zero, value.dtype.numpy())
    left, right = node.inputs
    tensor = constant_tensor(right if value is left else left)
    if tensor is None or not tensor.dtype.is_floating_point() or tensor.size > _MOST_CHANNELS:
        return None
    data = tensor.numpy()
    c = data.astype(np.float64)
    if not np.isfinite(c).all() or (node.op_type == "Div" and (value is right or not c.all())):
        return None
    if node.op_type in ("Mul", "Div"):
        return Affine(value, c if node.op_type == "Mul" else 1 / c, zero, data.dtype)
    if node.op_type == "Add":
        return Affine(value, one, c, data.dtype)
    return Affine(value, one, -c, data.dtype) if value is left else Affine(value, -one, c, data.dtype)


def channel_vector(data: Array | None, channels: int, inner: int, rank: int | None) -> Array | None:
    """`data` as one number a channel (or one for all), where it differs along the axis of the channels alone and leaves
    the shape of a tensor of that rank as it is. `inner`: how many axes lie behind that of the channels.
    """
    if data is None or data.ndim > (1 if rank is None else rank):
        return None
    position = data.ndim - 1 - inner
    others = (size for axis, size in enumerate(data.shape) if axis != position)
    if any(size != 1 for size in others) or (position >= 0 and data.shape[position] not in (1, channels)):
        return None
    return data.reshape(-1)


def fold_behind(model: ir.Model, layer: Layer, top: ir.Node, a: Array, b: Array) -> str | None:
    """Put a layer with weight aW and bias ac + b in the place of `layer` and of `top` = a·layer + b.

    a, b: one number a channel, or one for all, in FP64. Returns why not; None where it is done.
    """
    node = layer.node
    bias = _bias(layer)
    if bias is None and layer.node.op_type == "MatMul" and b.any() and layer.rank != 2:
        return "a MatMul of more than two dims has no place for what is added"
    weight = _rescaled(model, layer, _behind(layer, a)) if (a != 1).any() else layer.weight
    if weight is None:
        return "the product leaves the range of the weight's dtype"
    shift = b if bias is None else a * bias + b
    _write(model, layer, top, node.inputs[0], weight, shift if bias is not None or shift.any() else None)
    return None


def fold_ahead(model: ir.Model, layer: Layer, x: ir.Value, a: Array, b: Array) -> str | None:
    """Let `layer` read x instead of a·x + b: its weight becomes Wa, its bias c + Wb.

    a, b: one number an input channel, or one for all, in FP64. Returns why not; None where it is done.
    """
    if b.any():
        if layer.padded:
            return "the layer pads its input with zeros, which are not shifted"
        if layer.node.op_type == "MatMul" and layer.bias is None and layer.rank != 2:
            return "a MatMul of more than two dims has no place for what is added"
    weight = _rescaled(model, layer, _ahead(layer, a)) if (a != 1).any() else layer.weight
    if weight is None:
        return "the product leaves the range of the weight's dtype"
    bias, shift = _bias(layer), None
    if b.any():
        moved = _applied(layer, np.broadcast_to(b, layer.inputs)) * attribute(layer.node, "alpha", 1.0)
        shift = moved if bias is None else bias + moved
    elif bias is not None:
        shift = bias
    _write(model, layer, layer.add or layer.node, x, weight, shift)
    return None


def _bias(layer: Layer) -> Array | None:
    """The bias in FP64, the factor that Gemm has for it included."""
    data = _exact(layer.bias) if layer.bias is not None else None
    if data is None:
        return None
    wide: Array = data.astype(np.float64) * attribute(layer.node, "beta", 1.0)
    return wide if layer.node.op_type == "Gemm" else wide.reshape(-1)


def _behind(layer: Layer, a: Array) -> Array:
    """a, shaped to multiply the outputs of the weight.

    Conv: [out, in/group, ...]. ConvTranspose: [in, out/group, ...]. Gemm and MatMul: [in, out], [out, in] with transB.
    """
    rows = layer.node.op_type == "Conv" or attribute(layer.node, "transB", 0)
    return _along(layer, np.broadcast_to(a, layer.outputs), 0 if rows else 1)


def _ahead(layer: Layer, a: Array) -> Array:
    """a, shaped to multiply the inputs of the weight."""
    columns = layer.node.op_type == "Conv" or attribute(layer.node, "transB", 0)
    return _along(layer, np.broadcast_to(a, layer.inputs), 1 if columns else 0)


def _along(layer: Layer, a: Array, axis: int) -> Array:
    """One number a channel, along that axis of the weight. Where the axis holds the channels of one group only, those
    of the others are further along the other axis."""
    shape, group, tail = layer.shape, attribute(layer.node, "group", 1), (1,) * layer.inner
    if a.size == shape[axis]:
        return a.reshape((-1, 1, *tail) if axis == 0 else (1, -1, *tail))
    return np.repeat(a.reshape(group, -1), shape[0] // group, axis=0).reshape(shape[0], shape[1], *tail)


def _applied(layer: Layer, b: Array) -> Array:
    """Wb in FP64, one number an output channel, for a b that is the same all over the window.

    For Conv, Gemm and MatMul.
    """
    weight = np.asarray(_exact(layer.weight), np.float64)
    if layer.node.op_type != "Conv":
        found: Array = (weight if attribute(layer.node, "transB", 0) else weight.T) @ b
        return found
    window = weight.reshape(*weight.shape[:2], -1).sum(-1)
    group = attribute(layer.node, "group", 1)
    grouped: Array = window.reshape(group, -1, window.shape[1]) @ b.reshape(group, -1, 1)
    return grouped.reshape(-1)


def _rescaled(model: ir.Model, layer: Layer, factor: Array) -> ir.Value | None:
    """The weight times `factor`, computed in FP64 and rounded once; None where it overflows."""
    if not layer.narrow and math.prod(layer.shape) > _READ and _stays_finite(layer.weight, factor):
        return _multiplied(model, f"{layer.weight.name}_folded", layer.weight, factor)
    exact = np.asarray(_exact(layer.weight)) * factor
    rounded = _rounded(model, f"{layer.weight.name}_folded", exact, layer.weight)
    if np.isfinite(np.asarray(array(rounded), np.float32)).all():
        return rounded
    del model.graph.initializers[str(rounded.name)]
    return None


def _stays_finite(weight: ir.Value, factor: Array) -> bool:
    """Whether no product can leave the range of the weight's dtype, told by the largest of each."""
    if (abs(factor) <= 1).all():
        return True
    tensor = constant_tensor(weight)
    assert tensor is not None
    source, before = _unrounded(weight) or (tensor, ())
    data = source.numpy()
    most = math.prod([float(abs(one).max()) for one in (*before, factor)]) * float(max(data.max(), -data.min()))
    return most <= float(np.finfo(tensor.dtype.numpy()).max)


def _multiplied(model: ir.Model, name: str, weight: ir.Value, factor: Array) -> ir.Value:
    """The weight times a factor that lets nothing overflow; it is computed when the graph is written."""
    tensor = constant_tensor(weight)
    assert tensor is not None
    dtype = tensor.dtype
    source, before = _unrounded(weight) or (tensor, ())
    factors = (*before, factor)

    def multiply() -> ir.TensorProtocol:
        return ir.Tensor(_product(source, factors).astype(dtype.numpy()))

    value = constant(model, name, np.zeros(0, dtype.numpy()))
    value.shape = ir.Shape(tensor.shape.numpy())
    value.const_value = ir.LazyTensor(multiply, dtype=dtype, shape=ir.Shape(tensor.shape.numpy()), name=value.name)
    value.meta[_EXACT] = (value.const_value, source, factors)
    return value


def _product(source: ir.TensorProtocol, factors: Sequence[Array]) -> Array:
    """In FP64, as the factors are."""
    return functools.reduce(operator.mul, factors, source.numpy())


def _rounded(model: ir.Model, name: str, exact: Array, like: ir.Value) -> ir.Value:
    """A constant of the dtype of `like`. What it was rounded from is kept, so that several folds round it once."""
    tensor = constant_tensor(like)
    assert tensor is not None
    with np.errstate(over="ignore"):
        value = constant(model, name, exact.astype(tensor.dtype.numpy()))
    if exact.size <= _KEPT:
        value.meta[_EXACT] = (value.const_value, ir.Tensor(exact), ())
    return value


def _exact(value: ir.Value) -> Array | None:
    """The contents of a constant, before it was rounded where that is known."""
    known = _unrounded(value)
    return array(value) if known is None else _product(*known)


def _unrounded(value: ir.Value) -> tuple[ir.TensorProtocol, tuple[Array, ...]] | None:
    """What a constant was made of, where it was rounded: a tensor and factors of it."""
    of, source, factors = value.meta.get(_EXACT, (None, None, ()))
    return (source, factors) if of is not None and of is value.const_value else None


def _write(
    model: ir.Model, layer: Layer, top: ir.Node, data: ir.Value | None, weight: ir.Value, shift: Array | None
) -> None:
    """Put the layer with that input, weight and bias in the place of `top`."""
    node = layer.node
    attributes = {name: found for name, found in node.attributes.items() if name != "beta"}
    bias = None
    if shift is not None:
        full = shift if shift.ndim > 1 else np.broadcast_to(shift, layer.outputs)
        bias = _rounded(model, f"{layer.weight.name}_folded_bias", full, layer.weight)
    # The layer is what a reader looks for, so its name and metadata are the ones to keep.
    if node.op_type != "MatMul" or bias is None:
        replace(top, node.op_type, [data, weight, *([bias] if bias is not None else [])], attributes, like=node)
    elif layer.rank == 2:
        replace(top, "Gemm", [data, weight, bias], like=node)
    else:
        product = before(top, "MatMul", [data, weight], like=node)
        replace(top, "Add", [product, bias], like=layer.add)
