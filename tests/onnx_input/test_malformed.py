"""No file takes `aot` down, nor the machine's memory: each bad one ends in one message and exit code 2.

All files of a command are given to one process whose address space is limited, as a process that eats memory would
otherwise take others with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from aot.onnx_input.loading import load
from tests.conftest import ROOT
from tests.onnx_input.malformed import MALFORMED

LIMIT = 4 << 30
"""Bytes of address space: libraries map 2 GiB of it without using them."""
COMMANDS = {
    "optimize": ["optimize", "net.onnx", "out.onnx"],
    "build": ["build", "net.onnx", "--precision", "fp32", "--backend", "tensorrt_rtx", "--target", "sm89"],
}
PROCESS = """
import contextlib, io, json, os, resource, sys
limit, arguments, folders = json.loads(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
from aot.cli._main import call
from aot.onnx_input import vetting
vetting._apart = lambda path, what, limits: vetting.examine(path, what)  # here, where the limit holds too
for name, folder in folders.items():
    os.chdir(folder)
    os.environ["XDG_CACHE_HOME"] = folder
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = call(arguments)
    print(json.dumps([name, [code, errors.getvalue()]]), flush=True)
"""


@pytest.fixture(scope="module", params=COMMANDS)
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """(exit code, standard error) of the command for every file."""
    folders = {}
    for name, (_, write) in MALFORMED.items():
        folder = tmp_path_factory.mktemp("bad")
        write(folder)
        folders[name] = str(folder)
    given = json.dumps([LIMIT, COMMANDS[request.param], folders])
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, given], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.parametrize("name", MALFORMED)
def test_a_bad_file_ends_in_one_clear_message(name: str, answers: dict[str, Any]) -> None:
    code, said = answers[name]
    assert code == 2, said
    assert said.startswith("error: ")
    assert MALFORMED[name][0] in said
    assert "\n  at:  " in said
    assert "\n  fix: " in said
    assert len(said.splitlines()) == 3


def test_bytes_that_a_weight_shares_with_others_are_enough(tmp_path: Path) -> None:
    """Two weights of one file, the second without a length, as older writers leave it."""
    tensors = []
    for name, entries in (("a", {"offset": 0, "length": 8}), ("b", {"offset": 8})):
        tensor = TensorProto(name=name, dims=[2], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
        for key, value in {"location": "w.bin", **entries}.items():
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
    (tmp_path / "w.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"])], "g", [], [out], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    assert sorted(load(tmp_path / "net.onnx").graph.initializers) == ["a", "b"]
    onnx.checker.check_model(str(tmp_path / "net.onnx"))
