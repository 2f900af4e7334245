"""onnxruntime as the reference: Q/DQ as written, FP16 and BF16 rounded after every op, errors that name nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from aot.backend import Job, get
from aot.backends import _emulate
from aot.config import EngineOptions
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import EngineError, GraphError, TargetError
from aot.progress import Silent
from aot.toolchain import Machine
from tests.backends.graphs import write

CPU = get("onnxruntime")
SPEC = ModelSpec("m", {"x": Input([Dim("b", min=1, max=8), 4])})
HERE = Machine(None, None, "a CPU")
NARROW: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def run(graph: Path, **inputs: Any) -> dict[str, Any]:
    with CPU.open(graph, SPEC, ()) as session:
        return session(inputs)


@pytest.mark.parametrize("dtype", NARROW)
def test_every_op_is_rounded_to_its_own_dtype(tmp_path: Path, dtype: str) -> None:
    """y = (x * a + x) / a, each step rounded, as numpy and ml_dtypes do it; exact equality."""
    kind = NARROW[dtype]
    text = f"g ({dtype}[n] x) => ({dtype}[n] y) {{ m = Mul(x, a)  s = Add(m, x)  y = Div(s, a) }}"
    a = np.array(3.14159, kind)
    x = np.random.default_rng(0).normal(size=1000).astype(kind)
    y = run(write(tmp_path / "m.onnx", text, a=a), x=x)["y"]
    wide = [v.astype(np.float32) for v in (x, a)]
    m = (wide[0] * wide[1]).astype(kind).astype(np.float32)
    s = (m + wide[0]).astype(kind).astype(np.float32)
    expected = (s / wide[1]).astype(kind)
    assert y.dtype == kind
    assert np.array_equal(y, expected)
    unrounded = ((wide[0] * wide[1] + wide[0]) / wide[1]).astype(kind)
    assert not np.array_equal(y, unrounded)


def test_a_value_beyond_the_range_of_fp16_is_infinite_as_in_the_engine(tmp_path: Path) -> None:
    """onnxruntime alone keeps FP32 between the two ops and gives 300."""
    text = "g (float16[n] x) => (float16[n] y) { m = Mul(x, a)  y = Div(m, a) }"
    y = run(write(tmp_path / "m.onnx", text, a=np.array(300, np.float16)), x=np.array([300, 2], np.float16))["y"]
    assert np.array_equal(y, np.array([np.inf, 2], np.float16))


def test_bf16_keeps_the_range_of_fp32(tmp_path: Path) -> None:
    text = "g (bfloat16[n] x) => (bfloat16[n] y) { m = Mul(x, a)  y = Div(m, a) }"
    x = np.array([300], ml_dtypes.bfloat16)
    assert run(write(tmp_path / "m.onnx", text, a=np.array(300, ml_dtypes.bfloat16)), x=x)["y"] == x


@pytest.mark.parametrize("dtype", NARROW)
def test_the_rounding_pair_survives_every_optimization_level(tmp_path: Path, dtype: str) -> None:
    import onnxruntime as ort

    to = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}[dtype]
    pair = f"c = Cast<to = {to}>(x)  d = Cast<to = 1>(c)"
    text = f"g (float[n] x) => (float[n] y) {{ {pair}  y = Mul(d, k) }}"
    graph = write(tmp_path / "m.onnx", text, k=np.float32(3))
    x = np.array([1.001, 3.14159], np.float32)
    levels = ort.GraphOptimizationLevel
    for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_BASIC, levels.ORT_ENABLE_EXTENDED, levels.ORT_ENABLE_ALL):
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        y = ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        assert np.array_equal(y, x.astype(NARROW[dtype]).astype(np.float32) * np.float32(3))


def test_branches_and_local_functions_are_rounded_too(tmp_path: Path) -> None:
    overflows = "t () => (float16[n] z) { m = Mul(x, a)  z = Div(m, a) }"
    absorbs = "e () => (float16[n] w) { w = own.Same(x) }"
    text = f"""g (float16[n] x, bool c) => (float16[n] y) {{
        y = If<then_branch = {overflows}, else_branch = {absorbs}>(c)
    }}
    <opset_import: ["" : 20], domain: "own">
    Same (p) => (q) {{ f = Constant<value = float {{1}}>()  k = Cast<to = 10>(f)  r = Add(p, k)  q = Sub(r, k) }}"""
    graph = write(tmp_path / "m.onnx", text, a=np.array(300, np.float16))
    x = np.array([300, 0.0001], np.float16)
    assert np.array_equal(run(graph, x=x, c=np.array(True))["y"], np.array([np.inf, x[1]], np.float16))
    assert np.array_equal(run(graph, x=x, c=np.array(False))["y"], np.array([300, 0], np.float16))


def test_fp32_graphs_are_not_rewritten(tmp_path: Path) -> None:
    assert not _emulate.is_narrow(write(tmp_path / "a.onnx", "g (float[n] x) => (float[n] y) { y = Relu(x) }"))
    cast = "g (float[n] x) => (float[n] y) { h = Cast<to = 10>(x)  y = Cast<to = 1>(h) }"
    assert _emulate.is_narrow(write(tmp_path / "b.onnx", cast))


def test_qdq_is_computed_as_written(tmp_path: Path) -> None:
    """Quantized by hand in float64. Integer kernels would saturate: 255 * 127 * 2 exceeds 16 bits."""
    rng = np.random.default_rng(1)
    w = rng.integers(100, 128, size=(256, 8)).astype(np.int8)
    text = """g (float[b, 256] x) => (float[b, 8] y) {
        xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)
        wd = DequantizeLinear(w, s, wz)  m = MatMul(xd, wd)
        mq = QuantizeLinear(m, ms, z)  y = DequantizeLinear(mq, ms, z) }"""
    s, ms = np.float32(0.02), np.float32(6)
    graph = write(tmp_path / "m.onnx", text, w=w, s=s, z=np.uint8(0), wz=np.int8(0), ms=ms)
    x = rng.uniform(4, 5, size=(3, 256)).astype(np.float32)
    xd = np.clip(np.rint(x / s), 0, 255).astype(np.float64) * s
    m = xd @ (w.astype(np.float64) * s)
    expected = np.clip(np.rint(m / ms), 0, 255) * ms
    y = run(graph, x=x)["y"]
    # Sums taken in another order may land one step beside a rounding boundary, no more, and rarely.
    assert np.abs(y - expected).max() <= ms
    assert (y == expected).mean() > 0.9


def test_sums_of_integer_ops_do_not_saturate(tmp_path: Path) -> None:
    """Pairs of 255 * 127 are beyond 16 bits, where CPUs without VNNI add them up for signed weights."""
    text = "g (uint8[2, 64] x) => (int32[2, 4] y) { y = MatMulInteger(x, w) }"
    graph = write(tmp_path / "m.onnx", text, w=np.full((64, 4), 127, np.int8))
    assert np.array_equal(run(graph, x=np.full((2, 64), 255, np.uint8))["y"], np.full((2, 4), 64 * 255 * 127))


def test_fp8_qdq_runs(tmp_path: Path) -> None:
    kind = ml_dtypes.float8_e4m3fn
    text = "g (float[n] x) => (float[n] y) { q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z) }"
    x = np.linspace(-3, 3, 101, dtype=np.float32)
    s = np.float32(0.01)
    y = run(write(tmp_path / "m.onnx", text, s=s, z=np.zeros((), kind)), x=x)["y"]
    assert np.array_equal(y, (x / s).astype(kind).astype(np.float32) * s)


@pytest.mark.parametrize("act", ["Relu(m)", "Clip(m, low, high)"])
def test_an_activation_before_fp8_quantization_stays(tmp_path: Path, act: str) -> None:
    """onnxruntime's own rules drop a Relu there, taking FP8's zero for the end of an unsigned range, and stop at a
    Clip."""
    text = f"""g (float[n] x) => (float[n] y)
    {{ m = Mul(x, s)  r = {act}  q = QuantizeLinear(r, s, z)  y = DequantizeLinear(q, s, z) }}"""
    ends = {"low": np.float32(0), "high": np.float32(9)} if "low" in act else {}
    zero = np.zeros((), ml_dtypes.float8_e4m3fn)
    graph = write(tmp_path / "m.onnx", text, s=np.float32(1), z=zero, **ends)
    x = np.array([-2, -1, 0, 1, 2], np.float32)
    assert np.array_equal(run(graph, x=x)["y"], np.array([0, 0, 0, 1, 2], np.float32))


def test_the_engine_is_one_file_that_loads_by_itself(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    w = np.arange(4096, dtype=np.float32).reshape(4, 1024)
    inside = write(tmp_path / "whole.onnx", "g (float[b, 4] x) => (float[b, 1024] y) { y = MatMul(x, w) }", w=w)
    graph = tmp_path / "in" / "model.onnx"
    onnx.save(onnx.load(str(inside)), str(graph), save_as_external_data=True, location="model.onnx.data",
              size_threshold=0)  # fmt: skip
    (tmp_path / "out").mkdir()
    plan = tmp_path / "out" / "cpu.onnx"
    job = Job(graph, SPEC, "fp32", (), "cpu", EngineOptions())
    CPU.check_graph(graph)
    assert CPU.build(job, plan, None, Silent()) == {"origin": None, "timing_cache": "does not apply"}
    (tmp_path / "in" / "model.onnx.data").unlink()
    x = np.ones((2, 4), np.float32)
    assert np.array_equal(run(plan, x=x)["y"], x @ w)


def test_a_node_without_a_kernel_is_named(tmp_path: Path) -> None:
    graph = write(tmp_path / "m.onnx", "g (float[n] x) => (float[n] y) { r = Relu(x)  y = own.Twist(r) }")
    with pytest.raises(GraphError, match="Twist"):
        CPU.check_graph(graph)
    graph = write(tmp_path / "d.onnx", "g (int8[n] x) => (int8[n] y) { r = Relu(x)  y = Erf(r) }")
    with pytest.raises(GraphError) as caught:
        CPU.check_graph(graph)
    assert caught.value.where == "node 'n1' (Erf)"


def test_an_op_of_a_private_domain_wants_a_plugin(tmp_path: Path) -> None:
    graph = write(tmp_path / "m.onnx", "g (float[n] x) => (float[n] y) { y = own.Foo(x) }")
    (one,) = get("onnxruntime").unsupported(graph)
    assert (one.op, one.reason) == ("Foo", "nothing implements own::Foo")
    assert one.fix.endswith("plugins/Foo.py")


def test_a_graph_too_large_for_one_file_is_refused(tmp_path: Path) -> None:
    graph = write(tmp_path / "model.onnx", "g (float[n] x) => (float[n] y) { y = Relu(x) }")
    with (tmp_path / "model.onnx.data").open("wb") as data:
        data.truncate(3 << 30)  # sparse
    with pytest.raises(GraphError, match=r"the graph: it is 3\.0 GiB"):
        CPU.check_graph(graph)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({}, "input 'x' is missing"),
        ({"x": np.ones((2, 4), np.int64)}, "does not run the graph"),
        ({"x": np.ones((2, 5), np.float32)}, "does not run the graph"),
    ],
)
def test_wrong_inputs_are_errors_of_ours(tmp_path: Path, inputs: dict[str, Any], says: str) -> None:
    graph = write(tmp_path / "m.onnx", "g (float[b, 4] x) => (float[b, 4] y) { y = Relu(x) }")
    with pytest.raises(EngineError, match=says):
        run(graph, **inputs)


def test_a_damaged_file_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x00garbage")
    with pytest.raises(GraphError, match="not an ONNX file"):
        CPU.open(tmp_path / "m.onnx", SPEC, ())


def test_it_builds_and_runs_for_the_cpu_only() -> None:
    with pytest.raises(TargetError, match="builds for cpu, not for sm89"):
        CPU.check("fp16", "sm89", HERE)
    CPU.check("fp8", "cpu", HERE)
    assert CPU.can_run("cpu", HERE) is None
    assert CPU.can_run("sm89", HERE) == "onnxruntime runs on cpu, not on sm89"
