"""A server in a process of its own, its CPU time, and its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType


class Server:
    """`python -m aot.serving`, ready. Raises RuntimeError where it does not come up."""

    def __init__(self, artifact: Path, name: str, options: list[str], environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "aot.serving", str(artifact), "--name", name, "--json", *options]
        self._process = subprocess.Popen(
            [*command, "--http-port", "0", "--grpc-port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(self._process.communicate()[1])
        self.host, _, port = json.loads(line)["http"].rpartition(":")
        self.port = int(port)

    def cpu_seconds(self) -> float:
        """What it took of the CPUs until now."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def figures(self) -> dict[str, float]:
        """/metrics, by name."""
        with urllib.request.urlopen(f"http://{self.host}:{self.port}/metrics") as response:
            lines = [line.split() for line in response.read().decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        _, said = self._process.communicate()
        if kind is None and self._process.returncode:
            raise RuntimeError(said)
