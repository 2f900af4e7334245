"""Servers in processes of their own, on ports that are free."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import artifacts
from tests.serving import models

SECONDS = 60


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine functions in an event loop of their own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


class Server:
    """A server that is ready. http, grpc: HOST:PORT. log: what it says on standard error."""

    def __init__(self, artifact: Path, *options: str, command: tuple[str, ...] = ("-m", "aot.serving")) -> None:
        self._log = artifact.with_suffix(f".{len(list(artifact.parent.glob('*.log')))}.log")
        ports = ("--http-port", "0", "--grpc-port", "0")
        self.process = subprocess.Popen(
            [sys.executable, *command, str(artifact), *ports, "--json", *options],
            stdout=subprocess.PIPE,
            stderr=self._log.open("w"),
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log
        self.said: dict[str, Any] = json.loads(line)
        self.http: str = self.said["http"]
        self.grpc: str = self.said["grpc"]
        self.port = int(self.http.rpartition(":")[2])

    @property
    def log(self) -> str:
        return self._log.read_text()

    def get(self, path: str) -> tuple[int, Any]:
        return self._asked(urllib.request.Request(f"http://{self.http}{path}"))

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._asked(urllib.request.Request(f"http://{self.http}{path}", data, headers))

    def _asked(self, request: urllib.request.Request) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def metric(self, name: str) -> float:
        """One figure of /metrics, with its labels as they are written there; 0 where there is none yet."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=SECONDS) as response:
            found = re.search(rf"^{re.escape(name)} (\S+)$", response.read().decode(), re.M)
        return float(found[1]) if found else 0.0

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(SECONDS)


Serves = Callable[..., Server]


@pytest.fixture(scope="module")
def serves() -> Iterator[Serves]:
    """Starts servers; those that still run in the end are killed."""
    started: list[Server] = []

    def serve(artifact: Path, *options: str, **more: Any) -> Server:
        started.append(Server(artifact, *options, **more))
        return started[-1]

    yield serve
    for server in started:
        server.process.kill()
        server.process.communicate()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def linear(serves: Serves, folder: Path) -> Server:
    """y = x W, x FP32 [batch, 3], up to 4 rows."""
    return serves(artifacts.linear(folder / "linear.aot"), "--max-request-bytes", "100000")


@pytest.fixture(scope="module")
def dtypes(serves: Serves, folder: Path) -> Server:
    """Every dtype, as it came."""
    return serves(models.every_dtype(folder / "dtypes.aot"))
