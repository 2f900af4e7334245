"""A registry on this machine, for the tests that push to one."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A registry of our own, on a free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "registry.yml").write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: '{address}'}}\n"
        f"storage: {{filesystem: {{rootdirectory: '{tmp_path}/registry'}}}}\n"
    )
    with subprocess.Popen(["docker-registry", "serve", str(tmp_path / "registry.yml")]) as process:
        try:
            for _ in range(100):
                with socket.socket() as there:
                    if there.connect_ex(("127.0.0.1", int(address.partition(":")[2]))) == 0:
                        break
                time.sleep(0.05)
            yield address
        finally:
            process.kill()
