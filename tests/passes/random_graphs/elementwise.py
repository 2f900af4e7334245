"""Steps that add elementwise ops: arithmetic, comparisons, choices, casts, limits, activations."""

from __future__ import annotations

import math

import numpy as np

from tests.passes.random_graphs.draft import FLOATS, INTEGERS, ONE, Draft, Value, broadcast, is_fixed, onnx_type


def unary(d: Draft) -> None:
    """One op on one float value. What jumps or has no derivative bound takes exact values only."""
    x = d.pick_float()
    if x is None:
        return
    op = d.choose(
        *("Relu", "Neg", "Abs", "Identity", "Tanh", "Sigmoid", "Exp", "Dropout", "Floor", "Ceil", "Round", "Sign"),
        *("Sqrt", "Log", "Reciprocal", "Sin"),
        # onnxruntime has no kernel of these for FP64 in every version.
        *(("Erf", "Softplus", "LeakyRelu", "Elu", "HardSigmoid", "HardSwish") if x.dtype != "float64" else ()),
    )
    if op in ("Relu", "Neg", "Abs", "Identity", "Dropout"):
        d.add(op, [x], x.shape, exact=True)
    elif op in ("Tanh", "Sigmoid", "Erf", "HardSigmoid", "Sin"):
        d.add(op, [x], x.shape, bound=1.0)
    elif op in ("Floor", "Ceil", "Round", "Sign") and x.exact:
        d.add(op, [x], x.shape, bound=x.bound + 1, exact=True)
    elif op in ("Sqrt", "Log") and x.exact:
        d.add(op, [x], x.shape, finite=False)
    elif op == "Exp" and x.bound <= 4:
        d.add(op, [x], x.shape, bound=math.exp(x.bound))
    elif op in ("Softplus", "Elu", "LeakyRelu") or (op == "HardSwish" and d.opset >= 14):
        d.add(op, [x], x.shape, bound=x.bound + 1)
    elif op == "Reciprocal":
        d.add(op, [_positive(d, x)], x.shape, bound=2.0)


def _positive(d: Draft, x: Value) -> Value:
    return d.binary("Add", d.add("Abs", [x], x.shape), d.number(0.5, x))


def partner(d: Draft, x: Value) -> Value | None:
    """Something that broadcasts with x: a value, or a constant of few elements or of x's last dims."""
    if d.chance(0.5):
        return d.pick(lambda v: v.dtype == x.dtype and broadcast(v.shape, x.shape) is not None)
    known = [size[0] if is_fixed(size) else 1 for size in x.shape]
    keep = d.rng.randint(0, x.rank)
    dims = [1 if d.chance(0.3) else size for size in known[x.rank - keep :]]
    if d.chance(0.08):
        dims = [1] * (x.rank + 1)  # it raises the rank
    if d.chance(0.35):
        return d.constant(np.full(dims, d.choose(0, 1, -1, 2), x.dtype))
    if x.dtype in INTEGERS:
        return d.constant(np.asarray(d.rng.choices(range(-3, 4), k=math.prod(dims)), x.dtype).reshape(dims))
    return d.weight(*dims, dtype=x.dtype)


def binary(d: Draft) -> None:
    """Arithmetic between two values, or a value and a constant."""
    x = d.pick_float() if d.chance(0.85) else d.pick(lambda v: v.dtype in INTEGERS and v.bound < 1e3)
    y = partner(d, x) if x is not None else None
    if x is None or y is None or (x.dtype in INTEGERS and y.bound >= 1e3):
        return
    op = d.choose("Add", "Add", "Sub", "Mul", "Mul", "Div", "Max", "Min", "Pow")
    if op in ("Max", "Min"):
        d.binary(op, x, y, exact=True)
    elif op == "Div":
        if x.dtype in INTEGERS:
            d.binary(op, x, d.number(d.choose(1, 2, 3), x), bound=x.bound)
        else:
            d.binary(
                op, x, d.number(d.choose(1, 2, -0.5, 3), x) if d.chance(0.6) else _positive(d, y), bound=2 * x.bound
            )
    elif op == "Pow":
        if x.is_float and x.bound <= 10:
            d.binary(op, x, d.number(d.choose(1, 2, 2, 3), x), bound=max(x.bound, 1) ** 3)
    elif op == "Sub" and d.chance(0.3):
        d.binary(op, y, x)
    else:
        d.binary(op, x, y)


