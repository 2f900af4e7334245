"""What the benchmark of engines by precision carries, builds, counts and says."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

import _engine
import _result
from precision import attention, layers, measure, page, worker
from precision.prepare import Cell

from aot.runtime import plugin_v3
from aot.runtime.kernels import Compiled, read_kernels
from tests.backends import fake_tensorrt


def tensor(said: str) -> dict[str, Any]:
    return {"Name": "t", "Dimensions": [1, 8], "Format/Datatype": said}


def layer(name: str, kind: str, inputs: list[str], tactic: str = "", nodes: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "Name": name,
        "LayerType": kind,
        "Inputs": [tensor(said) for said in inputs],
        "Outputs": [tensor("Half")],
        "TacticName": tactic,
        "Metadata": "\x1e".join(f"[ONNX Layer: {node}]" for node in nodes),
    }


QUANTIZED = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["": 21]>
    g (float[n, 8] x, int8[8, 4] w, float[4, 4] v) => (float[n, 4] y) <float s = {0.5}, int8 z = {0}>
    {
        [quantize] q = QuantizeLinear (x, s, z)
        [dequantize] d = DequantizeLinear (q, s, z)
        [weight] e = DequantizeLinear (w, s, z)
        [first] h = MatMul (d, e)
        [relu] r = Relu (h)
        [second] y = MatMul (r, v)
    }
""")


class TestLayers:
    @pytest.mark.parametrize(
        ("said", "expected"),
        [
            ("Thirty-two wide channel vectorized row major Int8 format", "int8"),
            ("Channel major FP16 format where channel % 8 == 0", "fp16"),
            ("Row major linear FP32", "fp32"),
            ("Half", "fp16"),
            ("Float", "fp32"),
            ("BFloat16", "bf16"),
            ("FP8", "fp8"),
            ("Float8", "fp8"),
            ("Int64", "other"),
            ("N/A due to dynamic shapes", "other"),
        ],
    )
    def test_a_tensor_has_the_dtype_that_the_inspector_spells(self, said: str, expected: str) -> None:
        assert layers.dtype(tensor(said)) == expected

    @pytest.mark.parametrize(
        ("inputs", "tactic", "expected"),
        [
            (["Half"], "sm90_xmma_gemm_e4m3e4m3_f32f32_tn_n_tilesize128x128x128", "fp8"),
            (["Half"], "sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32", "int8"),
            (["Int8", "Half"], "__myl_AddQua_0x1f", "int8"),
            (["Half", "Float"], "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n", "fp16"),
            (["Float"], "", "fp32"),
        ],
    )
    def test_a_layer_works_in_what_its_kernel_says_or_else_in_the_narrowest_it_reads(
        self, inputs: list[str], tactic: str, expected: str
    ) -> None:
        (found,) = layers.read(json.dumps({"Layers": [layer("l", "gemm", inputs, tactic)]}))

        assert found.precision == expected

    def test_names_alone_are_refused_since_they_say_nothing_of_dtypes(self) -> None:
        with pytest.raises(ValueError, match="detailed"):
            layers.read('{"Layers": ["first", "second"]}')

    def test_what_is_quantized_is_looked_for_among_the_layers(self, tmp_path: Path) -> None:
        onnx.save(QUANTIZED, tmp_path / "g.onnx")
        graph = layers.Graph.read(tmp_path / "g.onnx")
        assert graph.quantized == ("first",)

        fused = [
            layer("Reformatting CopyNode for x", "Reformat", ["Half"]),
            layer("q", "kgen", ["Half"], "__myl_Qua_0x2", ("quantize",)),
            layer("f", "gemm", ["Int8"], "sm80_xmma_gemm_i8f16_i8i32_f32", ("dequantize", "weight", "first", "relu")),
            layer("__myl_Tran_myl0_3", "kgen", ["Half"]),
            layer("s", "gemm", ["Half"], "sm80_xmma_gemm_f16f16", ("second",)),
        ]
        assert layers.summary(layers.read(json.dumps({"Layers": fused})), graph) == {
            "layers": 5,
            "precisions": {"int8": 1, "fp16": 4},
            "matrix_precisions": {"int8": 1, "fp16": 1},
            "quantized": 1,
            "wide": [],
            "qdq_layers": ["q"],
            "reformats": ["Reformatting CopyNode for x", "__myl_Tran_myl0_3"],
        }

    def test_a_quantized_node_that_runs_wide_is_named(self, tmp_path: Path) -> None:
        onnx.save(QUANTIZED, tmp_path / "g.onnx")
        apart = [
            layer("d", "kgen", ["Int8"], "__myl_Deq_0x1", ("dequantize",)),
            layer("f", "gemm", ["Half"], "sm80_xmma_gemm_f16f16", ("first",)),
        ]

        found = layers.summary(layers.read(json.dumps({"Layers": apart})), layers.Graph.read(tmp_path / "g.onnx"))

        assert found["wide"] == ["first"]
        assert found["qdq_layers"] == ["d"]


