"""What TensorRT makes of prepared artifacts on this machine's GPU: accuracy, size, build time cold and warm.

    python benchmarks/engines.py PREPARED.aot... [--name engines]

Each artifact, a folder called MODEL-PRECISION.aot, is finished twice with a store of its own: cold, then again
with nothing kept but the timing cache; `seconds` are the builder call's. Writes benchmarks/results/NAME.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _result import ROOT, write

AOT = [sys.executable, "-c", "import sys; from aot.cli import main; sys.exit(main())"]


def finish(prepared: Path, output: Path, store: Path, *options: str) -> dict[str, Any]:
    """Build the engine; the summary that `--json` prints. Raises RuntimeError with what aot said.

    options: more of `aot build`.
    """
    done = subprocess.run(
        [*AOT, "build", str(prepared), "-o", str(output), "--fresh", "--json", *options],
        env={**os.environ, "XDG_CACHE_HOME": str(store), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr)
    return dict(json.loads(done.stdout))


def builder_seconds(artifact: Path) -> float:
    """How long the builder's call took, without parsing and checking."""
    manifest = json.loads((artifact / "manifest.json").read_text())
    return float(manifest["engines"][0]["engine"]["facts"]["builder_seconds"])


def loads_alone(plan: Path) -> bool:
    """Whether the vendor's runtime takes the plan with nothing of ours around it."""
    import tensorrt as trt

    return trt.Runtime(trt.Logger(trt.Logger.ERROR)).deserialize_cuda_engine(plan.read_bytes()) is not None


def measure(prepared: Path, work: Path) -> list[dict[str, Any]]:
    """One row for the engine, with both build times, and one for each comparison."""
    seconds: list[float] = []
    summary: dict[str, Any] = {}
    output = work / prepared.name
    for _ in range(2):
        summary = finish(prepared, output, work / "store")
        seconds.append(builder_seconds(output))
    (engine,) = summary["engines"]
    numbers = summary["verification"]["engine"]
    about = {"model": prepared.name.split("-")[0], "tool": "aot", "precision": summary["precision"]}
    row = {
        **about,
        "target": engine["target"],
        "built": True,
        "loads_with_tensorrt_alone": loads_alone(output / engine["file"]),
        "nodes": summary["nodes"]["final"],
        "qdq": summary["quantized"]["qdq"],
        "bytes": engine["bytes"],
        "seconds": seconds[0],
        "warm_seconds": seconds[1],
        "times_faster": round(seconds[0] / seconds[1], 1),
        "cosine": numbers["cosine"],
        "relative_l2": numbers["relative_l2"],
        "accepted": summary["accepted"],
    }
    cases = json.loads((output / "report.json").read_text())["engine_reports"][engine["target"]]["cases"]
    return [row, *({**about, "data": c["kind"], **c["sizes"], "cosine": c["cosine"]} for c in cases)]


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
                rows += measure(prepared.resolve(), Path(folder))
            except RuntimeError as error:
                reason = " ".join(str(error).split())[-500:]
                rows.append({"model": prepared.stem, "tool": "aot", "built": False, "reason": reason})
        print(json.dumps(rows[-1]), flush=True)
        write(arguments.name, rows)
    print(write(arguments.name, rows))
    return 0 if all(row.get("built", True) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