def no_op(d: Draft) -> None:
    """x + 0, x · 1, x / 1, a cast to its own type and the like; near misses change the shape or are no constant."""
    x = d.pick(lambda v: v.is_float or v.dtype in INTEGERS)
    if x is None:
        return
    op, neutral = d.choose(("Add", 0), ("Sub", 0), ("Mul", 1), ("Div", 1), ("Pow", 1))
    if d.chance(0.25):
        attributes = {"to": onnx_type(x.dtype)} if d.chance(0.7) else {}
        d.add("Cast" if attributes else "Identity", [x], x.shape, exact=True, data=x.data, **attributes)
    else:
        rank = d.rng.randint(0, x.rank) if d.chance(0.9) else x.rank + 1
        d.binary(op, x, d.constant(np.full([1] * rank, neutral, x.dtype)), exact=True, bound=x.bound)


def compare(d: Draft) -> None:
    """A comparison of values that are not rounded differently by a rewrite."""
    x = d.pick(lambda v: v.dtype != "bool" and v.exact)
    if x is None:
        return
    if x.is_float and d.chance(0.2):
        d.add("IsNaN", [x], x.shape, dtype="bool", bound=1.0)
        return
    op = d.choose("Greater", "Less", "Equal", "GreaterOrEqual", "LessOrEqual")
    y = d.pick(lambda v: v.dtype == x.dtype and v.exact and broadcast(v.shape, x.shape) is not None)
    if y is None or d.chance(0.5):
        y = d.number(d.choose(0, 0, 1, -1), x)
    d.binary(op, x, y, dtype="bool", bound=1.0)


def logic(d: Draft) -> None:
    """And, Or, Xor, Not; masks that are true throughout."""
    x = d.pick(lambda v: v.dtype == "bool")
    if x is None:
        return
    if d.chance(0.3):
        d.add("Not", [x], x.shape)
        return
    y = d.pick(lambda v: v.dtype == "bool" and broadcast(v.shape, x.shape) is not None)
    if y is None or d.chance(0.4):
        known = [size[0] if is_fixed(size) else 1 for size in x.shape[d.rng.randint(0, x.rank) :]]
        y = d.constant(np.full(known, d.chance(0.7)))
    d.binary(d.choose("And", "Or", "Xor"), x, y, bound=1.0)


def where(d: Draft) -> None:
    """A choice between two values, by a mask that may be known."""
    x = d.pick_float()
    if x is None:
        return
    mask = d.pick(lambda v: v.dtype == "bool" and broadcast(v.shape, x.shape) is not None)
    if mask is None or d.chance(0.3):
        mask = d.constant(np.full([1] * d.rng.randint(0, x.rank), d.chance(0.5)))
    if d.chance(0.1):
        mask = d.add("IsNaN", [x], x.shape, dtype="bool", bound=1.0)
    y = partner(d, x) if d.chance(0.6) else d.number(d.choose(0, -1e4, 1), x)
    shape = broadcast(mask.shape, x.shape, y.shape) if y is not None else None
    if y is None or shape is None:
        return
    bound = max(x.bound, y.bound if y.bound < 5e3 else 1.0)
    pair = [x, y] if d.chance(0.5) else [y, x]
    d.add("Where", [mask, *pair], shape, dtype=x.dtype, exact=True, bound=bound if y.bound < 5e3 else y.bound)


def cast(d: Draft) -> None:
    """One cast, or two in a row: there and back, which is a no-op only where nothing is lost."""
    x = d.pick(lambda v: v.bound < 100)
    if x is None:
        return
    targets = [*FLOATS, *FLOATS]
    if x.exact:
        targets += [*INTEGERS, "bool", "uint8" if x.dtype == "bool" else "int8"]
    middle = d.rng.choice(targets)
    bound = 1.0 if middle == "bool" else x.bound
    y = d.add("Cast", [x], x.shape, dtype=middle, exact=True, bound=bound, to=onnx_type(middle))
    if d.chance(0.6):
        last = d.choose(x.dtype, x.dtype, d.float)
        if last in (*INTEGERS, "bool") and not y.exact:
            return
        d.add("Cast", [y], y.shape, dtype=last, exact=True, bound=bound, to=onnx_type(last))


def limits(d: Draft) -> None:
    """Clip and Relu in a row, bounds missing, crossing, or computed."""
    x = d.pick_float()
    for _ in range(d.rng.randint(1, 3)):
        if x is None:
            return
        if d.chance(0.3):
            x = d.add("Relu", [x], x.shape, exact=True)
            continue
        low = d.constant(np.asarray(d.choose(-1, 0, 0, 0.5, 3), x.dtype)) if d.chance(0.8) else None
        high = d.constant(np.asarray(d.choose(6, 1, 1, 2, -2), x.dtype)) if d.chance(0.8) else None
        if low is not None and high is not None and d.chance(0.7):
            low = d.constant(np.asarray(0, x.dtype))
        x = d.add("Clip", [x, low, high], x.shape, exact=True, bound=x.bound + 6)