class TestGraphsWithoutWeights:
    def test_large_weights_are_read_from_noise_of_their_dtype_and_scales_are_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_engine, "NOISE_LENGTH", 1 << 22)
        scale = np.full(128, 0.25, np.float16)
        large = {
            "int8": np.ones((128, 128), np.int8),
            "fp8": np.ones((128, 128), ml_dtypes.float8_e4m3fn),
            "half": np.ones((128, 128), np.float16),
            "single": np.ones((128, 128), np.float32),
        }
        tensors = [numpy_helper.from_array(array, name) for name, array in large.items()]
        tensors.append(numpy_helper.from_array(scale, "scale"))
        empty = helper.make_graph([], "g", [], [], initializer=tensors)
        onnx.save(helper.make_model(empty), tmp_path / "full.onnx")

        _engine.strip(tmp_path / "full.onnx", tmp_path / "small.onnx")
        _engine.make_noise(tmp_path)

        small = onnx.load(tmp_path / "small.onnx", load_external_data=False).graph.initializer
        places = [[entry.value for entry in t.external_data if entry.key == "offset"] for t in small]
        assert places == [["0"], ["4096"], ["8192"], ["12288"], []]  # at one place they would be taken for one weight
        assert (tmp_path / "small.onnx").stat().st_size < 2000
        found = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "small.onnx").graph.initializer}
        np.testing.assert_array_equal(found["scale"], scale)
        for name, array in large.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        for name, deviation in (("int8", 32.0), ("fp8", 100.0), ("half", 0.01)):
            assert np.std(found[name].astype(np.float64)) == pytest.approx(deviation, rel=0.05)

    def test_the_engine_is_for_one_size_strongly_typed_and_named_in_full(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = fake_tensorrt.install(monkeypatch)
        onnx.save(QUANTIZED, tmp_path / "g.onnx")

        plan, _ = _engine.build(tmp_path / "g.onnx", Cell("m", 64).dims, level=2)

        (builder,) = module.builders
        assert plan == b"plan"
        assert builder.network.flags == 2  # 1 << STRONGLY_TYPED
        assert builder.config.profiles[0].shapes["x"] == ((64, 8), (64, 8), (64, 8))
        assert (builder.config.builder_optimization_level, builder.config.profiling_verbosity) == (2, "detailed")
        assert builder.config.flags == set()  # no TF32

    def test_an_engine_that_does_not_build_says_what_the_builder_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = fake_tensorrt.install(monkeypatch)
        module.says = [(fake_tensorrt.Severity.ERROR, "a.cpp:1: Failed to find fallback kernel")]
        onnx.save(QUANTIZED, tmp_path / "g.onnx")

        with pytest.raises(RuntimeError, match="Failed to find fallback kernel"):
            _engine.build(tmp_path / "g.onnx", Cell("m", 1).dims)


ATTENTION = """
    <ir_version: 10, opset_import: ["" : 20]>
    g (float16[B,S,32] x) => (float16[B,S,32] y) <int64[4] heads = {0, 0, 2, 16}, int64[3] flat = {0, 0, 32}>
    {
        [reshape] h = Reshape (x, heads)
        [queries] q = Transpose <perm = [0, 2, 1, 3]> (h)
        [keys] k = Transpose <perm = [0, 2, 3, 1]> (h)
        [scores] a = MatMul (q, k)
        [weights] p = Softmax (a)
        [sums] o = MatMul (p, q)
        [turn] t = Transpose <perm = [0, 2, 1, 3]> (o)
        [join] y = Reshape (t, flat)
    }
"""


class TestAttention:
    def test_a_graph_has_its_kernels_beside_it_and_so_has_its_engine(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = fake_tensorrt.install(monkeypatch)
        made = [kernel_of("one"), kernel_of("two")]
        monkeypatch.setattr("aot.stages.kernels.compile_each", lambda header, jobs: [tuple(made) for _ in jobs])
        onnx.save(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(ATTENTION)), tmp_path / "final.onnx")

        said = attention.write(tmp_path / "final.onnx", tmp_path / "m.fp16-attention.onnx")

        assert said == "1 attentions are kernels"
        assert read_kernels(tmp_path / "m.fp16-attention.kernels") == {"sums_attention": tuple(made)}
        graph, plan = tmp_path / "m.fp16-attention.onnx", tmp_path / "fp16-attention.plan"
        worker.make(graph, {"B": (1, 1, 1), "S": (8, 8, 8)}, plan, 3)
        (builder,) = module.builders
        assert [layer.name for layer in builder.network.plugins] == ["sums_attention"]
        assert read_kernels(plan.with_suffix(".kernels")) == {"sums_attention": tuple(made)}
        plugin_v3._known.clear()
        _engine.learn(plan)
        assert len(plugin_v3._known) == 1

    def test_what_stays_is_said(self, tmp_path: Path) -> None:
        wide = ATTENTION.replace("float16", "float")
        onnx.save(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(wide)), tmp_path / "final.onnx")
        said = attention.write(tmp_path / "final.onnx", tmp_path / "m.fp32-attention.onnx")
        assert said == "0 attentions are kernels; 1 stay: it is not in FP16 or BF16 throughout"


