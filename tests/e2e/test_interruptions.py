"""Killed at any instant, nothing half-made is taken for whole; two builds of one thing do the work once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import killing
from tests.e2e.harness import DIM, Aot


@pytest.mark.parametrize("kills", [16, pytest.param(50, marks=pytest.mark.slow)])
def test_kills_leave_nothing_half_made(tmp_path: Path, mlp_onnx: Path, kills: int) -> None:
    command = [sys.executable, killing.__file__, str(mlp_onnx), str(tmp_path), str(kills), "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    rows = result["rows"]
    assert len(rows) == kills
    # The instants are spread over the build: most fall inside it, at different stages.
    assert sum(row["killed"] for row in rows) >= 0.6 * kills
    assert len({row["entries"] for row in rows}) >= 4
    for row in rows:
        assert row["wrong"] == [], row
        assert row["artifact"] in ("absent", "whole"), row
        assert row["next"] == 0, (row, done.stderr)
        assert row["after"] == "whole", row
        assert row["missing"] == [], row


def test_two_builds_of_one_thing_do_the_work_once(aot: Aot, mlp_onnx: Path) -> None:
    command = ("build", mlp_onnx, *DIM, "--precision", "int8", "--backend", "onnxruntime", "--json")
    both = [aot.start(*command, "-o", f"{name}.aot") for name in ("left", "right")]
    said = [process.communicate(timeout=200) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    stages = [{s["name"]: s["cached"] for s in json.loads(out)["stages"] if s["name"] != "package"} for out, _ in said]
    assert stages[0].keys() == stages[1].keys()
    made = {name: [row[name] for row in stages].count(False) for name in stages[0] if name != "load"}
    assert set(made.values()) == {1}, made
