"""Steps that add what models are made of: products with weights, convolutions, norms, softmax, reductions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.passes.random_graphs.draft import ONE, Draft, Shape, Value, fixed, is_fixed, times
from tests.passes.random_graphs.views import permuted, reshape_to


def _narrow(v: Value) -> bool:
    """Whether its last dim is known and small enough for a product."""
    return v.rank >= 2 and is_fixed(v.shape[-1]) and 1 <= v.shape[-1][0] <= 24 and v.bound <= 10


def _kernel(d: Draft, k: int, n: int) -> Value:
    """A weight [k, n]; sometimes one that another layer has already, or one behind a Transpose."""
    shared = [v for v in d.constants if v.shape == (fixed(k), fixed(n)) and v.dtype == d.float and v.bound > 0]
    if shared and d.chance(0.3):
        return d.rng.choice(shared)
    if d.chance(0.2):
        return permuted(d, d.weight(n, k, scale=1 / math.sqrt(k)), [1, 0])
    return d.weight(k, n, scale=1 / math.sqrt(k))


def _product(d: Draft, x: Value, w: Value) -> Value:
    k = x.shape[-1][0]
    return d.add("MatMul", [x, w], (*x.shape[:-1], w.shape[-1]), bound=2 * x.bound * math.sqrt(k))


def linear(d: Draft) -> None:
    """MatMul or Gemm, then some of: a bias, a scale, a second bias, an activation."""
    x = d.pick_float(lambda v: _narrow(v) and v.dtype == d.float)
    if x is None:
        return
    n = d.choose(2, 3, 4, 6)
    k = x.shape[-1][0]
    if x.rank == 2 and d.chance(0.4):
        flip = d.chance(0.5)
        w = d.weight(*((n, k) if flip else (k, n)), scale=1 / math.sqrt(k))
        c = d.weight(*d.choose((n,), (1, n), (1,), ())) if d.chance(0.6) else None
        factors: dict[str, Any] = {"alpha": 0.5} if d.chance(0.2) else {}
        factors |= {"beta": 2.0} if d.chance(0.2) else {}
        y = d.add(
            "Gemm", [x, w, c], (x.shape[0], fixed(n)), bound=2 * x.bound * math.sqrt(k) + 4, transB=int(flip), **factors
        )
    else:
        y = _product(d, x, _kernel(d, k, n))
    for _ in range(d.rng.randint(0, 2)):
        dims = d.choose((n,), (n,), (n,), (1, n), (1,), (), [1] * y.rank)
        y = d.binary(d.choose("Add", "Add", "Mul", "Sub"), y, d.weight(*dims, dtype=y.dtype))
    if d.chance(0.4):
        d.add(d.choose("Relu", "Tanh", "Sigmoid"), [y], y.shape)


def siblings(d: Draft) -> None:
    """Several products of one value, as Q, K and V, or gate and up; some with a bias, one of another dtype or input."""
    x = d.pick_float(lambda v: _narrow(v) and v.dtype == d.float)
    if x is None:
        return
    n = d.choose(2, 4)
    outs = []
    for _ in range(d.choose(2, 3)):
        y = _product(d, x, _kernel(d, x.shape[-1][0], n if d.chance(0.8) else n + 1))
        if d.chance(0.5):
            y = d.binary("Add", y, d.weight(y.shape[-1][0], dtype=y.dtype))
        outs.append(y)
    if outs[0].shape == outs[1].shape and d.chance(0.6):
        gate = d.add("Sigmoid", [outs[0]], outs[0].shape, bound=1.0)
        d.binary("Mul", d.binary("Mul", outs[0], gate, bound=outs[0].bound), outs[1])


def attention(d: Draft) -> None:
    """softmax(q kᵀ · scale + mask) v over one value, with or without heads, mask, and scale on either side."""
    x = d.pick_float(lambda v: v.rank == 3 and _narrow(v) and v.shape[-1][0] % 2 == 0 and v.dtype == d.float)
    if x is None:
        return
    width = x.shape[-1][0]
    q, k, v = (_product(d, x, _kernel(d, width, width)) for _ in range(3))
    heads = d.chance(0.7)
    parts: list[Value | None] = [q, k, v]
    if heads:
        split = (x.shape[0], x.shape[1], fixed(2), fixed(width // 2))
        parts = [reshape_to(d, one, split) for one in (q, k, v)]
        parts = [permuted(d, one, [0, 2, 1, 3]) if one is not None else None for one in parts]
    if None in parts:
        return
    q, k, v = (one for one in parts if one is not None)
    root = d.near(1 / math.sqrt(width))
    if d.chance(0.3):
        q, k = (d.binary("Mul", one, d.number(math.sqrt(abs(root)), one), bound=one.bound) for one in (q, k))
    order = [*range(k.rank - 2), k.rank - 1, k.rank - 2]
    turned = permuted(d, k, order)
    scores = d.add("MatMul", [q, turned], (*q.shape[:-1], k.shape[-2]), bound=20.0)
    if d.chance(0.4):
        scores = d.binary("Mul", scores, d.number(root, scores), bound=20.0)
    elif d.chance(0.4):
        scores = d.binary("Div", scores, d.number(1 / root, scores), bound=20.0)
    mask = d.pick(lambda m: m.dtype == "bool" and m.shape == x.shape[:2])
    if mask is not None:
        low = d.number(d.choose(-1e4, -3e4), scores)
        around = (x.shape[0], *([ONE] if heads else []), ONE, x.shape[1])
        keep = reshape_to(d, mask, around)
        if keep is not None:
            added = d.add("Where", [keep, d.number(0, scores), low], around, dtype=scores.dtype, exact=True, bound=1.0)
            scores = d.binary("Add", scores, added)
    weights = d.add("Softmax", [scores], scores.shape, bound=1.0, axis=-1)
    if d.chance(0.3):
        nan = d.add("IsNaN", [weights], weights.shape, dtype="bool", bound=1.0)
        weights = d.add("Where", [nan, d.number(0, weights), weights], weights.shape, dtype=weights.dtype, bound=1.0)
    out = d.add("MatMul", [weights, v], v.shape, bound=v.bound)
    if heads:
        reshape_to(d, permuted(d, out, [0, 2, 1, 3]), x.shape)


def _image(v: Value) -> bool:
    return v.rank == 4 and is_fixed(v.shape[1]) and v.shape[1][0] <= 12 and v.bound <= 10


def _conv(d: Draft, x: Value) -> Value:
    c = x.shape[1][0]
    group = d.choose(1, 1, c, 2) if c % 2 == 0 else d.choose(1, c)
    out = group * d.choose(1, 2) if group > 1 else d.choose(2, 3, 4)
    kernel = d.choose(1, 1, 3)
    attributes: dict[str, Any] = (
        {"pads": [kernel // 2] * 4} if kernel == 1 or d.chance(0.6) else {"auto_pad": "SAME_UPPER"}
    )
    if d.chance(0.3) or group > 1:
        attributes["group"] = group
    else:
        group = 1
    bias = d.weight(out) if d.chance(0.5) else None
    w = d.weight(out, c // group, kernel, kernel, scale=1 / math.sqrt(c // group * kernel**2))
    return d.add("Conv", [x, w, bias], (x.shape[0], fixed(out), *x.shape[2:]), bound=20.0, **attributes)


def _deconv(d: Draft, x: Value) -> Value:
    c, group = x.shape[1][0], d.choose(1, 2) if x.shape[1][0] % 2 == 0 else 1
    each = d.choose(1, 2, 3)
    shape = (x.shape[0], fixed(each * group), *(times(size, fixed(2)) for size in x.shape[2:]))
    w = d.weight(c, each, 2, 2, scale=1 / math.sqrt(c))
    return d.add("ConvTranspose", [x, w], shape, bound=20.0, group=group, strides=[2, 2])


def batch_norm(d: Draft, x: Value) -> Value:
    """BatchNormalization at inference."""
    c = x.shape[1][0]
    spread = d.constant(np.asarray([d.rng.uniform(0.5, 2) for _ in range(c)], x.dtype))
    statistics = [d.weight(c, dtype=x.dtype) for _ in range(3)]
    return d.add(
        "BatchNormalization", [x, *statistics, spread], x.shape, bound=3 * x.bound + 6, epsilon=d.choose(1e-5, 1e-3)
    )


def convolution(d: Draft) -> None:
    """A convolution, then some of: batch norm, a scale or a bias a channel (or nearly), an activation; Pad before."""
    x = d.pick_float(lambda v: _image(v) and v.dtype == d.float != "float64")  # onnxruntime convolves no FP64
    if x is None:
        return
    if d.chance(0.2):
        below = d.choose(0, 1)
        grown = (*x.shape[:2], tuple(s + 1 + below for s in x.shape[2]), tuple(s + 2 for s in x.shape[3]))
        x = d.add("Pad", [x, d.constant([0, 0, 1, 1, 0, 0, below, 1], "int64")], grown, exact=True)
    y = _conv(d, x) if d.chance(0.75) else _deconv(d, x)
    c = y.shape[1][0]
    for _ in range(d.rng.randint(0, 3)):
        if d.chance(0.4):
            y = batch_norm(d, y)
        else:
            dims = d.choose((c, 1, 1), (1, c, 1, 1), (c, 1, 1), (), (1, 1, 1, 1), (1,))
            y = d.binary(d.choose("Add", "Mul", "Sub"), y, d.weight(*dims, dtype=y.dtype))
    if d.chance(0.5):
        d.add("Relu", [y], y.shape)


def lone_norm(d: Draft) -> None:
    """A batch norm behind anything."""
    x = d.pick_float(lambda v: v.rank >= 2 and is_fixed(v.shape[1]) and v.dtype == d.float and v.bound <= 50)
    if x is not None:
        batch_norm(d, x)


def mean(d: Draft, x: Value, axes: list[int], op: str = "ReduceMean", keep: bool = True) -> Value:
    """A reduction; axes are an input from opset 18 on (13 for ReduceSum)."""
    kept = [ONE if axis in axes else size for axis, size in enumerate(x.shape)]
    shape = tuple(kept) if keep else tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
    inputs, attributes = d.axes(op, x, axes, 13 if op == "ReduceSum" else 18)
    count = max(times(*(x.shape[a] for a in axes)))
    exact = op in ("ReduceMax", "ReduceMin")
    return d.add(op, inputs, shape, dtype=x.dtype, exact=exact, keepdims=int(keep), **attributes,
                 bound=x.bound * count if op == "ReduceSum" else x.bound)  # fmt: skip


def norm(d: Draft) -> None:
    """Layer norm or RMS norm written out: over other axes, epsilon outside the root, with scale and bias."""
    x = d.pick_float(lambda v: v.rank >= 2 and v.bound <= 30 and v.dtype == d.float and is_fixed(v.shape[-1]))
    if x is None:
        return
    axes = d.choose([x.rank - 1], [x.rank - 1], [x.rank - 1], [1], [x.rank - 2, x.rank - 1])
    centred = x if d.chance(0.4) else d.binary("Sub", x, mean(d, x, axes))
    square = (
        d.binary("Mul", centred, centred)
        if d.chance(0.4)
        else d.binary("Pow", centred, d.number(d.choose(2, 2, 2, 4), centred), bound=centred.bound**2)
    )
    spread = mean(d, square, axes)
    if d.chance(0.9):
        root = d.add("Sqrt", [d.binary("Add", spread, d.number(d.choose(1e-3, 1e-2, 0.5), spread))], spread.shape)
    else:
        root = d.binary("Add", d.add("Sqrt", [spread], spread.shape), d.number(0.1, spread))
    if d.chance(0.6):
        y = d.binary("Div", centred, root, bound=30.0)
    else:
        y = d.binary("Mul", centred, d.add("Reciprocal", [root], root.shape), bound=30.0)
    width = y.shape[-1][0]
    for op in ("Mul", "Add")[: d.rng.randint(0, 2)]:
        y = d.binary(op, y, d.weight(*d.choose((width,), (width,), (1, width), (), [1] * y.rank), dtype=y.dtype))


def normalized(d: Draft) -> None:
    """LayerNormalization, InstanceNormalization or a group norm by reshapes, as one op with what stands around it."""
    x = d.pick_float(lambda v: v.rank >= 3 and v.bound <= 30 and v.dtype == d.float and is_fixed(v.shape[1]))
    if x is None:
        return
    if d.opset >= 17 and is_fixed(x.shape[-1]) and d.chance(0.4):
        w = d.weight(x.shape[-1][0])
        d.add("LayerNormalization", [x, w], x.shape, bound=30.0, axis=-1, epsilon=1e-3)
        return
    if x.dtype == "float64":  # no kernel of onnxruntime
        return
    c = x.shape[1][0]
    groups = 2 if c % 2 == 0 else 1
    flat = reshape_to(d, x, (x.shape[0], fixed(groups), times(fixed(c // groups), *x.shape[2:])))
    if flat is None:
        return
    ones = [d.constant(np.full(groups, v, x.dtype)) for v in (1, 0)]
    y = d.add("InstanceNormalization", [flat, *ones], flat.shape, bound=30.0, epsilon=1e-3)
    back = reshape_to(d, y, x.shape)
    if back is not None:
        tail = [c] + [1] * (x.rank - 2)
        d.binary("Add", d.binary("Mul", back, d.weight(*tail)), d.weight(*tail))


def softmax(d: Draft) -> None:
    """Softmax over any axis, or exp(x - max) / sum written out."""
    x = d.pick_float(lambda v: v.rank >= 1 and v.bound <= 30)
    if x is None:
        return
    axis = d.choose(x.rank - 1, x.rank - 1, 0)
    if d.chance(0.5):
        d.add(d.choose("Softmax", "Softmax", "LogSoftmax"), [x], x.shape, bound=30.0, axis=axis)
        return
    high = mean(d, x, [axis], "ReduceMax")
    e = d.binary("Sub", x, high)
    e = d.add("Exp", [e], e.shape, bound=1.0)
    d.binary("Div", e, mean(d, e, [axis], "ReduceSum"), bound=1.0)


def reduction(d: Draft) -> None:
    """A reduction over some axes, or a pooling."""
    x = d.pick_float(lambda v: v.rank >= 1)
    if x is None:
        return
    if x.rank == 4 and x.dtype == "float32" and d.chance(0.4):
        shape = (*x.shape[:2], ONE, ONE)
        d.add(d.choose("GlobalAveragePool", "GlobalMaxPool"), [x], shape)
        return
    axes = sorted(d.rng.sample(range(x.rank), d.rng.randint(1, x.rank)))
    op = d.choose("ReduceMean", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2")
    y = mean(d, x, axes, "ReduceSum" if op == "ReduceL2" else op, keep=d.chance(0.6))
    if d.chance(0.2) and y.rank == x.rank:
        mean(d, y, [0])


def rotary(d: Draft) -> None:
    """x · cos + rotate_half(x) · sin, the halves by Split or Slice."""
    x = d.pick_float(lambda v: v.rank >= 2 and is_fixed(v.shape[-1]) and v.shape[-1][0] % 2 == 0 and v.bound <= 50)
    if x is None:
        return
    width, axis = x.shape[-1][0], x.rank - 1
    half: Shape = (*x.shape[:-1], fixed(width // 2))
    if d.chance(0.5):
        halves = [Value(d.name("h"), x.dtype, half, x.bound, x.exact) for _ in range(2)]
        d.node("Split", [x, d.constant([width // 2] * 2, "int64")], halves, axis=axis)
    else:
        ends = [(0, width // 2), (width // 2, d.choose(width, 1 << 62))]
        halves = [
            d.add("Slice", [x, *(d.constant([v], "int64") for v in (a, b, axis))], half, exact=True) for a, b in ends
        ]
    negative = d.add("Neg", [halves[1]], half, exact=True)
    turned = d.add(
        "Concat", [negative, halves[0]] if d.chance(0.9) else [halves[0], negative], x.shape, exact=True, axis=-1
    )
    cos, sin = (d.weight(width, scale=0.5, dtype=x.dtype) for _ in range(2))
    d.binary("Add", d.binary("Mul", x, cos), d.binary("Mul", turned, sin))


def images(d: Draft) -> None:
    """Resize forms, pixel shuffles written out, channel shuffles, and layers in the other layout."""
    x = d.pick_float(_image)
    if x is None:
        return
    n, c, h, w = x.shape
    form = d.choose("resize", "shuffle", "channels", "layout", "layout")
    if form == "resize" and x.dtype == "float32":
        factors = [1, 1, *d.choose((2, 2), (1, 1), (2, 1))]
        scales = d.constant(np.asarray(factors, np.float32))
        shape = tuple(times(size, fixed(f)) for size, f in zip(x.shape, factors, strict=True))
        mode = d.choose(("nearest", "asymmetric"), ("linear", "half_pixel"))
        d.add(
            "Resize",
            [x, None, scales],
            shape,
            mode=mode[0],
            coordinate_transformation_mode=mode[1],
            nearest_mode="floor",
        )
    elif form == "shuffle" and c[0] % 4 == 0:
        rest = fixed(c[0] // 4)
        crd = d.chance(0.5)
        split = (n, rest, fixed(2), fixed(2), h, w) if crd else (n, fixed(2), fixed(2), rest, h, w)
        perm = [0, 1, 4, 2, 5, 3] if crd else [0, 3, 4, 1, 5, 2]
        if d.chance(0.15):
            perm[3], perm[5] = perm[5], perm[3]
        y = reshape_to(d, x, split)
        y = permuted(d, y, perm) if y is not None else None
        if y is not None:
            reshape_to(d, y, (n, rest, times(h, fixed(2)), times(w, fixed(2))))
    elif form == "channels" and c[0] % 2 == 0:
        y = reshape_to(d, x, (n, fixed(2), fixed(c[0] // 2), h, w))
        y = permuted(d, y, [0, 2, 1, 3, 4]) if y is not None else None
        if y is not None:
            reshape_to(d, y, x.shape)
    elif form == "layout":
        y = permuted(d, x, [0, 2, 3, 1])
        for _ in range(d.rng.randint(0, 3)):
            y = d.choose(_elementwise, _channel_bias, _layout_reduce)(d, y)
        if y.rank == 4:
            y = permuted(d, y, [0, 3, 1, 2] if d.chance(0.9) else [0, 3, 2, 1])
            if is_fixed(y.shape[1]) and y.shape[1][0] <= 12 and y.dtype == d.float != "float64":
                _conv(d, y)


def _elementwise(d: Draft, x: Value) -> Value:
    return d.add(d.choose("Relu", "Neg", "Abs"), [x], x.shape, exact=True)


def _channel_bias(d: Draft, x: Value) -> Value:
    return d.binary(d.choose("Add", "Mul"), x, d.weight(x.shape[-1][0] if is_fixed(x.shape[-1]) else 1, dtype=x.dtype))


def _layout_reduce(d: Draft, x: Value) -> Value:
    return mean(d, x, [1, 2]) if x.rank == 4 else x


STEPS = (
    (3, linear), (1.5, siblings), (2, attention), (3, convolution), (0.7, lone_norm), (2, norm), (0.7, normalized),
    (1.5, softmax), (1.5, reduction), (0.7, rotary), (2, images),
)  # fmt: skip
