"""Which attention becomes the plugin's node, with what inputs, and that it computes what stood there.

The node is computed in two ways: by the function that comes with it, which onnxruntime runs, and by the plugin's own
reference in torch, which knows nothing of that function.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.reference
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx.reference.op_run import OpRun

from aot import content, origins
from aot.passes.attention_kernel import attention_kernel, attention_kernel_of
from aot.plugins.loading import load
from tests.passes.test_limits import ops, parse, refused

PLUGIN = load(content.names("plugins")["attention"])
NOT_HEADS = "are not the heads of one value [batch, length, width]"
Arrays = dict[str, np.ndarray[Any, Any]]

CONSTANTS = "<int64[4] heads = {0, 0, 2, 16}, int64[3] flat = {0, 0, 32}, float16 scale = {13312}>"
JOINED = """t = Transpose<perm = [0, 2, 1, 3]>(o)  y = Reshape(t, flat)"""
SEPARATE = """
    q4 = Reshape(x, heads)  qt = Transpose<perm = [0, 2, 1, 3]>(q4)
    k4 = Reshape(z, heads)  k = Transpose<perm = [0, 2, 3, 1]>(k4)
    v4 = Reshape(w, heads)  v = Transpose<perm = [0, 2, 1, 3]>(v4)"""
# As FP8 and INT8 leave it: the scale on the queries.
SCALED = (
    """(float16[B,S,32] x, float16[B,T,32] z, float16[B,T,32] w, float16[B,1,1,T] m) => (float16[B,S,32] y)"""
    + CONSTANTS
    + "{"
    + SEPARATE
    + """ q = Mul(qt, scale)  a = MatMul(q, k)  b = Add(a, m)  p = Softmax(b)  o = MatMul(p, v) """
    + JOINED
    + "}"
)
UNMASKED = SCALED.replace(", float16[B,1,1,T] m", "").replace("b = Add(a, m)  p = Softmax(b)", "p = Softmax(a)")
# As FP16 leaves it: one product, its heads told apart behind the Transpose.
PACKED = """(float16[B,S,96] x, float16[B,1,1,S] m) => (float16[B,S,32] y)
<int64[4] heads = {0, 0, 6, 16}, int64[3] flat = {0, 0, 32}, int64[3] each = {2, 2, 2}>
{
    x4 = Reshape(x, heads)  xt = Transpose<perm = [0, 2, 1, 3]>(x4)  q, kh, v = Split<axis = 1>(xt, each)
    k = Transpose<perm = [0, 1, 3, 2]>(kh)
    a = MatMul(q, k)  b = Add(a, m)  p = Softmax(b)  o = MatMul(p, v)
    t = Transpose<perm = [0, 2, 1, 3]>(o)  y = Reshape(t, flat)
}"""
# `no` is -30000, and `scale` 0.25, by their bits.
CAUSAL = """(float16[B,S,32] x, float16[B,S,32] z, float16[B,S,32] w) => (float16[B,S,32] y)
<int64[4] heads = {0, 0, 2, 16}, int64[3] flat = {0, 0, 32}, float16 scale = {13312}, int64 zero = {0}, int64 one = {1},
 int64[1] front = {0}, int64[1] side = {1}, float16 yes = {0}, float16 no = {63315}>
{
    size = Shape<start = 1, end = 2>(x)  s = Squeeze(size, front)  columns = Range(zero, s, one)
    rows = Unsqueeze(columns, side)  seen = GreaterOrEqual(rows, columns)  m = Where(seen, yes, no)
""" + SCALED.partition("{\n")[2]
# Heads of keys and values for a group of queries each, as surgery leaves them, and one for all.
GROUPED = """(float16[B,S,64] x, float16[B,T,32] z, float16[B,T,32] w, float16[B,1,1,T] m) => (float16[B,S,64] y)
<int64[4] many = {0, 0, 4, 16}, int64[4] few = {0, 0, 2, 16}, int64[3] flat = {0, 0, 64}, float16 scale = {13312},
 int64[4] each = {0, 0, 1, 1}>
{
    q4 = Reshape(x, many)  qt = Transpose<perm = [0, 2, 1, 3]>(q4)  q = Mul(qt, scale)
    k4 = Reshape(z, few)  kt = Transpose<perm = [0, 2, 1, 3]>(k4)
    kr = Gather<axis = 1>(kt, each)  k = Transpose<perm = [0, 1, 3, 2]>(kr)
    v4 = Reshape(w, few)  vt = Transpose<perm = [0, 2, 1, 3]>(v4)  v = Gather<axis = 1>(vt, each)
    a = MatMul(q, k)  b = Add(a, m)  p = Softmax(b)  o = MatMul(p, v)
    t = Transpose<perm = [0, 2, 1, 3]>(o)  y = Reshape(t, flat)
}"""
SHARED = (
    GROUPED.replace("32] ", "16] ")
    .replace("few = {0, 0, 2, 16}", "few = {0, 0, 1, 16}")
    .replace(
        "kr = Gather<axis = 1>(kt, each)  k = Transpose<perm = [0, 1, 3, 2]>(kr)",
        "k = Transpose<perm = [0, 1, 3, 2]>(kt)",
    )
    .replace(
        "vt = Transpose<perm = [0, 2, 1, 3]>(v4)  v = Gather<axis = 1>(vt, each)",
        "v = Transpose<perm = [0, 2, 1, 3]>(v4)",
    )
)
# Rotary embedding between the heads of queries and keys and the scores.
ROTARY = (
    GROUPED.replace("(float16[B,S,64] x,", "(float16[S,16] c, float16[T,16] d, float16[B,S,64] x,")
    .replace(
        "q = Mul(qt, scale)",
        "qa, qb = Split<axis = -1, num_outputs = 2>(qt)  qn = Neg(qb)  qr = Concat<axis = -1>(qn, qa)"
        " qc = Mul(qt, c)  qs = Mul(qr, c)  qy = Add(qc, qs)  q = Mul(qy, scale)",
    )
    .replace("kr = Gather<axis = 1>(kt, each)", "kc = Mul(kt, d)  kr = Gather<axis = 1>(kc, each)")
)
# The same of one product and one rotation for queries and keys, as surgery leaves them.
PACKED_ROTARY = """(float16[S,16] c, float16[B,S,128] x, float16[B,1,1,S] m) => (float16[B,S,64] y)
<int64[4] all = {0, 0, 8, 16}, int64[3] flat = {0, 0, 64}, int64[2] both = {6, 2}, int64[2] parts = {4, 2},
 int64[4] each = {0, 0, 1, 1}>
{
    x4 = Reshape(x, all)  xt = Transpose<perm = [0, 2, 1, 3]>(x4)  qk, vt = Split<axis = 1>(xt, both)
    r = Mul(qk, c)  q, kt = Split<axis = 1>(r, parts)
    kr = Gather<axis = 1>(kt, each)  k = Transpose<perm = [0, 1, 3, 2]>(kr)  v = Gather<axis = 1>(vt, each)
    a = MatMul(q, k)  b = Add(a, m)  p = Softmax(b)  o = MatMul(p, v)
    t = Transpose<perm = [0, 2, 1, 3]>(o)  y = Reshape(t, flat)
}"""
LAYERS = """(float16[B,S,32] x, float16[B,1,1,S] m) => (float16[B,S,32] y2)
<int64[4] heads = {0, 0, 2, 16}, int64[3] flat = {0, 0, 32}>
{""" + "".join(
    f"""
    q4{n} = Reshape({x}, heads)  q{n} = Transpose<perm = [0, 2, 1, 3]>(q4{n})
    k{n} = Transpose<perm = [0, 2, 3, 1]>(q4{n})
    a{n} = MatMul(q{n}, k{n})  b{n} = Add(a{n}, m)  p{n} = Softmax(b{n})  o{n} = MatMul(p{n}, q{n})
    t{n} = Transpose<perm = [0, 2, 1, 3]>(o{n})  y{n} = Reshape(t{n}, flat)"""
    for n, x in ((1, "x"), (2, "y1"))
) + "}"  # fmt: skip


IDS = ["scaled", "unmasked", "packed", "causal", "grouped", "shared", "rotary", "packed rotary"]


class attention(OpRun):
    """The plugin's reference, for onnx's evaluator, which goes by the class's name."""

    op_domain = "aot"

    def _run(self, *given: Any, heads: int, causal: int, scale: float, **_: Any) -> tuple[Any]:
        made = PLUGIN.reference(*map(torch.from_numpy, given), heads, bool(causal), scale)
        return (made.numpy(),)


def draw(model: ir.Model, batch: int, queries: int, keys: int) -> Arrays:
    """In FP16, keys left out in the last sequence."""
    rng = np.random.default_rng(batch + queries + keys)
    sizes = {"B": batch, "S": queries, "T": keys}
    made = {}
    for value in model.graph.inputs:
        assert value.shape is not None
        shape = [size if isinstance(size, int) else sizes[str(size.value)] for size in value.shape]
        made[str(value.name)] = rng.normal(size=shape).astype(np.float16)
    if "m" in made:
        made["m"][:] = 0
        made["m"][-1, ..., 1::2] = -30000
    return made


def on_onnxruntime(model: ir.Model, given: Arrays) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, given)[0]


def by_reference(model: ir.Model, given: Arrays) -> Any:
    alone = ir.to_proto(model)
    del alone.functions[:]
    (got,) = onnx.reference.ReferenceEvaluator(alone, new_ops=[attention]).run(None, given)
    return got


def formed(text: str, sites: int = 1) -> tuple[ir.Model, list[ir.Node]]:
    model = parse(text)
    assert attention_kernel(model) == sites
    made = [node for node in model.graph if node.domain == "aot"]
    assert len(made) == sites
    assert ops(model)["Softmax"] == 0
    return model, made


@pytest.mark.parametrize(("batch", "queries", "keys"), [(1, 1, 1), (2, 5, 7), (3, 17, 4)])
@pytest.mark.parametrize("text", [SCALED, UNMASKED, PACKED, CAUSAL, GROUPED, SHARED, ROTARY, PACKED_ROTARY], ids=IDS)
def test_computes_what_stood_there(text: str, batch: int, queries: int, keys: int) -> None:
    before = parse(text)
    model, _ = formed(text)
    onnx.checker.check_model(ir.to_proto(model))
    given = draw(before, batch, queries, keys)
    expected = on_onnxruntime(before, given).astype(np.float32)
    assert expected.shape[:2] == (batch, queries)
    assert np.abs(expected).max() > 0.1
    for got in (on_onnxruntime(model, given), by_reference(model, given)):
        np.testing.assert_allclose(got.astype(np.float32), expected, rtol=0, atol=4e-3)


@pytest.mark.parametrize(("text", "width"), [(GROUPED, 32), (SHARED, 16)])
def test_heads_that_queries_share_are_given_as_they_are(text: str, width: int) -> None:
    model, (node,) = formed(text)
    assert [str(value.name) for value in node.inputs[:3] if value] == ["x", "z", "w"]
    assert [str(value.shape) for value in node.inputs[1:3] if value] == [f"[B,T,{width}]"] * 2
    assert node.attributes["heads"].value == 4
    assert ops(model) == {"Squeeze": 1, "attention": 1}


def test_what_stands_between_the_heads_and_the_scores_has_them_put_side_by_side() -> None:
    """Keys before they are repeated."""
    model, (node,) = formed(ROTARY)
    assert [str(value.shape) for value in node.inputs[:3] if value] == ["[B,S,64]", "[B,T,32]", "[B,T,32]"]
    assert node.attributes["scale"].value == 0.25
    assert ops(model)["Gather"] == 0
    joined = [value.producer() for value in node.inputs[:2] if value]
    assert [one.op_type for one in joined if one] == ["Reshape", "Reshape"]


def test_a_scale_on_the_queries_becomes_the_attribute() -> None:
    model, (node,) = formed(SCALED)
    assert [str(value.name) for value in node.inputs[:3] if value] == ["x", "z", "w"]
    assert {name: one.value for name, one in node.attributes.items()} == {"heads": 2, "causal": 0, "scale": 0.25}
    assert ops(model) == {"Squeeze": 1, "attention": 1}
    _, (packed,) = formed(PACKED)
    assert packed.attributes["scale"].value == 1.0  # it was folded into the weight


def test_one_product_is_split_by_width() -> None:
    model, (node,) = formed(PACKED)
    assert ops(model) == {"Split": 1, "Squeeze": 1, "attention": 1}
    (split,) = [one for one in model.graph if one.op_type == "Split"]
    assert list(node.inputs[:3]) == list(split.outputs)
    assert [str(one.shape) for one in split.outputs] == ["[B,S,32]"] * 3


def test_a_causal_mask_is_an_attribute_beside_a_mask_of_zeros() -> None:
    _, (node,) = formed(CAUSAL)
    assert node.attributes["causal"].value == 1
    mask = node.inputs[3]
    assert mask is not None
    assert str(mask.shape) == "[B,S]"


def test_layers_share_a_mask_and_a_function() -> None:
    model, (first, second) = formed(LAYERS, 2)
    assert first.inputs[3] is second.inputs[3]
    assert ops(model)["Squeeze"] == 1
    assert len(model.functions) == 1


def test_a_node_is_called_after_the_second_matmul_and_has_its_origin() -> None:
    model = parse(SCALED)
    (end,) = [node for node in model.graph if node.outputs[0].name == "o"]
    origins.set(end, origins.Origin("encoder.layer.0", "bert.py", 7))
    attention_kernel(model)
    (made,) = [node for node in model.graph if node.domain == "aot"]
    assert made.name == f"{end.name}_attention"
    assert origins.of(made) == origins.Origin("encoder.layer.0", "bert.py", 7)
    assert str(made.outputs[0].name) == "y"


def test_only_sites_that_are_named_are_rewritten() -> None:
    model = parse(LAYERS)
    (last,) = [node for node in model.graph if node.outputs[0].name == "o2"]
    assert attention_kernel_of([f"{last.name}_attention"])(model) == 1
    assert ops(model)["Softmax"] == 1
    assert [node.name for node in model.graph if node.domain == "aot"] == [f"{last.name}_attention"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (SCALED.replace("[B,1,1,T] m", "[B,1,S,T] m"), "its mask is not one of keys, [batch, 1, 1, keys]"),
        (SCALED.replace("[B,1,1,T] m", "[B,2,1,T] m"), "its mask is not one of keys, [batch, 1, 1, keys]"),
        (SCALED.replace("[B,1,1,T] m", "[1,1,1,T] m"), "its mask is broadcast over the batch or the keys"),
        (SCALED.replace("0, 0, 2, 16}", "0, 0, 8, 4}"), "its heads have the sizes 4, 4, 4"),
        (SCALED.replace("float16", "float"), "it is not in FP16 or BF16 throughout"),
        (SCALED.replace("{13312}", "{46080}"), "its scale is not positive"),
        (SCALED.replace("float16[B,T,32] z", "float16[B,H,16,T] k").replace(
            "k4 = Reshape(z, heads)  k = Transpose<perm = [0, 2, 3, 1]>(k4)", ""),
         f"its keys {NOT_HEADS}"),
        (SCALED.replace("perm = [0, 2, 1, 3]>(o)", "perm = [2, 0, 1, 3]>(o)"), "its heads are not joined behind it"),
        (SCALED.replace("y)<", "y, float16[B,2,S,16] o)<"), "its heads are not joined behind it"),
    ],
)  # fmt: skip
def test_what_the_plugin_cannot_take_stays(text: str, why: str) -> None:
    assert refused(attention_kernel, text) == [why]
