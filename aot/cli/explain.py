"""`aot explain`."""

from __future__ import annotations

import json

import click

from aot.cli import _options
from aot.cli._progress import reporter
from aot.text import visible


@click.command("explain", no_args_is_help=True)
@click.argument("model")
@_options.precision_option
@_options.backend_option
@click.option(
    "--target", "targets", multiple=True, metavar="TARGET", help="sm89, ..., or auto, whatever GPU this machine has."
)
@_options.profile_option
@click.option("--calibration", metavar="NAME", help="A recipe: what is quantized, what stays wide.")
@_options.dim_option
@_options.without_option
@_options.plugin_option
@_options.no_plugins_option
@click.option("--fresh", is_flag=True, help="Export again, whatever the store holds.")
@_options.json_option
def command(
    model: str,
    precision: str | None,
    backend: str | None,
    targets: tuple[str, ...],
    profile: str,
    calibration: str | None,
    dims: tuple[str, ...],
    without: tuple[str, ...],
    plugins: tuple[str, ...],
    no_plugins: bool,
    fresh: bool,
    as_json: bool,
) -> int:
    """Say what a build of MODEL would break on, and where, without building.

    MODEL is what `aot build` takes, except a prepared artifact. Shown are: where the export breaks, by line of the
    model's code; the ops that a target lacks; what stays wide; estimates of memory; the profiles. The export is kept,
    so that a build need not repeat it. Exit codes: 0 a build would pass, as far as can be known; 1 it would not; 2 as
    everywhere.

    \b
    Examples:
      aot explain model.py --precision fp8 --target sm89
      aot explain model.onnx --json
    """
    from aot.config import Request, parse
    from aot.explain import explain
    from aot.explain.text import describe
    from aot.store import Store

    given = {
        "model": model,
        "precision": precision,
        "backend": backend,
        "targets": targets,
        "profile": profile,
        "calibration": calibration,
        "dims": _options.dims(dims),
        "surgery": {"without": without},
        "patterns": _options.patterns(plugins, no_plugins),
        "fresh": fresh,
    }
    store = Store()
    with reporter() as progress, store.using():
        found = explain(parse(Request, given, "the command line"), store, progress)
    if as_json:
        click.echo(json.dumps({**found.to_json(), "warnings": list(dict.fromkeys(progress.warnings))}))
    else:
        click.echo(visible(describe(found)))
    return 0 if found.accepted else 1
