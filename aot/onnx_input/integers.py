"""Integer arithmetic that TensorRT does not take, as float arithmetic.

TensorRT multiplies INT8 only behind QuantizeLinear and DequantizeLinear with a zero point of 0; it has no
DynamicQuantizeLinear, no ConvInteger, no QLinearConv, no zero points. So:

1. `unfused`: QLinearConv, QLinearMatMul become Q(op(DQ(x), DQ(w))). Exact up to the rounding of the sum.
2. `without_dynamic`: a DynamicQuantizeLinear is dropped: its output is its input, its scale 1, its zero point 0, and
   MatMulInteger, ConvInteger behind it are MatMul, Conv with the weight w - zero. What was lost by rounding
   activations comes back, so the numbers are those of the float model.
3. `centred`: uint8 with zero point 128 is int8 with 0: the same numbers.
4. `constants`: DequantizeLinear of a constant with a zero point is its product, a float constant.
5. `pairs`: QuantizeLinear with another zero point, and the DequantizeLinear nodes behind it, become the Clip to what
   the integers can say; a Relu that the quantizer put into the range survives in it. Between them may stand ops that
   only move numbers.
6. `alone`: a DequantizeLinear or QuantizeLinear with a zero point that is left, of an integer input or into an integer
   output, is written out: (x - zero) * scale, and round(x / scale) + zero, clipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from aot.onnx_input._instead import Instead, given, standard
from aot.passes._edit import array, attribute

MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Concat", "Gather", "Identity", "MaxPool",
         "Expand", "Split", "DepthToSpace", "SpaceToDepth", "Tile")  # fmt: skip
RANGES = {"UINT8": (0, 255), "INT8": (-128, 127), "UINT16": (0, 65535), "INT16": (-32768, 32767), "UINT4": (0, 15),
          "INT4": (-8, 7)}  # fmt: skip


def to_float(model: ir.Model) -> list[str]:
    """Rewrite the model, in place; returns sentences on what is no longer what the file says."""
    unfused(model)
    dynamic = without_dynamic(model)
    centred(model)
    constants(model)
    weights(model)
    dropped = pairs(model)
    alone(model)
    notes = []
    if dynamic:
        notes.append(
            f"activations that were quantized at every call by their own range ({dynamic}) stay float, and their "
            "weights are dequantized: TensorRT has no DynamicQuantizeLinear"
        )
    if dropped:
        notes.append(
            f"activations that were quantized with a zero point ({dropped}) stay float, clipped to the range that the "
            "integers had: TensorRT takes a zero point of 0 only"
        )
    return notes


def _all(model: ir.Model, *ops: str) -> Iterator[ir.Node]:
    for node in tuple(model.graph.all_nodes()):
        if node.graph is not None and standard(node, *ops):
            yield node


def unfused(model: ir.Model) -> int:
    """QLinearConv and QLinearMatMul as Q(op(DQ, DQ))."""
    sites = 0
    for node in _all(model, "QLinearConv", "QLinearMatMul"):
        put = Instead(node)
        a = put.op("DequantizeLinear", node.inputs[0:3])
        scale = node.inputs[4]
        per_row = scale is not None and scale.shape is not None and len(scale.shape) == 1
        if node.op_type == "QLinearConv":
            b = put.op("DequantizeLinear", node.inputs[3:6], {"axis": 0})
            bias = given(node, 8)
            wide = None
            if bias is not None:
                step = put.op("Mul", [node.inputs[1], scale])
                wide = put.op("Mul", [put.op("Cast", [bias], {"to": int(ir.DataType.FLOAT)}), step])
            made = put.op("Conv", [a, b, *([wide] if wide is not None else [])], _conv(node))
        else:
            b = put.op("DequantizeLinear", node.inputs[3:6], {"axis": -1 if per_row else None})
            made = put.op("MatMul", [a, b])
        sites += put.done(put.op("QuantizeLinear", [made, *node.inputs[6:8]]))
    return sites


def _conv(node: ir.Node) -> dict[str, Any]:
    return {
        name: attribute(node, name) for name in ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    }


def without_dynamic(model: ir.Model) -> int:
    """See 2 of the module's docstring; returns how many DynamicQuantizeLinear were dropped."""
    floats: set[ir.Value] = set()
    dropped = 0
    for node in _all(model, "DynamicQuantizeLinear"):
        x = node.inputs[0]
        if x is None or any(out.is_graph_output() for out in node.outputs):
            continue
        if not all(_takes_floats(use.node) for out in node.outputs for use in out.uses()):
            continue
        put = Instead(node)
        made = put.op("Identity", [x])
        one, zero = put.scalar_like(None, 1.0), put.scalar_like(None, 0.0)
        made.dtype, made.shape = ir.DataType.FLOAT, x.shape
        put.done(made, one, zero)
        floats |= _spread(made) | {one, zero}
        dropped += 1
    for node in _all(model, "MatMulInteger", "ConvInteger"):
        _wide(node, floats)
    for node in _all(model, "DequantizeLinear"):
        if node.inputs[0] in floats:
            put = Instead(node)
            put.done(put.op("Mul", [node.inputs[0], node.inputs[1]]))
    return dropped


