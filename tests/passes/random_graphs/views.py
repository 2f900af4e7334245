"""Steps that move elements: reshapes whose targets are written down or computed, transposes, slices, joins, gathers."""

from __future__ import annotations

import itertools

import numpy as np
from onnx import helper

from tests.passes.random_graphs.draft import ONE, RUNS, Draft, Shape, Size, Value, fixed, is_fixed, onnx_type, times


def dim_of(d: Draft, x: Value, axis: int, *, vector: bool = True) -> Value:
    """The size of one dim as an int64 of shape [1], or a scalar: in one of the ways that exporters write it."""
    data, scalar, row = (x.shape[axis],), (), (ONE,)
    known = {"dtype": "int64", "bound": float(max(x.shape[axis])), "data": data}
    form = d.choose("gather", "gather", "gather1", "slice", "attributes" if d.opset >= 15 else "gather")
    if form == "attributes":
        out = d.add("Shape", [x], row, **known, start=axis, end=axis + 1)
    else:
        every = d.add("Shape", [x], (fixed(x.rank),), dtype="int64", bound=1e3, data=x.shape)
        if form == "gather":
            out = d.add("Gather", [every, d.constant(axis, "int64")], scalar, **known, axis=0)
        elif form == "gather1":
            out = d.add("Gather", [every, d.constant([axis], "int64")], row, **known, axis=0)
        else:
            ends = [d.constant([v], "int64") for v in (axis, axis + 1, 0)]
            out = d.add("Slice", [every, *ends], row, **known)
    if vector and out.rank == 0:
        inputs, attributes = d.axes("Unsqueeze", Value(out.name, "int64", row), [0], 13)
        return d.add("Unsqueeze", [out, *inputs[1:]], row, **known, **attributes)
    if not vector and out.rank:
        inputs, attributes = d.axes("Squeeze", out, [0], 13)
        return d.add("Squeeze", inputs, scalar, **known, **attributes)
    return out


def size_value(d: Draft, size: Size, *, vector: bool = True) -> Value | None:
    """Any size as an int64: a constant, a dim of a value, or a product of two of them."""
    if is_fixed(size):
        return d.constant([size[0]] if vector else size[0], "int64")
    owners = [(v, axis) for v in d.visible() for axis, s in enumerate(v.shape) if s == size]
    if owners and d.chance(0.85):
        return dim_of(d, *d.rng.choice(owners), vector=vector)
    dims = {s for v in d.visible() for s in v.shape if s != ONE and s != size}
    pairs = [(a, b) for a in sorted(dims) for b in sorted(dims) if times(a, b) == size]
    if not pairs:
        return dim_of(d, *d.rng.choice(owners), vector=vector) if owners else None
    a, b = (size_value(d, s, vector=vector) for s in d.rng.choice(pairs))
    if a is None or b is None:
        return None
    return d.binary("Mul", a, b, data=(size,))


def shape_value(d: Draft, shape: Shape) -> Value | None:
    """A shape as an int64 vector, computed from the dims of other values where it is not constant."""
    owners = [v for v in d.visible() if v.shape == shape and v.rank]
    if owners and d.chance(0.3):
        owner = d.rng.choice(owners)
        return d.add("Shape", [owner], (fixed(len(shape)),), dtype="int64", bound=1e3, data=shape)
    parts: list[Value] = []
    for known, group in itertools.groupby(shape, key=is_fixed):
        sizes = list(group)
        if known:
            parts.append(d.constant([size[0] for size in sizes], "int64"))
            continue
        for size in sizes:
            part = size_value(d, size)
            if part is None:
                return None
            parts.append(part)
    if not parts:
        return d.constant(np.zeros(0, np.int64))
    return d.add("Concat", parts, (fixed(len(shape)),), bound=1e3, data=shape, axis=0)


