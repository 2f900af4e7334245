"""More than a server can take, clients that go, and its end: nothing is lost without a word."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.runtime import artifacts
from tests.serving import models
from tests.serving.conftest import SECONDS, Server, Serves

INFER = "/v2/models/tiny/infer"


def body(value: float, **parameters: int) -> dict[str, Any]:
    one = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [value] * 3}
    return {"inputs": [one], "parameters": parameters}


@pytest.fixture(scope="module")
def slow(serves: Serves, folder: Path) -> Server:
    """Some 50 to 100 milliseconds a request, one by one, and a short queue."""
    return serves(models.slow(folder / "slow.aot", 60_000), "--max-batch", "1", "--queue", "3")


def settled(server: Server) -> None:
    """Wait until nothing is queued."""
    for _ in range(600):
        if server.metric("aot_queue_length") == 0:
            return
        time.sleep(0.05)
    raise AssertionError("the queue does not empty")


def test_a_flood_is_answered_or_refused_with_what_to_do(slow: Server) -> None:
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda n: (n, slow.post(INFER, body(n))), range(24)))
    right = [n for n, (status, _) in answers if status == 200]
    assert all(answer["outputs"][0]["data"] == [n] * 3 for n, (status, answer) in answers if status == 200)
    refused = [answer["error"] for _, (status, answer) in answers if status == 503]
    assert len(right) >= 4
    assert len(right) + len(refused) == 24
    assert refused
    assert all("the queue holds no more; send it again later, send fewer at once, or start" in one for one in refused)
    assert slow.metric('aot_request_failures_total{protocol="http",reason="queue"}') == len(refused)


def test_grpc_refuses_a_flood_with_its_own_status(slow: Server) -> None:
    request = service_pb2.ModelInferRequest(model_name="tiny", raw_input_contents=[bytes(12)])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 3])
    with grpc.insecure_channel(slow.grpc) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        calls = [infer.future(request) for _ in range(24)]
        codes = [call.code() for call in calls]
    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}


def test_a_request_that_waits_longer_than_its_timeout_is_not_computed(slow: Server) -> None:
    settled(slow)
    before = slow.metric("aot_batch_requests_count")
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(slow.post, INFER, body(1))
        second = pool.submit(slow.post, INFER, body(2))
        time.sleep(0.02)
        status, answer = slow.post(INFER, body(3, timeout=1000))
    assert status == 504
    assert answer["error"] == "no answer within the request's 0.001 s; give it more time"
    assert first.result()[0] == second.result()[0] == 200
    assert slow.metric("aot_batch_requests_count") == before + 2


def test_clients_that_hang_up_while_they_wait_are_not_computed(slow: Server) -> None:
    settled(slow)
    before = slow.metric("aot_batch_requests_count")
    gone = slow.metric('aot_request_failures_total{protocol="http",reason="cancelled"}')
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(slow.post, INFER, body(1))
        while slow.metric("aot_batch_requests_count") == before:
            pass
        data = json.dumps(body(2)).encode()
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", slow.port)) as connection:
                connection.sendall(
                    f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
                )
                time.sleep(0.005)
        assert first.result()[0] == 200
    settled(slow)
    assert slow.metric("aot_batch_requests_count") <= before + 2  # the first, and what was begun when it ended
    assert slow.metric('aot_request_failures_total{protocol="http",reason="cancelled"}') > gone


def test_a_grpc_deadline_takes_the_request_out_of_the_queue(slow: Server) -> None:
    settled(slow)
    request = service_pb2.ModelInferRequest(model_name="tiny", raw_input_contents=[bytes(12)])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 3])
    with ThreadPoolExecutor(1) as pool, grpc.insecure_channel(slow.grpc) as channel:
        first = pool.submit(slow.post, INFER, body(1))
        time.sleep(0.02)
        with pytest.raises(grpc.RpcError) as late:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=0.01)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert first.result()[0] == 200


def test_on_sigterm_what_waits_is_answered_and_the_exit_code_is_0(serves: Serves, folder: Path) -> None:
    server = serves(models.slow(folder / "stop.aot", 40_000), "--max-batch", "1", "--grace", "30")
    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(server.post, INFER, body(n)) for n in range(4)]
        while server.metric("aot_queue_length") + server.metric("aot_batch_requests_count") < 4:
            time.sleep(0.005)
        kept = http.client.HTTPConnection(server.http, timeout=SECONDS)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.03)
        kept.request("GET", "/v2/health/ready")
        assert kept.getresponse().status == 503
        assert server.get("/v2/health/live")[0] == 200
        status, answer = server.post(INFER, body(9))
        assert (status, answer["error"]) == (503, "the server stops; send the request to another server")
        answers = [one.result() for one in asked]
    assert [answer["outputs"][0]["data"][0] for status, answer in answers if status == 200] == [0, 1, 2, 3]
    assert server.process.wait(SECONDS) == 0
    assert "Traceback" not in server.log
    assert json.loads(server.log.splitlines()[-1])["message"] == "stopped"


def test_until_it_is_warm_it_is_alive_and_not_ready_and_can_be_stopped(folder: Path) -> None:
    path = models.slow(folder / "warming.aot", 20_000_000)  # minutes of warm-up
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "aot.serving", str(path), "--http-port", str(port), "--grpc-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        live = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        for _ in range(600):
            try:
                live.connect()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        found = []
        for method, asked in (("GET", "/v2/health/live"), ("GET", "/v2/health/ready"), ("POST", INFER)):
            live.request(method, asked)
            answer = live.getresponse()
            found.append((answer.status, json.loads(answer.read())))
        process.send_signal(signal.SIGTERM)
        said, errors = process.communicate(timeout=SECONDS)
    assert found[:2] == [(200, {"live": True}), (503, {"ready": False})]
    assert found[2] == (503, {"error": "the model is not loaded yet; wait until /v2/health/ready says so"})
    assert process.returncode == 0, errors
    assert said == ""
    assert "Traceback" not in errors


def test_a_body_that_does_not_come_is_not_waited_for(serves: Serves, folder: Path) -> None:
    script = """import sys; from aot.serving import http_api; from aot.serving.__main__ import main
