"""What reads something that others wrote, and cases for it: each ends well or in an AotError, whatever it is given."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import yaml
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from aot import config, plan, runners
from aot.errors import AotError
from aot.packing import oci, tar
from aot.packing.unpack import unpack
from aot.packing.verify import verify
from aot.plugins import header, tuned
from tests.conftest import ROOT
from tests.fuzz import artifact, edits
from tests.fuzz.examiner import Examiner
from tests.tiny import SPEC

Read = Callable[[Any], None]


@dataclass(frozen=True)
class Reader:
    """open: what to give and what it is given to, made once in an empty folder. weight: how many of all cases, in %."""

    open: Callable[[Path], tuple[st.SearchStrategy[Any], Read]]
    weight: int


def _files(folder: str, ending: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / folder).glob(f"*{ending}"))]


def _text_or_data(folder: str) -> st.SearchStrategy[bytes]:
    """YAML files with edits in the text, or in what it means, written as JSON, which is YAML."""
    texts = _files(folder, ".yaml")
    known = [yaml.safe_load(text) for text in texts] + [_PROFILE, _RECIPE]
    return st.one_of(edits.text(texts), edits.data(known).map(lambda found: json.dumps(found).encode()))


_PROFILE = {
    "profiles": [{"batch": [1, 2, 4]}, {"batch": [2, 2, 2]}], "backend": "tensorrt", "targets": ["sm89"],
    "engine": {"optimization_level": 3, "workspace_mib": 64, "tf32": False}, "budget": {"cosine": 0.99, "max_abs": 1.0},
    "verify": {"sizes": [{"batch": 3}], "flop_limit": 1e9},
}  # fmt: skip
_RECIPE = {
    "extends": "int8", "precision": "int8", "compute": "fp16", "calibrator": "entropy", "percentile": 99.9,
    "weights": {"smooth": 0.5, "rounding": "adaptive", "block": 32}, "placement": {"ops": ["MatMul"], "keep": ["a.*"]},
    "keep": ["n"], "keep_fp32": ["Exp"], "budget": {"relative_l2": 0.1}, "strict": False, "gelu": "tanh",
}  # fmt: skip


def _recipe(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
    path = folder / "mine.yaml"

    def read(case: bytes) -> None:
        path.write_bytes(case)
        config.load(config.Recipe, path)

    return _text_or_data("calib"), read


def _profile(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
    path = folder / "mine.yaml"

    def read(case: bytes) -> None:
        path.write_bytes(case)
        plan._profiles(config.load(config.ProfileFile, path), SPEC, path)

    return _text_or_data("profiles"), read


def _manifest(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
    """The manifest's data, its digest made to fit."""
    place = folder / "x.aot"
    data = artifact.write(place, folder / "store")

    def read(case: Any) -> None:
        artifact.seal(place, case)
        artifact.read_all(place)

    return edits.data([data]), read


