"""`aot quantize`: the result against numpy, whole files or none, an answer to every bad model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from aot.cli import _main as cli

NET = """
    <ir_version: 8, opset_import: ["" : OPSET]>
    net (float[batch,32] x, int64[batch] kind) => (float[batch,32] y, int64[batch] same)
    { h = MatMul(x, w)  r = Relu(h)  y = MatMul(r, v)  same = Identity(kind) }
"""


def net(opset: int = 20) -> onnx.ModelProto:
    model = onnx.parser.parse_model(NET.replace("OPSET", str(opset)))
    random = np.random.default_rng(0)
    for name in ("w", "v"):
        weight = random.normal(size=(32, 32)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    for number, node in enumerate(model.graph.node):
        node.name = f"node {number}"
    model.producer_name = "somebody"
    return model


def given(path: Path, model: onnx.ModelProto | None = None) -> Path:
    onnx.save(net() if model is None else model, path)
    return path


def arrays(samples: int = 32, seed: int = 1) -> dict[str, Any]:
    x = np.random.default_rng(seed).normal(size=(samples, 32)).astype(np.float32)
    return {"x": x, "kind": np.arange(samples)}


def npz(path: Path, **named: Any) -> Path:
    np.savez(path, **(named or arrays()))
    return path


def quantize(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """What the command answers, done."""
    code = cli.call(["quantize", *map(str, arguments), "--json"])
    said = capsys.readouterr()
    assert code == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, str]:
    """What the command says of a user's error, nothing left behind."""
    assert cli.call(["quantize", *map(str, arguments), "--json"]) == 2
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    error: dict[str, str] = json.loads(said.out)["error"]
    assert error["where"]
    assert error["fix"]
    return error


def run(path: Path, **inputs: Any) -> list[Any]:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def ops(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]


def rounded(values: Any, scale: Any) -> Any:
    """INT8 and back."""
    return np.clip(np.round(values / scale), -128, 127) * scale


def exact(path: Path) -> Path:
    """A recipe whose every number is known: INT8, everything else in FP32, the largest magnitude, nothing more."""
    path.write_text(
        "precision: int8\ncompute: fp32\ncalibrator: max\nper_channel: true\n"
        "placement: {ops: [MatMul], residual: false, attention: false}\n"
    )
    return path


def test_the_result_is_int8_arithmetic_on_the_ranges_of_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both layers by numpy, from the largest magnitudes of all data and the columns of the weights."""
    source, target = given(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    data, recipe = arrays(), exact(tmp_path / "exact.yaml")
    found = quantize(capsys, source, target, "--calibration", recipe, "--data", npz(tmp_path / "d.npz"), "--no-compare")
    w, v = (numpy_helper.to_array(tensor) for tensor in net().graph.initializer)

    def weight(values: Any) -> Any:
        return rounded(values, np.abs(values).max(axis=0) / 127)

    hidden = np.maximum(data["x"] @ w, 0).max()
    h = np.maximum(rounded(data["x"], np.abs(data["x"]).max() / 127) @ weight(w), 0)
    expected = rounded(h, hidden / 127) @ weight(v)
    got, same = run(target, **data)
    # One step of the hidden activations, where a sum falls on the other side of a tie, is a thousandth of the output.
    assert np.linalg.norm(got - expected) < 2e-3 * np.linalg.norm(expected)
    np.testing.assert_array_equal(same, data["kind"])
    assert found["quantized"] == {"ops": {"MatMul": 2}, "qdq": 4}
    assert found["calibration"]["batches"] == 4
    assert (found["cosine"], found["relative_l2"], found["max_abs"]) == (None, None, None)


def test_the_numbers_compare_both_files_on_what_was_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every fourth batch of eight samples: samples 24 to 31 of 32."""
    source, target, data = given(tmp_path / "in.onnx"), tmp_path / "out.onnx", arrays()
    found = quantize(
        capsys, source, target, "--calibration", exact(tmp_path / "e.yaml"), "--data", npz(tmp_path / "d.npz")
    )
    held = {name: values[24:] for name, values in data.items()}
    before, after = (run(path, **held)[0].astype(np.float64) for path in (source, target))
    assert found["calibration"]["heldout"] == 1
    assert found["max_abs"] == pytest.approx(np.abs(after - before).max(), rel=1e-3)
    assert found["relative_l2"] == pytest.approx(np.linalg.norm(after - before) / np.linalg.norm(before), rel=1e-3)
    cosine = (before * after).sum() / np.linalg.norm(before) / np.linalg.norm(after)
    assert found["cosine"] == pytest.approx(cosine, rel=1e-6)
    assert 0 < found["relative_l2"] < 0.05
    assert found["peak_bytes"] > 1 << 20
    assert found["seconds"] > found["calibration"]["seconds"] > 0