http_api.BODY_SECONDS = 0.2; sys.exit(main())"""
    server = serves(artifacts.linear(folder / "waits.aot"), command=("-c", script))
    with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 504 ")
    assert b"the body did not come in 0.2 s" in answer


@pytest.mark.parametrize(("grace", "signals"), [("0.2", 1), ("60", 2)])
def test_what_the_grace_or_a_second_signal_cuts_off_is_said_and_the_exit_code_is_1(
    grace: str, signals: int, serves: Serves, folder: Path
) -> None:
    server = serves(models.slow(folder / f"cut{signals}.aot", 400_000), "--max-batch", "1", "--grace", grace)
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(server.post, INFER, body(n)) for n in range(3)]
        while server.metric("aot_queue_length") < 2:
            time.sleep(0.005)
        started = time.perf_counter()
        for _ in range(signals):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        assert server.process.wait(SECONDS) == 1
        assert time.perf_counter() - started < 10
        outcomes = [one.exception() or one.result() for one in asked]
    waited = [one for one in outcomes if isinstance(one, tuple) and one[0] == 503]
    assert {answer["error"] for _, answer in waited} == {"the server stopped before the request's turn; send it again"}
    assert len(waited) >= 1  # of the one that was computed the connection was closed
    assert "stopped; requests were cut off" in server.log


def test_aot_serve_is_the_same_server_and_stops_on_ctrl_c(serves: Serves, folder: Path) -> None:
    path = artifacts.linear(folder / "cli.aot")
    script = "import sys; from aot.cli import main; sys.exit(main())"
    server = serves(path, "--name", "mine", command=("-c", script, "serve"))
    asked = triton_grpc.InferenceServerClient(server.grpc)
    assert asked.is_model_ready("mine")
    assert server.stop(signal.SIGINT) == 0


def refused(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "aot.serving", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def test_what_cannot_be_served_is_said_with_exit_code_2(folder: Path, tmp_path: Path) -> None:
    assert "no such artifact: nowhere.aot" in refused("nowhere.aot")
    path = str(artifacts.linear(tmp_path / "tiny.aot"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"cannot listen on 127.0.0.1 port {port}" in refused(path, "--http-port", port, "--grpc-port", "0")
        assert f"cannot listen on 127.0.0.1 port {port}" in refused(path, "--grpc-port", port, "--http-port", "0")
    assert "unknown engine 'sm90'" in refused(path, "--engine", "sm90", "--http-port", "0", "--grpc-port", "0")
    graph = Path(path) / "graph/model.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"x")
    assert "damaged" in refused(path, "--http-port", "0", "--grpc-port", "0")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--name", "a/b"),
        ("--queue", "0"),
        ("--max-wait-ms", "nan"),
        ("--http-port", "65536"),
        ("--max-batch", "-1"),
        ("--lanes", "many"),
    ],
)
def test_options_out_of_range_are_refused(option: str, value: str) -> None:
    assert option in refused("any.aot", option, value)
