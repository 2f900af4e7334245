"""Kernels of plugins in engines of TensorRT 10.6, up to the vendor's call: stand-ins for TensorRT and for the driver.

The kernels are not compiled: what is launched is plain data. tests/gpu/test_plugins.py runs real ones.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from aot.backend import Job, get
from aot.config import EngineOptions
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import EngineError, PluginError
from aot.progress import Silent
from aot.runtime import plugin_v3
from aot.runtime.kernels import LAUNCHED, Compiled, read_kernels
from aot.runtime.plugin_v3 import Launcher
from tests.backends import fake_tensorrt
from tests.runtime import fake_driver
from tests.runtime.fake_driver import CUresult, Driver

ROWS = ["*", ["size", "x", 0], ["size", "x", 1]]


def kernel(rows: int = 4, **changes: Any) -> Compiled:
    """y = x / scale and its quantized form, of x [a, b, 8] and a scale [b], `rows` rows a program."""
    code = changes.pop("code", f".entry scaled // {rows}")
    made = Compiled(
        plugin="mine::scaled",
        target="sm90",
        entry="scaled",
        code=code,
        threads=32 * rows,
        shared=1024,
        registers=20,
        spilled=0,
        inputs=("x", "scale"),
        dtypes=("float16", "float32"),
        output_dtypes=("float16", "int8"),
        grid=(["ceil", ROWS, rows], 1, 1),
        scalars={"rows": ROWS, "half": ["//", ["size", "x", 1], 2]},
        outputs=([["size", "x", 0], ["size", "x", 1], 8], [["max", ROWS, 1], ["-", ["size", "x", 1], 1]]),
        config={"rows": rows},
        digest=hashlib.sha256(code.encode()).hexdigest(),
        source="0" * 64,
    )
    return replace(made, **changes)


@pytest.fixture
def trt(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(plugin_v3, "_kept", [])
    monkeypatch.setattr(plugin_v3, "_known", {})
    return fake_tensorrt.install(monkeypatch)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return fake_driver.install(monkeypatch, context=3, parameters=6)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """Two nodes of one plugin, the second without kernels, both with a function."""
    values = {
        "x": (TensorProto.FLOAT16, ["a", 5, 8]),
        "s": (TensorProto.FLOAT, [5]),
        "y": (TensorProto.FLOAT16, ["a", 5, 8]),
        "z": (TensorProto.FLOAT16, ["a", 5, 8]),
    }
    infos = {name: helper.make_tensor_value_info(name, *value) for name, value in values.items()}
    nodes = [
        helper.make_node("scaled", ["x", "s"], ["y", "q"], "first", domain="mine", eps=0.5),
        helper.make_node("scaled", ["y", "s"], ["z", "r"], "second", domain="mine", eps=0.25),
    ]
    nodes[0].metadata_props.add(key="aot.source", value="model.py:7: y = scaled(x, s)")
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    function = helper.make_function(
        "mine",
        "scaled",
        ["x", "s"],
        ["y", "q"],
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["x"], ["q"])],
        opsets,
        ["eps"],
    )
    model = helper.make_model(
        helper.make_graph(nodes, "g", [infos["x"], infos["s"]], [infos["y"], infos["z"]]),
        opset_imports=opsets,
        functions=[function],
        ir_version=10,
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    return path


def prepared(trt: Any, graph: Path, folder: Path, *kernels: Compiled) -> onnx.ModelProto:
    (folder / "called").mkdir(exist_ok=True)
    path = get("tensorrt").with_kernels(graph, {"first": kernels or (kernel(4), kernel(8))}, folder / "called")
    return onnx.load(path)


def layer(trt: Any, graph: Path, folder: Path, *kernels: Compiled) -> Any:
    """What TensorRT's parser makes of the node with kernels."""
    prepared(trt, graph, folder, *kernels)
    network = trt.Builder(None).create_network()
    assert trt.OnnxParser(network, None).parse_from_file(str(folder / "called/model.onnx"))
    (found,) = network.plugins
    return found


def test_a_node_with_kernels_calls_them_and_keeps_its_place(trt: Any, graph: Path, tmp_path: Path) -> None:
    model = prepared(trt, graph, tmp_path)
    first, second = model.graph.node
    assert (first.domain, first.op_type, first.name) == ("aot", "Kernel", "first")
    assert (list(first.input), list(first.output)) == (["x", "s"], ["y", "q"])
    assert first.metadata_props[0].value == "model.py:7: y = scaled(x, s)"
    assert {one.name for one in first.attribute} == {*plugin_v3.FIELDS, "plugin_namespace", "plugin_version"}
    assert (second.domain, second.op_type) == ("mine", "scaled")
    assert [function.name for function in model.functions] == ["scaled"]


