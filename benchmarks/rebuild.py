"""How long nothing takes: an unchanged rebuild of MiniLM (goal: 0.5 s) and `aot --help` (goal: 0.15 s).

    python benchmarks/rebuild.py [--runs 11]

Whole processes are timed, from start to exit. Writes benchmarks/results/rebuild.json; exit code 1 where a goal
is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _result import ROOT, write

AOT = str(Path(sys.executable).parent / "aot")
GOALS = {"rebuild": 0.5, "help": 0.15}


def seconds(command: list[str], environment: dict[str, str], runs: int) -> list[float]:
    """Wall time of each run, in seconds."""
    taken = []
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
        taken.append(time.perf_counter() - started)
    return taken


def loads_torch(command: list[str], environment: dict[str, str]) -> bool:
    """Whether the command imports torch, as `-X importtime` reports it."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return any(line.split("|")[-1].strip() == "torch" for line in done.stderr.splitlines() if "|" in line)


def main() -> int:
    """Build once, then time the rebuild and the help text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=11, help="how often each command is timed (default: 11)")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": f"{folder}/store"}
        build = [AOT, "build", "examples/minilm/model.py", "--precision", "fp8", "--until", "graph"]
        build += ["-o", f"{folder}/minilm.aot", "--json"]
        (first,) = seconds(build, environment, 1)
        timed = {
            "rebuild": seconds(build, environment, arguments.runs),
            "help": seconds([AOT, "--help"], environment, arguments.runs),
        }
        torch = {"rebuild": loads_torch(build, environment), "help": loads_torch([AOT, "--help"], environment)}

    rows: list[dict[str, Any]] = [
        {
            "model": "minilm",
            "tool": "aot",
            "method": name,
            "seconds": round(statistics.median(taken), 4),
            "min": round(min(taken), 4),
            "max": round(max(taken), 4),
            "runs": len(taken),
            "goal": GOALS[name],
            "torch_imported": torch[name],
        }
        for name, taken in timed.items()
    ]
    rows.append({"model": "minilm", "tool": "aot", "method": "first build", "seconds": round(first, 2), "runs": 1})
    path = write("rebuild", rows)
    for row in rows:
        goal = f"   goal {row['goal']} s, torch imported: {row['torch_imported']}" if "goal" in row else ""
        print(f"{row['method']:12} {row['seconds']:8.3f} s{goal}")
    print(path)
    kept = all(row["seconds"] < row["goal"] and not row["torch_imported"] for row in rows if "goal" in row)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