def reshape_to(d: Draft, x: Value, shape: Shape) -> Value | None:
    """Reshape: a constant with 0 and -1 where one says it, or a computed target."""
    target: list[int] = []
    for axis, size in enumerate(shape):
        if is_fixed(size) and d.chance(0.85):
            target.append(size[0])
        else:
            target.append(0 if axis < x.rank and x.shape[axis] == size and d.chance(0.8) else -1)
    known = {"exact": True, "bound": x.bound, "dtype": x.dtype}
    if target.count(-1) <= 1 and d.chance(0.6):
        return d.add("Reshape", [x, d.constant(target, "int64")], shape, **known)
    computed = shape_value(d, shape)
    if computed is None:
        return None
    attributes = {"allowzero": 1} if d.opset >= 14 and d.chance(0.3) else {}
    return d.add("Reshape", [x, computed], shape, **known, **attributes)


def reshape(d: Draft) -> None:
    """Dims merged, split, added, dropped, or all flattened; sometimes twice."""
    x = d.pick(lambda v: 0 < v.rank <= 5)
    for _ in range(d.choose(1, 1, 2)):
        if x is None or not x.rank:
            return
        shape = list(x.shape)
        axis = d.rng.randrange(len(shape))
        form = d.choose("merge", "merge", "split", "unit", "flat", "drop", "same")
        if form == "merge" and axis + 1 < len(shape):
            shape[axis : axis + 2] = [times(*shape[axis : axis + 2])]
        elif form == "split" and is_fixed(shape[axis]):
            factor = next((f for f in (2, 3) if shape[axis][0] % f == 0), 1)
            pair = [fixed(factor), fixed(shape[axis][0] // factor)]
            shape[axis : axis + 1] = pair if d.chance(0.5) else pair[::-1]
        elif form == "unit":
            shape.insert(axis, ONE)
        elif form == "flat":
            shape = [times(*shape)]
        elif form == "drop":
            shape = [size for size in shape if size != ONE]
        x = reshape_to(d, x, tuple(shape))


def flatten(d: Draft) -> None:
    """Flatten before an axis."""
    x = d.pick(lambda v: 0 < v.rank <= 5)
    if x is not None:
        axis = d.rng.randint(0, x.rank)
        shape = (times(*x.shape[:axis]), times(*x.shape[axis:]))
        d.add("Flatten", [x], shape, exact=True, axis=axis)


def permuted(d: Draft, x: Value, perm: list[int]) -> Value:
    """Transpose."""
    return d.add("Transpose", [x], tuple(x.shape[p] for p in perm), exact=True, perm=perm)


def transpose(d: Draft) -> None:
    """One or two transposes, with something elementwise between, that may undo each other."""
    x = d.pick(lambda v: 2 <= v.rank <= 5)
    if x is None:
        return
    perm = d.rng.sample(range(x.rank), x.rank) if d.chance(0.8) else list(range(x.rank))
    y = permuted(d, x, perm)
    if d.chance(0.5):
        if y.is_float and d.chance(0.6):
            y = d.add(d.choose("Relu", "Neg"), [y], y.shape, exact=True)
        inverse = [perm.index(axis) for axis in range(x.rank)]
        permuted(d, y, inverse if d.chance(0.7) else d.rng.sample(range(x.rank), x.rank))


def squeeze(d: Draft) -> None:
    """Unsqueeze, or Squeeze of axes that are 1 at every size; sometimes both."""
    x = d.pick(lambda v: v.rank <= 4)
    if x is None:
        return
    if d.chance(0.6):
        axis = d.rng.randint(0, x.rank)
        shape = (*x.shape[:axis], ONE, *x.shape[axis:])
        inputs, attributes = d.axes("Unsqueeze", Value("", "", shape), [axis], 13)
        x = d.add("Unsqueeze", [x, *inputs[1:]], shape, exact=True, data=x.data, **attributes)
    ones = [axis for axis, size in enumerate(x.shape) if size == ONE]
    if ones and d.chance(0.6):
        gone = d.rng.sample(ones, d.rng.randint(1, len(ones)))
        inputs, attributes = d.axes("Squeeze", x, sorted(gone), 13)
        kept = tuple(size for axis, size in enumerate(x.shape) if axis not in gone)
        d.add("Squeeze", inputs, kept, dtype=x.dtype, exact=True, **attributes)


def _slice(d: Draft, x: Value, axis: int, start: int, end: int, step: int) -> Value | None:
    sizes = tuple(len(range(*slice(start, end, step).indices(size))) for size in x.shape[axis])
    if step < 0 and end < -(1 << 31):
        sizes = tuple(len(range(size)[start::step]) for size in x.shape[axis])
    if 0 in sizes:
        return None
    shape = (*x.shape[:axis], sizes, *x.shape[axis + 1 :])
    given: list[Value | None] = [d.constant([v], "int64") for v in (start, end)]
    given.append(d.constant([axis - x.rank if d.chance(0.3) else axis], "int64"))
    if step != 1 or d.chance(0.5):
        given.append(d.constant([step], "int64"))
    return d.add("Slice", [x, *given], shape, exact=True)


def slices(d: Draft) -> None:
    """One to three slices in a row: from the end, beyond the end, backwards, with steps, of the whole."""
    x = d.pick(lambda v: v.rank > 0)
    for _ in range(d.rng.randint(1, 3)):
        if x is None:
            return
        axis = d.rng.randrange(x.rank)
        start = d.choose(0, 0, 1, 2, -2, -3, -100)
        end = d.choose(1 << 31, (1 << 63) - 1, 3, -1, 100, 2)
        step = d.choose(1, 1, 1, 2)
        if d.chance(0.15):
            start, end, step = d.choose(-1, 100), -(1 << 40), d.choose(-1, -2)
        x = _slice(d, x, axis, start, end, step)


def concat(d: Draft) -> None:
    """A join of one to three values; halves of a Split put together again, in order or not."""
    x = d.pick(lambda v: v.rank > 0)
    if x is None:
        return
    axis = d.rng.randrange(x.rank)
    parts = [x]
    for _ in range(d.choose(0, 1, 1, 2)):
        y = d.pick(
            lambda v: (
                v.dtype == x.dtype
                and v.rank == x.rank
                and all(a == b for i, (a, b) in enumerate(zip(v.shape, x.shape, strict=True)) if i != axis)
            )
        )
        if y is not None:
            parts.append(y)
    joined = tuple(sum(v.shape[axis][run] for v in parts) for run in range(RUNS))
    shape = (*x.shape[:axis], joined, *x.shape[axis + 1 :])
    bound = max(v.bound for v in parts)
    d.add("Concat", parts, shape, exact=True, bound=bound, axis=axis - x.rank if d.chance(0.3) else axis)


def split(d: Draft) -> None:
    """A Split of a dim of known size; the parts are joined again in order, joined the other way, or used apart."""
    x = d.pick(lambda v: any(is_fixed(size) and size[0] > 1 for size in v.shape))
    if x is None:
        return
    axis = d.rng.choice([a for a, size in enumerate(x.shape) if is_fixed(size) and size[0] > 1])
    total = x.shape[axis][0]
    first = d.rng.randint(1, total - 1)
    if total % 2 == 0 and d.chance(0.6):
        first = total // 2
    sizes = [first, total - first]
    parts = []
    for size in sizes:
        shape = (*x.shape[:axis], fixed(size), *x.shape[axis + 1 :])
        parts.append(Value(d.name("s"), x.dtype, shape, x.bound, x.exact, x.finite))
    even = sizes[0] == sizes[1] and d.chance(0.5)
    inputs = [x] if even else [x, d.constant(sizes, "int64")]
    attributes = {"num_outputs": 2} if even and d.opset >= 18 else {}
    d.node("Split", inputs, parts, axis=axis, **attributes)
    if d.chance(0.5):
        together = parts if d.chance(0.6) else parts[::-1]
        d.add("Concat", together, x.shape, exact=True, bound=x.bound, axis=axis)


def gather(d: Draft) -> None:
    """Elements by constant indices: one, a few, all in order, some from the end."""
    x = d.pick(lambda v: any(is_fixed(size) for size in v.shape))
    if x is None:
        return
    axis = d.rng.choice([a for a, size in enumerate(x.shape) if is_fixed(size)])
    total = x.shape[axis][0]
    indices = np.asarray(d.choose(0, -1, [0], [total - 1, 0], list(range(total))), np.int64)
    shape = (*x.shape[:axis], *map(fixed, indices.shape), *x.shape[axis + 1 :])
    d.add("Gather", [x, d.constant(indices)], shape, exact=True, axis=axis)


def expand(d: Draft) -> None:
    """Expand to the shape of another value, or a Tile; often in front of an op that broadcasts anyway."""
    x = d.pick(lambda v: v.is_float and v.rank <= 4)
    if x is None:
        return
    if d.chance(0.25) and x.rank:
        axis, count = d.rng.randrange(x.rank), d.choose(1, 2)
        repeats = [count if a == axis else 1 for a in range(x.rank)]
        shape = tuple(times(size, fixed(n)) for size, n in zip(x.shape, repeats, strict=True))
        d.add("Tile", [x, d.constant(repeats, "int64")], shape, exact=True)
        return
    like = d.pick(
        lambda v: (
            v.dtype == x.dtype
            and v.rank >= x.rank
            and all(a in (ONE, b) for a, b in zip(x.shape[::-1], v.shape[::-1], strict=False))
        )
    )
    target = shape_value(d, like.shape) if like is not None else None
    if like is None or target is None:
        return
    wide = d.add("Expand", [x, target], like.shape, exact=True, bound=x.bound, dtype=x.dtype)
    if d.chance(0.7):
        d.binary(d.choose("Add", "Mul"), like, wide)


def pad(d: Draft) -> None:
    """One or two constant pads, of zeros or of another number, or of nothing."""
    x = d.pick(lambda v: v.is_float and v.rank > 0)
    for _ in range(d.choose(1, 1, 2)):
        if x is None:
            return
        axis, before, after = d.rng.randrange(x.rank), d.choose(0, 0, 1), d.choose(0, 0, 1, 2)
        pads = [0] * (2 * x.rank)
        pads[axis], pads[axis + x.rank] = before, after
        grown = tuple(size + before + after for size in x.shape[axis])
        value = d.constant(np.asarray(d.choose(0, 1), x.dtype)) if d.chance(0.5) else None
        inputs = [x, d.constant(pads, "int64"), value]
        bound = max(x.bound, 1.0)
        x = d.add("Pad", inputs, (*x.shape[:axis], grown, *x.shape[axis + 1 :]), exact=True, bound=bound)


def shape_numbers(d: Draft) -> None:
    """What is made of sizes: a filled tensor, a range, a division by the number of elements."""
    x = d.pick(lambda v: v.is_float and v.rank > 0)
    if x is None:
        return
    axis = d.rng.randrange(x.rank)
    form = d.choose("fill", "range", "count", "constant of shape")
    if form == "count":
        size = dim_of(d, x, axis, vector=False)
        count = d.add("Cast", [size], (), dtype=x.dtype, exact=True, bound=size.bound, to=onnx_type(x.dtype))
        d.binary("Div", x, count, bound=x.bound)
        return
    if form == "range":
        size = dim_of(d, x, axis, vector=False)
        ends = d.constant(0, "int64"), size, d.constant(1, "int64")
        counter = d.add("Range", ends, (x.shape[axis],), bound=size.bound)
        if d.chance(0.4):
            d.binary("GreaterOrEqual", counter, d.constant(d.choose(0, 1), "int64"), dtype="bool", bound=1.0)
        return
    shape = x.shape if form == "fill" else tuple(map(fixed, (2, 3)))
    target = shape_value(d, shape)
    if target is not None:
        value = helper.make_tensor("value", onnx_type(x.dtype), [1], [d.choose(0, 1)])
        filled = d.add("ConstantOfShape", [target], shape, dtype=x.dtype, bound=1.0, value=value)
        if form == "fill":
            d.binary(d.choose("Add", "Mul"), x, filled)


STEPS = (
    (3, reshape), (1, flatten), (3, transpose), (2, squeeze), (3, slices), (2, concat), (2, split), (2, gather),
    (2, expand), (1.5, pad), (1.5, shape_numbers),
)  # fmt: skip
