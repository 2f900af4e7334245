"""The server on this GPU: batches of an engine, several lanes, and nothing mixed.

Run by `pytest -rs tests/gpu/test_serving.py`; it needs the packages of the extra `serve` beside TensorRT.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot as package
from tests.e2e.harness import DIM, Aot
from tests.serving.conftest import Server

pytest.importorskip("aiohttp", reason="the server's packages are not installed")
pytest.importorskip("grpc", reason="the server's packages are not installed")
pytest.importorskip("prometheus_client", reason="the server's packages are not installed")
WIDTH, LARGEST = 32, 8


@pytest.fixture(scope="module")
def artifact(aot: Aot) -> Path:
    """An MLP of up to 8 rows, in FP16."""
    done = aot("build", "mlp.onnx", *DIM, "--backend", "tensorrt", "--precision", "fp16", "-o", "served.aot", "--json")
    assert done.code == 0, done.err
    return aot.folder / "served.aot"


@pytest.fixture(scope="module")
def server(artifact: Path) -> Iterator[Server]:
    server = Server(artifact, "--name", "mlp", "--max-wait-ms", "5")
    yield server
    server.process.kill()
    server.process.communicate()


def rows(count: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)


def test_many_clients_have_the_rows_that_the_engine_gives_them_alone(artifact: Path, server: Server) -> None:
    assert server.said["runs"].startswith("engine sm")
    sent = [rows(1 + seed % 4, seed) for seed in range(400)]
    with package.load(artifact) as session:
        ((name, _),) = session.inputs.items()
        (output,) = session.outputs
        wanted = [session({name: x})[output] for x in sent]

    def ask(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        one = {"name": name, "shape": x.shape, "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
        head = json.dumps({"inputs": [one], "parameters": {"binary_data_output": True}}).encode()
        connection = http.client.HTTPConnection(server.http, timeout=60)
        connection.request(
            "POST", "/v2/models/mlp/infer", head + x.tobytes(), {"Inference-Header-Content-Length": str(len(head))}
        )
        body = connection.getresponse().read()
        return np.frombuffer(body[-len(x) * 4 * wanted[0].shape[1] :], np.float32).reshape(len(x), -1)

    with ThreadPoolExecutor(32) as pool:
        for got, want in zip(pool.map(ask, sent), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=5e-3, atol=5e-3)  # another batch may be another FP16 tactic
    assert server.metric("aot_batch_requests_count") < server.metric("aot_batch_requests_sum") == len(sent)


def test_it_stops_with_0(server: Server) -> None:
    assert server.stop(signal.SIGTERM) == 0
    assert "Traceback" not in server.log


def test_two_lanes_compute_at_once(artifact: Path) -> None:
    """Straight on the scheduler: 64 requests of one shape, two lanes, every answer its own."""
    from aot.runtime import manifest
    from aot.serving.joining import Joining
    from aot.serving.metrics import Metrics
    from aot.serving.scheduler import Scheduler

    async def main() -> None:
        with package.load(artifact, contexts=2) as session:
            ((name, tensor),) = session.inputs.items()
            (output,) = session.outputs
            joining = Joining.of(manifest.read(str(artifact)), None)
            assert joining.most == LARGEST
            scheduler = Scheduler(session, joining, Metrics(), queue=100, max_wait=0.001, lanes=2)
            sent = [rows(1, seed) for seed in range(64)]
            (dim,) = [size for size in tensor.shape if isinstance(size, str)]
            found = await asyncio.gather(*(scheduler.infer({name: x}, {dim: 1}) for x in sent))
            for x, got in zip(sent, found, strict=True):
                np.testing.assert_allclose(got[output], session({name: x})[output], rtol=5e-3, atol=5e-3)
            await scheduler.drain()
            assert scheduler.close()

    asyncio.run(main())
