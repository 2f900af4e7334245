"""Kills builds at instants all along them and looks at what is left; run as a script, prints one JSON object.

    python killing.py MODEL.onnx FOLDER KILLS SEED

Everything heavy is imported once and each build is a fork, so that many builds take seconds. A fork that is
killed with SIGKILL cannot clean up, as a process of its own could not.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

from aot import artifact, toolchain
from aot.config import Request
from aot.errors import ArtifactError
from aot.pipeline import build
from aot.progress import Silent
from aot.store import FACTS, Store

PRELOADED = (
    *("numpy", "onnx.inliner", "onnx_ir", "onnxscript", "onnxruntime", "polygraphy.comparator", "yaml"),
    *("aot.calibrators.max", "aot.observe", "aot.passes", "aot.report.render", "aot.precision.casts"),
)


def build_once(model: str, folder: Path) -> None:
    os.chdir(folder)
    request = Request(
        model=model,
        precision="int8",
        backend="onnxruntime",
        dims={"batch": (1, 4, 8)},
        output=folder / "out.aot",
    )
    result = build(request, Store(folder / "store"), Silent())
    assert result.accepted, result.summary["reasons"]


def start(model: str, folder: Path) -> int:
    """Fork a build; the exit status of the child tells how it ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            build_once(model, folder)
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    return child


def whole(folder: Path) -> dict[str, str]:
    """Every entry that the store accepts, with a digest over its files; the facts may hold times and do not count."""
    store = Store(folder / "store")
    found = {}
    for facts in sorted((folder / "store").glob(f"*/*/{FACTS}")):
        stage, key = facts.parent.parent.name, facts.parent.name
        if stage == "tmp":
            continue  # work that was cut off an instant before its rename is no entry, however complete
        entry = store.get(stage, key)
        if entry is not None:
            total = hashlib.sha256()
            for path in sorted(entry.path.rglob("*")):
                if path.is_file() and path.name != FACTS:
                    total.update(str(path.relative_to(entry.path)).encode() + path.read_bytes())
            found[f"{entry.stage}/{entry.key}"] = total.hexdigest()
    return found


def artifact_state(folder: Path) -> str:
    if not (folder / "out.aot").exists():
        return "absent"
    try:
        artifact.load(str(folder / "out.aot"))
    except ArtifactError as error:
        return f"refused: {error}"
    return "whole"


def main(model: str, folder: Path, kills: int, seed: int) -> None:
    # Polygraphy imports torch where it finds it, which takes seconds and is no part of a build from an ONNX file.
    sys.modules["torch"] = None  # type: ignore[assignment]
    for name in PRELOADED:
        import_module(name)
    toolchain.own_digest()  # known to every fork, whatever happens to the sources meanwhile
    reference = folder / "reference"
    reference.mkdir()
    started = time.monotonic()
    assert os.waitstatus_to_exitcode(os.waitpid(start(model, reference), 0)[1]) == 0
    duration = time.monotonic() - started
    truth = whole(reference)

    chance = random.Random(seed)
    rows = []
    for number in range(kills):
        work = folder / str(number)
        work.mkdir()
        instant = duration * (number + chance.random()) / kills
        child = start(model, work)
        time.sleep(instant)
        os.kill(child, signal.SIGKILL)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        left, state = whole(work), artifact_state(work)
        row = {
            "instant": round(instant, 3),
            "killed": ended == -signal.SIGKILL,
            "entries": len(left),
            "wrong": [key for key, value in left.items() if truth.get(key) != value],
            "artifact": state,
            "next": os.waitstatus_to_exitcode(os.waitpid(start(model, work), 0)[1]),
        }
        row["after"] = artifact_state(work)
        row["missing"] = sorted(set(truth) - set(whole(work)))
        rows.append(row)
    print(json.dumps({"seconds": duration, "entries": len(truth), "rows": rows}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
