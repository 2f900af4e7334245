"""`aot optimize`: equal results under the same names, whole files or none, and an answer to every bad file."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from aot.cli import _main as cli
from aot.config import PRECISIONS
from aot.graph import Pass
from aot.passes import PASSES

LAYER = """
    <ir_version: 8, opset_import: ["" : OPSET, "org.example" : 1]>
    net (float[batch,8] x, int64[batch] kind) => (float[batch,8] y, int64[batch] same)
    <float root = {1.4142135}, float one = {1}, float half = {0.5}>
    {
        h = MatMul(x, w)  a = Div(h, root)  b = Erf(a)  c = Add(b, one)  d = Mul(h, c)  y = Mul(d, half)
        t = Identity(kind)  same = Identity(t)
    }
"""


def with_weight(text: str, *shape: int) -> onnx.ModelProto:
    """The model of a text, its weight `w` given."""
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model


def layer(opset: int = 20) -> onnx.ModelProto:
    model = with_weight(LAYER.replace("OPSET", str(opset)), 8, 8)
    model.producer_name = "somebody"
    model.metadata_props.add(key="classes", value="cat,dog")
    return model


def given(path: Path, model: onnx.ModelProto | None = None) -> Path:
    onnx.save(layer() if model is None else model, path)
    return path


def run(path: Path, **inputs: Any) -> list[Any]:
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, inputs)


def inputs() -> dict[str, Any]:
    return {"x": np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32), "kind": np.arange(3)}


def ops(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, str]:
    """What the command says of a user's error, nothing written."""
    assert cli.call(["optimize", *map(str, arguments), "--json"]) == 2
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    error: dict[str, str] = json.loads(said.out)["error"]
    assert error["fix"]
    return error


