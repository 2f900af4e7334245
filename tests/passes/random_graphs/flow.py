"""Steps about the graph itself: branches, loops, work done twice, and work that nothing asks for."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.passes.random_graphs import elementwise, views
from tests.passes.random_graphs.draft import Draft, Value, is_fixed


def _inner(d: Draft) -> Draft:
    inner = Draft(d.rng, d.opset, d.float, outer=d)
    for _ in range(d.rng.randint(0, 4)):
        d.rng.choice((elementwise.unary, elementwise.binary, elementwise.no_op, views.reshape, views.transpose))(inner)
    return inner


def _like(inner: Draft, x: Value) -> Value:
    """A value of the inner graph with the dtype and shape of x, made of x itself where there is no other."""
    found = [
        v for v in inner.values if v.dtype == x.dtype and v.shape == x.shape and v.finite and v not in inner.constants
    ]
    made = found[-1] if found else inner.add(inner.choose("Identity", "Neg", "Relu"), [x], x.shape, exact=True)
    if inner.chance(0.1):
        made = inner.add("Identity", [made], made.shape, exact=True)
    return made


def _condition(d: Draft) -> Value:
    form = d.choose("constant", "constant", "rank", "not", "unknown", "unknown")
    if form == "unknown":
        fed = d.pick(lambda v: v.dtype == "bool" and v.shape == ())
        return fed if fed is not None else d.constant(np.asarray(True))
    known = d.constant(np.asarray(d.chance(0.5)))
    if form == "not":
        return d.add("Not", [known], ())
    x = d.pick(lambda v: v.rank > 0 and is_fixed(v.shape[0]))
    if form == "rank" and x is not None:
        size = views.dim_of(d, x, 0, vector=False)
        return d.binary("Equal", size, d.constant(x.shape[0][0] + d.choose(0, 1), "int64"), dtype="bool", bound=1.0)
    return known


def branches(d: Draft) -> None:
    """An If whose condition is known, computable or fed; its branches read values from outside."""
    x = d.pick_float()
    if x is None:
        return
    condition, made, graphs = _condition(d), [], []
    for which in ("then", "else"):
        inner = _inner(d)
        made.append(_like(inner, x))
        graphs.append(inner.graph(f"{which}{len(d.nodes)}", [made[-1]]))
    bound = max(v.bound for v in made)
    exact = all(v.exact for v in made)
    y = d.add("If", [condition], x.shape, dtype=x.dtype, bound=bound, then_branch=graphs[0], else_branch=graphs[1])
    d.values[-1] = Value(y.name, y.dtype, y.shape, bound, exact)


def loop(d: Draft) -> None:
    """A Loop of three rounds that changes a value of fixed shape with the help of one from outside."""
    x = d.pick_float(lambda v: v.bound <= 10)
    if x is None:
        return
    inner = Draft(d.rng, d.opset, d.float, outer=d)
    counter = Value(inner.name("i"), "int64", (), bound=3.0)
    go = Value(inner.name("go"), "bool", (), bound=1.0)
    state = Value(inner.name("state"), x.dtype, x.shape, 10.0, exact=False)
    inner.inputs = [counter, go, state]
    inner.values = list(inner.inputs)
    for _ in range(d.rng.randint(0, 3)):
        d.rng.choice((elementwise.no_op, elementwise.unary, views.transpose))(inner)
    still = inner.add("Identity", [go], ())
    moved = inner.binary("Mul", inner.binary("Add", state, x), inner.number(0.5, state), bound=10.0)
    body = inner.graph(f"body{len(d.nodes)}", [still, moved])
    d.add(
        "Loop", [d.constant(3, "int64"), d.constant(np.asarray(True)), x], x.shape, dtype=x.dtype, bound=10.0, body=body
    )


def twice(d: Draft) -> None:
    """A node that is there already, once more, under other names; sometimes with its inputs the other way round."""
    nodes = [n for n in d.nodes if len(n.output) == 1 and n.op_type not in ("Constant", "If", "Loop") and n.input]
    known = {v.name: v for v in d.values}
    if not nodes:
        return
    node = d.rng.choice(nodes)
    old = known.get(node.output[0])
    if old is None:
        return
    name = d.name("v")
    copy = helper.make_node(node.op_type, list(node.input), [name], name=f"n_{name}", domain=node.domain)
    copy.attribute.extend(node.attribute)
    if node.op_type in ("Add", "Mul") and d.chance(0.5):
        copy.input[:] = list(node.input)[::-1]
    d.nodes.append(copy)
    new = Value(name, old.dtype, old.shape, old.bound, old.exact, old.finite, old.data)
    d.values.append(new)
    if old.is_float and old.finite and d.chance(0.7):
        d.binary(d.choose("Add", "Mul"), old, new)


def identical_constants(d: Draft) -> None:
    """Two equal constants with a reader each, and two that are equal but for their dtype or the sign of a zero."""
    x = d.pick_float(lambda v: v.rank > 0 and is_fixed(v.shape[-1]))
    if x is None:
        return
    data = np.zeros(x.shape[-1][0], x.dtype) + d.choose(0, 2)
    a, b = d.constant(data), d.constant(data if d.chance(0.7) else -data)
    d.binary("Sub", d.binary("Mul", x, a), d.binary("Add", x, b))


def foldable(d: Draft) -> None:
    """An expression of constants alone, with a reader."""
    x = d.pick_float()
    if x is None:
        return
    a = d.weight(2, 1, dtype=x.dtype)
    b = d.weight(1, 3, dtype=x.dtype)
    c = d.binary(d.choose("Add", "Mul", "Sub"), a, b)
    c = d.add(d.choose("Tanh", "Neg", "Identity"), [c], c.shape)
    inputs, attributes = d.axes("ReduceSum", c, [0, 1], 13)
    total = d.add("ReduceSum", inputs, (), dtype=c.dtype, bound=6 * c.bound, keepdims=0, **attributes)
    d.binary("Add", x, total)


STEPS = ((1.5, branches), (0.4, loop), (2, twice), (0.7, identical_constants), (0.7, foldable))
