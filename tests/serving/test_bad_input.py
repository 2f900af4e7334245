"""What clients should not send: every one of it is answered in words, and the server lives on."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.serving import models
from tests.serving.conftest import Server, Serves

INFER = "/v2/models/tiny/infer"
LENGTH = "Inference-Header-Content-Length"


def x(**more: Any) -> dict[str, Any]:
    """An input that fits, with changes."""
    return {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3], **more}


@pytest.fixture(autouse=True)
def lives_on(linear: Server) -> Iterator[None]:
    """After every test the server answers, and has written no traceback."""
    yield
    status, answer = linear.post(INFER, {"inputs": [x()]})
    assert (status, answer["outputs"][0]["data"]) == (200, [8.0, 4.75])
    assert "Traceback" not in linear.log


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the request is not JSON"),
        (b"{", "the request is not JSON"),
        (b"\xff\xfe", "the request is not JSON"),
        (b"[" * 100_000, "the request is not JSON"),
        (b'{"inputs": ' + b"9" * 5000 + b"}", "the request is not JSON"),
        ([], "the request is no JSON object"),
        ({}, "'inputs' is no list of objects"),
        ({"inputs": None}, "'inputs' is no list of objects"),
        ({"inputs": [1]}, "'inputs' is no list of objects"),
        ({"inputs": []}, "input 'x' is missing; the model takes x float32 [batch, 3]"),
        ({"inputs": [x(name=None)]}, "'name' is no string"),
        ({"inputs": [x(name="z")]}, "unknown input 'z'"),
        ({"inputs": [x(name="z" * 10_000)]}, "unknown input 'zzz"),
        ({"inputs": [x(), x()]}, "input 'x' comes twice"),
        ({"inputs": [x(datatype="FP64")]}, "input 'x' is 'FP64', and the model takes FP32"),
        ({"inputs": [x(datatype=None)]}, "input 'x' is None, and the model takes FP32"),
        ({"inputs": [x(shape=None)]}, "has the shape None; "),
        ({"inputs": [x(shape="13")]}, "has the shape '13'"),
        ({"inputs": [x(shape=[1, "3"])]}, "has the shape a list of 2"),
        ({"inputs": [x(shape=[1, 3.0])]}, "has the shape a list of 2"),
        ({"inputs": [x(shape=[True, 3])]}, "has the shape a list of 2"),
        ({"inputs": [x(shape=[-1, 3])]}, "has the shape [-1, 3]"),
        ({"inputs": [x(shape=[-1, -3])]}, "has the shape [-1, -3]"),
        ({"inputs": [x(shape=[2**62, 2**62])]}, "no model takes that many elements"),
        ({"inputs": [x(shape=[2**63, 0])]}, "no model takes that many elements"),
        ({"inputs": [x(shape=[1] * 1000)]}, "no model takes that many elements"),
        ({"inputs": [x(shape=[3], data=[1, 2, 3])]}, "input 'x' has 1 axes, and the model takes 2"),
        ({"inputs": [x(shape=[1, 2], data=[1, 2])]}, "input 'x' axis 1 has size 2, and the model takes 3"),
        ({"inputs": [x(shape=[5, 3], data=[1] * 15)]}, "Dim 'batch' has size 5 at input 'x' axis 0"),
        ({"inputs": [x(shape=[0, 3], data=[])]}, "Dim 'batch' has size 0 at input 'x' axis 0"),
        ({"inputs": [x(data=None)]}, "has the data None"),
        ({"inputs": [x(data="123")]}, "has the data '123'"),
        ({"inputs": [x(data=[1, 2])]}, "has 2 elements where its shape [1, 3] takes 3"),
        ({"inputs": [x(data=[[1, 2]])]}, "has 2 elements where its shape [3] takes 3"),
        ({"inputs": [x(data=[[1, 2, 3], [4]])]}, "has 2 rows where its shape [1, 3] takes 1"),
        ({"inputs": [x(data=[[[1]], 2, 3])]}, "has 3 rows where its shape [1, 3] takes 1"),
        ({"inputs": [x(data=[1, [2], 3])]}, "holds [2], which is no FP32"),
        ({"inputs": [x(data=[1, None, 3])]}, "holds None, which is no FP32"),
        ({"inputs": [x(data=[1.5, None, 3])]}, "holds None, which is no FP32"),
        ({"inputs": [x(data=[1.5, {}, 3])]}, "holds an object, which is no FP32"),
        (
            b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": ' + b"[" * 900 + b"]" * 900 + b"}]}",
            "is a list of 1",
        ),
        (
            b'{"inputs": [{"name": "x", "shape": ' + b"[" * 900 + b"]" * 900 + b', "datatype": "FP32"}]}',
            "a shape is a list of whole",
        ),
        ({"inputs": [x(data=[1, "2", 3])]}, "holds '2', which is no FP32"),
        ({"inputs": [x(data=[1, True, 3])]}, "holds True, which is no FP32"),
        ({"inputs": [x(data=[1, 1e39, 3])]}, "holds a number that FP32 does not"),
        ({"inputs": [x(data=[1, 10**400, 3])]}, "holds a number that FP32 does not"),
        ({"inputs": [x(parameters=[1])]}, "'parameters' is no object"),
        ({"inputs": [x(parameters={"binary_data_size": 12})]}, "0 bytes are left behind the JSON"),
        ({"inputs": [x(parameters={"binary_data_size": -1})]}, "binary_data_size is -1"),
        ({"inputs": [x(parameters={"binary_data_size": "12"})]}, "binary_data_size is '12', and 0 bytes are left"),
        ({"inputs": [x()], "outputs": [{"name": "z"}]}, "unknown output 'z'"),
        ({"inputs": [x()], "outputs": [{"name": "y"}, {"name": "y"}]}, "an output is asked for twice"),
        ({"inputs": [x()], "outputs": "y"}, "'outputs' is no list of objects"),
        ({"inputs": [x()], "id": 7}, "'id' is no string"),
        ({"inputs": [x()], "parameters": {"timeout": -1}}, "timeout is -1"),
        ({"inputs": [x()], "parameters": {"timeout": "soon"}}, "timeout is soon"),
        ({"inputs": [x()], "parameters": {"binary_data_output": "yes"}}, "binary_data is neither true nor false"),
    ],
)
def test_a_request_that_is_none_is_answered_with_400_and_the_reason(body: Any, said: str, linear: Server) -> None:
    status, answer = linear.post(INFER, body)
    assert status == 400
    assert said in answer["error"]
    assert "\n" not in answer["error"]
    assert len(answer["error"]) < 500


@pytest.mark.parametrize(
    ("stated", "tail", "said"),
    [
        ("-1", 12, "Inference-Header-Content-Length is '-1'"),
        ("9" * 30, 12, "Inference-Header-Content-Length is '999"),
        ("many", 12, "Inference-Header-Content-Length is 'many'"),
        ("10", 12, "the request is not JSON"),
        (None, 8, "binary_data_size is 12, and 8 bytes are left behind the JSON"),
        (None, 16, "4 bytes are left that no input takes"),
    ],
)
def test_binary_data_that_is_cut_off_or_too_long_is_refused(
    stated: str | None, tail: int, said: str, linear: Server
) -> None:
    one = x(parameters={"binary_data_size": 12})
    del one["data"]
    head = json.dumps({"inputs": [one]}).encode()
    status, answer = linear.post(INFER, head + bytes(tail), **{LENGTH: stated or str(len(head))})
    assert status == 400
    assert said in answer["error"]


def test_binary_data_of_another_length_than_the_shape_says_is_refused(linear: Server) -> None:
    one = x(shape=[2, 3], parameters={"binary_data_size": 12})
    head = json.dumps({"inputs": [one]}).encode()
    status, answer = linear.post(INFER, head + bytes(12), **{LENGTH: str(len(head))})
    assert status == 400
    assert "input 'x' has 12 bytes, and FP32 [2, 3] takes 24" in answer["error"]


@pytest.mark.parametrize("name", ["int8", "uint8", "int64", "uint64"])
def test_integers_out_of_range_and_fractions_are_refused(name: str, dtypes: Server) -> None:
    least, most = (0, 2 ** int(name[4:])) if name.startswith("u") else (-(2 ** int(name[3:])), 2 ** (int(name[3:]) - 1))
    for wrong in (least - 1, most, 1.5, True):
        one = {"name": f"in_{name}", "shape": [1, 2], "datatype": name.upper(), "data": [1, wrong]}
        status, answer = dtypes.post(INFER, {"inputs": [one]})
        assert status == 400
        assert f"input 'in_{name}' holds" in answer["error"]


def test_a_bool_is_true_or_false_or_a_byte_of_0_or_1(dtypes: Server) -> None:
    one = {"name": "in_bool", "shape": [1, 2], "datatype": "BOOL", "data": [True, 1]}
    status, answer = dtypes.post(INFER, {"inputs": [one]})
    assert status == 400
    assert "input 'in_bool' holds 1, which is no BOOL" in answer["error"]
    one = {"name": "in_bool", "shape": [1, 2], "datatype": "BOOL", "parameters": {"binary_data_size": 2}}
    head = json.dumps({"inputs": [one]}).encode()
    status, answer = dtypes.post(INFER, head + b"\x01\x02", **{LENGTH: str(len(head))})
    assert status == 400
    assert "holds a byte that is neither 0 nor 1" in answer["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/models/other", 404),
        ("GET", "/v2/models/tiny/versions/2", 404),
        ("POST", "/v2/models/tiny/versions/2/infer", 404),
        ("GET", "/v2/models/..%2f..%2fetc", 404),
        ("POST", "/v2/health/live", 405),
        ("GET", INFER, 405),
    ],
)
def test_other_paths_and_methods_have_their_status_and_json(
    method: str, path: str, status: int, linear: Server
) -> None:
    connection = http.client.HTTPConnection(linear.http, timeout=60)
    connection.request(method, path)
    response = connection.getresponse()
    assert response.status == status
    assert json.loads(response.read())["error"]


def test_a_request_that_is_too_long_is_refused_whatever_it_says_of_its_length(linear: Server) -> None:
    said = "the request is longer than 100000 bytes; send fewer rows at once, or start the server with a larger"
    status, answer = linear.post(INFER, b" " * 100_001)
    assert status == 413
    assert said in answer["error"]
    chunked = http.client.HTTPConnection(linear.http, timeout=60)
    chunked.request("POST", INFER, iter([b" " * 60_000, b" " * 60_000]), encode_chunked=True)
    assert chunked.getresponse().status == 413
    bomb = gzip.compress(bytes(50_000_000))
    assert len(bomb) < 100_000
    status, answer = linear.post(INFER, bomb, **{"Content-Encoding": "gzip"})
    assert status == 413
    assert said in answer["error"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_that_is_not_compressed_as_it_says_is_refused(encoding: str, linear: Server) -> None:
    status, answer = linear.post(INFER, {"inputs": [x()]}, **{"Content-Encoding": encoding})
    assert status == 400
    assert answer["error"].startswith("the body is not what its Content-Encoding")
    assert f"; Content-Encoding: {encoding}; send it as it is" in answer["error"]


def raw(server: Server, *parts: bytes, wait: float = 0.0) -> bytes:
    """What comes back to these bytes; the connection is closed by this side in the end."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(wait)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while part := connection.recv(65536):
            found += part
        return found


