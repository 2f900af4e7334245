"""A file at which a parser crashes, hangs or eats memory ends in an error that names it, and in nothing else."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from aot.errors import GraphError
from aot.onnx_input import vetting
from aot.onnx_input.loading import load

APART = vetting._apart
"""The process of its own; in other tests a file is examined in theirs."""
HEAD = '<ir_version: 8, opset_import: ["" : 17]> '
Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vetting, "_apart", APART)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / "net.onnx")
        return tmp_path / "net.onnx"

    return written


def instead(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the process do something else where it would parse, within its limits."""
    start = "from aot.onnx_input import vetting\ndef examine(path, what):\n    import os, resource, time, json\n"
    monkeypatch.setattr(vetting, "_MAIN", f"{start}    {code}\nvetting.examine = examine\nvetting.main()")


@pytest.mark.parametrize("what", ["read", "open"])
def test_a_model_passes_and_is_seen_once(write: Write, what: vetting.What, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("g (float[n] x) => (float[n] y) { y = Relu(x) }")
    vetting.vet(path, what)
    monkeypatch.setattr(vetting, "_apart", None)
    vetting.vet(path, what)


def test_what_is_wrong_with_a_file_is_said_as_it_would_be_here(write: Write) -> None:
    path = write("g (float[2] x) => (float[2] y) { y = Add(x, gone) }")
    with pytest.raises(GraphError, match="reads 'gone', which nothing in it makes") as caught:
        load(path)
    assert caught.value.where == str(path)
    assert "a part of it was cut off" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("os.kill(os.getpid(), 11)", "the parser came to its end: Segmentation fault"),
        ("os.abort()", "the parser came to its end: Aborted"),
        ("while True: pass", "it takes more than 1 seconds"),
        ("time.sleep(30)", "it takes more than 2 seconds"),
        ("bytearray(8 << 30)", "it takes more than 4.0 GiB of memory"),
        ("raise IndexError('a bug')", "the parser came to its end: IndexError: a bug"),
        ("open('x', 'wb').write(bytes(1 << 20))", "File too large"),
        ("[os.dup(0) for _ in range(100)]", "Too many open files"),
        ("print('[]'); print('{')", "the parser came to its end"),
    ],
)
def test_how_a_parser_ends_is_told(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, says: str
) -> None:
    instead(monkeypatch, code)
    monkeypatch.chdir(tmp_path)
    path = write("g (float[n] x) => (float[n] y) { y = Relu(x) }")
    with pytest.raises(GraphError, match="the file cannot be used: as onnx reads it") as caught:
        vetting.vet(path, limits=vetting.Limits(4 << 30, 1))
    assert says in caught.value.what
    assert caught.value.where == str(path)
    assert not vetting._seen & {state for state in vetting._seen if str(path) in state}  # it would be tried again


def test_the_limits_hold_in_the_process(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_CORE")
    said = "{name: resource.getrlimit(getattr(resource, name)) for name in " + repr(names) + "}"
    instead(monkeypatch, f"print(json.dumps(dict(what=json.dumps({said}), where='', fix='')))")
    with pytest.raises(GraphError) as caught:
        vetting.vet(write("g (float[n] x) => (float[n] y) { y = Relu(x) }"), limits=vetting.Limits(5 << 30, 7))
    found = json.loads(caught.value.what)
    assert {name: soft for name, (soft, _) in found.items()} == dict(
        zip(names, (5 << 30, 7, 1 << 16, 64, 0), strict=True)
    )
    assert resource.getrlimit(resource.RLIMIT_AS)[0] != 5 << 30  # ours stay


def test_limits_grow_with_the_file(write: Write) -> None:
    path = write("g (float[n] x) => (float[n] y) { y = Relu(x) }")
    (path.parent / "weights").write_bytes(b"x" * 1000)
    size = path.stat().st_size
    assert vetting.Limits.of(path, "read") == vetting.Limits((4 << 30) + 6 * size, 60)
    assert vetting.Limits.of(path, "open") == vetting.Limits((4 << 30) + 6 * (size + 1000), 60)


def outside(place: str) -> Callable[[TensorProto], None]:
    """Put a tensor's content into a file."""

    def change(tensor: TensorProto) -> None:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=place)

    return change


