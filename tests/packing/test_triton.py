"""`aot pack --triton`: a model that Triton Inference Server takes as it is, by the server's own rules."""

from __future__ import annotations

import base64
import json
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from aot.cli import _main as cli
from aot.errors import UsageError
from aot.packing import pbtxt, triton
from aot.runtime.files import manifest_digest
from tests.packing import triton_server as server
from tests.packing.artifacts import artifact, files

Change = Callable[[dict[str, Any]], object]


def remade(folder: Path, change: Change) -> Path:
    """An artifact with a manifest that says something else."""
    path = folder / "manifest.json"
    data = json.loads(path.read_text())
    change(data)
    data["digest"] = manifest_digest(data)
    path.write_text(json.dumps(data))
    return folder


def shapes(inputs: Mapping[str, tuple[str, Sequence[Any]]], outputs: Mapping[str, tuple[str, Sequence[Any]]]) -> Change:
    """The dtypes and shapes of a model; its Dims are B, 1 to 16, and T, 4 to 300."""

    def change(data: dict[str, Any]) -> None:
        data["spec"]["dims"] = {"B": [1, 4, 16], "T": [4, 100, 300]}
        data["spec"]["inputs"] = {
            name: {"shape": list(shape), "dtype": dtype, "low": None, "high": None}
            for name, (dtype, shape) in inputs.items()
        }
        data["io"]["outputs"] = [
            {"name": name, "dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in outputs.items()
        ]
        data["plan"]["profiles"] = [data["spec"]["dims"]]

    return change


def backend(name: str, version: str = "10.6.0") -> Change:
    """Engines of another library."""

    def change(data: dict[str, Any]) -> None:
        for part in data["engines"]:
            part["engine"]["facts"].update(backend=name, version=version)

    return change


def packed(folder: Path, to: Path, **options: Any) -> Any:
    """The configuration of the one model in a new repository, as the server reads it."""
    triton.write(folder, to, **options)
    (model,) = to.iterdir()
    return server.read(model)


BATCHED = shapes(
    {"audio": ("float32", ["B", 8, "T"]), "length": ("int64", ["B"])},
    {"pooled": ("float32", ["B", 4]), "twice": ("float32", ["B"])},
)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """An artifact with an engine of TensorRT for sm90."""
    return remade(artifact(tmp_path / "m.aot", {"sm90": b"plan of sm90"}), backend("tensorrt"))


def test_an_engine_is_served_by_the_tensorrt_backend(plan: Path, tmp_path: Path) -> None:
    config = packed(remade(plan, BATCHED), tmp_path / "models")
    assert (config.backend, config.platform, config.max_batch_size) == ("tensorrt", "tensorrt_plan", 16)
    assert (tmp_path / "models/tiny/1/model.plan").read_bytes() == b"plan of sm90"
    network = {"audio": ["B", 8, "T"], "length": ["B"], "pooled": ["B", 4], "twice": ["B"]}
    for io in (*config.input, *config.output):
        assert server.joins(io, network[io.name], 16, exact=True)
    assert [group.kind for group in config.instance_group] == [pb.ModelInstanceGroup.KIND_GPU]


def test_a_static_batch_is_a_part_of_the_shape(plan: Path, tmp_path: Path) -> None:
    static = shapes(
        {"audio": ("float32", [1, 8, 20]), "length": ("int64", [1])},
        {"pooled": ("float32", [1, 4]), "twice": ("float32", [1])},
    )
    config = packed(remade(plan, static), tmp_path / "models")
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert {io.name: list(io.dims) for io in (*config.input, *config.output)} == {
        "audio": [1, 8, 20], "length": [1], "pooled": [1, 4], "twice": [1],
    }  # fmt: skip
    assert not any(io.HasField("reshape") for io in (*config.input, *config.output))


def test_an_input_whose_values_decide_shapes_is_named(plan: Path, tmp_path: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        shapes({"x": ("float32", [1, 4]), "hw": ("int64", [2])}, {"y": ("float32", [1, 4])})(data)
        data["engines"][0]["engine"]["facts"]["shape_inputs"] = ["hw"]

    config = packed(remade(plan, change), tmp_path / "models")
    assert {io.name: io.is_shape_tensor for io in config.input} == {"x": False, "hw": True}


def test_every_instance_has_all_profiles_and_each_is_warmed_up(plan: Path, tmp_path: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        BATCHED(data)
        data["spec"]["inputs"]["length"].update(low=1, high=300)
        data["plan"]["profiles"] = [{"B": [1, 2, 16], "T": [4, 20, 40]}, {"B": [1, 8, 16], "T": [4, 200, 300]}]

    config = packed(remade(plan, change), tmp_path / "models")
    assert list(config.instance_group[0].profile) == ["0", "1"]
    assert list(config.dynamic_batching.preferred_batch_size) == [2, 8, 16]
    first, second = config.model_warmup
    assert (first.batch_size, list(first.inputs["audio"].dims)) == (2, [8, 20])
    assert (second.batch_size, list(second.inputs["audio"].dims)) == (8, [8, 200])
    assert first.inputs["audio"].zero_data
    content = (tmp_path / "models/tiny/warmup" / first.inputs["length"].input_data_file).read_bytes()
    assert np.frombuffer(content, np.int64).tolist() == [1]


def test_engines_for_several_gpus_are_told_apart_by_the_server(tmp_path: Path) -> None:
    folder = artifact(tmp_path / "m.aot", {"sm89": b"ada", "sm90": b"hopper", "sm120": b"blackwell"})
    config = packed(remade(folder, backend("tensorrt")), tmp_path / "models")
    found = {key: (tmp_path / "models/tiny/1" / file).read_bytes() for key, file in config.cc_model_filenames.items()}
    assert found == {"8.9": b"ada", "9.0": b"hopper", "12.0": b"blackwell"}
    one = packed(folder, tmp_path / "one", engine="sm89")
    assert not one.cc_model_filenames
    assert (tmp_path / "one/tiny/1/model.plan").read_bytes() == b"ada"


def test_engines_of_two_versions_want_a_choice(tmp_path: Path) -> None:
    folder = artifact(tmp_path / "m.aot", {"sm89": b"ada", "sm90": b"hopper"})
    remade(folder, lambda data: data["engines"][0]["engine"]["facts"].update(backend="tensorrt", version="10.6.0"))
    with pytest.raises(UsageError, match="several libraries") as raised:
        triton.write(folder, tmp_path / "models")
    assert "--engine" in str(raised.value.fix)
    assert packed(folder, tmp_path / "models", engine="sm89").backend == "tensorrt"
    with pytest.raises(UsageError, match="unknown engine 'sm70'"):
        triton.write(folder, tmp_path / "models", engine="sm70")


def test_a_prepared_artifact_is_served_by_onnxruntime_and_gives_the_same_rows(tmp_path: Path) -> None:
    config = packed(artifact(tmp_path / "m.aot"), tmp_path / "models")
    assert (config.backend, config.max_batch_size) == ("onnxruntime", 4)
    network = ort.InferenceSession(tmp_path / "models/tiny/1/model.onnx", providers=["CPUExecutionProvider"])
    assert server.joins(config.input[0], network.get_inputs()[0].shape, 4, exact=False)
    assert server.joins(config.output[0], network.get_outputs()[0].shape, 4, exact=True)
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    (batch,) = network.run(None, {"x": x})
    alone = [network.run(None, {"x": row[None]})[0] for row in x]
    np.testing.assert_allclose(batch, np.concatenate(alone), rtol=1e-6)


STATES = shapes(
    {"x": ("float32", ["B", 3]), "state_h": ("float32", ["B", 2]), "state_n": ("int32", ["B", 1])},
    {"y": ("float32", ["B", 2]), "state_h_out": ("float32", ["B", 2]), "state_n_out": ("int32", ["B", 1])},
)


def with_states(data: dict[str, Any]) -> None:
    STATES(data)
    starts = {"state_h": np.float32(0.0).tobytes(), "state_n": np.int32(7).tobytes()}
    data["spec"]["states"] = {
        name: {"path": name, "output": f"{name}_out", "initial": base64.b64encode(start).decode()}
        for name, start in starts.items()
    }


def test_states_are_kept_by_the_server_for_every_sequence(plan: Path, tmp_path: Path) -> None:
    config = packed(remade(plan, with_states), tmp_path / "models")
    assert [io.name for io in config.input] == ["x"]
    assert [io.name for io in config.output] == ["y"]
    kept = {state.input_name: state for state in config.sequence_batching.state}
    assert {name: state.output_name for name, state in kept.items()} == {
        "state_h": "state_h_out", "state_n": "state_n_out",
    }  # fmt: skip
    assert kept["state_h"].initial_state[0].zero_data
    start = tmp_path / "models/tiny/initial_state" / kept["state_n"].initial_state[0].data_file
    assert np.frombuffer(start.read_bytes(), np.int32).tolist() == [7]
    assert config.sequence_batching.HasField("oldest")
    assert not config.HasField("dynamic_batching")


def test_a_state_that_grows_is_refused(plan: Path, tmp_path: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        with_states(data)
        data["spec"]["inputs"]["state_h"]["shape"] = ["B", "T"]

    with pytest.raises(UsageError, match="'state_h' float32 \\[B, T\\]"):
        triton.write(remade(plan, change), tmp_path / "models")


@pytest.mark.parametrize(
    ("inputs", "outputs", "said"),
    [
        ({}, {"y": ("float32", ["B"])}, "without inputs"),
        ({"x": ("float32", ["B", 3])}, {"y": ("float8_e4m3fn", ["B", 2])}, "'y' in float8_e4m3fn"),
        ({"x": ("float32", ["B", 3])}, {"y": ("float32", ["B", 0])}, "holds nothing"),
    ],
)
def test_what_the_server_has_no_word_for_is_refused(
    plan: Path, tmp_path: Path, inputs: Any, outputs: Any, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        triton.write(remade(plan, shapes(inputs, outputs)), tmp_path / "models")
    assert not (tmp_path / "models/tiny").exists()


def test_every_dtype_has_the_servers_name(plan: Path, tmp_path: Path) -> None:
    kinds = {"bool": "BOOL", "int8": "INT8", "uint8": "UINT8", "int32": "INT32", "int64": "INT64", "float16": "FP16",
             "bfloat16": "BF16", "float32": "FP32", "float64": "FP64"}  # fmt: skip
    change = shapes({f"in_{name}": (name, ["B", 65535]) for name in kinds}, {"y": ("bfloat16", ["B", "T"])})
    config = packed(remade(plan, change), tmp_path / "models")
    named = {io.name.removeprefix("in_"): pb.DataType.Name(io.data_type) for io in config.input}
    assert named == {name: f"TYPE_{word}" for name, word in kinds.items()}


def test_names_with_odd_characters_survive_and_stay_in_the_repository(plan: Path, tmp_path: Path) -> None:
    odd = 'a "b"\\c/d:0\n\té'
    change = shapes({odd: ("float32", ["B", 3])}, {"y'": ("float32", ["B"])})
    remade(remade(plan, change), lambda data: data.update(name='../../x y"z'))
    config = packed(plan, tmp_path / "models")
    assert config.name == '_/../x y"z'.replace("/", "_").replace(" ", "_").replace('"', "_")
    assert [io.name for io in config.input] == [odd]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.aot", "models"]


@pytest.mark.parametrize("why", ["launched kernels", "stripped", "RTX", "a scalar"])
def test_an_engine_that_needs_python_gets_the_python_backend(plan: Path, tmp_path: Path, why: str) -> None:
    def change(data: dict[str, Any]) -> None:
        facts = data["engines"][0]["engine"]["facts"]
        if why == "launched kernels":
            data["files"]["engines/sm90.kernels"] = data["files"]["engines/sm90.json"]
        elif why == "stripped":
            data["files"]["engines/weights.safetensors"] = data["files"]["engines/sm90.json"]
            facts["stripped"] = {"weights": 1}
        elif why == "RTX":
            facts["backend"] = "tensorrt_rtx"
        else:
            data["io"]["outputs"] += [{"name": "loss", "dtype": "float32", "shape": []}]

    for name in ("kernels", "safetensors"):
        file = "sm90.kernels" if name == "kernels" else "weights.safetensors"
        (plan / "engines" / file).write_bytes((plan / "engines/sm90.json").read_bytes())
    config = packed(remade(plan, change), tmp_path / "models", engine="sm90")
    assert (config.backend, config.platform) == ("python", "")
    assert config.parameters["engine"].string_value == "sm90"
    version = tmp_path / "models/tiny/1"
    assert (version / "artifact/manifest.json").read_bytes() == (plan / "manifest.json").read_bytes()
    assert len(list(version.glob("*.whl"))) == 1


def test_states_and_bfloat16_have_no_python_backend(plan: Path, tmp_path: Path) -> None:
    remade(plan, lambda data: data["engines"][0]["engine"]["facts"].update(backend="tensorrt_rtx"))
    with pytest.raises(UsageError, match="states, such as 'state_h'"):
        triton.write(remade(plan, with_states), tmp_path / "models")
    narrow = shapes({"x": ("bfloat16", ["B", 3])}, {"y": ("float32", ["B"])})
    with pytest.raises(UsageError, match="tensors in bfloat16, such as 'x'"):
        triton.write(remade(plan, lambda data: (narrow(data), data["spec"].pop("states"))), tmp_path / "models")


class Tensor:
    """`pb_utils.Tensor`, as far as the model uses it."""

    def __init__(self, name: str, array: Any) -> None:
        self.name, self.array = name, array

    def as_numpy(self) -> Any:
        return self.array


class Request:
    """`pb_utils.InferenceRequest`."""

    def __init__(self, **inputs: Any) -> None:
        self.tensors = {name: Tensor(name, array) for name, array in inputs.items()}

    def requested_output_names(self) -> list[str]:
        return ["y"]


def test_the_python_model_joins_requests_and_gives_each_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    utils = types.ModuleType("triton_python_backend_utils")
    utils.__dict__.update(
        Tensor=Tensor,
        TritonError=str,
        InferenceResponse=lambda output_tensors, error=None: types.SimpleNamespace(tensors=output_tensors, error=error),
        get_input_tensor_by_name=lambda request, name: request.tensors[name],
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    monkeypatch.delitem(sys.modules, "aot.packing.triton_model", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = artifact(tmp_path / "m.aot", {"sm89": b"plan"})
    packed(folder, tmp_path / "models")
    from aot.packing import triton_model

    monkeypatch.setattr(triton_model, "HERE", tmp_path / "models/tiny/1")
    model = triton_model.TritonPythonModel()
    config = {"max_batch_size": 4, "parameters": {"engine": {"string_value": "cpu"}}}
    model.initialize({"model_config": json.dumps(config), "model_instance_device_id": "0"})
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    weight = np.array([[1.0, -2.0], [0.5, 3.0], [2.0, 0.25]], np.float32)
    first, second = model.execute([Request(x=x[:1]), Request(x=x[1:])])
    np.testing.assert_allclose(first.tensors[0].array, x[:1] @ weight, rtol=1e-5)
    np.testing.assert_allclose(second.tensors[0].array, x[1:] @ weight, rtol=1e-5)
    (refused,) = model.execute([Request(x=x[:, :2])])
    assert "axis 1" in refused.error
    model.finalize()


def test_other_models_of_the_repository_stay(plan: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    (repository / "other").mkdir(parents=True)
    (repository / "other/config.pbtxt").write_text("")
    before = files(repository / "other")
    triton.write(plan, repository)
    with pytest.raises(UsageError, match="there is one already"):
        triton.write(plan, repository)
    first = files(repository / "tiny")
    triton.write(plan, repository, overwrite=True)
    assert files(repository / "tiny") == first
    assert files(repository / "other") == before


def test_a_folder_that_is_no_model_is_not_replaced(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "models/tiny").mkdir(parents=True)
    (tmp_path / "models/tiny/thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="will not overwrite"):
        triton.write(plan, tmp_path / "models", overwrite=True)


def test_the_command(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The manifest was changed by hand here, which the command finds out; so the artifact is as it was built.
    folder = artifact(tmp_path / "rtx.aot", {"sm89": b"ada", "sm120": b"blackwell"})
    assert cli.call(["pack", str(folder), "--triton", str(tmp_path / "models"), "--engine", "cpu", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["forms"]["triton"]
    assert str(tmp_path / "models/tiny/config.pbtxt") in said["files"]
    assert server.read(tmp_path / "models/tiny").backend == "onnxruntime"
    pack = ["pack", str(folder), "--triton", str(tmp_path / "models"), "--engine", "cpu", "--name"]
    assert cli.call([*pack, "tiny-2"]) == 0
    assert server.read(tmp_path / "models/tiny-2").name == "tiny-2"
    assert cli.call([*pack, "../tiny"]) == 2
    assert "no model can be called '../tiny'" in capsys.readouterr().err
    assert cli.call(["pack", str(folder), "--tar", str(tmp_path / "m.tar"), "--name", "tiny-2"]) == 2
    assert "--name names nothing" in capsys.readouterr().err
    assert cli.call(["pack", str(folder), "--tar", str(tmp_path / "m.tar"), "--engine", "cpu"]) == 2
    assert "--engine chooses nothing" in capsys.readouterr().err


def test_text_format_of_any_string_is_read_back() -> None:
    name = "".join(map(chr, range(1, 300))) + "\U0001f600"
    message = text_format.Parse(pbtxt.text({"name": name, "max_batch_size": 3}, ["a\nname: 1"]), pb.ModelConfig())
    assert (message.name, message.max_batch_size) == (name, 3)