def _takes_floats(node: ir.Node) -> bool:
    return standard(node, "MatMulInteger", "ConvInteger", "DequantizeLinear", "Mul", "Cast", *MOVES)


def _spread(value: ir.Value) -> set[ir.Value]:
    """The value and what ops that only move numbers make of it; all of them are float now."""
    found = {value}
    for use in tuple(value.uses()):
        if standard(use.node, *MOVES) and use.idx == 0:
            for out in use.node.outputs:
                out.dtype = ir.DataType.FLOAT
                found |= _spread(out)
    return found


def _wide(node: ir.Node, floats: set[ir.Value]) -> None:
    """(a - zero) op (b - zero) in float; the sum stays float where `a` came from a dropped quantizer."""
    put = Instead(node)
    dynamic = node.inputs[0] in floats
    sides = [_offset(put, node, index, floats) for index in (0, 1)]
    conv = node.op_type == "ConvInteger"
    made = put.op("Conv", sides, _conv(node)) if conv else put.op("MatMul", sides)
    made.dtype = ir.DataType.FLOAT
    put.done(made if dynamic else put.op("Cast", [made], {"to": int(ir.DataType.INT32)}))


def _offset(put: Instead, node: ir.Node, index: int, floats: set[ir.Value]) -> ir.Value | None:
    """Input `index` less its zero point. A zero point a row of A is a column, one a column of B a row."""
    value, zero = node.inputs[index], given(node, index + 2)
    if value in floats:
        return value
    known, offset = array(value), np.zeros((), np.int64) if zero is None else array(zero)
    rank = None if value is None or value.shape is None else len(value.shape)
    across = rank is not None and (index == 0 or node.op_type == "ConvInteger")
    if known is not None and offset is not None:
        offset = offset.astype(np.float32)
        if offset.ndim == 1 and across:
            assert rank is not None
            offset = offset.reshape(-1, *(1,) * (1 if index == 0 else rank - 1))
        return put.constant(known.astype(np.float32) - offset)
    made = put.op("Cast", [value], {"to": int(ir.DataType.FLOAT)})
    if zero is None:
        return made
    point = put.op("Cast", [zero], {"to": int(ir.DataType.FLOAT)})
    if zero.shape is not None and len(zero.shape) == 1 and across:
        point = put.op("Unsqueeze", [point, put.ints(1)])
    return put.op("Sub", [made, point])


def _points(node: ir.Node) -> np.ndarray[Any, Any] | None:
    """The zero points of a Q or DQ as integers: 0 where there are none, None where they are computed."""
    zero = given(node, 2)
    if zero is None:
        signed = standard(node, "DequantizeLinear") and node.inputs[0] is not None
        kind = node.inputs[0].dtype if signed and node.inputs[0] is not None else None
        if not signed:
            kind = ir.DataType(attribute(node, "output_dtype", 0)) or ir.DataType.UINT8
        return np.zeros((), np.uint8 if kind is None else kind.numpy())
    return array(zero)


def _plain(node: ir.Node) -> bool:
    """Whether TensorRT takes the node: its type is signed and its zero points are all 0, or it is FP8, FP4, ..."""
    points = _points(node)
    if points is None:
        return False
    if points.dtype.kind not in "iu" and "int" not in points.dtype.name:
        return True
    signed = points.dtype.kind == "i" or points.dtype.name == "int4"
    narrow = points.dtype.itemsize == 1 or points.dtype.name == "int4"
    return signed and narrow and not points.astype(np.int64).any()


