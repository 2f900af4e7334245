"""An ONNX file as a source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from aot import origins
from aot.config import Recipe
from aot.errors import GraphError, UsageError
from aot.precision import apply
from aot.stages.surgery import rewrite
from tests.sources.projects import Bench

NORMED = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[?, 4, 6] x, float[?, 4] y, float[rows, "sequence length"] z, float[rows, 3] w)
        => (float[n, 4, 6] a, float[m, 4] b, float[rows, 3] c)
        <float[6] scale = {1, 2, 3, 4, 5, 6}, int64[1] axes = {1}, int64[2] sizes = {1, 3}>
    {
        normed = LayerNormalization <axis = -1> (x, scale)
        one, three = Split <axis = 1> (normed, sizes)
        a = Concat <axis = 1> (three, one)
        total = ReduceSum (y, axes)
        b = Sub (y, total)
        mean = ReduceMean <axes = [1]> (z)
        c = Mul (w, mean)
    }
"""

BOUNDS = {"x_0": (1, 2, 4), "y_0": (1, 2, 8), "rows": (1, 3, 5), "sequence_length": (2, 4, 9)}


def save(path: Path, text: str = NORMED) -> Path:
    onnx.save(onnx.parser.parse_model(text.replace('"sequence length"', "sequence_length")), path)
    return path


def test_dims_are_asked_for_with_tensor_axis_and_option(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        bench.open(save(tmp_path / "net.onnx"))
    said = str(caught.value)
    assert "'x_0' (input 'x', axis 0)" in said
    assert "add --dim x_0=1:8:64 --dim y_0=1:8:64 --dim rows=1:8:64 --dim sequence_length=1:8:64" in said


def test_unnamed_dims_are_unlike_each_other_and_named_ones_alike(bench: Bench, tmp_path: Path) -> None:
    source = bench.open(save(tmp_path / "net.onnx"), dims=BOUNDS)
    assert {name: dim.bounds for name, dim in source.spec.dims.items()} == BOUNDS
    assert source.spec.inputs["w"].shape[0] is source.spec.inputs["z"].shape[0]


def test_an_older_opset_is_brought_up_and_stays_equal(
    bench: Bench, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "net.onnx")
    source = bench.open(path, dims=BOUNDS)
    facts = source.write_onnx(tmp_path)
    assert capfd.readouterr() == ("", "")
    written = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(written, full_check=True)
    assert facts["opset"] == written.opset_import[0].version == 20
    assert facts["outputs"] == ["a", "b", "c"]
    assert written.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "x_0"
    random = np.random.default_rng(0)
    case = {
        "x": random.standard_normal((3, 4, 6), np.float32),
        "y": random.standard_normal((5, 4), np.float32),
        "z": random.standard_normal((2, 7), np.float32),
        "w": random.standard_normal((2, 3), np.float32),
    }
    want = source.eager()(case)
    got = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, case)
    for name, values in zip(facts["outputs"], got, strict=True):
        np.testing.assert_allclose(values, want[name], rtol=1e-5)


def linear(path: Path, weight: np.ndarray, external: bool = False) -> Path:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "linear",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, weight.shape[0]])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, weight.shape[1]])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, path, save_as_external_data=external, location=f"{path.name}.data", size_threshold=0)
    return path


def test_external_data_belong_to_the_key(bench: Bench, tmp_path: Path) -> None:
    path = linear(tmp_path / "net.onnx", np.ones((64, 64), np.float32), external=True)
    key = bench.open(path).key
    assert bench.open(path).key == key
    assert not bench.loaded
    data = tmp_path / "net.onnx.data"
    data.write_bytes(bytes(data.stat().st_size))
    assert bench.open(path).key != key


def test_external_data_that_are_missing(bench: Bench, tmp_path: Path) -> None:
    path = linear(tmp_path / "net.onnx", np.ones((64, 64), np.float32), external=True)
    (tmp_path / "net.onnx.data").unlink()
    with pytest.raises(GraphError, match="not a whole ONNX model"):
        bench.open(path)