@pytest.mark.parametrize("place", ["../secret", "/etc/hostname", "a/../../secret", "link"])
@pytest.mark.parametrize("held_by", ["a weight", "a Constant", "a Constant in a branch", "a Constant in a function"])
def test_no_tensor_is_read_from_outside_the_folder(tmp_path: Path, place: str, held_by: str) -> None:
    folder = tmp_path / "model"
    (folder / "a").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"12345678")
    (folder / "link").symlink_to("../secret")
    constant = "c = Constant<value = float[2] {1, 2}>()"
    bodies = {
        "a weight": "g (float[2] x) => (float[2] y) <float[2] c = {1, 2}> { y = Add(x, c) }",
        "a Constant": f"g (float[2] x) => (float[2] y) {{ {constant} y = Add(x, c) }}",
        "a Constant in a branch": "g (float[2] x, bool b) => (float[2] y) { y = If<then_branch = t () => (float[2] c) "
        f"{{ {constant} }}, else_branch = e () => (float[2] d) {{ d = Relu(x) }}>(b) }}",
        "a Constant in a function": 'g (float[2] x) => (float[2] y) { y = own.f(x) } <domain: "own", opset_import: '
        f'["" : 17]> f (a) => (b) {{ {constant} b = Add(a, c) }}',
    }
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17, "own" : 1]> ' + bodies[held_by])
    tensors = [*model.graph.initializer]
    nodes = [*model.graph.node, *(node for one in model.functions for node in one.node)]
    nodes += [inner for node in nodes for attribute in node.attribute for inner in attribute.g.node]
    tensors += [attribute.t for node in nodes for attribute in node.attribute if attribute.name == "value"]
    assert len(tensors) == 1
    tensors[0].CopyFrom(numpy_helper.from_array(np.ones(2, np.float32), "c"))
    outside(place)(tensors[0])
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(GraphError, match="beside the model"):
        vetting.examine(folder / "net.onnx", "read")


def test_a_sparse_weight_of_a_few_bytes_is_no_gigabytes(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(HEAD + "g (float[2] x) => (float[2] y) { y = Relu(x) }")
    values, indices = onnx.helper.make_tensor("w", 1, [1], [1.0]), onnx.helper.make_tensor("i", 7, [1], [3])
    model.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [1 << 20, 1 << 20]))
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(GraphError, match="dense it has 1,099,511,627,776 elements"):
        vetting.examine(tmp_path / "net.onnx", "read")


def test_branches_in_branches_without_end(tmp_path: Path) -> None:
    """Deeper than protobuf goes; and as deep as it goes."""
    for depth, says in ((300, "it is cut off, damaged or of another format"), (20, None)):
        graph = onnx.helper.make_graph([], "g", [], [onnx.helper.make_tensor_value_info("y", 1, [1])])
        graph.node.add(op_type="Constant", output=["y"]).attribute.append(
            onnx.helper.make_attribute("value_float", 1.0)
        )
        for _ in range(depth):
            outer = onnx.helper.make_graph([], "g", [], [onnx.helper.make_tensor_value_info("y", 1, [1])])
            node = outer.node.add(op_type="If", input=["c"], output=["y"])
            for name in ("then_branch", "else_branch"):
                put = node.attribute.add(name=name, type=onnx.AttributeProto.GRAPH)
                if name == "then_branch" or depth > 100:
                    put.g.CopyFrom(graph) if name == "then_branch" else put.g.CopyFrom(onnx.GraphProto(name="e"))
            graph = outer
        graph.input.append(onnx.helper.make_tensor_value_info("c", TensorProto.BOOL, []))
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
        if says:
            with pytest.raises(GraphError, match=says):
                vetting.examine(tmp_path / "net.onnx", "read")
        else:
            vetting.examine(tmp_path / "net.onnx", "read")