def head(length: str, *more: str) -> bytes:
    return "\r\n".join([f"POST {INFER} HTTP/1.1", "Host: x", f"Content-Length: {length}", *more, "", ""]).encode()


def test_a_giant_content_length_is_refused_before_anything_is_read(linear: Server) -> None:
    assert raw(linear, head("999999999999")).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "sent",
    [
        head("-5"),
        head("abc"),
        head("1" * 5000),
        head("5", "Content-Length: 6") + b"hello",
        head("5", "Transfer-Encoding: chunked") + b"zz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"\r\n" * 1000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_or_hung_up_on(sent: bytes, linear: Server) -> None:
    found = raw(linear, sent)
    assert found == b"" or found.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4", b"HTTP/9.9 4"))


def test_clients_that_are_slow_or_gone_keep_nobody_waiting(linear: Server) -> None:
    body = json.dumps({"inputs": [x()]}).encode()
    whole = head(str(len(body))) + body
    open_ones = [socket.create_connection(("127.0.0.1", linear.port)) for _ in range(50)]
    for number, one in enumerate(open_ones):
        one.sendall(whole[: number * 3])
    started = time.perf_counter()
    assert linear.post(INFER, {"inputs": [x()]})[0] == 200
    assert time.perf_counter() - started < 5
    for one in open_ones:
        one.close()
    parts = [whole[n : n + 20] for n in range(0, len(whole), 20)]
    assert b"8.0, 4.75" in raw(linear, *parts, wait=0.01)


def test_grpc_answers_with_the_status_and_the_reason(linear: Server) -> None:
    def ask(**changes: Any) -> tuple[grpc.StatusCode, str]:
        one = {"name": "x", "datatype": "FP32", "shape": [1, 3], **changes.pop("input", {})}
        asked = {"model_name": "tiny", "inputs": [one], "raw_input_contents": [bytes(12)], **changes}
        with pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer(service_pb2.ModelInferRequest(**asked))
        return refused.value.code(), refused.value.details()

    with grpc.insecure_channel(linear.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        code = grpc.StatusCode
        for asked, wanted, said in (
            ({"model_name": "other"}, code.NOT_FOUND, "no model is called 'other'"),
            ({"model_version": "2"}, code.NOT_FOUND, "the model has no version '2'"),
            ({"raw_input_contents": [bytes(8)]}, code.INVALID_ARGUMENT, "has 8 bytes, and FP32 [1, 3] takes 12"),
            ({"raw_input_contents": [b"", b""]}, code.INVALID_ARGUMENT, "there are 1 inputs and 2 raw_input_contents"),
            ({"raw_input_contents": []}, code.INVALID_ARGUMENT, "has 0 elements where its shape [1, 3] takes 3"),
            ({"input": {"shape": [-1, 3]}}, code.INVALID_ARGUMENT, "has the shape [-1, 3]"),
            ({"input": {"shape": [2**62, 8]}}, code.INVALID_ARGUMENT, "no model takes that many elements"),
            ({"input": {"datatype": "BYTES"}}, code.INVALID_ARGUMENT, "is 'BYTES', and the model takes FP32"),
            ({"input": {"name": "z"}}, code.INVALID_ARGUMENT, "unknown input 'z'"),
            ({"inputs": []}, code.INVALID_ARGUMENT, "there are 0 inputs and 1 raw_input_contents"),
            ({"outputs": [{"name": "z"}]}, code.INVALID_ARGUMENT, "unknown output 'z'"),
            ({"raw_input_contents": [bytes(200_000)]}, code.RESOURCE_EXHAUSTED, "larger than max"),
        ):
            found = ask(**asked)
            assert found[0] is wanted, found
            assert said in found[1]


def test_bytes_that_are_no_message_are_refused_by_grpc(linear: Server) -> None:
    with grpc.insecure_channel(linear.grpc) as channel:
        code = grpc.StatusCode
        for method, sent, wanted in (
            ("ModelInfer", b"\xff" * 100, code.INVALID_ARGUMENT),
            ("Nothing", b"", code.UNIMPLEMENTED),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(sent)
            assert refused.value.code() is wanted


def test_an_input_that_breaks_the_call_is_the_engines_error_and_logged(serves: Serves, folder: Path) -> None:
    server = serves(models.lookup(folder / "lookup.aot"))
    one = {"name": "x", "shape": [1, 2], "datatype": "INT64", "data": [1, 99]}
    status, answer = server.post(INFER, {"inputs": [one]})
    assert status == 500
    assert "onnxruntime does not run the graph" in answer["error"]
    assert "a request failed" in server.log
    assert server.metric('aot_request_failures_total{protocol="http",reason="engine"}') == 1
    assert server.post(INFER, {"inputs": [{**one, "data": [1, 3]}]})[1]["outputs"][0]["data"] == [10, 30]


def test_failures_are_counted_by_reason(linear: Server) -> None:
    name = 'aot_request_failures_total{protocol="http",reason="input"}'
    before = linear.metric(name), linear.metric('aot_requests_total{protocol="http"}')
    linear.post(INFER, {"inputs": []})
    assert linear.metric(name) == before[0] + 1
    assert linear.metric('aot_requests_total{protocol="http"}') == before[1] + 1