@pytest.mark.parametrize("content", [b"", b"\x00\x01not a graph", None], ids=["empty", "noise", "cut"])
def test_a_broken_file(bench: Bench, tmp_path: Path, content: bytes | None) -> None:
    path = linear(tmp_path / "net.onnx", np.ones((64, 64), np.float32))
    path.write_bytes(path.read_bytes()[:9000] if content is None else content)
    with pytest.raises(GraphError, match="not a whole ONNX model"):
        bench.open(path)


def test_weights_that_are_not_numbers(bench: Bench, tmp_path: Path) -> None:
    weight = np.ones((3, 3), np.float32)
    weight[1, 1] = np.nan
    source = bench.open(linear(tmp_path / "net.onnx", weight))
    with pytest.raises(GraphError, match="weight 'w' holds NaN"):
        source.write_onnx(tmp_path)


def test_weights_listed_as_inputs_are_weights(bench: Bench, tmp_path: Path) -> None:
    path = linear(tmp_path / "net.onnx", np.ones((3, 3), np.float32))
    model = onnx.load(path)
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [3, 3]))
    onnx.save(model, path)
    assert list(bench.open(path).spec.inputs) == ["x"]


def test_every_node_of_a_file_knows_which_node_of_the_file_it_was(bench: Bench, tmp_path: Path) -> None:
    """Through conversion from opset 11, surgery, and quantization."""
    text = """
        <ir_version: 6, opset_import: ["" : 11]>
        old (float[batch, 16] x) => (float[batch, 32] y)
        {
            h = MatMul (x, w)
            raised = Unsqueeze <axes = [1]> (h)
            soft = Softmax <axis = 2> (raised)
            back = Squeeze <axes = [1]> (soft)
            total = ReduceSum <axes = [1], keepdims = 1> (back)
            y = Div (back, total)
        }
    """
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).normal(size=(16, 32)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    for node in model.graph.node:
        node.name = f"the_{node.op_type}"
    onnx.save(model, tmp_path / "old.onnx")
    bench.open(tmp_path / "old.onnx", dims={"batch": (1, 2, 4)}).write_onnx(tmp_path)
    (tmp_path / "after").mkdir()
    rewrite(tmp_path / "model.onnx", tmp_path / "after", narrow=True)
    graph = ir.load(tmp_path / "after" / "model.onnx")
    apply(
        graph, Recipe(precision="int8"), {str(v.name): 4.0 for n in graph.graph for v in (*n.inputs, *n.outputs) if v}
    )
    found = {node.name: origins.of(node) for node in graph.graph.all_nodes()}
    assert [name for name, origin in found.items() if origin is None] == []
    assert {origin.file for origin in found.values() if origin} == {"old.onnx"}
    assert {origin.module for origin in found.values() if origin} <= {node.name for node in model.graph.node}
    quantized = [origins.describe(node) for node in graph.graph if node.op_type == "QuantizeLinear"]
    assert quantized == ["node 'the_MatMul' of old.onnx"]


def interface(path: Path, **inputs: tuple[int, list[object]]) -> Path:
    """A file whose inputs are these (element type, shape), and whose output is the sum of the first with itself."""
    first = next(iter(inputs))
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", [first, first], ["y"])],
        "net",
        [onnx.helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [onnx.helper.make_tensor_value_info("y", next(iter(inputs.values()))[0], None)],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


FLOAT, DOUBLE, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.INT64


def test_every_way_of_not_saying_a_size_gets_a_name_of_its_own(bench: Bench, tmp_path: Path) -> None:
    """`?`, nothing, -1, 0, and symbols that become one identifier."""
    shape: list[object] = ["?", None, -1, 0, "a b", "a.b", "unk__3"]
    path = interface(tmp_path / "net.onnx", x=(FLOAT, shape), z=(FLOAT, ["?", "a.b"]))
    with pytest.raises(UsageError) as caught:
        bench.open(path)
    names = ["x_0", "x_1", "x_2", "x_3", "a_b", "a_b_2", "x_6", "z_0"]
    assert str(caught.value.fix) == "add " + " ".join(f"--dim {name}=1:8:64" for name in names)
    source = bench.open(path, dims={name: (1, 2, 3) for name in names})
    assert source.spec.inputs["z"].shape[1] is source.spec.inputs["x"].shape[5]


def test_the_values_of_an_integer_input(bench: Bench, tmp_path: Path) -> None:
    path = interface(tmp_path / "net.onnx", x=(FLOAT, [2]), rate=(INT64, []), ids=(INT64, ["n"]))
    source = bench.open(path, dims={"rate": (16000, 16000, 16000), "ids": (0, 4, 9), "n": (1, 2, 3)})
    rate, ids = source.spec.inputs["rate"], source.spec.inputs["ids"]
    assert (rate.low, rate.high, ids.low, ids.high) == (16000, 16001, 0, 10)


def test_an_input_of_unknown_rank(bench: Bench, tmp_path: Path) -> None:
    path = interface(tmp_path / "net.onnx", x=(FLOAT, [2]))
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    with pytest.raises(GraphError, match="input 'x' is not a tensor of known rank"):
        bench.open(path)


def test_doubles_go_in_and_out_as_floats(bench: Bench, tmp_path: Path) -> None:
    source = bench.open(interface(tmp_path / "net.onnx", x=(DOUBLE, [3])))
    assert source.spec.inputs["x"].dtype == "float32"
    facts = source.write_onnx(tmp_path)
    assert "FP64 is narrowed to FP32" in facts["warnings"][0]
    x = np.array([0.1, 2, -3], np.float32)
    (got,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"x": x})
    want = source.eager()({"x": x})["y"]
    assert got.dtype == want.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_outputs_that_no_engine_gives(bench: Bench, tmp_path: Path) -> None:
    path = interface(tmp_path / "net.onnx", x=(FLOAT, [3]))
    model = onnx.load(path)
    model.graph.node.append(onnx.helper.make_node("Cast", ["y"], ["z"], to=onnx.TensorProto.UINT16))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.UINT16, [3]))
    onnx.save(model, path)
    with pytest.raises(GraphError, match="output 'z' is uint16, which no engine gives"):
        bench.open(path)
    model.graph.node[-1].CopyFrom(onnx.helper.make_node("SequenceConstruct", ["y"], ["z"]))
    model.graph.output[-1].CopyFrom(onnx.helper.make_tensor_sequence_value_info("z", FLOAT, [3]))
    onnx.save(model, path)
    with pytest.raises(GraphError, match="output 'z' is a sequence, which no engine gives"):
        bench.open(path)


