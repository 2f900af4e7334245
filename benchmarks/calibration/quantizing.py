"""One tool on one file, in a process of its own: `python -m calibration.quantizing TABLE TOOL FILE BATCHES TARGET`.

It prints a JSON object. seconds: wall-clock time from the file to the quantized file, imports left out. calibration:
seconds of calibration alone. peak: bytes that the process had resident at most, imports and mapped files included.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

from calibration import tools


def main(table: str, tool: str, file: Path, batches: Path, target: Path) -> dict[str, float | int | None]:
    """Quantize, and measure."""
    run = getattr(tools, table)[tool].prepare()
    started = time.perf_counter()
    calibration = run(file, batches, target)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "calibration": calibration, "peak": peak}


if __name__ == "__main__":
    said = os.dup(1)
    os.dup2(2, 1)  # what a tool prints is not the answer
    answer = json.dumps(main(sys.argv[1], sys.argv[2], *map(Path, sys.argv[3:6])))
    os.write(said, answer.encode())
