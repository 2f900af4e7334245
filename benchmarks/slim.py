"""What plans without weights, for later TensorRT and for other GPUs cost: bytes, seconds, latency.

    python benchmarks/slim.py PREPARED.aot [--size batch=8,seq=128]     on a GPU with TensorRT

The artifact, which `aot build --until graph` wrote, is finished in every form with one timing cache, so that all builds
but the first, which is not measured, are warm. All are then loaded, and called in turns on one input. Writes
`benchmarks/results/slim.json`, a row a form:

    bytes, weights_bytes    of the plan, and of the weights beside it
    seconds, load_seconds, refit_seconds    the builder's call; loading without digests; putting the weights in, of it
    p50_ms, ratio           of a bound call, waited for; its median over that of the plain plan
    max_abs, equal          the largest difference to the plain plan's outputs, and whether every bit is the same
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
from _result import write
from engines import builder_seconds, finish

import aot
from aot.runtime import plan, refit
from aot.runtime.session import Session

FORMS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "stripped": ("--strip",),
    "version-compatible": ("--version-compatible",),
    "version-compatible, no lean runtime": ("--version-compatible", "--no-lean-runtime"),
    "ampere-plus": ("--hardware-compatible", "ampere_plus"),
}
LEAN = "libnvinfer_lean.so.10"
ROUNDS, RUNS = 20, 50


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("--size", default="", metavar="NAME=N,...", help="of Dims; default: their optimum")
    arguments = parser.parse_args()
    size = dict((name, int(n)) for name, n in (one.split("=") for one in arguments.size.split(",") if one))
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(arguments.prepared.resolve(), size, Path(folder))
    for row in rows:
        print(json.dumps(row))
    print(write("slim", rows))
    return 0 if all(row["built"] for row in rows) else 1


def measured(prepared: Path, size: dict[str, int], work: Path) -> list[dict[str, Any]]:
    """A row for each form; what does not build is one too, with the reason."""
    model = {"model": prepared.stem, "tool": "aot"}
    finish(prepared, work / "first.aot", work / "store")  # fills the timing cache
    rows: list[dict[str, Any]] = []
    sessions: dict[str, Session] = {}
    for form, options in FORMS.items():
        if form == "version-compatible" and not is_installed(LEAN):
            rows.append({**model, "form": form, "built": False, "reason": f"{LEAN} is not installed"})
            continue
        output = work / f"{len(rows)}.aot"
        try:
            summary = finish(prepared, output, work / "store", *options)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[-500:]
            rows.append({**model, "form": form, "built": False, "reason": reason})
            continue
        weights = output / "engines" / refit.WEIGHTS
        sessions[form], load, put_in = loaded(output)
        rows.append(
            {
                **model,
                "form": form,
                "built": True,
                "precision": summary["precision"],
                "target": summary["engines"][0]["target"],
                "bytes": summary["engines"][0]["bytes"],
                "weights_bytes": weights.stat().st_size if weights.is_file() else 0,
                "seconds": builder_seconds(output),
                "load_seconds": round(load, 4),
                "refit_seconds": round(put_in, 4),
                "cosine": summary["verification"]["engine"]["cosine"],
            }
        )
    timed = in_turns(sessions, size)
    outputs = {form: session(feed(session, size)) for form, session in sessions.items()}
    for row in rows:
        if row["built"]:
            seconds, plain = timed[row["form"]], timed["plain"]
            row |= {"sizes": size, "p50_ms": round(seconds * 1e3, 5), "ratio": round(seconds / plain, 4)}
            row |= difference(outputs["plain"], outputs[row["form"]])
    for session in sessions.values():
        session.close()
    return rows


def is_installed(library: str) -> bool:
    """Whether the loader finds it."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def loaded(artifact: Path) -> tuple[Session, float, float]:
    """The session, the seconds that loading took, and those of them that putting the weights in took."""
    taken = [0.0]

    def timed(*arguments: Any) -> int:
        started = time.perf_counter()
        count = refit.refit(*arguments)
        taken[0] = time.perf_counter() - started
        return count

    with mock.patch.object(plan, "refit", timed):
        started = time.perf_counter()
        session = aot.load(artifact, verify=False)
        return session, time.perf_counter() - started, taken[0]


def feed(session: Session, size: dict[str, int]) -> dict[str, Any]:
    """Random inputs of floats, ones of integers, at these sizes of Dims."""
    given = session._inputs_of(session._reader.signature.complete(size))
    random = np.random.default_rng(0)
    return {
        name: random.standard_normal(array.shape).astype(array.dtype) if array.dtype.kind == "f" else array + 1
        for name, array in given.items()
    }


def in_turns(sessions: dict[str, Session], size: dict[str, int]) -> dict[str, float]:
    """The median seconds of one bound call of each, the sessions one after the other, round after round."""
    bound = {form: session.bound(feed(session, size)) for form, session in sessions.items()}
    times: dict[str, list[float]] = {form: [] for form in sessions}
    for turn in range(ROUNDS + 1):
        for form, call in bound.items():
            for _ in range(RUNS):
                started = time.perf_counter()
                call.run()
                call.synchronize()
                if turn:  # the first is for warming up
                    times[form].append(time.perf_counter() - started)
    for call in bound.values():
        call.close()
    return {form: median(found) for form, found in times.items()}


def difference(plain: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """How far outputs differ from those of the plain plan."""
    pairs = [(np.asarray(plain[name], np.float64), np.asarray(other[name], np.float64)) for name in plain]
    return {
        "max_abs": max(float(np.abs(a - b).max()) for a, b in pairs),
        "equal": all(np.array_equal(a, b) for a, b in pairs),
    }


if __name__ == "__main__":
    sys.exit(main())