@pytest.mark.parametrize(
    ("precision", "stored"), [("int8", onnx.TensorProto.INT8), ("fp8", onnx.TensorProto.FLOAT8E4M3FN)]
)
def test_weights_are_stored_quantized_and_the_interface_stays(
    precision: str, stored: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = given(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    quantize(capsys, source, target, "--precision", precision, "--data", npz(tmp_path / "d.npz"))
    before, after = onnx.load(source), onnx.load(target)
    for side in ("input", "output"):
        was, now = ([v.SerializeToString() for v in getattr(m.graph, side)] for m in (before, after))
        assert now == was
    assert after.producer_name == "somebody"
    assert sum(t.data_type == stored and len(t.dims) == 2 for t in after.graph.initializer) == 2
    onnx.checker.check_model(after, full_check=True)


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_narrow_floats_keep_the_interface_in_fp32(
    precision: str, dtype: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = given(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    found = quantize(capsys, source, target, "--precision", precision, "--data", npz(tmp_path / "d.npz"))
    assert found["quantized"] == {"ops": {}, "qdq": 0}
    weights = [numpy_helper.to_array(t) for t in onnx.load(target).graph.initializer if len(t.dims) == 2]
    assert [w.dtype for w in weights] == [np.dtype(dtype)] * 2
    assert onnx.load(target).graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert found["relative_l2"] < 0.02


def test_an_older_opset_is_raised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = given(tmp_path / "in.onnx", net(opset=11)), tmp_path / "out.onnx"
    quantize(capsys, source, target, "--data", npz(tmp_path / "d.npz"))
    assert onnx.load(target).opset_import[0].version >= 20


@pytest.mark.parametrize("option", ["--optimize", "--no-optimize"])
def test_passes_run_first_unless_left_out(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The Identity between the layers is no layer's business: the passes drop it."""
    model = net()
    model.graph.node[2].input[0] = "through"
    model.graph.node.insert(2, onnx.helper.make_node("Identity", ["r"], ["through"], name="idle"))
    source, target = given(tmp_path / "in.onnx", model), tmp_path / "out.onnx"
    quantize(capsys, source, target, "--data", npz(tmp_path / "d.npz"), option)
    assert ops(target).count("Identity") == (1 if option == "--optimize" else 2)


class TestModels:
    def test_a_quantized_one_is_refused_with_its_node(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        source, target, data = given(tmp_path / "in.onnx"), tmp_path / "out.onnx", npz(tmp_path / "d.npz")
        quantize(capsys, source, target, "--data", data)
        error = refused(capsys, target, tmp_path / "again.onnx", "--data", data)
        assert error["what"] == "the model is quantized already"
        assert "Linear" in error["where"]
        assert not (tmp_path / "again.onnx").exists()

    def test_one_in_fp16_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        model = onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["" : 20]>
            net (float16[n,2] x) => (float16[n,2] y) <float16[2,2] w = {1, 2, 3, 4}> { y = MatMul(x, w) }"""
        )
        error = refused(capsys, given(tmp_path / "in.onnx", model), tmp_path / "out.onnx", "--dim", "n=1:2:3")
        assert error["what"].startswith("the model computes in FLOAT16, not in FP32")

    def test_no_file_and_no_onnx_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "text.onnx").write_text("text")
        (tmp_path / "model.py").write_text("")
        for name, what in (("none.onnx", "no such file"), ("text.onnx", "not a whole ONNX"), ("model.py", "'")):
            assert cli.call(["quantize", str(tmp_path / name), str(tmp_path / "o.onnx"), "--json"]) == 2
            assert json.loads(capsys.readouterr().out)["error"]["what"].startswith(what)

    def test_one_without_layers_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        text = """<ir_version: 8, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) { y = Relu(x) }"""
        source = given(tmp_path / "in.onnx", onnx.parser.parse_model(text))
        error = refused(capsys, source, tmp_path / "o.onnx")
        assert error["what"] == "there is nothing to quantize: the graph has no MatMul, Gemm, Conv, ConvTranspose"
        assert cli.call(["quantize", str(source), str(tmp_path / "out.onnx"), "--precision", "fp16"]) == 0

    def test_one_whose_layers_all_stay_wide_says_why(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        text = """<ir_version: 8, opset_import: ["" : 20]> g (float[2, 3] x) => (float[2, 4] y)
        <float[3, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> { y = MatMul(x, w) }"""
        source = given(tmp_path / "in.onnx", onnx.parser.parse_model(text))
        assert cli.call(["quantize", str(source), str(tmp_path / "out.onnx")]) == 0
        said = capsys.readouterr()
        assert "int8: no layers; 1 of 1 layers stay wide" in said.out
        assert "3 input channels, fewer than 16" in said.err

    @pytest.mark.parametrize("option", [[], ["--precision", "int8"]])
    def test_a_recipe_without_a_name_is_none(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str]
    ) -> None:
        error = refused(capsys, given(tmp_path / "in.onnx"), tmp_path / "o.onnx", "--calibration", "", *option)
        assert error["what"] == "--calibration names no recipe"

    def test_inputs_too_large_to_make_are_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        source = given(tmp_path / "in.onnx")
        error = refused(capsys, source, tmp_path / "o.onnx", "--dim", "batch=1:1000000000:2000000000")
        assert error["what"].startswith("input 'x' takes 128,000,000,000 bytes")

    def test_fp32_quantizes_nothing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        error = refused(capsys, given(tmp_path / "in.onnx"), tmp_path / "o.onnx", "--precision", "fp32")
        assert error["what"] == "fp32 quantizes nothing"

    def test_values_that_overflow_fp16_are_no_result(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A new file that holds NaN where the old one does not takes nothing's place."""
        import aot.precision

        apply = aot.precision.apply

        def broken(model: Any, *given: Any) -> Any:
            done = apply(model, *given)
            weight = next(v for name, v in model.graph.initializers.items() if name == "w")
            import onnx_ir as ir

            weight.const_value = ir.tensor(np.full((32, 32), np.nan, np.float16), name="w")
            return done

        monkeypatch.setattr(aot.precision, "apply", broken)
        source, target = given(tmp_path / "in.onnx"), tmp_path / "out.onnx"
        error = refused(capsys, source, target, "--precision", "fp16", "--data", npz(tmp_path / "d.npz"))
        assert "the quantized model fails on batch" in error["what"]
        assert not target.exists()


class TestFiles:
    def test_the_same_file_in_and_out(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path, data = given(tmp_path / "in.onnx"), npz(tmp_path / "d.npz")
        expected = run(path, **arrays())[0]
        quantize(capsys, path, path, "--data", data)
        assert "QuantizeLinear" in ops(path)
        got = run(path, **arrays())[0]
        assert np.linalg.norm(got - expected) < 0.05 * np.linalg.norm(expected)

    def test_weights_beside_the_file_stay_beside_it(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        model, folder = net(), tmp_path / "models"
        folder.mkdir()
        onnx.save(model, folder / "in.onnx", save_as_external_data=True, location="in.weights", size_threshold=0)
        data = npz(tmp_path / "d.npz")
        quantize(capsys, folder / "in.onnx", folder / "out.onnx", "--precision", "fp16", "--data", data)
        names = sorted(path.name for path in folder.iterdir())
        assert names == ["in.onnx", "in.weights", "out.onnx", "out.onnx.data"]
        assert run(folder / "out.onnx", **arrays())[0].shape == (32, 32)

    def test_a_link_stays_one(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "deep").mkdir()
        (tmp_path / "link.onnx").symlink_to("deep/real.onnx")
        quantize(capsys, given(tmp_path / "in.onnx"), tmp_path / "link.onnx", "--data", npz(tmp_path / "d.npz"))
        assert (tmp_path / "link.onnx").is_symlink()
        assert "QuantizeLinear" in ops(tmp_path / "deep/real.onnx")
        assert [path.name for path in (tmp_path / "deep").iterdir()] == ["real.onnx"]

    def test_stopped_nothing_is_written(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stop(old: str | Path, new: str | Path) -> None:
            raise KeyboardInterrupt

        source, data = given(tmp_path / "in.onnx"), npz(tmp_path / "d.npz")
        monkeypatch.setattr(os, "replace", stop)
        assert cli.call(["quantize", str(source), str(tmp_path / "out.onnx"), "--data", str(data)]) == 130
        assert "interrupted; nothing was written" in capsys.readouterr().err
        assert sorted(path.name for path in tmp_path.iterdir()) == ["d.npz", "in.onnx"]

    def test_a_full_disk_is_said_and_leaves_what_was_there(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import onnx_ir as ir

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        source, data, target = given(tmp_path / "in.onnx"), npz(tmp_path / "d.npz"), given(tmp_path / "out.onnx")
        before = target.read_bytes()
        monkeypatch.setattr(ir, "save", full)
        error = refused(capsys, source, target, "--data", data)
        assert error["what"] == "cannot write the output: No space left on device"
        assert target.read_bytes() == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["d.npz", "in.onnx", "out.onnx"]


def test_explain_fits_100_columns_and_names_every_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, data = given(tmp_path / "in.onnx"), npz(tmp_path / "d.npz")
    assert cli.call(["quantize", str(source), str(tmp_path / "out.onnx"), "--data", str(data), "--explain"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert max(map(len, said[1:])) <= 100  # the first is the path
    text = "\n".join(said)
    assert "int8: 2 MatMul; 0 of 2 layers stay wide" in text
    for name in ("node 0", "node 1", "node 2"):
        assert f"'{name}'" in text