def test_fewer_nodes_give_the_same_numbers_under_the_same_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = given(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    assert cli.call(["optimize", str(source), str(target), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    before, after = onnx.load(source), onnx.load(target)
    assert found["nodes"] == {"before": len(before.graph.node), "after": len(after.graph.node)}
    assert ops(target) == ["MatMul", "Gelu", "Identity"]
    for side in ("input", "output"):
        was, now = ([v.SerializeToString() for v in getattr(m.graph, side)] for m in (before, after))
        assert now == was
    assert (after.producer_name, after.metadata_props) == ("somebody", before.metadata_props)
    for got, expected in zip(run(target, **inputs()), run(source, **inputs()), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert found["compared"] == "sites"
    assert 0 < found["relative"] < 1e-5
    assert found["noise"] == 0
    assert 0 < found["max_abs"] < 1e-5
    assert 0 < found["relative_l2"] < 1e-5
    assert found["peak_bytes"] > 1 << 20
    gelu = next(one for one in found["passes"] if "gelu" in one["name"])
    assert (gelu["sites"], gelu["checked"]) == (1, 1)


def test_explain_fits_100_columns_and_says_what_was_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = layer()
    model.graph.node[3].name, model.graph.node[2].name = "the addition", "the only erf"
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.float32(1.5), "one"))
    source = given(tmp_path / "in.onnx", model)
    assert cli.call(["optimize", str(source), str(tmp_path / "out.onnx"), "--explain"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines()[1:])) <= 100  # the first is the path
    changed, left = said.index("largest difference, of magnitude"), said.index("the only erf")
    assert changed < left  # nothing stands between but what else was left
    assert said.splitlines()[-1].endswith("passes found nothing to change; --json names them")


def test_that_nothing_was_compared_is_not_said_as_a_difference_of_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """<ir_version: 8, opset_import: ["" : 20, "org.example" : 1]>
    net (float[n,4] x) => (float[n,4] y) { a = org.example.Odd(x)  b = Identity(a)  y = Neg(b) }"""
    source, target = given(tmp_path / "in.onnx", onnx.parser.parse_model(text)), tmp_path / "out.onnx"
    assert cli.call(["optimize", str(source), str(target)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "compared: nothing, so that no number vouches for the result why: Fatal error: org.example:Odd" in said
    assert "largest difference" not in said
    assert cli.call(["optimize", str(target), str(target)]) == 0
    assert "compared: nothing, since no pass changed anything" in capsys.readouterr().out
    assert cli.call(["optimize", str(source), str(target), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["compared"], found["sites_compared"], found["relative"]) == ("nothing", 0, None)


def test_inputs_and_outputs_without_a_rank_stay_so(tmp_path: Path) -> None:
    """onnx's checker asks for one; onnxruntime does not, and there are such files."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 20]>
    net (float[n] x) => (float[n] y) { a = Relu(x)  b = Identity(a)  y = Neg(b) }""")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    source, target = given(tmp_path / "in.onnx", model), tmp_path / "out.onnx"
    assert cli.call(["optimize", str(source), str(target)]) == 0
    assert ops(target) == ["Relu", "Neg"]
    after = onnx.load(target).graph
    assert not any(value.type.tensor_type.HasField("shape") for value in (*after.input, *after.output))
    x = np.array([[-1, 2, 3]], np.float32)
    np.testing.assert_array_equal(run(target, x=x)[0], [[0, -2, -3]])
    assert sorted(tmp_path.iterdir()) == [source, target]


def test_an_older_opset_is_raised_where_that_is_possible(tmp_path: Path) -> None:
    source, target = given(tmp_path / "in.onnx", layer(opset=13)), tmp_path / "out.onnx"
    assert cli.call(["optimize", str(source), str(target)]) == 0
    assert "Gelu" in ops(target)
    np.testing.assert_allclose(run(target, **inputs())[0], run(source, **inputs())[0], rtol=1e-5, atol=1e-6)


def test_one_that_cannot_be_raised_stays_and_is_cleaned(tmp_path: Path) -> None:
    """Upsample in its form of opset 9 with linear interpolation of three axes has no form in opset 20."""
    text = """<ir_version: 8, opset_import: ["" : 9]>
    net (float[1,2,2,2] x) => (float[1,4,4,4] y) <float[4] scales = {1, 2, 2, 2}>
    { a = Identity(x)  b = Upsample<mode = "linear">(a, scales)  y = Identity(b) }"""
    source, target = given(tmp_path / "in.onnx", onnx.parser.parse_model(text)), tmp_path / "out.onnx"
    assert cli.call(["optimize", str(source), str(target)]) == 0
    after = onnx.load(target)
    assert "Identity" not in [node.op_type for node in after.graph.node]
    onnx.checker.check_model(after)


FOREIGN = """
    <ir_version: 8, opset_import: ["" : 20, "org.example" : 1]>
    net (float[n,4] x, bool c) => (float[n,4] y)
    {
        a = Identity(x)
        b = org.example.Twice(a)
        d = org.example.Unknown<level = 3>(b)
        y = If (c) <then_branch = t () => (float[n,4] p) { e = Identity(d)  p = Neg(e) },
                    else_branch = f () => (float[n,4] q) { q = Abs(d) }>
    }
    <domain: "org.example", opset_import: ["" : 20]>
    Twice (x) => (y) { y = Add(x, x) }
"""


def test_foreign_ops_functions_and_branches_are_left_as_they_are(tmp_path: Path) -> None:
    source, target = given(tmp_path / "in.onnx", onnx.parser.parse_model(FOREIGN)), tmp_path / "out.onnx"
    assert cli.call(["optimize", str(source), str(target)]) == 0
    after = onnx.load(target)
    assert ops(target) == ["Twice", "Unknown", "If"]
    assert [function.name for function in after.functions] == ["Twice"]
    assert after.graph.node[1].attribute[0].i == 3


@pytest.mark.parametrize("opset", [13, 20])
def test_dims_without_a_name_stay_without_one(opset: int, tmp_path: Path) -> None:
    """Of inputs and outputs, as in the file, documentation and denotations included; whatever could be inferred."""
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
    net (float[n,4] x) => (float[n,4] y, float[n,4] z, float[n,n] w)
    {{ a = Identity(x)  b = Neg(a)  y = Neg(b)  z = Neg(a)  t = Transpose<perm = [1, 0]>(z)  w = MatMul(z, t) }}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].doc_string = "the result"
    model.graph.output[0].metadata_props.add(key="unit", value="m")
    for value in (model.graph.input[0], *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        dims[0].Clear()
        dims[0].denotation = "DATA_BATCH"
    model.graph.output[1].type.tensor_type.shape.dim[1].Clear()
    source, target = given(tmp_path / "in.onnx", model), tmp_path / "out.onnx"
    assert cli.call(["optimize", str(source), str(target)]) == 0
    after = onnx.load(target)
    for side in ("input", "output"):
        was, now = ([v.SerializeToString(deterministic=True) for v in getattr(m.graph, side)] for m in (model, after))
        assert now == was


def test_sizes_of_an_example_in_the_file_do_not_mislead(tmp_path: Path) -> None:
    """The inner value claims a batch of 1: what follows from it would be wrong at every other size."""
    text = """<ir_version: 8, opset_import: ["" : 20]>
    net (float[batch,4] x) => (float[n] y) <int64[1] flat = {-1}>
    { a = Relu(x)  s = Shape(a)  e = Expand(x, s)  y = Reshape(e, flat) }"""
    model = onnx.parser.parse_model(text)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [1, 4]))
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("s", onnx.TensorProto.INT64, [2]))
    source, target = given(tmp_path / "in.onnx", model), tmp_path / "out.onnx"
    assert cli.call(["optimize", str(source), str(target)]) == 0
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(run(target, x=x)[0], x.reshape(-1))


class TestUsersErrors:
    def test_no_such_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        error = refused(capsys, tmp_path / "in.onnx", tmp_path / "out.onnx")
        assert (error["what"], error["fix"]) == (f"no such file: {tmp_path / 'in.onnx'}", "check the path")
        near = given(tmp_path / "model.onnx")
        assert refused(capsys, tmp_path / "modle.onnx", tmp_path / "out.onnx")["fix"] == f"did you mean '{near}'?"
        assert refused(capsys, tmp_path / "no" / "in.onnx", near)["what"] == f"no such folder: {tmp_path / 'no'}"
        assert refused(capsys, "x" * 5000, near)["what"].startswith("no such file")

    @pytest.mark.parametrize(
        ("name", "what"),
        [("model.py", "declares a model"), ("model.pt2", "exported program"), ("model.pth", "holds weights")],
    )
    def test_a_model_of_another_form(
        self, name: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / name).touch()
        error = refused(capsys, tmp_path / name, tmp_path / "out.onnx")
        assert what in error["what"]
        assert "aot build takes model.py" in error["fix"]

    def test_an_artifact(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "model.aot").mkdir()
        assert "is an artifact" in refused(capsys, tmp_path / "model.aot", tmp_path / "out.onnx")["what"]

    @pytest.mark.parametrize(
        ("content", "what"),
        [
            (b"not a protobuf at all\n", "it is text"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "it is a pointer of Git LFS, not the file"),
            (b"", "the file is empty"),
            (b"\x00" * 100, "it is cut off, damaged or of another format"),
        ],
    )
    def test_no_model(self, content: bytes, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "in.onnx").write_bytes(content)
        said = refused(capsys, tmp_path / "in.onnx", tmp_path / "out.onnx")["what"]
        assert said.startswith(f"not a whole ONNX model: {what}")

    def test_half_a_model(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = given(tmp_path / "in.onnx")
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        assert "it is cut off" in refused(capsys, path, tmp_path / "out.onnx")["what"]

    def test_a_cycle(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        text = "<ir_version: 8, opset_import: ['' : 20]> g (float[2] x) => (float[2] y) { a = Relu(x)  y = Neg(a) }"
        model = onnx.parser.parse_model(text.replace("'", '"'))
        model.graph.node[0].input[0] = "y"
        assert "cycle" in refused(capsys, given(tmp_path / "in.onnx", model), tmp_path / "out.onnx")["what"]

    def test_a_value_that_nothing_makes(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        model = layer()
        model.graph.node[0].input[1] = "lost"
        error = refused(capsys, given(tmp_path / "in.onnx", model), tmp_path / "out.onnx")
        assert "'lost', which nothing in it makes" in error["what"]

    def test_a_folder_that_does_not_exist(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert "mkdir" in refused(capsys, given(tmp_path / "in.onnx"), tmp_path / "no" / "out.onnx")["fix"]

    def test_an_output_that_is_no_regular_file(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Before any work: a rename would put a file in the place of a device or a pipe."""
        source, fifo, listening = given(tmp_path / "in.onnx"), tmp_path / "fifo", socket.socket(socket.AF_UNIX)
        os.mkfifo(fifo)
        (tmp_path / "link").symlink_to("fifo")
        monkeypatch.chdir(tmp_path)
        listening.bind("socket")
        with listening:
            monkeypatch.setattr("aot.optimize_file._load", lambda *_: pytest.fail("it was read"))
            for place in (fifo, tmp_path / "link", "socket", "/dev/null"):
                assert refused(capsys, source, place)["what"] == "the output is not a regular file"
            assert refused(capsys, source, tmp_path)["what"] == "the output is a folder, not a regular file"
        assert fifo.is_fifo()

    @pytest.mark.parametrize("name", ["model.py", "notes", "data.npz"])
    def test_an_output_that_is_something_else(
        self, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / name).write_bytes(b"PK mine")
        error = refused(capsys, given(tmp_path / "in.onnx"), tmp_path / name)
        assert (error["what"], error["where"]) == ("will not overwrite what is not an ONNX file", str(tmp_path / name))
        assert (tmp_path / name).read_bytes() == b"PK mine"

    @pytest.mark.parametrize("name", ["before.onnx", "model.bin", "new"])
    def test_an_output_of_any_name_is_replaced_by_the_next(self, name: str, tmp_path: Path) -> None:
        source = given(tmp_path / "in.onnx")
        (tmp_path / name).write_bytes(b"")
        for _ in range(2):
            assert cli.call(["optimize", str(source), str(tmp_path / name)]) == 0

    def test_an_input_that_is_no_regular_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        os.mkfifo(tmp_path / "in.onnx")
        assert "not a regular file" in refused(capsys, tmp_path / "in.onnx", tmp_path / "out.onnx")["what"]
        assert "is a folder" in refused(capsys, tmp_path, tmp_path / "out.onnx")["what"]

    def test_a_mistyped_pass(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        error = refused(capsys, given(tmp_path / "in.onnx"), tmp_path / "out.onnx", "--without-pass", "drop_ded")
        assert "drop_dead" in error["fix"]

    @pytest.mark.parametrize("limit", ["16MiB", "-1", "1.5", ""])
    def test_a_limit_that_is_no_number_of_bytes(
        self, limit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        error = refused(capsys, given(tmp_path / "in.onnx"), tmp_path / "out.onnx", "--fold-limit", limit)
        assert error["what"] == f"--fold-limit {limit}: expected a whole number of bytes, 0 or more"

    def test_a_wrong_name_of_a_pass_is_answered_with_all(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        error = refused(capsys, given(tmp_path / "in.onnx"), tmp_path / "out.onnx", "--without-pass", "all")
        listed = error["fix"].partition("there are: ")[2].split(", ")
        assert set(listed) == {*(one.name for one in PASSES), "attention_operator", "group_norm"}

    def test_a_target_without_its_backend(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        error = refused(capsys, given(tmp_path / "in.onnx"), tmp_path / "out.onnx", "--target", "sm89")
        assert "--backend" in error["fix"]


def test_a_wrong_pass_is_named_nothing_is_written_and_without_it_all_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from aot.passes._edit import nodes, replace

    def broken(model: Any, skip: Any) -> int:
        found = [replace(node, "Gelu", node.inputs, {"approximate": "tanh"}) for node in nodes(model, "Relu")]
        return len(found)

    import aot.passes

    monkeypatch.setattr(aot.passes, "PASSES", (*PASSES, Pass("broken", broken, "")))
    text = """<ir_version: 8, opset_import: ["" : 20]> g (float[n,4] x) => (float[n,4] y) { a = Relu(x)  y = Neg(a) }"""
    source, target = given(tmp_path / "in.onnx", onnx.parser.parse_model(text)), tmp_path / "out.onnx"
    for options in ([], ["--verify-passes"]):
        error = refused(capsys, source, target, *options)
        assert "pass 'broken' changes what the graph computes" in error["what"]
        assert "(Relu)" in error["where"]
        assert not target.exists()
    assert cli.call(["optimize", str(source), str(target), "--without-pass", "broken"]) == 0
    assert ops(target) == ["Relu", "Neg"]


def test_help_names_every_precision(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["optimize", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    about = said.partition("--precision NAME ")[2].partition("--backend")[0]
    assert all(name in about for name in PRECISIONS)
    assert "Both may be the same file" in said
    assert "OUT.onnx.data" in said


def test_folding_keeps_to_its_limit(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 20]>
    g (float[1000] x) => (float[1000] y) <int64[1] n = {1000}> { z = ConstantOfShape(n)  y = Add(x, z) }"""
    source, target = given(tmp_path / "in.onnx", onnx.parser.parse_model(text)), tmp_path / "out.onnx"
    assert cli.call(["optimize", str(source), str(target), "--fold-limit", "100"]) == 0
    assert target.stat().st_size < source.stat().st_size + 100
    np.testing.assert_array_equal(run(target, x=np.ones(1000, np.float32))[0], np.ones(1000))
