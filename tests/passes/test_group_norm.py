"""Group normalization in the forms of exporters, against torch; and what no group normalization is."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from aot import passes
from aot.graph import infer_shapes, run_passes
from aot.optimize import chosen
from aot.passes.group_norm import group_norm
from tests.passes.test_limits import ops, run_by_onnxruntime

RNG = np.random.default_rng(0)
GAMMA, BETA = RNG.normal(size=(2, 6, 1, 1)).astype(np.float32)
X = RNG.normal(2, 3, size=(2, 6, 4, 5)).astype(np.float32)
GROUPS, EPSILON = 3, 0.01
BY_INSTANCE = "r = Reshape(x, flat)  n = InstanceNormalization<epsilon = 0.01>(r, ones, zeros)"
BY_MEANS = """r = Reshape(x, flat)  c = ReduceMean(r, last)  d = Sub(r, c)  s = Mul(d, d)  v = ReduceMean(s, last)
 e = Add(v, eps)  q = Sqrt(e)  n = Div(d, q)"""
BY_TWO_MEANS = BY_MEANS.replace("flat", "apart").replace("last", "both")
SCALED = "s0 = Shape(x)  b = Reshape(n, s0)  m = Mul(b, gamma)  y = Add(m, beta)"


def model_of(body: str, *, shape: str = "B,6,H,W", opset: int = 21, dtype: str = "float", **given: Any) -> ir.Model:
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> g ({dtype}[{shape}] x) => ({dtype}[{shape}] y) {{ {body} }}'
    )
    kind = np.float16 if dtype == "float16" else np.float32
    constants: dict[str, Any] = {
        "flat": np.array([0, GROUPS, -1]),
        "apart": np.array([0, GROUPS, 2, -1]),
        "last": np.array([2]),
        "both": np.array([2, 3]),
        "ones": np.ones(GROUPS, np.float32),
        "zeros": np.zeros(GROUPS, np.float32),
        "eps": np.float32(EPSILON),
        "gamma": GAMMA.astype(kind),
        "beta": BETA.astype(kind),
        **given,
    }
    read = {name for node in proto.graph.node for name in node.input}
    for name, data in constants.items():
        if name in read:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(data), name))
    model = ir.from_proto(proto)
    infer_shapes(model)
    return model


def expected(x: Any = X, gamma: Any = GAMMA, beta: Any = BETA) -> Any:
    weight, bias = (torch.from_numpy(one.astype(np.float32).reshape(-1)) for one in (gamma, beta))
    return torch.nn.functional.group_norm(torch.from_numpy(x.astype(np.float32)), GROUPS, weight, bias, EPSILON).numpy()


@pytest.mark.parametrize("body", [BY_INSTANCE, BY_MEANS, BY_TWO_MEANS], ids=["instance", "means", "two means"])
@pytest.mark.parametrize("shape", ["B,6,H,W", "2,6,4,5"], ids=["dynamic", "static"])
def test_what_exporters_write_is_one_node(body: str, shape: str) -> None:
    model = model_of(f"{body} {SCALED}", shape=shape)
    run_passes([*passes.PASSES, group_norm], model)
    assert ops(model) == {"GroupNormalization": 1}
    assert model.graph[0].attributes["num_groups"].value == GROUPS
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_allclose(run_by_onnxruntime(model, x=X), expected(), rtol=1e-4, atol=1e-5)


def test_a_norm_in_fp32_between_casts_is_the_operator_in_fp16() -> None:
    body = """r = Reshape(x, flat)  w = Cast<to = 1>(r)  o = InstanceNormalization<epsilon = 0.01>(w, ones, zeros)
    n = Cast<to = 10>(o)"""
    model = model_of(f"{body} {SCALED}", dtype="float16")
    run_passes([*passes.PASSES, group_norm], model)
    assert ops(model) == {"GroupNormalization": 1}
    got = run_by_onnxruntime(model, x=X.astype(np.float16))
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, expected(X.astype(np.float16)), atol=0.02)


def test_scales_of_groups_and_of_channels_come_together() -> None:
    own = RNG.normal(size=(2, GROUPS)).astype(np.float32)
    model = model_of(f"{BY_INSTANCE} {SCALED}", ones=own[0], zeros=own[1])
    before = run_by_onnxruntime(model, x=X)
    run_passes([*passes.PASSES, group_norm], model)
    assert ops(model) == {"GroupNormalization": 1}
    np.testing.assert_allclose(run_by_onnxruntime(model, x=X), before, rtol=1e-4, atol=1e-5)


def test_a_scale_along_another_axis_stays_behind_it() -> None:
    model = model_of(f"{BY_INSTANCE} {SCALED}", shape="2,6,4,5", gamma=np.arange(1, 7, dtype=np.float32)[:5])
    before = run_by_onnxruntime(model, x=X)
    assert group_norm(model) == 1
    assert (ops(model)["GroupNormalization"], ops(model)["Mul"], ops(model)["Add"]) == (1, 1, 1)
    np.testing.assert_allclose(run_by_onnxruntime(model, x=X), before, rtol=1e-4, atol=1e-5)


TURNED = BY_INSTANCE.replace("r = Reshape(x, flat)", "t = Transpose<perm = [0, 2, 1, 3]>(x)  r = Reshape(t, flat)")
COMPUTED = f"i = ReduceMax<keepdims = 0>(x)  o = Expand(i, three)  {BY_INSTANCE.replace('ones', 'o')}"
FOUR = {"flat": np.array([0, 4, -1]), "ones": np.ones(4, np.float32), "zeros": np.zeros(4, np.float32)}


@pytest.mark.parametrize(
    ("body", "given"),
    [(BY_INSTANCE, FOUR), (TURNED, {}), (COMPUTED, {"three": np.array([GROUPS])})],
    ids=["groups that part a channel", "rows of another axis", "a scale that is computed"],
)
def test_other_rows_are_no_groups(body: str, given: dict[str, Any]) -> None:
    model = model_of(f"{body} {SCALED}", shape="2,6,4,5", **given)
    before = ops(model)
    assert group_norm(model) == 0
    assert ops(model) == before


def test_an_older_opset_is_raised() -> None:
    model = model_of(f"{BY_INSTANCE} {SCALED}", opset=20)
    run_passes([*passes.PASSES, group_norm], model)
    assert ops(model) == {"GroupNormalization": 1}
    assert model.opset_imports[""] == 21
    np.testing.assert_allclose(run_by_onnxruntime(model, x=X), expected(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("opset", "body"),
    [(18, BY_INSTANCE), (20, f"g = GroupNormalization<num_groups = 3>(x, ones, zeros)  {BY_INSTANCE}")],
    ids=["far older", "with the operator as it was"],
)
def test_an_opset_that_cannot_be_raised_is_told(opset: int, body: str) -> None:
    reasons: list[str] = []
    assert group_norm(model_of(f"{body} {SCALED}", opset=opset), lambda node, why: reasons.append(why)) == 0
    assert reasons == [f"the graph, in opset {opset}, cannot be raised to 21, which has one scale a channel"]


def test_it_is_only_for_builders_that_have_the_operator() -> None:
    assert group_norm not in chosen(narrow=True)
    assert group_norm in chosen(narrow=True, operator=True)
