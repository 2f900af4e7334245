"""docs/serve.md: its examples run, and answer what they say; its tables are what the server does."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aot.serving.options import OPTIONS
from tests.runtime import artifacts
from tests.serving.conftest import Server, Serves


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs/serve.md").read_text()


@pytest.fixture(scope="module")
def server(serves: Serves, folder: Path) -> Server:
    """The page's model, under its name."""
    path = artifacts.write(
        folder / "classifier.aot",
        """<ir_version: 10, opset_import: ["": 20]>
        classifier (float[batch, 4] input) => (float[batch, 2] logits)
        <float[4, 2] w = {1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0}> { logits = MatMul(input, w) }""",
        inputs={"input": ("float32", ["batch", 4])},
        outputs={"logits": ("float32", ["batch", 2])},
        profiles=[{"batch": [1, 8, 64]}],
    )
    return serves(path, "--name", "classifier")


def test_the_requests_of_the_page_get_the_answers_of_the_page(page: str, server: Server) -> None:
    (curl,) = re.findall(r"```sh\n(curl .*?)```", page, re.S)
    command = [part.replace("localhost:8000", server.http) for part in shlex.split(curl)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (wanted,) = re.findall(r"```json\n(.*?)\n```", page, re.S)
    assert answer == wanted
    (python,) = re.findall(r"```python\n(.*?)```", page, re.S)
    seen: dict[str, Any] = {}
    exec(python.replace("localhost:8000", server.http), seen)
    assert seen["logits"].ravel().tolist() == json.loads(wanted)["outputs"][0]["data"] == [10, -10]


def test_the_page_speaks_of_options_and_paths_that_there_are(page: str, server: Server) -> None:
    known = {option.name for option in OPTIONS}
    assert set(re.findall(r"`(--[a-z-]+)", page)) <= known
    paths = set(re.findall(r"`(?:GET )?(/v2[a-zA-Z/]*)`", page))
    assert len(paths) == 5
    for path in paths:
        assert server.get(path.replace("/M", "/classifier"))[0] == 200, path


def test_what_the_page_starts_is_a_command(page: str) -> None:
    (started,) = re.findall(r"^aot serve (.*)$", page, re.M)
    assert started == "classifier.aot"
    done = subprocess.run([sys.executable, "-m", "aot.serving", "--help"], capture_output=True, text=True, check=True)
    assert all(option.name in done.stdout for option in OPTIONS)
