"""`aot bench`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import click

from aot.cli import INTERRUPTED, _options
from aot.cli._progress import reporter
from aot.cli._writing import PAGE, check_kind, replacing


@click.command("bench", no_args_is_help=True)
@click.argument("things", nargs=-1, metavar="ARTIFACT|MODEL|X.onnx...")
@click.option("--model", metavar="MODEL", help="What eager and torch.compile run, as `aot build` takes it.")
@click.option("--against", metavar="NAME,...", help="Contenders. Default: all that can run here.")
@click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="NAME=N,...",
    help="Sizes of the Dims; repeatable. Default: every optimum.",
)
@click.option("--runs", type=click.IntRange(1), metavar="N", help="Timed runs of each contender at each size.")
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), metavar="S", help="Or as many as fit into it. Default: 10."
)
@click.option(
    "--precision",
    type=_options.Named("precision", lambda: ("fp32", "fp16", "bf16")),
    metavar="NAME",
    help="What torch computes in. Default: on a GPU what the engine does beside quantized layers, else fp32.",
)
@click.option("--html", metavar="PAGE", help="Also write a page with plots, beside what the artifact's report says.")
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Of generated inputs and the order of blocks. Default: 0.",
)
@_options.dim_option
@_options.json_option
def command(
    things: tuple[str, ...],
    model: str | None,
    against: str | None,
    sizes: tuple[str, ...],
    runs: int | None,
    seconds: float | None,
    precision: str | None,
    html: str | None,
    seed: int,
    dims: tuple[str, ...],
    as_json: bool,
) -> int:
    """Time artifacts, a model in PyTorch and an ONNX file side by side, on the same inputs.

    Contenders beside the artifacts: eager, compile-default, compile-reduce-overhead, compile-max-autotune,
    onnxruntime-cpu, onnxruntime-cuda, onnxruntime-tensorrt, torch-tensorrt. What cannot run is listed with the reason.
    Each has a process of its own; their runs are in turns. Ctrl-C prints what was measured until then. Exit code 1:
    none of them ran.

    \b
    Examples:
      aot bench minilm.aot --model model.py
      aot bench fp16.aot fp8.aot --size batch=1 --size batch=8,seq=128 --json
      aot bench model.py --against eager,compile-default --runs 300
    """
    from aot.bench.bench import SECONDS, Options, bench
    from aot.bench.measuring import Effort
    from aot.bench.table import text
    from aot.errors import UsageError
    from aot.run import Run
    from aot.store import Store

    if runs is not None and seconds is not None:
        raise UsageError("--runs and --seconds contradict each other", fix="give one of them")
    if seconds is not None and not math.isfinite(seconds):
        raise UsageError(f"--seconds {seconds}: no time to measure", fix="give a number of seconds: --seconds 10")
    options = Options(
        things,
        model,
        None if against is None else [name.strip() for name in against.split(",") if name.strip()],
        [_options.sizes((one,)) for one in sizes],
        _options.dims(dims),
        precision,
        Effort(runs, seconds or SECONDS, seed),
    )
    if html is not None:
        _check(html, things)
    store = Store()
    with reporter() as progress, store.using():
        found = bench(options, Run(store, progress))
    click.echo(json.dumps(found) if as_json else text(found))
    if html is not None:
        _write(html, found)
    if found["interrupted"]:
        click.echo("interrupted; what was measured until then is above", err=True)
        return INTERRUPTED
    return 0 if any(row["runs"] for row in found["rows"]) else 1


def _check(html: str, things: tuple[str, ...]) -> None:
    """Raise UsageError for a page that could not be written, ArtifactError for a report that it cannot be made from,
    before minutes are spent on it."""
    import os
    from pathlib import Path

    from aot.artifact import is_artifact
    from aot.errors import UsageError
    from aot.report.reading import report_of

    artifact = next((name for name in things if is_artifact(name) or name.endswith(".aot")), None)
    if artifact is None:
        raise UsageError("--html goes with an artifact, whose report the page is made from", fix="give one")
    report_of(artifact)
    where, folder = f"--html {html}", Path(html).parent
    if not folder.is_dir():
        raise UsageError(f"no such folder: {folder}", where=where, fix="make it, or give another")
    if Path(html).is_dir():
        raise UsageError("the page would have the name of a folder", where=where, fix="give a file: --html page.html")
    check_kind(html, PAGE, where)
    if not os.access(folder, os.W_OK):
        raise UsageError("the page cannot be written: Permission denied", where=where, fix="give another file")


def _write(html: str, found: Mapping[str, Any]) -> None:

    from aot.report import page

    with replacing(html, PAGE, "the page", f"--html {html}", "give a file in a folder that exists") as file:
        file.write_text(page(found, found["artifact"]))
