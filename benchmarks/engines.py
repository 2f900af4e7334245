"""Finish prepared artifacts on a GPU machine and record what the engines are worth.

    python benchmarks/engines.py minilm-fp16.aot minilm-fp8.aot ...

For every artifact: build its engine with an empty timing cache, compare it with the reference that
travelled along, build it again with the cache that the first build kept, and load the plan with nothing
but `tensorrt.Runtime`. Writes `benchmarks/results/engines.json`, one row a comparison or a build.
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

from _results import write


def build(artifact: Path, output: Path, store: Path, *, fresh: bool) -> dict[str, Any]:
    """Run `aot build` as a user would; the parsed `--json` of it, or the error it printed."""
    command = [sys.executable, "-m", "aot", "build", str(artifact), "-o", str(output), "--json"]
    if fresh:
        command.append("--fresh")
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "XDG_CACHE_HOME": str(store)})
    sys.stderr.write(done.stderr)
    if done.returncode not in (0, 1):
        return {"error": done.stdout.strip() or done.stderr.strip()[-2000:]}
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def loads_plainly(plan: Path) -> bool:
    """Whether the vendor's runtime alone takes the plan."""
    import tensorrt

    logger = tensorrt.Logger(tensorrt.Logger.ERROR)
    return tensorrt.Runtime(logger).deserialize_cuda_engine(plan.read_bytes()) is not None


def rows_of(artifact: Path, scratch: Path) -> list[dict[str, Any]]:
    """The rows of one artifact: the two builds, then one row for every case compared."""
    manifest = json.loads((artifact / "manifest.json").read_text())
    about = {"model": manifest["name"], "tool": "aot", "precision": manifest["precision"]}
    store, output = scratch / f"{artifact.stem}-store", scratch / artifact.name
    rows: list[dict[str, Any]] = []
    for timing_cache in ("empty", "kept"):
        result = build(artifact, output, store, fresh=timing_cache == "kept")
        if "error" in result:
            return [*rows, {**about, "built": False, "timing_cache": timing_cache, "reason": result["error"]}]
        (engine,) = result["engines"]
        facts = json.loads((output / "engines" / f"{engine['target']}.json").read_text())
        rows.append(
            {
                **about,
                "built": True,
                "timing_cache": timing_cache,
                "target": engine["target"],
                "seconds": facts["facts"]["builder_seconds"],
                "bytes": engine["bytes"],
                "loads_with_tensorrt_alone": loads_plainly(output / engine["file"]),
                "accepted": result["accepted"],
                "cosine": result["verification"]["engine"]["cosine"],
                "relative_l2": result["verification"]["engine"]["relative_l2"],
            }
        )
    report = json.loads((output / "report.json").read_text())
    for compared in report["engines"][0]["cases"]:
        sizes = compared["sizes"]
        rows.append(
            {
                **about,
                "batch": sizes.get("batch"),
                "length": sizes.get("seq"),
                "data": compared["kind"],
                "cosine": compared["cosine"],
                "relative_l2": compared["relative_l2"],
            }
        )
    return rows


def main() -> None:
    """Run every artifact given and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifacts", nargs="+", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for artifact in arguments.artifacts:
            rows += rows_of(artifact, Path(scratch))
            write("engines", "python benchmarks/engines.py ARTIFACT...", rows)


if __name__ == "__main__":
    main()
