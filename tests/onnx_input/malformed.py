"""ONNX files that are broken, or ask for what no machine has; each is written into a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

HEAD = '<ir_version: 8, opset_import: ["" : 17]> '
BILLION = 1_000_000_000

Write = Callable[[Path], None]


def text(body: str, head: str = HEAD) -> Write:
    """A model in ONNX's text form."""
    return lambda folder: onnx.save(onnx.parser.parse_model(head + body), folder / "net.onnx")


def content(data: bytes) -> Write:
    """Bytes that are no model."""
    return lambda folder: _write(folder, data)


def _write(folder: Path, data: bytes) -> None:
    (folder / "net.onnx").write_bytes(data)


def _product() -> onnx.ModelProto:
    """y = x w, a model of one node with a weight of 4 x 3."""
    model = onnx.parser.parse_model(HEAD + "g (float[n,4] x) => (float[n,3] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 3), np.float32), "w"))
    return model


def truncated(folder: Path) -> None:
    """The first two thirds of a file."""
    data = _product().SerializeToString()
    _write(folder, data[: 2 * len(data) // 3])


def weight(change: Callable[[TensorProto], None]) -> Write:
    """A model whose weight is changed."""

    def write(folder: Path) -> None:
        model = _product()
        change(model.graph.initializer[0])
        (folder / "net.onnx").write_bytes(model.SerializeToString())

    return write


def external(location: str, length: int = 48, offset: int = 0, held: int | None = None) -> Write:
    """A model whose weight is at `location`, where `held` bytes are; None: there is no such file."""

    def write(folder: Path) -> None:
        model = _product()
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, "length": length, "offset": offset}.items():
            tensor.external_data.add(key=key, value=str(value))
        (folder / "net.onnx").write_bytes(model.SerializeToString())
        if held is not None:
            (folder / location).write_bytes(np.ones(held // 4, np.float32).tobytes())

    return write


def _set(tensor: TensorProto, **fields: object) -> None:
    for name, value in fields.items():
        if name == "dims":
            tensor.dims[:] = value  # type: ignore[assignment]
        else:
            setattr(tensor, name, value)


def node(op: str, inputs: list[str], **attributes: object) -> Write:
    """One node over an input of 2 x 3."""

    def write(folder: Path) -> None:
        made = helper.make_node(op, inputs, ["y"], "the node", **attributes)
        put = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
        out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        model = helper.make_model(
            helper.make_graph([made], "g", [put], [out]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        )
        (folder / "net.onnx").write_bytes(model.SerializeToString())

    return write


def recursive(folder: Path) -> None:
    """Two functions that call each other."""
    body = """g (float[2] x) => (float[2] y) { y = own.f(x) }
    <domain: "own", opset_import: ["" : 17, "own" : 1]> f (a) => (b) { b = own.h(a) }
    <domain: "own", opset_import: ["" : 17, "own" : 1]> h (a) => (b) { b = own.f(a) }"""
    text(body, '<ir_version: 8, opset_import: ["" : 17, "own" : 1]> ')(folder)


CYCLE = "g (float[2] x) => (float[2] y) { a = Add(x, y)  y = Relu(a) }"

MALFORMED: dict[str, tuple[str, Write]] = {
    "empty": ("the file is empty", content(b"")),
    "no protobuf": ("it is cut off, damaged or of another format", content(b"PK\x03\x04 this is a zip file" * 20)),
    "text": ("it is text", content(b"model: {layers: [1, 2, 3]}\n")),
    "truncated": ("it is cut off, damaged or of another format", truncated),
    "cycle": ("cycle", text(CYCLE)),
    "self loop": ("cycle", text("g (float[2] x) => (float[2] y) { y = Add(x, y) }")),
    "undefined input": ("node 'y' (Add) reads 'gone'", text("g (float[2] x) => (float[2] y) { y = Add(x, gone) }")),
    "undefined output": (
        "an output is 'z', which nothing in it makes",
        text("g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) }"),
    ),
    "outputs of one name": (
        "two outputs are called 'y'",
        text("g (float[2] x) => (float[2] y, float[2] y) { y = Relu(x) }"),
    ),
    "made twice": ("'y' is redeclared", text("g (float[2] x) => (float[2] y) { y = Relu(x)  y = Neg(x) }")),
    "no graph": ("it has no outputs", content(onnx.ModelProto(ir_version=8).SerializeToString())),
    "no opset": (
        "does not say which opset",
        text("g (float[2] x) => (float[2] y) { y = Relu(x) }", "<ir_version: 8> "),
    ),
    "opset 0": (
        "there is no opset 0",
        text("g (float[2] x) => (float[2] y) { y = Relu(x) }", '<ir_version: 8, opset_import: ["" : 0]> '),
    ),
    "opset 999": (
        "opset 999 is newer",
        text("g (float[2] x) => (float[2] y) { y = Relu(x) }", '<ir_version: 8, opset_import: ["" : 999]> '),
    ),
    "wrong rank": (
        "Invalid attribute perm",
        text("g (float[2,3] x) => (float[3,2] y) { y = Transpose<perm = [2, 1, 0]>(x) }"),
    ),
    "wrong sizes": (
        "Incompatible dimensions",
        text("g (float[2,3] x, float[2,3] z) => (float[2,3] y) { y = MatMul(x, z) }"),
    ),
    "wrong type": (
        "inconsistent type tensor(int64)",
        text("g (float[2] x, int64[2] z) => (float[2] y) { y = Add(x, z) }"),
    ),
    "unknown op": ("ONNX has no op 'Frobnicate'", text("g (float[2] x) => (float[2] y) { y = Frobnicate(x) }")),
    "too few inputs": ("has input size 1", node("Add", ["x"])),
    "missing attribute": ("Value of attribute to not specified", node("Cast", ["x"])),
    "If without branches": ("then_branch", text("g (bool c) => (float[2] y) { y = If(c) }")),
    "recursive functions": ("own::f -> own::h -> own::f", recursive),
    "dims of a billion billion": ("needs 4000000000000 bytes", weight(lambda t: _set(t, dims=[1_000_000, 1_000_000]))),
    "dims beyond 64 bits": ("which no tensor has", weight(lambda t: _set(t, dims=[1 << 40, 1 << 40]))),
    "negative dims": ("has the sizes [-4, 3]", weight(lambda t: _set(t, dims=[-4, 3]))),
    "dims against bytes": ("needs 64 bytes for [4, 4] of float, and has 48", weight(lambda t: _set(t, dims=[4, 4]))),
    "dtype against bytes": (
        "needs 96 bytes for [4, 3] of double, and has 48",
        weight(lambda t: _set(t, data_type=TensorProto.DOUBLE)),
    ),
    "dtype unknown": ("of dtype 99", weight(lambda t: _set(t, data_type=99))),
    "no data": ("and no data", weight(lambda t: t.ClearField("raw_data"))),
    "external: missing": ("no such file beside the model", external("w.bin")),
    "external: outside the folder": ("which is no file beside the model", external("../../../../../../etc/passwd")),
    "external: absolute": ("'/etc/passwd', which is no file beside", external("/etc/passwd")),
    "external: past the end": ("needs 48 bytes for [4, 3] of float, and has 40", external("w.bin", held=40)),
    "external: offset past the end": ("and has 0", external("w.bin", offset=1 << 40, held=48)),
    "external: negative offset": ("no number of bytes", external("w.bin", offset=-8, held=48)),
    "external: length against dims": ("and has 8", external("w.bin", length=8, held=48)),
    "external: a folder": ("which is no file beside the model", external(".")),
    "a billion ones": (
        "a tensor of 1,000,000,000 elements",
        text(
            f"g (float[2] x) => (float[m] y) <int64[1] n = {{{BILLION}}}> "
            "{ a = ConstantOfShape(n)  y = Concat<axis = 0>(a, x) }"
        ),
    ),
    "a billion, expanded": (
        "a tensor of 1,000,000,000 elements",
        text(
            f"g (float[2] x) => (float[m] y) <int64[1] n = {{{BILLION}}}, float o = {{1}}> "
            "{ a = Expand(o, n)  b = Neg(a)  y = Concat<axis = 0>(b, x) }"
        ),
    ),
    "a trillion ones": (
        "a tensor of 1,000,000,000,000 elements",
        text(
            "g (float[2] x) => (float[m] y) <int64[2] n = {1000000, 1000000}, int64[1] f = {-1}> "
            "{ a = ConstantOfShape(n)  b = Reshape(a, f)  y = Concat<axis = 0>(b, x) }"
        ),
    ),
    "a billion counted": (
        "a tensor of 1,000,000,000 elements",
        text(
            f"g (int64[2] x) => (int64[m] y) <int64 o = {{0}}, int64 s = {{1}}, int64 n = {{{BILLION}}}> "
            "{ a = Range(o, n, s)  y = Concat<axis = 0>(a, x) }"
        ),
    ),
    "a billion, tiled": (
        "a tensor of 1,000,000,000 elements",
        text(
            f"g (float[2] x) => (float[m] y) <int64[1] n = {{{BILLION}}}, float[1] o = {{1}}> "
            "{ a = Tile(o, n)  y = Concat<axis = 0>(a, x) }"
        ),
    ),
    "a billion, padded": (
        "a tensor of 1,000,000,001 elements",
        text(
            f"g (float[2] x) => (float[m] y) <int64[2] n = {{0, {BILLION}}}, float[1] o = {{1}}> "
            "{ a = Pad(o, n)  y = Concat<axis = 0>(a, x) }"
        ),
    ),
}
"""By name: what is said of the file, and how it is written. Those of a billion elements are valid, but no engine."""
