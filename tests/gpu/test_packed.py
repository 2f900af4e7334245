"""What `aot pack` writes, on a GPU: the runtime's wheel by itself, and a Triton repository held against its plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import aot as package
from aot.packing import wheel
from tests.e2e.harness import DIM, Aot


@pytest.fixture(scope="module")
def built(aot: Aot) -> Path:
    """The artifact of the MLP, with an engine for this GPU."""
    build = aot("build", "mlp.onnx", *DIM, "--precision", "fp16", "--backend", "tensorrt", "-o", "mlp.aot")
    assert build.code == 0, build.err
    return aot.folder / "mlp.aot"


def test_the_wheel_alone_runs_an_engine_as_the_whole_package_does(built: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel.write(tmp_path)).extractall(tmp_path / "site")
    x = np.random.default_rng(0).standard_normal((3, 32)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    text = f"""
import sys; sys.modules["torch"] = sys.modules["onnx"] = sys.modules["pydantic"] = None
import aot, json, numpy as np
with aot.load({str(built)!r}) as session:
    np.save({str(tmp_path / "y.npy")!r}, session(x=np.load({str(tmp_path / "x.npy")!r}))["y"])
    print(json.dumps([session.label, aot.__file__]))
"""
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    label, where = json.loads(done.stdout)
    assert label.startswith("engine sm")
    assert where == str(tmp_path / "site/aot/__init__.py")
    with package.load(built) as session:
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.asarray(session(x=x)["y"]))


def test_a_triton_configuration_is_that_of_its_plan(aot: Aot, built: Path) -> None:
    pytest.importorskip("tritonclient.grpc", reason="tritonclient, which has the server's schema, is not installed")
    import tensorrt as trt

    from tests.packing import triton_server as server

    assert aot("pack", built.name, "--triton", "models").code == 0
    config = server.read(aot.folder / "models/mlp")
    assert (config.platform, config.max_batch_size) == ("tensorrt_plan", 8)
    plan = (aot.folder / "models/mlp/1/model.plan").read_bytes()
    engine = trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(plan)
    assert engine.num_io_tensors == len(config.input) + len(config.output)
    for io in (*config.input, *config.output):
        assert server.joins(io, list(engine.get_tensor_shape(io.name)), 8, exact=True)
    _, _, largest = engine.get_tensor_profile_shape(config.input[0].name, 0)
    assert largest[0] == config.max_batch_size