def _manifest_text(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
    """Its text; without a digest too, as the first version had it: nothing shows then that it was changed."""
    place = folder / "x.aot"
    data = artifact.write(place, folder / "store")
    old = {name: value for name, value in {**data, "schema_version": 1}.items() if name != "digest"}

    def read(case: bytes) -> None:
        (place / "manifest.json").write_bytes(case)
        artifact.read_all(place)

    return edits.text([json.dumps(old).encode(), (place / "manifest.json").read_bytes()]), read


def _finished(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
    """A manifest or a part of it, from which a build goes on."""
    place = folder / "x.aot"
    data = artifact.write(place, folder / "store", candidates=False)
    whole = {name: (place / name).read_bytes() for name in _READ_ON}

    def read(case: tuple[str, Any]) -> None:
        name, content = case
        with_it = content if name not in whole else {**data, "files": dict(data["files"])}
        if name in whole:
            artifact.put(place, with_it, name, content)
        artifact.seal(place, with_it)
        try:
            artifact.finish(place)
        finally:
            if name in whole:
                (place / name).write_bytes(whole[name])

    found = {"manifest.json": data} | {name: json.loads(content) for name, content in whole.items()}
    return st.one_of([st.tuples(st.just(name), edits.data([content])) for name, content in found.items()]), read


_READ_ON = ("report.json", "engines/sm89.json", "checked/report.json", "search/layers.json", "references/cases.json")
_PARTS = ("references/cases.json", "ranges/ranges.json", "kernels/sm89/kernels.json", "engines/cpu.json",
          "references/b1.in.npz", "references/b1.out.npz")  # fmt: skip


def _part(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
    """A part of an artifact, its digest made to fit: edits in the bytes, and for JSON in the data."""
    place = folder / "x.aot"
    data = artifact.write(place, folder / "store")
    whole = {name: (place / name).read_bytes() for name in _PARTS}

    def read(case: tuple[str, Any]) -> None:
        name, content = case
        with_it = {**data, "files": dict(data["files"])}
        artifact.put(place, with_it, name, content)
        artifact.seal(place, with_it)
        try:
            artifact.read_all(place)
        finally:
            (place / name).write_bytes(whole[name])

    kinds = [st.tuples(st.just(name), edits.text([content])) for name, content in whole.items()]
    for name, content in whole.items():
        if name.endswith(".json"):
            kinds.append(st.tuples(st.just(name), edits.data([json.loads(content)])))
    return st.one_of(kinds), read


def _lock(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
    """A lock that a build is held against."""
    place, path = folder / "x.aot", folder / "mine.lock"
    artifact.write(place, folder / "store", candidates=False)
    build = ("build", str(place), "--backend", "onnxruntime", "--target", "cpu", "-o", str(folder / "y.aot"), "--lock")
    artifact.command(*build, str(path))
    whole = path.read_bytes()

    def read(case: Any) -> None:
        path.write_bytes(case if isinstance(case, bytes) else json.dumps(case).encode())
        artifact.command(*build, str(path), "--locked")

    return st.one_of(edits.text([whole]), edits.data([json.loads(whole)])), read


def _tar(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
    place, path = folder / "x.aot", folder / "x.tar"
    artifact.write(place, folder / "store", candidates=False)
    tar.write(place, path)

    def read(case: bytes) -> None:
        path.write_bytes(case)
        _unpacked(path, folder / "y.aot")

    return edits.text([path.read_bytes()]), read


def _layout(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
    """The documents of an OCI image layout, their digests made to fit."""
    place, to = folder / "x.aot", folder / "layout"
    artifact.write(place, folder / "store", candidates=False)
    oci.write(place, to)
    index = json.loads((to / "index.json").read_bytes())
    image = json.loads(_blob(to, index["manifests"][0]).read_bytes())
    config = json.loads(_blob(to, image["config"]).read_bytes())

    def read(case: tuple[str, Any]) -> None:
        name, content = case
        held = {"index": index, "image": image, "config": config, name: content}
        if name == "config":
            held["image"] = {**image, "config": _put(to, image["config"], content)}
        if name != "index":
            held["index"] = {**index, "manifests": [_put(to, index["manifests"][0], held["image"])]}
        (to / "index.json").write_text(json.dumps(held["index"]))
        _unpacked(to, folder / "y.aot")

    found = {"index": index, "image": image, "config": config}
    return st.one_of([st.tuples(st.just(name), edits.data([content])) for name, content in found.items()]), read


def _blob(layout: Path, descriptor: Any) -> Path:
    return layout / "blobs" / str(descriptor["digest"]).replace(":", "/")


def _put(layout: Path, descriptor: Any, content: Any) -> Any:
    """Write a document as a blob; the descriptor that says so."""
    stored = json.dumps(content).encode()
    made = {**descriptor, "digest": f"sha256:{hashlib.sha256(stored).hexdigest()}", "size": len(stored)}
    _blob(layout, made).write_bytes(stored)
    return made


def _unpacked(source: Path, to: Path) -> None:
    """Whatever comes out of it is whole, and `verify` says the same of it."""
    shutil.rmtree(to, ignore_errors=True)
    found = verify(str(source))
    try:
        unpack(str(source), to)
    except AotError:
        assert found.problems
        assert not to.exists()
        raise
    assert not found.problems
    assert not verify(str(to)).problems


def _plugin(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
    def read(case: tuple[str, bytes]) -> None:
        path = folder / case[0]
        path.write_bytes(case[1])
        header.read(path)

    files = sorted((ROOT / "plugins").glob("*.py"))
    return st.one_of([st.tuples(st.just(one.name), edits.text([one.read_bytes()])) for one in files]), read


def _tuned(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
    path = folder / "swiglu.json"
    texts = _files("plugins/tuned", ".json")

    def read(case: Any) -> None:
        path.write_bytes(case if isinstance(case, bytes) else json.dumps(case).encode())
        tuned.read(path)

    return st.one_of(edits.text(texts), edits.data([json.loads(text) for text in texts])), read


def _arrays(folder: Path) -> tuple[st.SearchStrategy[Any], Read]:
    path = folder / "x.npz"

    def read(case: bytes) -> None:
        path.write_bytes(case)
        runners.read_inputs(str(path), SPEC)

    return _array_files(), read


def _array_files() -> st.SearchStrategy[bytes]:
    import io

    import ml_dtypes
    import numpy as np

    from aot import arrays

    texts = []
    for save in (np.savez, np.savez_compressed):
        held = io.BytesIO()
        save(held, x=np.ones((2, 3), np.float32))
        texts.append(held.getvalue())
    held = io.BytesIO()
    arrays.save(held, {"x": np.ones((2, 3), ml_dtypes.bfloat16)})  # type: ignore[arg-type]
    return edits.text([*texts, held.getvalue()])


_GRAPHS = (
    'm (float[n,4] x) => (float[n,3] y) <float[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}> { y = MatMul(x, w) }',
    'm (float[n,4] x, bool c) => (float[n,4] y) { y = If<then_branch = a () => (float[n,4] p) { p = Relu(x) }, '
    'else_branch = b () => (float[n,4] q) { q = Neg(x) }>(c) }',
    'm (float[n,4] x) => (float[k] y) <int64[1] s = {-1}, int64[2] p = {0, 1}, float z = {0}> '
    '{ a = Reshape(x, s)  b = Pad(a, p, z)  y = Concat<axis = 0>(a, b) }',
    'm (float[1,3,8,8] x) => (float[1,2,4,4] y) <float[2,3,3,3] w = {'
    + ", ".join("1" * 54) + '}> { y = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w) }',
    'm (float[n,4] x) => (float[n,4] y) <float s = {0.1}, int8 z = {0}> '
    '{ a = QuantizeLinear(x, s, z)  y = DequantizeLinear(a, s, z) }',
    'm (float[2] x) => (float[2] y) { y = own.f(x) } '
    '<domain: "own", opset_import: ["" : 17, "own" : 1]> f (a) => (b) '
    '{ c = Constant<value = float {2.0}>() b = Mul(a, c) }',
    'm (float[2] x, int64 t, bool c) => (float[2] y) { y = Loop<body = g (int64 i, bool d, float[2] v) => '
    '(bool e, float[2] w) { e = Identity(d)  w = Add(v, v) }>(t, c, x) }',
)  # fmt: skip


def models() -> list[onnx.ModelProto]:
    """Small models that have what the format has: weights, branches, loops, functions, sparse and external weights."""
    head = '<ir_version: 8, opset_import: ["" : 17, "own" : 1]> '
    made = [onnx.parser.parse_model(head + body) for body in _GRAPHS]
    sparse = copy_of(made[0])
    values, indices = helper.make_tensor("w", 1, [2], [1.0, 2.0]), helper.make_tensor("i", 7, [2], [3, 7])
    del sparse.graph.initializer[:]
    sparse.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4, 3]))
    outside = copy_of(made[0])
    weight = outside.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight), "w"))
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", "48")):
        weight.external_data.add(key=key, value=value)
    old = copy_of(made[0])
    old.opset_import[0].version, old.ir_version = 6, 3
    return [*made, sparse, outside, old]


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same once more."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made


def _onnx(folder: Path) -> Read:
    path = folder / "net.onnx"
    (folder / "w.bin").write_bytes(b"\0" * 48)
    examiner = Examiner()

    def read(case: bytes) -> None:
        path.write_bytes(case)
        examiner(path)

    return read


READERS = {
    "manifest": Reader(_manifest, 20),
    "manifest as text": Reader(_manifest_text, 10),
    "part of an artifact": Reader(_part, 10),
    "artifact to finish": Reader(_finished, 5),
    "recipe": Reader(_recipe, 10),
    "profile": Reader(_profile, 10),
    "lock": Reader(_lock, 3),
    "tar": Reader(_tar, 4),
    "layout": Reader(_layout, 4),
    "plugin": Reader(_plugin, 8),
    "tunings": Reader(_tuned, 3),
    "arrays": Reader(_arrays, 4),
    "onnx": Reader(lambda folder: (edits.proto(models()), _onnx(folder)), 15),
    "onnx as bytes": Reader(
        lambda folder: (edits.text([one.SerializeToString() for one in models()]), _onnx(folder)), 5
    ),
}