def kernel_of(code: str) -> Compiled:
    inputs, size, digest = ("q", "k", "v", "mask"), ["size", "q", 0], hashlib.sha256(code.encode()).hexdigest()
    return Compiled("aot::attention", "sm90", "kernel", code, 128, 0, 8, 0, inputs, ("float16",) * 4, ("float16",),
                    (size, 1, 1), {}, ([size, ["size", "q", 1], 32],), {}, digest, "")  # fmt: skip


class Stub:
    """A worker on a machine of our making: FP8 does not build, FP16 takes 2 ms and INT8 1 ms."""

    def __init__(self, gpu: int) -> None:
        self.gpu = gpu

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], timeout: float) -> dict[str, Any]:
        if function is worker.make:
            if "fp8" in arguments[0].name:
                raise RuntimeError("not done after 180 s")
            return {"seconds": 5.0, "bytes": 10}
        if function is worker.inspect:
            arguments[2].with_suffix(".json").write_text("{}")
            return {"layers": 3, "quantized": 2, "wide": [], "qdq_layers": [], "reformats": ["r"]}
        return {name: worker.spread([2.0 if name == "fp16" else 1.0] * 20) for name in arguments[0]}

    def close(self) -> None:
        pass


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for results that is not the project's, and one for graphs beside it."""
    for module in (_result, page):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(_result, "commit", lambda: None)
    monkeypatch.setattr(_result, "_command", lambda: "python ...")
    monkeypatch.setattr(measure, "make_noise", lambda folder: None)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "graphs").mkdir()
    return tmp_path


RECIPES = ("fp16", "int8", "fp8")


def taken(results: Path, *cells: Cell, missing: bool = False, worker: Callable[[int], Any] = Stub) -> list[Any]:
    options = measure.Options(results / "graphs")
    measure.measure(cells, RECIPES, options, gpus=2, name="r", missing=missing, worker=worker)
    return list(json.loads((results / "benchmarks/results/r.json").read_text())["rows"])