def test_shapes_dtypes_and_formats_are_those_of_the_kernel(trt: Any, graph: Path, tmp_path: Path) -> None:
    found = layer(trt, graph, tmp_path)
    assert found.plugin.num_outputs == 2
    assert found.output_types(["HALF", "FLOAT"]) == ["HALF", "INT8"]
    assert found.output_shapes((3, 5, 8), (5,)) == [(3, 5, 8), (15, 4)]
    assert found.output_shapes((0, 5, 8), (5,)) == [(0, 5, 8), (1, 4)]
    assert found.takes(["HALF", "FLOAT", "HALF", "INT8"])
    assert not found.takes(["FLOAT", "FLOAT", "HALF", "INT8"])
    assert not found.takes(["HALF", "FLOAT", "HALF", "INT8"], "CHW32")


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("bfloat16", "BF16"), ("float8_e4m3fn", "FP8"), ("int32", "INT32"), ("int64", "INT64"), ("bool", "BOOL")],
)
def test_every_dtype_has_tensorrts_name(trt: Any, graph: Path, tmp_path: Path, dtype: str, name: str) -> None:
    found = layer(trt, graph, tmp_path, kernel(dtypes=(dtype, "float32"), output_dtypes=(dtype, "uint8")))
    assert found.takes([name, "FLOAT", name, "UINT8"])


def test_each_config_is_a_tactic_with_its_own_launch(trt: Any, driver: Driver, graph: Path, tmp_path: Path) -> None:
    found = layer(trt, graph, tmp_path)
    assert found.plugin.get_valid_tactics() == [1, 2]
    assert found.run((3, 5, 8), (5,), tactic=1, stream=11)
    assert found.run((3, 5, 8), (5,), tactic=2, stream=12)
    assert [(one.grid, one.threads, one.shared, one.stream) for one in driver.launches] == [
        ((4, 1, 1), 128, 1024, 11),
        ((2, 1, 1), 256, 1024, 12),
    ]
    # Inputs, scalars, outputs: 15 rows, and half of the 5 of its second axis.
    assert {one.values for one in driver.launches} == {(1000, 2000, 15, 2, 9000, 10000)}
    assert driver.modules == [".entry scaled // 4", ".entry scaled // 8"]


def test_a_copy_keeps_the_tactic(trt: Any, driver: Driver, graph: Path, tmp_path: Path) -> None:
    """TensorRT may choose before it attaches the plugin to a context."""
    found = layer(trt, graph, tmp_path)
    found.plugin.set_tactic(2)
    context = found.plugin.clone().attach_to_context(None)
    context.enqueue([SimpleNamespace(dims=(3, 5, 8)), SimpleNamespace(dims=(5,))], [], [1, 2], [3, 4], 0, 7)
    assert [(one.grid, one.threads) for one in driver.launches] == [((2, 1, 1), 256)]


def test_the_launch_follows_the_sizes_of_each_call(trt: Any, driver: Driver) -> None:
    launcher = Launcher("first", (kernel(4),))

    for sizes in ((1, 4), (2, 4), (2, 4), (0, 4), (4, 2)):
        given = [SimpleNamespace(dims=(*sizes, 8)), SimpleNamespace(dims=sizes[1:])]
        launcher.launch(given, [1, 2], [3, 4], stream=0)
    assert [(one.grid[0], one.values[2], one.values[3]) for one in driver.launches] == [
        (1, 4, 2),
        (2, 8, 2),
        (2, 8, 2),
        (2, 8, 1),  # no launch for (0, 4): there are no rows
    ]
    assert len(driver.modules) == 1


