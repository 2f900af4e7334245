"""Kills builds at instants all along them and looks at what is left; run as a script, prints one JSON object.

    python killing.py MODEL.onnx FOLDER KILLS SEED

Every other build begins with nothing. The others go on from a store that lacks some entries, and replace an artifact;
beside every second of these a collection runs, which is killed as well.

Everything heavy is imported once and each build is a fork, so that many builds take seconds. A fork that is
killed with SIGKILL cannot clean up, as a process of its own could not.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from aot import artifact, toolchain
from aot.config import Request
from aot.errors import ArtifactError
from aot.pipeline import build
from aot.progress import Silent
from aot.store import FACTS, TMP, Store
from aot.store_admin import collect_garbage

PRELOADED = (
    *("numpy", "onnx.inliner", "onnx_ir", "onnxscript", "onnxruntime", "polygraphy.comparator", "yaml"),
    *("aot.calibrators.max", "aot.observe", "aot.passes", "aot.report.render", "aot.precision.casts"),
)


def build_once(model: str, folder: Path, output: str = "out.aot", precision: str = "int8") -> None:
    os.chdir(folder)
    request = Request(
        model=model,
        precision=precision,
        backend="onnxruntime",
        dims={"batch": (1, 4, 8)},
        output=folder / output,
    )
    store = Store(folder / "store")
    with store.using():
        result = build(request, store, Silent())
    assert result.accepted, result.summary["reasons"]


def collect(folder: Path) -> None:
    """Collections one after the other, as fast as they come; nothing that a build uses may go, or be lost by them."""
    while True:
        collect_garbage(Store(folder / "store"), max_bytes=0)


def start(work: Callable[[], None]) -> int:
    """Fork it; the exit status of the child tells how it ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def whole(folder: Path) -> dict[str, str]:
    """Every entry that the store accepts, with a digest over its files; the facts may hold times and do not count."""
    store = Store(folder / "store")
    found = {}
    for facts in sorted((folder / "store").glob(f"*/*/{FACTS}")):
        stage, key = facts.parent.parent.name, facts.parent.name
        if stage == TMP:
            continue  # work that was cut off an instant before its rename is no entry, however complete
        entry = store.get(stage, key)
        if entry is not None:
            total = hashlib.sha256()
            for path in sorted(entry.path.rglob("*")):
                if path.is_file() and path.name != FACTS:
                    total.update(str(path.relative_to(entry.path)).encode() + path.read_bytes())
            found[f"{entry.stage}/{entry.key}"] = total.hexdigest()
    return found


def artifact_state(folder: Path, output: str = "out.aot") -> str:
    if not (folder / output).exists():
        return "absent"
    try:
        artifact.load(str(folder / output))
    except ArtifactError as error:
        return f"refused: {error}"
    return "whole"


def main(model: str, folder: Path, kills: int, seed: int) -> None:
    # Polygraphy imports torch where it finds it, which takes seconds and is no part of a build from an ONNX file.
    sys.modules["torch"] = None  # type: ignore[assignment]
    os.environ["XDG_CACHE_HOME"] = str(folder / "unpacked")
    for name in PRELOADED:
        import_module(name)
    toolchain.own_digest()  # known to every fork, whatever happens to the sources meanwhile
    reference = folder / "reference"
    reference.mkdir()
    for output in ("out.aot", "out.tar"):
        assert ended(start(partial(build_once, model, reference, output, "fp32"))) == 0
    kept = set(whole(reference))
    shutil.copytree(reference, folder / "before")
    started = time.monotonic()
    assert ended(start(partial(build_once, model, reference))) == 0
    duration = time.monotonic() - started
    truth = whole(reference)

    chance = random.Random(seed)
    rows = []
    for number in range(kills):
        work = folder / str(number)
        fresh, collecting = number % 2 == 0, number % 4 == 3
        output = "out.tar" if number % 8 > 5 else "out.aot"
        if fresh:
            work.mkdir()
        else:
            shutil.copytree(folder / "before", work)
            lacking = chance.random()
            for key in sorted(truth.keys() - kept):
                if chance.random() > lacking:
                    shutil.copytree(reference / "store" / key, work / "store" / key)
        instant = duration * (number + chance.random()) / kills if fresh else duration * chance.random() * 0.6
        collector = start(partial(collect, work)) if collecting else None
        child = start(partial(build_once, model, work, output))
        time.sleep(instant)
        for one in filter(None, (child, collector)):
            os.kill(one, signal.SIGKILL)
        killed = ended(child)
        if collector is not None:
            ended(collector)
        left, state = whole(work), artifact_state(work, output)
        row = {
            "instant": round(instant, 3),
            "fresh": fresh,
            "collecting": collecting,
            "output": output,
            "killed": killed == -signal.SIGKILL,
            "failed": killed not in (0, -signal.SIGKILL),
            "entries": len(left),
            "wrong": [key for key, value in left.items() if truth.get(key) != value],
            "lost": [] if fresh or collecting else sorted(kept - set(left)),
            "artifact": state,
            "next": ended(start(partial(build_once, model, work, output))),
        }
        row["after"] = artifact_state(work, output)
        collect_garbage(Store(work / "store"))
        beside = [path.name for path in work.iterdir() if path.name.startswith(".")]
        row["litter"] = beside + [path.name for path in (work / "store" / TMP).iterdir()]
        row["missing"] = sorted(set(truth) - kept - set(whole(work)))
        rows.append(row)
        shutil.rmtree(work)
    print(json.dumps({"seconds": duration, "entries": len(truth), "rows": rows}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
