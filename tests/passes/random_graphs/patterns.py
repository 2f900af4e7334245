"""Steps that add what exporters write for one op or one module of a framework, or nearly that."""

from __future__ import annotations

import itertools
import math

import numpy as np

from tests.passes.random_graphs.draft import ONE, Draft, Value, fixed, is_fixed, times
from tests.passes.random_graphs.layers import mean
from tests.passes.random_graphs.views import dim_of, permuted, reshape_to, shape_value


def _sequence(d: Draft, even: bool = False) -> Value | None:
    """A value [batch, length, channels] with few channels."""
    return d.pick_float(
        lambda v: (
            v.rank == 3
            and is_fixed(v.shape[-1])
            and v.shape[-1][0] <= 16
            and (not even or v.shape[-1][0] % 2 == 0)
            and v.bound <= 10
            and v.dtype == d.float
        )
    )


def _linear(d: Draft, x: Value, n: int) -> Value:
    k = x.shape[-1][0]
    w = d.weight(k, n, scale=1 / math.sqrt(k))
    y = d.add("MatMul", [x, w], (*x.shape[:-1], fixed(n)), bound=2 * x.bound * math.sqrt(k))
    return d.binary("Add", y, d.weight(n, dtype=y.dtype)) if d.chance(0.5) else y


def _slice(d: Draft, x: Value, axis: int, start: int, end: int) -> Value:
    shape = (*x.shape[:axis], fixed(end - start), *x.shape[axis + 1 :])
    stop = (1 << 63) - 1 if end == x.shape[axis][0] and d.chance(0.5) else end
    given = [d.constant([v], "int64") for v in (start, stop, axis - x.rank if d.chance(0.5) else axis)]
    return d.add("Slice", [x, *given], shape, exact=True)


def repeated_heads(d: Draft) -> None:
    """Grouped queries: every head of the keys repeated by Unsqueeze, Expand and Reshape, then a product."""
    x = _sequence(d, even=True)
    if x is None:
        return
    heads, n, width = d.choose(1, 2), d.choose(2, 3), x.shape[-1][0] // 2
    q = reshape_to(d, _linear(d, x, heads * n * width), (*x.shape[:2], fixed(heads * n), fixed(width)))
    k = reshape_to(d, _linear(d, x, heads * width), (*x.shape[:2], fixed(heads), fixed(width)))
    if q is None or k is None:
        return
    q, k = permuted(d, q, [0, 2, 1, 3]), permuted(d, k, [0, 2, 1, 3])
    axis = 2 if d.chance(0.85) else 1
    shape = (*k.shape[:axis], ONE, *k.shape[axis:])
    inputs, attributes = d.axes("Unsqueeze", Value("", "", shape), [axis], 13)
    k = d.add("Unsqueeze", [k, *inputs[1:]], shape, exact=True, **attributes)
    wide = (*k.shape[:axis], fixed(n), *k.shape[axis + 1 :])
    target = shape_value(d, wide)
    if target is None:
        return
    k = d.add("Expand", [k, target], wide, dtype=k.dtype, exact=True, bound=k.bound)
    full = reshape_to(d, k, (q.shape[0], fixed(heads * n), *k.shape[3:]))
    if full is not None:
        turned = permuted(d, full, [0, 1, 3, 2])
        scores = d.add("MatMul", [q, turned], (*q.shape[:3], turned.shape[3]), bound=30.0)
        d.add("Softmax", [scores], scores.shape, bound=1.0, axis=-1)


