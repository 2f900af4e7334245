"""What surgery leaves is safe in FP16: graphs through all passes and into FP16, each value rounded after its op."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from aot.backends._emulate import emulated
from aot.graph import run_passes
from aot.passes import PASSES
from aot.precision import Outcome, apply
from tests.passes.test_finite_mask import LOW
from tests.passes.test_finite_mask import SPELLINGS as MASKS
from tests.passes.test_fold_scale import model_of
from tests.passes.test_layer_norm import RMS
from tests.passes.test_layer_norm import SPELLINGS as LAYER_NORMS
from tests.passes.test_limits import run_by_onnxruntime
from tests.precision.graphs import observe, recipe

Array = np.ndarray[Any, Any]

RNG = np.random.default_rng(3)
NUMBERS = {"two": 2.0, "low": -0.5, "one": 1.0, "eps": 1e-6}


def narrowed(model: ir.Model, folder: Path, feeds: dict[str, Array]) -> tuple[Array, Outcome]:
    """What FP16 makes of the model after surgery, and where it stayed in FP32."""
    run_passes(PASSES, model)
    for index, node in enumerate(model.graph):
        node.name = f"{node.op_type}{index}"
    outcome = apply(model, recipe("fp16"), observe(model, feeds))
    ir.save(model, folder / "model.onnx")
    proto, _ = emulated(folder / "model.onnx")
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (got,) = session.run(None, feeds)
    return np.asarray(got), outcome


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("spelling", RMS)
def test_the_square_of_an_rms_norm_is_protected(spelling: str, size: float, tmp_path: Path) -> None:
    """Values of 1,000, whose squares leave FP16, and of 0.001, whose squares vanish in it."""
    model = model_of(
        f"(float[B,S,8] h) => (float[B,S,8] z) {{ x = MatMul(h, eye)  {RMS[spelling]}  z = MatMul(y, eye) }}",
        axes=np.array([-1], np.int64),
        eye=np.eye(8, dtype=np.float32),
        g=RNG.normal(size=8).astype(np.float32),
        **{name: np.float32(number) for name, number in NUMBERS.items()},
    )
    feeds = {"h": (RNG.normal(size=(2, 5, 8)) * size).astype(np.float32)}
    expected = run_by_onnxruntime(model, **feeds)
    got, outcome = narrowed(model, tmp_path, feeds)
    assert {d.op for d in outcome.decisions if d.precision == "fp32"} == {"Mul", "ReduceMean", "Add", "Sqrt", "Div"}
    assert {d.op for d in outcome.decisions if d.precision == "fp16"} == {"MatMul", "Mul"}
    np.testing.assert_allclose(got, expected, rtol=5e-3, atol=5e-3 * np.abs(expected).max())


@pytest.mark.parametrize("size", [1.0, 1e3])
@pytest.mark.parametrize("spelling", LAYER_NORMS)
def test_a_layer_norm_in_parts_is_one_that_is_kept_wide_where_it_must(
    spelling: str, size: float, tmp_path: Path
) -> None:
    model = model_of(
        f"(float[B,S,8] h) => (float[B,S,8] z) {{ x = MatMul(h, eye)  {LAYER_NORMS[spelling]}  z = MatMul(y, eye) }}",
        axes=np.array([-1], np.int64),
        eye=np.eye(8, dtype=np.float32),
        g=RNG.normal(size=8).astype(np.float32),
        b=RNG.normal(size=8).astype(np.float32),
        **{name: np.float32(number) for name, number in NUMBERS.items()},
    )
    feeds = {"h": (RNG.normal(size=(2, 5, 8)) * size).astype(np.float32)}
    expected = run_by_onnxruntime(model, **feeds)
    got, outcome = narrowed(model, tmp_path, feeds)
    wide = {d.op for d in outcome.decisions if d.precision == "fp32"}
    assert wide == ({"LayerNormalization"} if size > 1 else set())
    np.testing.assert_allclose(got, expected, rtol=5e-3, atol=5e-3 * np.abs(expected).max())


@pytest.mark.parametrize("spelling", MASKS)
def test_masked_scores_have_no_weight_and_no_row_is_lost(spelling: str, tmp_path: Path) -> None:
    kind, body, number = MASKS[spelling]
    weights = {"zero": 0.0, "one": 1.0, "number": number, "lowest": LOW}
    model = model_of(
        f"""(float[3,8] x, {kind}[3,8] keep) => (float[3,8] y)
        {{ s = MatMul(x, eye)  {body}  p = Softmax(a)  y = MatMul(p, eye) }}""",
        eye=np.eye(8, dtype=np.float32),
        **{name: np.float32(value).reshape(()) for name, value in weights.items() if name in body},
    )
    keep = np.arange(8) < np.array([[8], [4], [1]])
    feeds = {
        "x": (RNG.normal(size=(3, 8)) * 5).astype(np.float32),
        "keep": keep.astype({"bool": bool, "float": np.float32, "int64": np.int64}[kind]),
    }
    expected = run_by_onnxruntime(model, **feeds)
    got, _ = narrowed(model, tmp_path, feeds)
    assert np.isfinite(got).all()
    assert not got[~keep].any()
    np.testing.assert_allclose(got, expected, atol=5e-3)


def test_exponentials_that_overflow_are_the_functions_that_do_not(tmp_path: Path) -> None:
    """exp(-x) leaves FP16 at x = -12, and log(1 + exp(x)) with it at 12."""
    model = model_of(
        """(float[B,8] h) => (float[B,8] y)
        { x = MatMul(h, eye)  n = Neg(x)  e = Exp(n)  s = Add(e, one)  a = Div(x, s)  f = Exp(x)  t = Add(f, one)
          b = Log(t)  c = Add(a, b)  y = MatMul(c, eye) }""",
        eye=np.eye(8, dtype=np.float32),
        one=np.float32(1),
    )
    feeds = {"h": np.linspace(-40, 40, 16, dtype=np.float32).reshape(2, 8)}
    expected = run_by_onnxruntime(model, **feeds)
    got, outcome = narrowed(model, tmp_path, feeds)
    assert {d.precision for d in outcome.decisions} == {"fp16"}
    np.testing.assert_allclose(got, expected, rtol=5e-3, atol=1e-2)
