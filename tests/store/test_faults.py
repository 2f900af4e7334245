"""Whatever operation a process is killed at or the disk refuses: nothing half-made is seen, nothing finished is lost,
the error is one of ours, and the next run makes it good. Every operation in `make sweep`, some of them here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.store import faults

ROOT = Path(__file__).parent.parent.parent
STORE = ("fetch", "fresh", "damaged", "remember", "collect", "verify", "timing")
ARTIFACT = ("package", "pack")
SLOW = [pytest.param(names, 1, marks=pytest.mark.slow) for names in (STORE, ARTIFACT)]


@cache
def mounts() -> bool:
    """Whether this user may mount a disk."""
    done = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
    )
    return os.name == "posix" and done.returncode == 0


def run(folder: Path, fault: str, names: tuple[str, ...], every: int) -> list[dict[str, Any]]:
    if fault in faults.ON_A_DISK and not mounts():
        pytest.skip("only a user who may mount a disk of a few pages can fill one")
    command = [sys.executable, faults.__file__, str(folder), fault, *names, "--every", str(every)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=3000, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    for row in rows:
        assert row["left"] == [], row
        assert row["next"] == 0, row
        assert row["missing"] == [], row
        assert row["wrong"] == [], row
    return rows


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("names", "every"), [(STORE, 5), (ARTIFACT, 17), *SLOW])
def test_killed_at_any_operation(tmp_path: Path, names: tuple[str, ...], every: int) -> None:
    rows = run(tmp_path, "kill", names, every)
    assert {row["scenario"] for row in rows} == set(names)
    assert {row["code"] for row in rows} == {-9}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", ["full", "once", "limit", "blocks", "inodes"])
@pytest.mark.parametrize(("names", "every"), [(STORE, 5), (ARTIFACT, 29), *SLOW])
def test_refused_by_the_disk_at_any_operation(tmp_path: Path, fault: str, names: tuple[str, ...], every: int) -> None:
    """A refusal that costs nothing, such as a timing cache that is not kept, is no error."""
    rows = run(tmp_path, fault, names, every)
    assert {row["code"] for row in rows} <= {0, faults.REFUSED}
    for row in rows:
        assert "cannot be" in row["said"] or row["code"] == 0, row


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("fault", "every"),
    [
        ("inodes", 61),
        *(pytest.param(fault, 1, marks=pytest.mark.slow) for fault in ("blocks", "inodes", "full", "kill")),
        pytest.param("limit", 8, marks=pytest.mark.slow),
    ],
)
def test_a_whole_build_on_such_a_disk(tmp_path: Path, fault: str, every: int) -> None:
    """With all that onnx and onnxruntime write, and temporary files on the same disk."""
    rows = run(tmp_path, fault, ("build",), every)
    assert {row["code"] for row in rows} <= {0, faults.REFUSED, -9}