def test_what_onnxruntime_does_not_run_is_evaluated(bench: Bench, tmp_path: Path) -> None:
    """Acosh of FP16 has no kernel on the CPU; onnx's own evaluator knows it."""
    path = interface(tmp_path / "net.onnx", x=(onnx.TensorProto.FLOAT16, [3]))
    model = onnx.load(path)
    model.graph.node[0].CopyFrom(onnx.helper.make_node("Acosh", ["x"], ["y"]))
    onnx.save(model, path)
    x = np.array([1, 2, 3], np.float16)
    np.testing.assert_allclose(bench.open(path).eager()({"x": x})["y"], np.arccosh(x), rtol=1e-2, atol=1e-3)


def test_a_size_that_the_file_does_not_take_is_named_with_the_node(bench: Bench, tmp_path: Path) -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[b, 8] x) => (float[c, 32] y) <int64[2] sizes = {-1, 32}> { [rows] y = Reshape (x, sizes) }
    """
    run = bench.open(save(tmp_path / "net.onnx", text), dims={"b": (4, 8, 64)}).eager()
    assert run({"x": np.zeros((8, 8), np.float32)})["y"].shape == (2, 32)
    with pytest.raises(GraphError) as caught:
        run({"x": np.zeros((5, 8), np.float32)})
    assert caught.value.what.startswith("the file does not run with b=5: The input tensor cannot be reshaped")
    assert str(caught.value.where).startswith("node 'rows' (Reshape) in ")
    assert str(caught.value.fix).endswith("one size that runs: --dim b=SIZE:SIZE:SIZE")
