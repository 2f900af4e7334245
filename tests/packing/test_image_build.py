"""The image of `aot pack --image`, built for real by buildah and run: `make sweep`.

The registry's Python image may be out of reach, so the base is Debian's Python under that name, put together by
debootstrap from Debian's packages; everything from there on is what the Dockerfile says. It runs in a chroot with the
image's user, environment and entry point. That takes root, a package index and Debian's archive.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aot.packing import image
from tests.packing.artifacts import artifact

TOOLS = ("buildah", "debootstrap")
missing = [tool for tool in TOOLS if shutil.which(tool) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="buildah's chroot isolation and debootstrap want root"),
]


class Buildah:
    """buildah with a store of its own."""

    def __init__(self, folder: Path) -> None:
        self._store = ["--root", str(folder / "root"), "--runroot", str(folder / "run")]

    def command(self, name: str, *arguments: str) -> list[str]:
        return ["buildah", *self._store, name, *arguments]

    def __call__(self, name: str, *arguments: str) -> str:
        done = subprocess.run(self.command(name, *arguments), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout.strip()


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Buildah:
    return Buildah(tmp_path_factory.mktemp("buildah"))


@pytest.fixture(scope="module")
def base(buildah: Buildah) -> str:
    """Debian's Python under the name of the base image."""
    container = buildah("from", "scratch")
    root = Path(buildah("mount", container))
    packages = "--include=python3,python3-venv,python3-pip,ca-certificates"
    made = ["debootstrap", "--variant=minbase", packages, "bookworm", str(root)]
    subprocess.run(made, check=True, capture_output=True)
    (root / "usr/bin/python").symlink_to("python3")
    buildah("umount", container)
    buildah("commit", "--quiet", "--format", "docker", container, image.PYTHON)
    buildah("rm", container)
    return image.PYTHON


@pytest.fixture(scope="module")
def built(buildah: Buildah, base: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image, with the registry's certificates of this machine while it is built."""
    folder = tmp_path_factory.mktemp("context")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "store"))
        image.write(artifact(folder / "m.aot"), folder / "context")
    options = ["--format", "docker", "--isolation", "chroot", "--network", "host", "--pull-never"]
    certificates = ["--volume", "/etc/ssl/certs:/etc/ssl/certs:ro"]
    buildah("build", *options, *certificates, "--tag", "tiny", str(folder / "context"))
    return "tiny"


@pytest.fixture
def container(buildah: Buildah, built: str) -> Iterator[str]:
    name = buildah("from", "--pull-never", f"localhost/{built}")
    yield name
    buildah("rm", name)


def config(buildah: Buildah, container: str) -> dict[str, Any]:
    found = json.loads(buildah("inspect", container))["Docker"]["config"]
    assert isinstance(found, dict)
    return found


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def request(url: str, body: bytes | None = None) -> bytes:
    """The answer, as soon as there is one."""
    for _ in range(100):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10) as response:
                return bytes(response.read())
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"no answer from {url}")


def test_the_image_that_buildah_builds_answers_a_request_and_stops(buildah: Buildah, container: str) -> None:
    said = config(buildah, container)
    http, grpc = free_port(), free_port()
    ports = ["--http-port", str(http), "--grpc-port", str(grpc)]
    run = buildah.command("run", "--isolation", "chroot", "--network", "host", container, "--", *said["Entrypoint"])
    process = subprocess.Popen([*run, *ports], start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        request(f"http://127.0.0.1:{http}/v2/health/ready")
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 3.0]}
        answer = json.loads(
            request(f"http://127.0.0.1:{http}/v2/models/tiny/infer", json.dumps({"inputs": [tensor]}).encode())
        )
        assert answer["outputs"][0]["data"] == [8.0, 4.75]
        check = said["Healthcheck"]["Test"][1:]
        asked = [word.replace(":8000", f":{http}") for word in check]
        buildah("run", "--isolation", "chroot", "--network", "host", container, "--", *asked)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def test_the_image_runs_as_a_user_without_rights_and_without_pip_and_torch(buildah: Buildah, container: str) -> None:
    assert config(buildah, container)["User"] == image.USER
    assert buildah("run", "--isolation", "chroot", container, "--", "id", "-u") == "10001"
    look = "import importlib.util as u; print([n for n in ('pip', 'torch', 'onnx', 'aot') if u.find_spec(n)])"
    assert buildah("run", "--isolation", "chroot", container, "--", "python", "-c", look) == "['aot']"