def centred(model: ir.Model) -> int:
    """uint8 with zero point 128 everywhere a value goes is int8 with 0."""
    sites = 0
    for node in _all(model, "QuantizeLinear"):
        if not _is_128(node) or node.outputs[0].is_graph_output():
            continue
        reached = _spread_types(node.outputs[0])
        readers = [use.node for value in reached for use in value.uses()]
        if not all(standard(r, *MOVES) or (standard(r, "DequantizeLinear") and _is_128(r)) for r in readers):
            continue
        if any(value.is_graph_output() for value in reached) or any(standard(r, "Concat") for r in readers):
            continue
        for value in reached:
            value.dtype = ir.DataType.INT8
        for one in [node, *(r for r in dict.fromkeys(readers) if standard(r, "DequantizeLinear"))]:
            points = _points(one)
            assert points is not None
            one.replace_input_with(2, Instead(one).constant(np.zeros(points.shape, np.int8)))
        sites += 1
    return sites


def _spread_types(value: ir.Value) -> set[ir.Value]:
    found = {value}
    for use in value.uses():
        if standard(use.node, *MOVES) and use.idx == 0:
            for out in use.node.outputs:
                found |= _spread_types(out)
    return found


def _is_128(node: ir.Node) -> bool:
    points = _points(node)
    return points is not None and points.dtype == np.uint8 and bool((points == 128).all())


def constants(model: ir.Model) -> int:
    """A DequantizeLinear that TensorRT does not take, of a constant, is a float constant."""
    sites = 0
    for node in _all(model, "DequantizeLinear"):
        data, scale = array(node.inputs[0]), array(node.inputs[1])
        points = _points(node)
        if data is None or scale is None or points is None or (_plain(node) and data.dtype.name != "int32"):
            continue
        number = data.astype(np.float32) - _along(node, points.astype(np.float32), data.shape)
        put = Instead(node)
        sites += put.done(put.constant((number * _along(node, scale, data.shape)).astype(scale.dtype)))
    return sites


def weights(model: ir.Model) -> int:
    """A Cast of an 8-bit constant to float, and the Mul, Sub, Add or Div by constants behind it, is a float constant.

    Some quantizers write dequantization so. TensorRT takes no 8-bit constant but behind a DequantizeLinear.
    """
    sites = 0
    for node in _all(model, "Cast"):
        kind = ir.DataType(attribute(node, "to"))
        data = array(node.inputs[0])
        if data is None or not kind.is_floating_point() or data.dtype.name.upper() not in RANGES:
            continue
        numbers, last = data.astype(kind.numpy()), node
        while (reader := _only_arithmetic(last)) is not None:
            sides = [numbers if value is last.outputs[0] else array(value) for value in reader.inputs]
            if sides[0] is None or sides[1] is None:
                break
            numbers, last = _ARITHMETIC[reader.op_type](sides[0], sides[1]), reader
        put = Instead(last)
        sites += put.done(put.constant(np.ascontiguousarray(numbers)))
    return sites


_ARITHMETIC = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}


def _only_arithmetic(node: ir.Node) -> ir.Node | None:
    """The one reader of the node's output, where it is arithmetic."""
    value = node.outputs[0]
    uses = tuple(value.uses())
    alone = len(uses) == 1 and not value.is_graph_output()
    return uses[0].node if alone and standard(uses[0].node, *_ARITHMETIC) else None


