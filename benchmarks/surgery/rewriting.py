"""One tool on one file, in a process of its own: `python -m surgery.rewriting TOOL FILE OUTPUT` prints a JSON object.

seconds: CPU time of the rewriting, every thread and the system's share included, so that other work on the machine
counts little; loading, saving and imports are not in it. All runs are listed, up to `RUNS` of them while they take
less than `LONG`. peak: bytes that the process had resident at most over what it had after the imports, the loaded
model included.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from surgery.count import nodes_of
from surgery.tools import TOOLS

RUNS = 3
LONG = 5.0


def main(tool: str, source: Path, target: Path) -> dict[str, object]:
    """Rewrite `source` into `target`, and measure."""
    used = TOOLS[tool]
    rewrite = used.prepare()
    seconds: list[float] = []
    peak = 0
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew, here
    before = _status("VmRSS")
    while not seconds or (seconds[-1] < LONG and len(seconds) < RUNS):
        model = used.load(source)
        started = time.process_time()
        model = rewrite(model)
        seconds.append(time.process_time() - started)
        if len(seconds) == 1:
            peak = _status("VmHWM") - before
            used.save(model, target)
    return {"before": nodes_of(source), "nodes": nodes_of(target), "seconds": seconds, "peak": peak}


def _status(field: str) -> int:
    """Bytes, from the kernel's account of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024


if __name__ == "__main__":
    said = os.dup(1)
    os.dup2(2, 1)  # what a tool prints is not the answer
    answer = json.dumps(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
    os.write(said, answer.encode())
