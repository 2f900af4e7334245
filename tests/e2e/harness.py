"""The command line as a user has it: a project folder, a store, and a process of its own where that is the point."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from aot.cli import _main as cli

MODELS = Path(__file__).parent / "models"
MAIN = "import sys; from aot.cli import main; sys.exit(main())"


# What an ONNX file does not say about its dynamic dimension.
DIM = ("--dim", "batch=1:4:8")


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object that `--json` prints."""
        assert self.out, self.err
        data = json.loads(self.out)
        assert isinstance(data, dict)
        return data

    @property
    def worked_on(self) -> set[str]:
        """The stages that were not found ready-made."""
        return {stage["name"] for stage in self.json["stages"] if not stage["cached"]}


@dataclass(frozen=True)
class Aot:
    """Runs `aot` in `folder` with the store in `store`, each time in a process of its own."""

    folder: Path
    store: Path

    def __call__(self, *arguments: str | Path, before: str = "", env: dict[str, str] | None = None) -> Outcome:
        """Run to the end; `before` is Python that runs first in the same process."""
        done = subprocess.run(
            [sys.executable, "-c", f"{before}\n{MAIN}", *map(str, arguments)],
            cwd=self.folder,
            env=self.environment | (env or {}),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Start and return at once."""
        return subprocess.Popen(
            [sys.executable, "-c", MAIN, *map(str, arguments)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment of this process with the store moved."""
        return {**os.environ, "XDG_CACHE_HOME": str(self.store), "COLUMNS": "200", "NO_COLOR": "1"}


class Here(Aot):
    """The same in this process, where torch need not be imported again: for all but how a process begins and ends."""

    def __call__(self, *arguments: str | Path, before: str = "", env: dict[str, str] | None = None) -> Outcome:
        """Run to the end; nothing can run before in the same process."""
        assert not before
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(self.folder),
            mock.patch.dict(os.environ, self.environment | (env or {})),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = cli.call([str(argument) for argument in arguments])
        return Outcome(code, out.getvalue(), err.getvalue())


def write_mlp(folder: Path) -> Path:
    """The project of `models/mlp`, with weights and calibration data; returns its folder."""
    shutil.copytree(MODELS / "mlp", folder, ignore=shutil.ignore_patterns("__pycache__"))
    random = np.random.default_rng(0)
    weights = {
        f"{layer}.{kind}": (random.standard_normal(shape) / 6).astype(np.float32)
        for layer, rows, columns in (("first", 64, 32), ("second", 16, 64))
        for kind, shape in (("weight", (rows, columns)), ("bias", (rows,)))
    }
    np.savez(folder / "weights.npz", **weights)
    np.savez(folder / "samples.npz", x=random.standard_normal((8, 4, 32)).astype(np.float32))
    return folder


def write_mlp_onnx(path: Path) -> Path:
    """A two-layer MLP as an ONNX file with dynamic batch; nothing about it needs torch."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(1)
    weights = [
        numpy_helper.from_array((random.standard_normal(shape) / 6).astype(np.float32), name)
        for name, shape in (("w1", (32, 64)), ("b1", (64,)), ("w2", (64, 16)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], name="first"),
        helper.make_node("Add", ["h", "b1"], ["a"], name="bias"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "w2"], ["y"], name="second"),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 16])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path
