"""`aot optimize`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from aot.cli import _options
from aot.errors import UsageError
from aot.text import number, size_of, table

WIDTH = 100


class _Bytes(_options.StringType):
    """A whole number of bytes."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises UsageError for anything else."""
        text = str(value)
        if not (text.isascii() and text.isdecimal()):
            raise UsageError(
                f"--fold-limit {text}: expected a whole number of bytes, 0 or more",
                fix="e.g. --fold-limit 16777216, which is 16 MiB",
            )
        return int(text)


@click.command("optimize", no_args_is_help=True)
@click.argument("source", metavar="IN.onnx")
@click.argument("target", metavar="OUT.onnx")
@click.option(
    "--precision",
    type=_options.Named("precision", _options.precisions),
    metavar="NAME",
    default="fp32",
    help="What the model will be computed in: fp32 (the default), fp16, bf16, int8, fp8 or int4. It decides which "
    "passes run: below fp32, masks are made finite; in int8, fp8 and int4, nothing is merged or scaled that would "
    "quantize worse. Weights keep their dtype: FP32 stays FP32.",
)
@click.option("--backend", metavar="NAME", help="With --target: attention in the form that it builds best.")
@click.option("--target", "gpu", metavar="TARGET", help="With --backend: sm89, ...")
@click.option("--explain", is_flag=True, help="Show per pass what it changed, what it left and why, and the numbers.")
@_options.verify_option
@click.option(
    "--without-pass",
    "without",
    multiple=True,
    metavar="NAME",
    help="Leave a pass out. Repeatable. A wrong NAME is answered with all of them.",
)
@click.option(
    "--fold-limit",
    type=_Bytes(),
    metavar="BYTES",
    help="How much larger folded constants may make the model, a whole number of bytes. Default: 16777216 (16 MiB).",
)
@_options.json_option
def command(
    source: str,
    target: str,
    precision: str,
    backend: str | None,
    gpu: str | None,
    explain: bool,
    verify: bool,
    without: tuple[str, ...],
    fold_limit: int | None,
    as_json: bool,
) -> int:
    """Write IN.onnx with fewer nodes and equal results as OUT.onnx.

    Both may be the same file: it is replaced once the new one is whole. Inputs, outputs and metadata stay. The opset is
    raised to 20 where it is older and every node allows it. What each pass changed is run before and after at a few
    sites, on random inputs; a difference beyond rounding ends the command, and nothing is written. Ops and functions
    of other domains are left as they are.

    Weights that lie beside IN.onnx, or take more than 1 GiB, go into OUT.onnx.data, or OUT.onnx.2.data, ... where that
    exists. No file of weights is removed, since other models may read it; one that OUT.onnx no longer reads is named.

    \b
    Examples:
      aot optimize model.onnx smaller.onnx --explain
      aot optimize model.onnx model.onnx --precision fp16 --verify-passes
    """
    from aot.config import QUANTIZED
    from aot.form import form_for
    from aot.graph.check import Check
    from aot.optimize_file import optimize_file

    operator = False
    if backend is not None or gpu is not None:
        form = form_for(*_place(backend, gpu), precision)  # type: ignore[arg-type]
        operator = form.attention == "operator"
    done, left = optimize_file(
        Path(source),
        Path(target),
        narrow=precision != "fp32",
        quantized=precision in QUANTIZED,
        operator=operator,
        without=without,
        check=Check(whole=verify),
        fold_limit=fold_limit,
    )
    found = {
        "input": source,
        "output": target,
        "left": [str(path) for path in left],
        **done.to_json(),
        "peak_bytes": peak(),
    }
    for path in left:
        click.echo(f"left: {path}, which nothing of {Path(target).name} reads any more; other models may", err=True)
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo(describe(found, explain))
    return 0


def _place(backend: str | None, target: str | None) -> tuple[str, str | None, str]:
    """The backend, its version here, and the target. Raises UsageError where one is missing or unknown."""
    from aot import backend as backends
    from aot.placing import target_of
    from aot.toolchain import machine

    if backend is None or target is None:
        raise UsageError(
            "the form of a graph depends on both backend and target",
            where=f"--backend {backend}" if backend is not None else f"--target {target}",
            fix="--backend tensorrt_rtx --target sm89, for example; or neither",
        )
    chosen = backends.get(backend)
    return chosen.name, chosen.version(), target_of(target, machine())


def peak() -> int:
    """The most memory that the process has had, in bytes: its own and the pages of mapped files."""
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def describe(found: Mapping[str, Any], explain: bool) -> str:
    """The answer for people, in 100 columns: what was changed and compared, then what was left and why."""
    nodes = found["nodes"]
    lines = [
        found["output"],
        f"  {nodes['before']} -> {nodes['after']} nodes in {found['seconds']:.2f} s, "
        f"{size_of(found['peak_bytes'])} of memory",
        *_compared(found),
    ]
    if found["noise"]:
        lines.append(f"  and {number(found['noise'])} where the output is noise: rounding alone moves it as much")
    if not explain:
        return "\n".join(lines)
    changed = [one for one in found["passes"] if one["sites"]]
    if changed:
        lines += [
            "",
            table([("pass", "sites", "seconds", "checked", "largest difference, of magnitude"), *map(_row, changed)]),
        ]
    for one in found["passes"]:
        reasons: dict[str, list[str]] = {}
        for site in one["skipped"]:
            reasons.setdefault(site["reason"], []).append(site["node"])
        left = [f"{len(names)} left, as {names[0]}: {reason}" for reason, names in reasons.items()]
        left += [f"{count} not checked: {reason}" for reason, count in one.get("unchecked", {}).items()]
        if left:
            lines += ["", f"  {one['name']}", *(line for text in left for line in _wrapped(text))]
    idle = len(found["passes"]) - len(changed)
    return "\n".join([*lines, "", f"  {idle} passes found nothing to change; --json names them"])


def _compared(found: Mapping[str, Any]) -> list[str]:
    """What was compared, with the largest difference; that nothing was is said as such."""
    checked = found["sites_compared"]
    spent = f", in {found['check_seconds']:.1f} s"
    if found["compared"] == "graph":
        what = "the whole graph after every pass"
    elif checked:
        what = f"{checked} {'site' if checked == 1 else 'sites'}"
    elif not any(one["sites"] for one in found["passes"]):
        return ["  compared: nothing, since no pass changed anything"]
    else:
        reasons = {reason: None for one in found["passes"] for reason in one.get("unchecked", {})}
        why = "; ".join(reasons) or "no site could be cut out of the graph"
        return ["  compared: nothing, so that no number vouches for the result", *_wrapped(f"why: {why}")]
    return [
        f"  compared: {what}{spent}",
        f"  largest difference: {number(found['relative'])} of the output's magnitude",
    ]


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    """What a pass did, as a row of the table."""
    largest = number(one["relative"]) + " (noise)" * one["noise"] if one.get("checked") else "-"
    return one["name"], str(one["sites"]), f"{one['seconds']:.3f}", str(one.get("checked", "-")), largest


def _wrapped(text: str) -> list[str]:
    import textwrap

    text = " ".join(text.split())
    return textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False)
