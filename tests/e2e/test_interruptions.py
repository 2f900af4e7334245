"""Killed at any instant, nothing half-made is taken for whole; two builds of one thing do the work once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import killing
from tests.e2e.harness import DIM, Aot


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [16, pytest.param(1000, marks=pytest.mark.slow)])
def test_kills_leave_nothing_half_made(tmp_path: Path, mlp_onnx: Path, kills: int) -> None:
    command = [sys.executable, killing.__file__, str(mlp_onnx), str(tmp_path), str(kills), "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    rows = result["rows"]
    assert len(rows) == kills
    # The instants are spread over the build: most fall inside it, at different stages.
    assert sum(row["killed"] for row in rows) >= 0.6 * kills
    assert not any(row["failed"] for row in rows), done.stderr
    assert len({row["entries"] for row in rows}) >= 4
    for row in rows:
        assert row["wrong"] == [], row
        assert row["lost"] == [], row
        assert row["artifact"] == "whole" or (row["fresh"] and row["artifact"] == "absent"), row
        assert row["next"] == 0, (row, done.stderr)
        assert row["after"] == "whole", row
        assert row["missing"] == [], row
        assert row["litter"] == [], row


def test_ten_builds_of_one_thing_do_the_work_once(aot: Aot, mlp_onnx: Path) -> None:
    """Ten processes, two artifacts between them: each stage runs in one of them, and each artifact is written once."""
    command = ("build", mlp_onnx, *DIM, "--precision", "int8", "--backend", "onnxruntime", "--json")
    ran = [aot.start(*command, "-o", f"{('left', 'right')[number % 2]}.aot") for number in range(10)]
    said = [process.communicate(timeout=300) for process in ran]
    assert [process.returncode for process in ran] == [0] * 10, said
    stages = [{s["name"]: s["cached"] for s in json.loads(out)["stages"]} for out, _ in said]
    made = {name: [row[name] for row in stages].count(False) for name in stages[0]}
    assert made.pop("package") == 2
    made.pop("load")  # reading the file is how a change of it is found
    assert len(made) >= 8
    assert set(made.values()) == {1}, made
    assert [path.name for path in aot.folder.iterdir() if path.name.startswith(".")] == []