class TestMeasuring:
    def test_every_precision_of_every_size_is_a_row_also_where_nothing_was_built(self, results: Path) -> None:
        rows = taken(results, Cell("m", 1), Cell("m", 8, 128))

        assert len(rows) == 6
        found = {page.key(row): row for row in rows}
        assert found["m", 8, 128, "fp16"]["ms"] == 2.0
        assert found["m", 1, None, "int8"]["ms"] == 1.0
        refused = found["m", 1, None, "fp8"]
        assert (refused["built"], refused["reason"]) == (False, "not done after 180 s")

    def test_what_the_inspector_said_is_kept_in_full(self, results: Path) -> None:
        taken(results, Cell("m", 8, 128))

        kept = {path.name for path in (results / "graphs/layers").iterdir()}
        assert kept == {"m-8-x-128-fp16.json", "m-8-x-128-int8.json"}

    def test_rows_of_other_sizes_stay_and_those_there_are_need_not_be_taken_again(self, results: Path) -> None:
        taken(results, Cell("m", 1))

        class Never(Stub):
            def call(self, *_: Any) -> dict[str, Any]:
                raise AssertionError("measured again")

        assert len(taken(results, Cell("m", 1), missing=True, worker=Never)) == 3
        assert len(taken(results, Cell("m", 8))) == 6

    def test_a_row_is_written_as_soon_as_its_engine_is_built(self, results: Path) -> None:
        seen: list[list[str]] = []

        class Watching(Stub):
            def call(self, function: Callable[..., Any], *rest: Any) -> dict[str, Any]:
                seen.append([row["precision"] for row in page.kept("r")])
                return super().call(function, *rest)

        measure.measure(
            [Cell("m", 1)],
            RECIPES,
            measure.Options(results / "graphs"),
            gpus=1,
            name="r",
            missing=False,
            worker=Watching,
        )

        # make, inspect: fp16; make, inspect: int8; make: fp8; times
        assert seen == [[], [], ["fp16"], ["fp16"], ["fp16", "int8"], ["fp16", "int8", "fp8"]]

    def test_the_table_says_what_is_faster_and_what_failed(self, results: Path) -> None:
        lines = page.text(taken(results, Cell("m", 8, 128))).splitlines()

        assert lines[2] == (
            "| m, 8 x 128 | 2.000 | 1.000 (2.00x) | not built | fp16 2 of 2, int8 2 of 2 | fp16 0, int8 0 | "
            "fp16 1, int8 1 |"
        )
        assert lines[-1] == "- m 8 x 128 fp8: not done after 180 s"


class TestWorker:
    def test_a_crash_and_a_hang_cost_one_call_each(self) -> None:
        one = worker.Worker(0)
        try:
            with pytest.raises(RuntimeError, match="SIGABRT"):
                one.call(os.abort, (), 60)
            with pytest.raises(RuntimeError, match=r"not done after 0\.5 s"):
                one.call(time.sleep, (60,), 0.5)
            assert one.call(dict, ([("CUDA", 1)],), 60) == {"CUDA": 1}
        finally:
            one.close()

    def test_what_a_call_raises_is_the_reason(self) -> None:
        one = worker.Worker(0)
        try:
            with pytest.raises(RuntimeError, match="No such file"):
                one.call(os.listdir, ("/nowhere",), 60)
        finally:
            one.close()

    def test_a_graph_that_a_recipe_refused_is_named_so(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match="not prepared"):
            worker.make(tmp_path / "m.fp8-strict.onnx", Cell("m", 1).dims, tmp_path / "plan", 3)

    def test_a_spread_is_the_median_and_the_outer_deciles(self) -> None:
        assert worker.spread([float(n) for n in range(1, 100)]) == {"ms": 50.0, "ms_p10": 10.0, "ms_p90": 90.0}


def test_every_size_that_is_asked_for_is_there() -> None:
    from precision.prepare import CELLS

    assert {(c.model, c.batch, c.length) for c in CELLS} == {
        ("bert-base", 64, 512),
        *(("bert-base", batch, 128) for batch in (1, 8, 64)),
        *(("minilm", batch, 128) for batch in (1, 8, 64)),
        *((model, batch, None) for model in ("vit_b_16", "resnet50") for batch in (1, 8, 64)),
    }
    assert TensorProto.FLOAT8E4M3FN  # the dtype that FP8 weights are carried in
