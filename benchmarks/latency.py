"""Engines beside eager and `torch.compile`: latency, launches, memory, accuracy by batch and length on this GPU.

    python benchmarks/latency.py prepare FOLDER [--only MODEL] [--precision NAME]     needs no GPU
    python benchmarks/latency.py measure FOLDER [--only MODEL] [--budget SECONDS]     on the GPU, with TensorRT
    python benchmarks/latency.py table [--figure p99_ms]                              of the result, in Markdown

`prepare` writes MODEL-PRECISION.aot; models have weights from a seed, so `measure` makes what FOLDER lacks by itself.
For each cell, a model at one size, it builds one engine for each precision, tuned for that size, and runs `aot bench`
with torch in FP16. Rows are written as they come, and cells that the kept result has are left out: after an end or an
interrupt the same command goes on.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from latency.cells import PRECISIONS, cells
from latency.measure import NAME, Options, kept, measure, prepare
from latency.page import text

AGAINST = ("eager", "compile-default", "compile-reduce-overhead", "compile-max-autotune")


def main() -> int:
    """Prepare artifacts, measure cells, or show the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    one = steps.add_parser("prepare", help="write the prepared artifacts; needs no GPU")
    two = steps.add_parser("measure", help="build engines and time them")
    three = steps.add_parser("table", help="the kept result, in Markdown")
    for step in (one, two):
        step.add_argument("folder", type=Path)
        step.add_argument("--only", action="append", choices=list(PRECISIONS), help="this model only; may be repeated")
    one.add_argument("--precision", action="append", help="this one only; may be repeated")
    two.add_argument("--against", action="append", choices=AGAINST, help="this contender only; may be repeated")
    two.add_argument("--batch", type=int, action="append", help="this batch size only; may be repeated")
    two.add_argument("--length", type=int, action="append", help="this length only; may be repeated")
    two.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no cell is begun")
    two.add_argument("--seconds", type=float, default=3.0, help="of timed runs for each contender (default: 3)")
    two.add_argument("--again", action="store_true", help="also cells that the kept result has")
    two.add_argument("--name", default=NAME, help="the result's name")
    three.add_argument("--name", default=NAME)
    three.add_argument("--figure", default="p50_ms", help="which field of the rows (default: p50_ms)")
    arguments = parser.parse_args()
    if arguments.step == "table":
        print(text(kept(arguments.name), arguments.figure))
        return 0
    models = arguments.only or list(PRECISIONS)
    folder = arguments.folder.resolve()
    if arguments.step == "prepare":
        folder.mkdir(parents=True, exist_ok=True)
        for model in models:
            for precision in PRECISIONS[model]:
                if precision in (arguments.precision or [precision]):
                    print(prepare(folder, model, precision), flush=True)
        return 0
    chosen = [
        cell
        for cell in cells()
        if cell.model in models
        and cell.batch in (arguments.batch or [cell.batch])
        and cell.length in (arguments.length or [cell.length])
    ]
    against = arguments.against or AGAINST
    measure(chosen, Options(folder, against, arguments.budget, arguments.seconds, arguments.again, arguments.name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