def test_an_engine_finds_its_kernels_beside_it(trt: Any, driver: Driver, graph: Path, tmp_path: Path) -> None:
    """What is serialized makes an equal plugin in another process, once that has read the file beside the plan."""
    fields = layer(trt, graph, tmp_path).serialized()
    (creator,) = trt.get_plugin_registry().creators.values()
    plugin_v3._known.clear()
    with pytest.raises(EngineError, match="are not known") as caught:
        creator.create_plugin("any", fields, None)
    assert ".kernels" in str(caught.value.fix)

    beside = tmp_path / f"sm90{LAUNCHED}"
    beside.write_text(json.dumps([{"nodes": ["first"], "kernels": [kernel(4).to_json(), kernel(8).to_json()]}]))
    plugin_v3.learn(read_kernels(beside))
    loaded = creator.create_plugin("any", fields, None)
    assert loaded.get_valid_tactics() == [1, 2]
    assert loaded.metadata_string.startswith("mine::scaled ")

    beside.write_text(beside.read_text().replace("// 8", "// 9"))
    with pytest.raises(PluginError, match="is not the one that was compiled"):
        read_kernels(beside)


def test_two_nodes_and_two_sets_of_kernels_have_keys_of_their_own() -> None:
    keys = {Launcher(node, kernels).key for node in ("first", "second") for kernels in ([kernel(4)], [kernel(8)])}
    assert len(keys) == 4
    assert all(0 <= part < 1 << 31 for key in keys for part in key)


def test_timings_are_kept_for_one_kernel_alone(trt: Any, graph: Path, tmp_path: Path) -> None:
    ids = [
        layer(trt, graph, tmp_path, *kernels).plugin.timing_cache_id
        for kernels in ((kernel(4),), (kernel(8),), (kernel(4), kernel(8)), (kernel(4, grid=(1, 1, 1)),))
    ]
    assert len(set(ids)) == 4
    assert all(one.startswith("mine::scaled ") for one in ids)
    assert layer(trt, graph, tmp_path, kernel(4, source="1" * 64)).plugin.timing_cache_id == ids[0]


def test_what_a_callback_raises_is_kept_and_names_node_and_plugin(
    trt: Any, graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = (CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION, b"")
    fake_driver.install(monkeypatch, context=3, refuses={"cuModuleLoadDataEx": refusal})
    assert not layer(trt, graph, tmp_path).run((3, 5, 8), (5,))
    with pytest.raises(EngineError, match="CUDA_ERROR_UNSUPPORTED_PTX_VERSION") as caught:
        plugin_v3.raise_kept()
    assert caught.value.where == "node 'first' (mine::scaled)"
    assert "update the driver" in str(caught.value.fix)
    plugin_v3.raise_kept()  # told once


def test_a_failed_build_says_what_a_callback_raised(
    trt: Any, graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(self: Any, network: Any, config: Any) -> bytes | None:
        return b"plan" if network.plugins[0].run((1, 4, 8), (4,)) else None

    monkeypatch.setattr(trt.Builder, "build_serialized_network", build)
    a, b = Dim("a", min=1, opt=2, max=4), Dim("b", min=1, opt=4, max=4)
    spec = ModelSpec("m", {"x": Input([a, b, 8]), "s": Input([b])})
    prepared(trt, graph, tmp_path)
    job = Job(
        tmp_path / "called/model.onnx", spec, "fp16", ({"a": (1, 2, 4), "b": (1, 4, 4)},), "sm90", EngineOptions()
    )
    driver = fake_driver.install(monkeypatch, context=3, parameters=6)
    get("tensorrt").build(job, tmp_path / "e.plan", None, Silent())
    assert driver.launches

    fake_driver.install(monkeypatch, context=3, parameters=6, refuses={"cuLaunchKernel": (CUresult(1), b"")})
    with pytest.raises(EngineError, match="CUDA_ERROR_INVALID_VALUE") as caught:
        get("tensorrt").build(job, tmp_path / "f.plan", None, Silent())
    assert caught.value.where == "node 'first' (mine::scaled)"


@pytest.mark.parametrize(
    ("version", "launching"),
    [("10.6.0", "python"), ("10.8.0.43", "python"), ("10.9.0", "ahead"), ("11.4.0", "ahead"), (None, "ahead")],
)
def test_who_launches_follows_from_the_version(version: str | None, launching: str) -> None:
    assert get("tensorrt").launches(version) == launching
    assert get("tensorrt_rtx").launches(version) is None
    assert get("onnxruntime").launches(version) is None


def test_the_plugin_is_registered_once_a_process(trt: Any) -> None:
    for _ in range(2):
        get("tensorrt").start()  # type: ignore[attr-defined]
    assert list(trt.get_plugin_registry().creators) == [("Kernel", "1", "aot")]
