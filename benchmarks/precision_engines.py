"""Engines by precision: latency, build time and layers in FP16, INT8 and FP8 on this machine's GPUs.

    python benchmarks/precision_engines.py prepare FOLDER [--only MODEL] [--recipe NAME]    needs no GPU
    python benchmarks/precision_engines.py check FOLDER [--only MODEL] [--recipe NAME]      builds them for an RTX GPU
    python benchmarks/precision_engines.py measure FOLDER [--only MODEL] [--batch N] ...    on GPUs, with TensorRT
    python benchmarks/precision_engines.py table                                            of the result, in Markdown

Each model gets one engine for each precision and each size, with an optimization profile for just that size. The
graphs are those that `aot build` ends with, without their large weights, which a time does not depend on: each is read
from a file of noise. The engines of one size are timed in turns: median milliseconds of a CUDA graph that is replayed
on inputs that lie on the GPU already. The recipe `fp8` leaves convolutions in FP16; `--recipe fp8-convolutions` in
`prepare` and `measure` shows whether a version of TensorRT has become fast in them.

With `--attention kernel`, in `prepare` and in `measure`, each graph is there a second time, its attention replaced by
kernels of plugins/attention.py, compiled for sm90 in `prepare` (which takes triton) and launched by TensorRT 10.6.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from precision.attention import SUFFIX
from precision.prepare import CELLS, MODELS, RECIPES, prepare


def main() -> int:
    """Prepare the graphs, measure the engines, or show the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    one = steps.add_parser("prepare", help="write the final graphs; needs no GPU")
    two = steps.add_parser("measure", help="build and time the engines")
    three = steps.add_parser("check", help="build the graphs with TensorRT-RTX; needs no GPU")
    steps.add_parser("table", help="the kept result, in Markdown").add_argument("--name", default="precision-engines")
    for step in (one, two, three):
        step.add_argument("folder", type=Path)
        step.add_argument("--only", action="append", choices=sorted(MODELS), help="this model only; may be repeated")
        step.add_argument("--recipe", action="append", help=f"these only, in place of {', '.join(RECIPES)}")
    for step in (one, two):
        step.add_argument(
            "--attention", choices=["kernel"], help="each graph also with attention as kernels: RECIPE-attention"
        )
    two.add_argument("--batch", type=int, action="append", help="this batch size only; may be repeated")
    two.add_argument("--length", type=int, action="append", help="this length only, and no pictures; may be repeated")
    two.add_argument("--gpus", type=int, default=1, help="how many GPUs work side by side, a process each")
    two.add_argument("--timeout", type=float, default=180, help="seconds for one engine")
    two.add_argument("--level", type=int, default=3, help="the builder's optimization level, 0 to 5")
    two.add_argument("--profile", action="store_true", help="also the ten slowest layers")
    two.add_argument("--missing", action="store_true", help="only sizes that the kept result lacks")
    two.add_argument("--name", default="precision-engines", help="the result's name")
    arguments = parser.parse_args()
    if arguments.step == "table":
        from precision.page import kept, text

        print(text(kept(arguments.name)))
        return 0
    recipes = [Path(name).stem for name in arguments.recipe or RECIPES]
    models = arguments.only or list(MODELS)
    if arguments.step == "prepare":
        arguments.folder.mkdir(parents=True, exist_ok=True)
        kernels = arguments.attention == "kernel"
        prepare(arguments.folder, models, arguments.recipe or RECIPES, kernels=kernels)
        return 0
    if arguments.step == "check":
        from precision.check import check

        return 0 if check(arguments.folder, models, recipes) else 1
    if arguments.attention == "kernel":
        recipes = [name for recipe in recipes for name in (recipe, recipe + SUFFIX)]
    from precision.measure import Options, measure

    cells = [
        cell
        for cell in CELLS
        if cell.model in models
        and cell.batch in (arguments.batch or [cell.batch])
        and cell.length in (arguments.length or [cell.length])
    ]
    options = Options(arguments.folder.resolve(), arguments.timeout, arguments.level, arguments.profile)
    measure(cells, recipes, options, gpus=arguments.gpus, name=arguments.name, missing=arguments.missing)
    return 0


if __name__ == "__main__":
    sys.exit(main())
