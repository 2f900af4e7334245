"""Triton's clients, over HTTP and gRPC, get what the model gives."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.runtime import artifacts
from tests.runtime.artifacts import WEIGHT, rows
from tests.serving import models
from tests.serving.conftest import Server, Serves

KINDS = [triton_http, triton_grpc]
NAMES = [name for name in models.DTYPES if name not in ("float16", "bfloat16")]


def client(kind: Any, server: Server) -> Any:
    return kind.InferenceServerClient(server.http if kind is triton_http else server.grpc)


def given(kind: Any, name: str, array: Any, datatype: str) -> Any:
    made = kind.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_the_server_says_what_it_is(kind: Any, linear: Server) -> None:
    asked = client(kind, linear)
    assert asked.is_server_live()
    assert asked.is_server_ready()
    assert asked.is_model_ready("tiny")
    assert asked.is_model_ready("tiny", "1")
    assert linear.said["runs"].startswith("final graph, fp32 (onnxruntime")
    assert "requests are joined along the Dim 'batch', up to 4 rows" in linear.log


def test_metadata_over_http(linear: Server) -> None:
    assert linear.get("/v2")[1]["extensions"] == ["binary_tensor_data"]
    described = {
        "name": "tiny",
        "versions": ["1"],
        "platform": "aot_fp32",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
        "parameters": {"batching": "requests are joined along the Dim 'batch'", "max_batch": 4},
    }
    assert linear.get("/v2/models/tiny") == (200, described)
    assert linear.get("/v2/models/tiny/versions/1") == (200, described)


def test_metadata_over_grpc(linear: Server) -> None:
    found = client(triton_grpc, linear).get_model_metadata("tiny", as_json=True)
    assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "3"]}]
    assert found["outputs"] == [{"name": "y", "datatype": "FP32", "shape": ["-1", "2"]}]
    assert client(triton_grpc, linear).get_server_metadata(as_json=True)["name"] == "aot"


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_is_the_models(kind: Any, linear: Server) -> None:
    x = rows(3)
    answer = client(kind, linear).infer("tiny", [given(kind, "x", x, "FP32")], request_id="of mine")
    np.testing.assert_allclose(answer.as_numpy("y"), x @ WEIGHT, rtol=1e-6)
    response = answer.get_response()
    named = response if isinstance(response, dict) else {"id": response.id, "model_name": response.model_name}
    assert (named["id"], named["model_name"]) == ("of mine", "tiny")


def test_the_standard_health_service_answers(linear: Server) -> None:
    with grpc.insecure_channel(linear.grpc) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "inference.GRPCInferenceService"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def samples(name: str) -> Any:
    """Two rows of a dtype, its limits among them."""
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    if dtype == np.bool_:
        return np.array([[True, False], [False, True]])
    info = ml_dtypes.finfo(dtype) if dtype.kind not in "iu" else np.iinfo(dtype)
    return np.array([[info.min, info.max], [1, 3]], dtype)


def datatype(name: str) -> str:
    return {"float16": "FP16", "bfloat16": "BF16", "float32": "FP32", "float64": "FP64"}.get(name, name.upper())


def test_every_dtype_survives_as_bytes_over_http(dtypes: Server) -> None:
    inputs, tail = [], b""
    for name in models.DTYPES:
        data = samples(name).tobytes()
        inputs.append(
            {"name": f"in_{name}", "shape": [2, 2], "datatype": datatype(name)}
            | {"parameters": {"binary_data_size": len(data)}}
        )
        tail += data
    body, answer_length, answer = posted(dtypes, {"inputs": inputs, "parameters": {"binary_data_output": True}}, tail)
    assert [one["datatype"] for one in answer["outputs"]] == [datatype(name) for name in models.DTYPES]
    assert body[answer_length:] == tail


def posted(server: Server, head: Any, tail: bytes) -> tuple[bytes, int, Any]:
    """The body of an answer, the length of its JSON, and that."""
    text = json.dumps(head).encode()
    connection = http.client.HTTPConnection(server.http, timeout=60)
    connection.request(
        "POST", "/v2/models/tiny/infer", text + tail, {"Inference-Header-Content-Length": str(len(text))}
    )
    response = connection.getresponse()
    body = response.read()
    length = int(response.headers.get("Inference-Header-Content-Length", len(body)))
    return body, length, json.loads(body[:length])


def test_every_dtype_survives_as_bytes_over_grpc(dtypes: Server) -> None:
    request = service_pb2.ModelInferRequest(model_name="tiny")
    for name in models.DTYPES:
        request.inputs.add(name=f"in_{name}", datatype=datatype(name), shape=[2, 2])
        request.raw_input_contents.append(samples(name).tobytes())
    with grpc.insecure_channel(dtypes.grpc) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert list(answer.raw_output_contents) == list(request.raw_input_contents)
    assert [one.name for one in answer.outputs] == [f"out_{name}" for name in models.DTYPES]


@pytest.mark.parametrize("nested", [True, False])
def test_numbers_in_json_flat_and_nested(nested: bool, dtypes: Server) -> None:
    halves = {name: np.ones((2, 2), getattr(ml_dtypes, name, name)).tobytes() for name in ("float16", "bfloat16")}
    head = {
        "inputs": [
            {"name": f"in_{name}", "shape": [2, 2], "datatype": datatype(name)}
            | {"data": samples(name).tolist() if nested else samples(name).ravel().tolist()}
            for name in NAMES
        ]
        + [
            {"name": f"in_{name}", "shape": [2, 2], "datatype": datatype(name), "parameters": {"binary_data_size": 8}}
            for name in halves
        ],
        "outputs": [{"name": f"out_{name}"} for name in NAMES],
    }
    _, _, answer = posted(dtypes, head, b"".join(halves.values()))
    for name, one in zip(NAMES, answer["outputs"], strict=True):
        assert np.array(one["data"], name).tolist() == samples(name).ravel().tolist(), name


def test_numbers_in_the_typed_fields_of_grpc(dtypes: Server) -> None:
    """FP16 and BF16 cannot come so: the error says it, after all the others were read."""
    request = service_pb2.ModelInferRequest(model_name="tiny")
    fields = {"bool": "bool", "int64": "int64", "uint64": "uint64", "float32": "fp32", "float64": "fp64"}
    for name in [*NAMES, "float16"]:
        one = request.inputs.add(name=f"in_{name}", datatype=datatype(name), shape=[2, 2])
        field = fields.get(name, "uint" if name.startswith("u") else "int")
        if name != "float16":
            getattr(one.contents, f"{field}_contents").extend(samples(name).ravel().tolist())
    with grpc.insecure_channel(dtypes.grpc) as channel, pytest.raises(grpc.RpcError) as refused:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "input 'in_float16' is FP16, which comes as raw bytes only" in refused.value.details()


def test_typed_fields_give_the_same_answer(linear: Server) -> None:
    x = rows(2)
    request = service_pb2.ModelInferRequest(model_name="tiny", id="7")
    one = request.inputs.add(name="x", datatype="FP32", shape=[2, 3])
    one.contents.fp32_contents.extend(x.ravel().tolist())
    with grpc.insecure_channel(linear.grpc) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    got = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(2, 2)
    np.testing.assert_allclose(got, x @ WEIGHT, rtol=1e-6)
    assert answer.id == "7"


def test_half_precision_as_json_is_refused_before_anything_is_computed(dtypes: Server) -> None:
    before = dtypes.metric("aot_batch_requests_count")
    inputs = [{"name": f"in_{n}", "shape": [2, 2], "datatype": datatype(n)} for n in models.DTYPES]
    tail = b""
    for one, name in zip(inputs, models.DTYPES, strict=True):
        data = samples(name).tobytes()
        one["parameters"] = {"binary_data_size": len(data)}
        tail += data
    _, _, answer = posted(dtypes, {"inputs": inputs, "outputs": [{"name": "out_float16"}]}, tail)
    assert answer["error"].startswith("output 'out_float16' is FP16, which JSON has no numbers for")
    assert dtypes.metric("aot_batch_requests_count") == before


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_outputs_asked_for_come_in_that_order(kind: Any, dtypes: Server) -> None:
    arrays = {name: samples(name) for name in models.DTYPES}
    inputs = []
    for name, array in arrays.items():
        made = kind.InferInput(f"in_{name}", [2, 2], datatype(name))
        made.set_data_from_numpy(array)
        inputs.append(made)
    outputs = [kind.InferRequestedOutput(name) for name in ("out_int8", "out_bool")]
    answer = client(kind, dtypes).infer("tiny", inputs, outputs=outputs)
    assert answer.as_numpy("out_int8").tolist() == arrays["int8"].tolist()
    assert answer.as_numpy("out_bool").tolist() == arrays["bool"].tolist()
    assert answer.as_numpy("out_int16") is None


@pytest.mark.parametrize("kind", KINDS)
def test_another_model_is_not_there(kind: Any, linear: Server) -> None:
    with pytest.raises(InferenceServerException, match="no model is called 'other'; this server has 'tiny'") as refused:
        client(kind, linear).infer("other", [given(kind, "x", rows(1), "FP32")])
    assert refused.value.status() in ("404", "StatusCode.NOT_FOUND")


def test_requests_of_many_clients_are_joined_and_never_mixed(linear: Server) -> None:
    """32 clients of both protocols, requests of 1 to 4 rows: each has its own rows."""
    before = [linear.metric(f"aot_batch_{what}") for what in ("requests_sum", "requests_count")]

    def ask(seed: int) -> float:
        kind: Any = KINDS[seed % 2]
        asked = client(kind, linear)
        worst = 0.0
        for turn in range(12):
            x = rows(1 + (seed + turn) % 4, seed * 100 + turn)
            y = asked.infer("tiny", [given(kind, "x", x, "FP32")]).as_numpy("y")
            assert y.shape == (len(x), 2)
            worst = max(worst, float(np.abs(y - x @ WEIGHT).max()))
        return worst

    with ThreadPoolExecutor(32) as pool:
        assert max(pool.map(ask, range(32))) < 1e-5
    requests, batches = (
        linear.metric(f"aot_batch_{what}") - was
        for what, was in zip(("requests_sum", "requests_count"), before, strict=True)
    )
    assert requests == 32 * 12
    assert batches < requests


def test_states_travel_with_the_requests(serves: Serves, tmp_path: Path) -> None:
    """The server keeps none: a request without them begins, the next one sends what the response had."""
    server = serves(artifacts.counter(tmp_path / "counter.aot", initial=np.float32(10)))
    assert "requests are computed alone: the model has states (state_sum)" in server.log
    x = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    for _ in range(2):
        _, answer = server.post("/v2/models/tiny/infer", {"inputs": [x]})
        found = {one["name"]: one["data"] for one in answer["outputs"]}
        assert found == {"y": [22, 24, 26], "state_sum_out": [11, 12, 13]}
    state = {"name": "state_sum", "shape": [1, 3], "datatype": "FP32", "data": found["state_sum_out"]}
    _, answer = server.post("/v2/models/tiny/infer", {"inputs": [x, state]})
    assert answer["outputs"][0]["data"] == [24, 28, 32]