def packed(d: Draft) -> None:
    """Queries, keys and values as one product, taken apart by Split, by Gather, or by slices; heads made of each."""
    x = _sequence(d)
    if x is None:
        return
    width = d.choose(2, 4)
    y = _linear(d, x, 3 * width)
    form = d.choose("split", "slices", "gather")
    parts: list[Value | None]
    if form == "split":
        shape = (*y.shape[:-1], fixed(width))
        split = [Value(d.name("p"), y.dtype, shape, y.bound, y.exact) for _ in range(3)]
        d.node("Split", [y, d.constant([width] * 3, "int64")], split, axis=y.rank - 1 if d.chance(0.5) else -1)
        parts = list(split)
    elif form == "slices":
        at = [0, width, 2 * width, 3 * width]
        if d.chance(0.1):
            at[1] += 1
        parts = [_slice(d, y, y.rank - 1, a, b) for a, b in itertools.pairwise(at)]
    else:
        five = reshape_to(d, y, (*y.shape[:2], fixed(3), ONE, fixed(width)))
        five = permuted(d, five, [2, 0, 3, 1, 4]) if five is not None else None
        if five is None:
            return
        picked = [0, 1, 2] if d.chance(0.9) else [0, 2, 2]
        parts = [d.add("Gather", [five, d.constant(i, "int64")], five.shape[1:], exact=True, axis=0) for i in picked]
    if d.chance(0.5) and form != "gather" and width % 2 == 0:
        for index, part in enumerate(parts):
            if part is not None and part.shape[-1] == fixed(width):
                view = reshape_to(d, part, (*part.shape[:2], fixed(2), fixed(width // 2)))
                parts[index] = permuted(d, view, [0, 2, 1, 3]) if view is not None and d.chance(0.9) else view
    found = [part for part in parts if part is not None]
    if len(found) == 3 and found[0].shape == found[1].shape == found[2].shape and d.chance(0.6):
        d.binary("Sub", d.binary("Add", found[0], found[1]), found[2])


def rotated(d: Draft) -> None:
    """Queries and keys of one input, both rotated by the same angles, one of them perhaps scaled."""
    x = _sequence(d, even=True)
    if x is None:
        return
    width = x.shape[-1][0]
    cos, sin = (d.weight(width, scale=0.5, dtype=x.dtype) for _ in range(2))
    outs = []
    for _ in range(2):
        y = _linear(d, x, width)
        halves = [_slice(d, y, y.rank - 1, 0, width // 2), _slice(d, y, y.rank - 1, width // 2, width)]
        negative = d.add("Neg", [halves[1]], halves[1].shape, exact=True)
        turned = d.add("Concat", [negative, halves[0]], y.shape, exact=True, axis=y.rank - 1)
        y = d.binary("Add", d.binary("Mul", y, cos), d.binary("Mul", turned, sin))
        if d.chance(0.4):
            y = d.binary("Mul", y, d.number(0.5, y))
        outs.append(y)
    if outs[0].shape == outs[1].shape:
        turned = permuted(d, outs[1], [0, 2, 1])
        d.add("MatMul", [outs[0], turned], (*x.shape[:2], x.shape[1]), bound=100.0)


def flattened(d: Draft) -> None:
    """A Gemm between two Reshapes, as it is written for inputs of more than two dims; the same as a convolution."""
    x = d.pick_float(
        lambda v: (
            v.rank in (3, 4) and is_fixed(v.shape[-1]) and v.shape[-1][0] <= 12 and v.bound <= 10 and v.dtype == d.float
        )
    )
    if x is None:
        return
    k, n = x.shape[-1][0], d.choose(2, 3)
    if d.chance(0.3) and x.rank == 4:
        x = permuted(d, x, [0, 2, 3, 1])
        if not is_fixed(x.shape[-1]):
            return
        k = x.shape[-1][0]
    flat = reshape_to(d, x, (times(*x.shape[:-1]), fixed(k)))
    if flat is None:
        return
    w = d.weight(k, n, scale=1 / math.sqrt(k))
    y = d.add("Gemm", [flat, w, d.weight(n)], (flat.shape[0], fixed(n)), bound=2 * x.bound * math.sqrt(k) + 2)
    if d.chance(0.3):
        y = d.add("Relu", [y], y.shape)
    back = reshape_to(d, y, (*x.shape[:-1], fixed(n)))
    if back is not None and back.rank == 4 and d.chance(0.5):
        permuted(d, back, [0, 3, 1, 2])


def powers(d: Draft) -> None:
    """Roots, reciprocals and squares as powers; an RMS norm and an L2 norm of them."""
    x = d.pick_float(lambda v: v.rank >= 1 and v.bound <= 10)
    if x is None:
        return
    form = d.choose("rms", "l2", "mean", "root")
    if form == "root":
        positive = d.binary("Add", d.add("Abs", [x], x.shape), d.number(0.5, x))
        d.binary("Pow", positive, d.number(d.choose(0.5, -0.5, -1, 1), positive), bound=4.0)
        return
    axes = [x.rank - 1]
    square = d.binary("Pow", x, d.number(2, x), bound=x.bound**2) if d.chance(0.5) else d.binary("Mul", x, x)
    if form == "l2":
        total = mean(d, square, axes, "ReduceSum")
        d.add("Sqrt", [total], total.shape)
    elif form == "mean" and is_fixed(x.shape[-1]):
        d.binary("Div", mean(d, x, axes, "ReduceSum"), d.number(d.near(x.shape[-1][0]), x))
    elif form == "rms":
        shifted = d.binary("Add", mean(d, square, axes), d.number(0.01, x))
        inverse = d.binary("Pow", shifted, d.number(-0.5, shifted), bound=10.0)
        y = d.binary("Mul", x, inverse, bound=30.0)
        if is_fixed(x.shape[-1]):
            d.binary("Mul", y, d.weight(x.shape[-1][0], dtype=y.dtype))


def activations(d: Draft) -> None:
    """Leaky ReLU, PReLU, sigmoid, softplus and log-softmax of simpler ops."""
    x = d.pick_float(lambda v: v.bound <= 10 and v.rank >= 1)
    if x is None:
        return
    form = d.choose("max", "where", "prelu", "sigmoid", "softplus", "logsoftmax")
    if form == "max":
        d.binary("Max", x, d.binary("Mul", x, d.number(d.choose(0.1, 0.1, 1.5, -0.1), x)), bound=x.bound * 2)
    elif form == "where" and x.exact:
        positive = d.binary("Greater", x, d.number(0, x), dtype="bool", bound=1.0)
        scaled = d.binary("Mul", x, d.number(d.choose(0.1, 1.5), x))
        d.add(
            "Where",
            [positive, x, scaled] if d.chance(0.85) else [positive, scaled, x],
            x.shape,
            dtype=x.dtype,
            bound=20.0,
        )
    elif form == "prelu":
        upper = d.add("Relu", [x], x.shape, exact=True)
        negative = d.add("Neg", [x], x.shape, exact=True)
        lower = d.add("Relu", [negative], x.shape, exact=True)
        slope = d.number(-0.25, x) if d.chance(0.5) else d.weight(*([1] * x.rank), dtype=x.dtype)
        d.binary("Add", upper, d.binary("Mul", lower, slope), bound=3 * x.bound)
    elif form == "sigmoid":
        e = d.add("Exp", [d.add("Neg", [x], x.shape) if d.chance(0.9) else x], x.shape, bound=math.exp(x.bound))
        below = d.binary("Add", e, d.number(d.near(1), e))
        if below.bound > 1:
            d.binary("Div", d.number(d.choose(1, 1, 2), below), below, swap=False, bound=2.0, finite=False)
    elif form == "softplus" and x.dtype == "float32":
        e = d.add("Exp", [x], x.shape, bound=math.exp(x.bound))
        above = d.binary("Add", e, d.number(1, e))
        d.add("Log", [above], above.shape, bound=x.bound + 1)
    elif form == "logsoftmax":
        axis = x.rank - 1
        e = d.add("Exp", [x], x.shape, bound=math.exp(x.bound))
        total = mean(d, e, [axis], "ReduceSum")
        d.binary("Sub", x, d.add("Log", [total], total.shape, bound=12.0), bound=20.0)


def causal(d: Draft) -> None:
    """Scores under a mask made of positions, of -inf or of a lowest number, so that no row is masked throughout."""
    x = d.pick_float(lambda v: v.rank >= 2 and v.shape[-1] == v.shape[-2] and v.bound <= 10)
    if x is None:
        return
    size = dim_of(d, x, x.rank - 1, vector=False)
    ends = d.constant(0, "int64"), size, d.constant(1, "int64")
    counter = d.add("Range", ends, (x.shape[-1],), bound=size.bound)
    rows, columns = (
        d.add("Unsqueeze", [counter, *d.axes("Unsqueeze", Value("", "", (ONE, ONE)), [axis], 13)[0][1:]], shape)
        for axis, shape in ((1, (x.shape[-1], ONE)), (0, (ONE, x.shape[-1])))
    )
    keep = d.binary("GreaterOrEqual", rows, columns, swap=False, dtype="bool", bound=1.0)
    low = d.constant(np.asarray(d.choose(-np.inf, -1e4, float(np.finfo(x.dtype).min)), x.dtype))
    if d.chance(0.5):
        masked = d.add("Where", [keep, x, low], x.shape, dtype=x.dtype, bound=x.bound, finite=False)
    else:
        mask = d.add("Where", [keep, d.number(0, x), low], keep.shape, dtype=x.dtype, bound=1.0, finite=False)
        masked = d.binary("Add", x, mask, bound=x.bound)
    weights = d.add("Softmax", [masked], x.shape, bound=1.0, axis=-1)
    d.values[-1] = weights = Value(weights.name, weights.dtype, weights.shape, 1.0, exact=False)
    if d.chance(0.5):
        nan = d.add("IsNaN", [weights], weights.shape, dtype="bool", bound=1.0)
        d.add("Where", [nan, d.number(0, weights), weights], weights.shape, dtype=weights.dtype, bound=1.0)


def picks(d: Draft) -> None:
    """A Gather and the dim back; slices that take a dim apart, in order or not; a sequence that hands on parts."""
    x = d.pick_float(lambda v: v.rank >= 1 and any(is_fixed(size) and size[0] % 2 == 0 for size in v.shape))
    if x is None:
        return
    axis = next(a for a, size in enumerate(x.shape) if is_fixed(size) and size[0] % 2 == 0)
    half = x.shape[axis][0] // 2
    form = d.choose("gather", "slices", "sequence")
    shape = (*x.shape[:axis], fixed(half), *x.shape[axis + 1 :])
    if form == "gather":
        out = (*x.shape[:axis], *x.shape[axis + 1 :])
        y = d.add("Gather", [x, d.constant(d.choose(0, -1), "int64")], out, exact=True, axis=axis)
        place = axis if d.chance(0.8) else 0
        back = (*out[:place], ONE, *out[place:])
        inputs, attributes = d.axes("Unsqueeze", Value("", "", back), [place], 13)
        d.add("Unsqueeze", [y, *inputs[1:]], back, exact=True, **attributes)
        return
    if form == "slices":
        a, b = _slice(d, x, axis, 0, half), _slice(d, x, axis, half, 2 * half)
    else:
        whole = Value(d.name("q"), "sequence", ())
        d.node("SplitToSequence", [x, d.constant(half, "int64")], [whole], axis=axis)
        d.values.remove(whole)
        a, b = (
            d.add("SequenceAt", [whole, d.constant(i, "int64")], shape, dtype=x.dtype, bound=x.bound, exact=True)
            for i in ((0, 1) if d.chance(0.8) else (-1, 0))
        )
    d.binary(d.choose("Mul", "Sub"), a, b)


STEPS = (
    (1, repeated_heads), (1.2, packed), (0.8, rotated), (1, flattened), (1.2, powers), (1.2, activations), (1, causal),
    (1.2, picks),
)  # fmt: skip