def activation(d: Draft) -> None:
    """GELU, SiLU, hard swish and Mish written out, in whatever order the factors come."""
    x = d.pick_float(lambda v: v.bound <= 30)
    if x is None:
        return
    kind = d.choose("erf", "erf", "tanh", "silu", "hardswish", "hardsigmoid", "mish", "quick")
    if x.dtype == "float64" and kind in ("erf", "mish"):  # no kernel of onnxruntime
        kind = "tanh"
    half, one = d.number(d.near(0.5), x), d.number(d.near(1.0), x)
    if kind == "erf":
        root = d.near(math.sqrt(2))
        inner = d.binary("Div", x, d.number(root, x)) if d.chance(0.5) else d.binary("Mul", x, d.number(1 / root, x))
        gate = d.binary("Add", d.add("Erf", [inner], inner.shape, bound=1.0), one)
    elif kind == "tanh":
        cube = (
            d.binary("Pow", x, d.number(d.near(3.0), x), bound=x.bound**3)
            if d.chance(0.5)
            else d.binary("Mul", x, d.binary("Mul", x, x))
        )
        inner = d.binary("Add", x, d.binary("Mul", cube, d.number(d.near(0.044715), x)))
        inner = d.binary("Mul", inner, d.number(d.near(math.sqrt(2 / math.pi)), x))
        gate = d.binary("Add", d.add("Tanh", [inner], inner.shape, bound=1.0), one)
    elif kind in ("hardswish", "hardsigmoid"):
        raised = d.binary("Add", x, d.number(d.near(3.0), x))
        gate = d.add("Clip", [raised, d.constant(np.asarray(0, x.dtype)), d.constant(np.asarray(d.near(6), x.dtype))],
                     x.shape, bound=6.0)  # fmt: skip
        sixth = d.number(d.near(6.0), x)
        if kind == "hardsigmoid" or d.chance(0.5):
            gate = d.binary("Div", gate, sixth, bound=2.0)
            if kind == "hardswish":
                d.binary("Mul", x, gate)
            return
        d.binary("Div", d.binary("Mul", x, gate), sixth, bound=2 * x.bound)
        return
    elif kind == "mish":
        soft = d.add("Softplus", [x], x.shape, bound=x.bound + 1)
        d.binary("Mul", x, d.add("Tanh", [soft], x.shape, bound=1.0))
        return
    else:
        scaled = d.binary("Mul", x, d.number(1.702, x)) if kind == "quick" else x
        other = scaled if d.chance(0.9) else d.add("Neg", [scaled], scaled.shape)
        d.binary("Mul", x, d.add("Sigmoid", [other], other.shape, bound=1.0))
        return
    order = d.rng.randrange(3)
    if order == 0:
        d.binary("Mul", d.binary("Mul", x, gate), half)
    elif order == 1:
        d.binary("Mul", d.binary("Mul", x, half), gate)
    else:
        d.binary("Mul", x, d.binary("Mul", gate, half))


def integers(d: Draft) -> None:
    """Arithmetic on integers, constants among them, whose division truncates towards zero."""
    x = d.pick(lambda v: v.dtype in INTEGERS and v.bound < 1e3)
    if x is None or d.chance(0.3):
        x = d.constant(np.asarray(d.rng.choices(range(-7, 8), k=3), d.choose(*INTEGERS)))
    op = d.choose("Div", "Mod", "Add", "Mul", "Neg", "Abs", "ReduceSum", "Max")
    if op in ("Neg", "Abs"):
        d.add(op, [x], x.shape)
    elif op in ("Div", "Mod"):
        d.binary(op, x, d.number(d.choose(2, 3, -2), x), bound=x.bound + 3)
    elif op == "ReduceSum" and x.rank:
        inputs, attributes = d.axes(op, x, [x.rank - 1], 13)
        d.add(op, inputs, (*x.shape[:-1], ONE), bound=x.bound * max(x.shape[-1]), dtype=x.dtype, **attributes)
    elif op in ("Add", "Mul", "Max"):
        d.binary(op, x, d.number(d.choose(0, 1, 2), x), bound=2 * x.bound + 2)


STEPS = (
    (5, unary), (6, binary), (2, no_op), (1.5, compare), (1.5, logic), (2, where), (1.5, cast), (1, limits),
    (1.5, activation), (0.7, integers),
)  # fmt: skip
