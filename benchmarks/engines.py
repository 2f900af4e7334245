"""What TensorRT makes of prepared artifacts on this machine's GPU: accuracy, size, build time cold and warm.

    python benchmarks/engines.py PREPARED.aot... [--name engines]

Each artifact is finished twice with a store of its own: cold, then again with nothing kept but the timing cache.
Writes benchmarks/results/NAME.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _result import ROOT, write

AOT = [sys.executable, "-c", "import sys; from aot.cli import main; sys.exit(main())"]


def finish(artifact: Path, store: Path) -> dict[str, Any]:
    """Build the engine; the summary that `--json` prints. Raises RuntimeError with what aot said."""
    done = subprocess.run(
        [*AOT, "build", artifact.name, "--fresh", "--json"],
        cwd=artifact.parent,
        env={**os.environ, "XDG_CACHE_HOME": str(store), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr)
    return dict(json.loads(done.stdout))


def measure(prepared: Path, work: Path) -> dict[str, Any]:
    """One row: the engine's numbers, and both build times."""
    seconds: list[float] = []
    summary: dict[str, Any] = {}
    for _ in range(2):
        copy = work / prepared.name
        if prepared.is_dir():
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(prepared, copy)
        else:
            shutil.copy(prepared, copy)
        summary = finish(copy, work / "store")
        seconds.append(summary["engines"][0]["seconds"])
    engine = summary["verification"]["engine"]
    return {
        "model": prepared.name.split(".")[0],
        "tool": "aot",
        "precision": summary["precision"],
        "target": summary["engines"][0]["target"],
        "built": True,
        "nodes": summary["nodes"]["final"],
        "qdq": summary["quantized"]["qdq"],
        "bytes": summary["engines"][0]["bytes"],
        "seconds": round(seconds[0], 2),
        "warm_seconds": round(seconds[1], 2),
        "times_faster": round(seconds[0] / seconds[1], 1),
        "cosine": engine["cosine"],
        "relative_l2": engine["relative_l2"],
        "cases": engine["cases"],
        "accepted": summary["accepted"],
    }


def main() -> int:
    """Measure every artifact; one that does not build is a row too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prepared", type=Path, nargs="+", help="artifacts that `aot build --until graph` wrote")
    parser.add_argument("--name", default="engines", help="the result's name (default: engines)")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for prepared in arguments.prepared:
        with tempfile.TemporaryDirectory() as folder:
            try:
                rows.append(measure(prepared.resolve(), Path(folder)))
            except RuntimeError as error:
                reason = " ".join(str(error).split())[-500:]
                rows.append({"model": prepared.name.split(".")[0], "tool": "aot", "built": False, "reason": reason})
        print(json.dumps(rows[-1]), flush=True)
    print(write(arguments.name, rows))
    return 0 if all(row["built"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
