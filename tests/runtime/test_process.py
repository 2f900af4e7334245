"""What a process holds that does nothing but load an artifact and run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.runtime import artifacts

SCRIPT = """
import json, sys, time
import numpy as np
import aot
started = time.perf_counter()
import aot.runtime
session = aot.load(sys.argv[1])
got = session(x=np.ones((2, 3), np.float32))["y"]
pending = session.submit(x=np.ones((1, 3), np.float32))
session.warm_up()
held = sorted(name for name in sys.modules if "." not in name)
print(json.dumps({"got": got.tolist(), "later": pending.result()["y"].tolist(), "held": held}))
"""
FOREIGN = {"torch", "onnx", "onnx_ir", "onnxscript", "pydantic", "click", "rich", "polygraphy", "triton", "yaml"}


def test_neither_torch_nor_the_compiler_is_in_a_process_that_runs_an_artifact(tmp_path: Path) -> None:
    where = artifacts.linear(tmp_path / "tiny.aot")
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(where)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["got"] == [[3.5, 1.25]] * 2
    assert said["later"] == [[3.5, 1.25]]
    assert {"numpy", "onnxruntime"} <= set(said["held"])
    assert not FOREIGN & set(said["held"])


def test_the_package_alone_brings_neither_numpy_nor_a_runtime() -> None:
    script = "import sys, aot, aot.runtime; print([n for n in ('numpy', 'onnxruntime', 'cuda') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