def _along(node: ir.Node, values: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Scales or zero points, spread so that they broadcast against the tensor: one, one a channel, or one a block."""
    if values.size == 1:
        return values.reshape(())
    axis = attribute(node, "axis", 1) % len(shape)
    block = attribute(node, "block_size", 0)
    if block:
        cut = [slice(None)] * len(shape)
        cut[axis] = slice(shape[axis])
        return np.repeat(values, block, axis)[tuple(cut)]
    return values.reshape([-1 if at == axis else 1 for at in range(len(shape))])


def pairs(model: ir.Model) -> int:
    """See 5 of the module's docstring."""
    sites = 0
    for node in _all(model, "QuantizeLinear"):
        points, scale = _points(node), array(node.inputs[1])
        if (
            _plain(node)
            or points is None
            or scale is None
            or scale.size != 1
            or points.dtype.name.upper() not in RANGES
        ):
            continue
        reached = _spread_types(node.outputs[0])
        readers = [use.node for value in reached for use in value.uses()]
        last = [reader for reader in dict.fromkeys(readers) if standard(reader, "DequantizeLinear")]
        if not all(standard(r, *MOVES, "DequantizeLinear") for r in readers) or any(
            v.is_graph_output() for v in reached
        ):
            continue
        if not all(_same(node, reader) for reader in last) or any(standard(r, "Concat") for r in readers):
            continue
        low, high = ((bound - float(points)) * float(scale) for bound in RANGES[points.dtype.name.upper()])
        x = node.inputs[0]
        put = Instead(node)
        clipped = put.op("Clip", [x, put.scalar_like(x, low), put.scalar_like(x, high)])
        kind = x.dtype if x is not None and x.dtype is not None else ir.DataType.FLOAT
        clipped.dtype = kind
        put.done(clipped)
        for value in reached:
            value.dtype = kind
        for reader in last:
            after = Instead(reader)
            after.done(after.op("Identity", [reader.inputs[0]]))
        sites += 1
    return sites


def _same(q: ir.Node, dq: ir.Node) -> bool:
    scales = array(q.inputs[1]), array(dq.inputs[1])
    points = _points(q), _points(dq)
    return all(
        a is not None and b is not None and a.size == b.size == 1 and float(a) == float(b)
        for a, b in (scales, points)
    )  # fmt: skip


def alone(model: ir.Model) -> int:
    """See 6 of the module's docstring."""
    sites = 0
    for node in _all(model, "QuantizeLinear", "DequantizeLinear"):
        if _plain(node) or attribute(node, "block_size", 0):
            continue
        sites += _dequantize(node) if node.op_type == "DequantizeLinear" else _quantize(node)
    return sites


def _shaped(put: Instead, value: ir.Value | None, node: ir.Node, kind: ir.DataType) -> ir.Value | None:
    """A scale or zero point as float, with dims of 1 behind its axis so that it broadcasts; None if unknown."""
    if value is None or value.shape is None or node.inputs[0] is None:
        return None
    wide = put.op("Cast", [value], {"to": int(kind)})
    if len(value.shape) == 0 or value.shape == (1,):
        return wide
    if node.inputs[0].shape is None:
        return None
    rank = len(node.inputs[0].shape)
    behind = rank - 1 - attribute(node, "axis", 1) % rank
    return wide if not behind else put.op("Unsqueeze", [wide, put.ints(*range(1, behind + 1))])


def _dequantize(node: ir.Node) -> int:
    put = Instead(node)
    kind = node.inputs[1].dtype if node.inputs[1] is not None else None
    kind = kind or ir.DataType.FLOAT
    scale, made = _shaped(put, node.inputs[1], node, kind), put.op("Cast", [node.inputs[0]], {"to": int(kind)})
    zero = given(node, 2)
    if scale is None:
        return 0
    if zero is not None:
        point = _shaped(put, zero, node, kind)
        if point is None:
            return 0
        made = put.op("Sub", [made, point])
    return put.done(put.op("Mul", [made, scale]))


def _quantize(node: ir.Node) -> int:
    points = _points(node)
    kind = node.inputs[0].dtype if node.inputs[0] is not None else None
    if kind is None or points is None or points.dtype.name.upper() not in RANGES:
        return 0
    put = Instead(node)
    scale, zero = _shaped(put, node.inputs[1], node, kind), given(node, 2)
    point = _shaped(put, zero, node, kind) if zero is not None else None
    if scale is None or (zero is not None and point is None):
        return 0
    made = put.op("Round", [put.op("Div", [node.inputs[0], scale])])
    made = put.op("Add", [made, point]) if point is not None else made
    low, high = RANGES[points.dtype.name.upper()]
    made = put.op("Clip", [made, put.scalar_like(node.inputs[0], low), put.scalar_like(node.inputs[0], high)])
    return put.done(put.op("Cast", [made], {"to": int(ir.DataType[points.dtype.name.upper()])}))
