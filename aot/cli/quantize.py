"""`aot quantize`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from aot.cli import _options
from aot.text import number, size_of

WIDTH = 100
LAYERS = ("MatMul", "Gemm", "Conv", "ConvTranspose")


@click.command("quantize", no_args_is_help=True)
@click.argument("source", metavar="IN.onnx")
@click.argument("target", metavar="OUT.onnx")
@click.option(
    "--precision",
    type=_options.Named("precision", _options.precisions),
    metavar="NAME",
    help="int8, fp8, int4 (weights alone), fp16 or bf16. Default: int8, or what the recipe says.",
)
@click.option(
    "--calibration",
    metavar="NAME|FILE.yaml",
    help="A recipe: calibrator, placement, weights. Default: the precision's.",
)
@click.option(
    "--data",
    metavar="DATA",
    help="Calibration data: FILE.npz (arrays by input name, samples along the first axis), a folder of .npz files (a "
    "batch each), or module:function or FILE.py:function (yields batches). Default: generated inputs.",
)
@click.option(
    "--dim",
    "dims",
    multiple=True,
    metavar="NAME=MIN:OPT:MAX",
    help="The range of a dynamic dimension, or of an integer input's values, for generated inputs. Repeatable.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Processes that share the calibration batches, each with a copy of the model. Default: 1.",
)
@click.option(
    "--optimize/--no-optimize",
    default=True,
    help="Run the passes of `aot optimize` first (the default): ranges and Q/DQ are placed for the graph they make.",
)
@click.option(
    "--compare/--no-compare",
    default=True,
    help="Hold every fourth batch out and compare OUT with IN on it (the default), or calibrate on all batches.",
)
@click.option("--explain", is_flag=True, help="List what every node computes in, and why.")
@_options.json_option
def command(
    source: str,
    target: str,
    precision: str | None,
    calibration: str | None,
    data: str | None,
    dims: tuple[str, ...],
    workers: int,
    optimize: bool,
    compare: bool,
    explain: bool,
    as_json: bool,
) -> int:
    """Write IN.onnx with Q/DQ, or in FP16 or BF16, calibrated on your data, as OUT.onnx.

    Both may be the same file: it is replaced once the new one is whole. Inputs, outputs, their dtypes and metadata
    stay; weights of quantized layers are stored quantized. The opset is raised to 20 where it is older. No file of
    weights is overwritten or removed.

    \b
    Examples:
      aot quantize model.onnx model.int8.onnx --data samples.npz
      aot quantize model.onnx model.fp8.onnx --precision fp8 --data batches.py:calibration --explain
    """
    from aot.cli._progress import reporter
    from aot.cli.optimize import peak
    from aot.compare import judge
    from aot.config import Recipe, Request
    from aot.errors import UsageError
    from aot.plan import settings
    from aot.quantize_file import quantize_file

    request = Request(
        model=source,
        precision=precision if precision or calibration is not None else "int8",  # type: ignore[arg-type]
        calibration=calibration,
    )
    recipe: Recipe = settings(request, Path.cwd()).recipe
    if recipe.budget.metric is not None:
        raise UsageError(
            "the recipe's budget limits a metric, and a file has none",
            where="budget.metric",
            fix="leave it out, or build from a model.py that declares one with aot build",
        )
    with reporter() as progress:
        done = quantize_file(
            Path(source),
            Path(target),
            recipe,
            data=data,
            dims=_options.dims(dims),
            workers=workers,
            optimize=optimize,
            compare=compare,
            progress=progress,
        )
    reasons = judge(done.compared, recipe.budget)
    found = {
        "input": source,
        "output": target,
        "precision": recipe.precision,
        "accepted": not reasons,
        "reasons": reasons,
        **done.to_json(),
        "peak_bytes": peak(),
        "left": [str(path) for path in done.left],
    }
    for path in done.left:
        click.echo(f"left: {path}, which nothing of {Path(target).name} reads any more; other models may", err=True)
    click.echo(json.dumps(found) if as_json else describe(found, explain))
    for reason in reasons:
        click.echo(f"the recipe's budget is missed: {reason}", err=True)
    return 1 if reasons else 0


def describe(found: Mapping[str, Any], explain: bool) -> str:
    """The answer for people, in 100 columns."""
    from aot.config import QUANTIZED

    nodes, seen, quantized = found["nodes"], found["calibration"], found["quantized"]
    layers = [one for one in found["decisions"] if one["op"] in LAYERS]
    wide = sum(one["precision"] != found["precision"] for one in layers)
    ops = ", ".join(f"{count} {op}" for op, count in quantized["ops"].items()) or "no layers"
    lines = [
        found["output"],
        f"  {nodes['before']} -> {nodes['after']} nodes in {found['seconds']:.1f} s, "
        f"{size_of(found['peak_bytes'])} of memory",
        f"  calibrated on {_batches(seen['batches'])}{' of generated inputs' if seen['generated'] else ''} in "
        f"{seen['seconds']:.1f} s, by {seen['calibrator']}",
    ]
    if found["precision"] in QUANTIZED:
        lines.append(f"  {found['precision']}: {ops}; {wide} of {len(layers)} layers stay wide")
    if found["cosine"] is not None:
        held = f"{_batches(seen['heldout'])} held out" if seen["heldout"] else "the same batches"
        lines.append(
            f"  compared with {Path(found['input']).name} on {held}: cosine {number(found['cosine'])}, "
            f"relative L2 {number(found['relative_l2'])}, max abs {number(found['max_abs'])}"
        )
    if explain:
        lines += ["", *_explained(found["decisions"])]
    return "\n".join(line for text in lines for line in _wrapped(text))


def _batches(count: int) -> str:
    return f"{count} batch" + ("es" if count != 1 else "")


def _explained(decisions: list[Mapping[str, str]]) -> list[str]:
    """A line a node: precision, op, name, module where it is known, and the reason."""
    lines = []
    for one in decisions:
        place = f" in {one['module']}" if one["module"] else ""
        lines.append(f"  {one['precision']:<5} {one['op']} '{one['node']}'{place}: {one['reason']}")
    return lines


def _wrapped(text: str) -> list[str]:
    """The line, broken where it is too long; what follows is indented."""
    indent = " " * (len(text) - len(text.lstrip()) + 6)
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False, drop_whitespace=True
    ) or [text]
