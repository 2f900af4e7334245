"""`aot build`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click

from aot.cli import _options
from aot.cli._progress import reporter
from aot.report import search
from aot.text import number, size_of, table, took


@click.command("build", no_args_is_help=True)
@click.argument("model")
@click.option(
    "--precision",
    type=_options.Named("precision", _options.precisions_or_auto),
    metavar="NAME",
    help="fp32, fp16, bf16, int8, fp8, int4 (weights alone), or auto: the fastest of fp16, int8 and fp8 on the GPU "
    "that keeps its budget. Default: fp16, or what the recipe says.",
)
@click.option(
    "--route",
    type=_options.Named("route", _options.routes),
    metavar="NAME",
    help="onnx (default), or torch-tensorrt: without ONNX, on a GPU with torch-tensorrt; fp32, fp16 or bf16.",
)
@_options.backend_option
@click.option(
    "--target", "targets", multiple=True, metavar="TARGET", help="sm89, ..., or auto; one engine each. Or cpu, alone."
)
@_options.profile_option
@click.option("--calibration", metavar="NAME", help="A recipe: how ranges are found, what stays wide.")
@click.option("--budget", multiple=True, metavar="KEY=VALUE", help="cosine, relative_l2, max_abs or metric.")
@click.option("--no-search", is_flag=True, help="Where the budget is missed, do not look for nodes to keep wide.")
@_options.dim_option
@_options.without_option
@_options.verify_option
@_options.plugin_option
@_options.no_plugins_option
@click.option(
    "--until",
    type=_options.Named("stage", lambda: ("graph",)),
    metavar="graph",
    help="Stop before the engine: a prepared artifact, finished on another machine.",
)
@_options.engine_options
@_options.lock_options
@click.option("-o", "--output", metavar="PATH", help="NAME.aot, or NAME.tar for one file. Default: the model's name.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Processes that share the calibration batches.",
)
@click.option("--fresh", is_flag=True, help="Do every stage again, whatever the store holds.")
@_options.json_option
def command(
    model: str,
    precision: str | None,
    route: str | None,
    backend: str | None,
    targets: tuple[str, ...],
    profile: str,
    calibration: str | None,
    budget: tuple[str, ...],
    no_search: bool,
    dims: tuple[str, ...],
    without: tuple[str, ...],
    verify: bool,
    plugins: tuple[str, ...],
    no_plugins: bool,
    until: str | None,
    strip: bool,
    version_compatible: bool,
    no_lean_runtime: bool,
    hardware_compatible: str | None,
    lock: str | None,
    locked: bool,
    output: str | None,
    workers: int,
    fresh: bool,
    as_json: bool,
) -> int:
    """Build a verified engine from MODEL.

    MODEL is model.py (model.py:name where it declares several), module:attribute, x.pt2, x.onnx, or a
    prepared artifact. The target cpu cannot be combined with GPU targets. Exit codes: 0 built; 1 built, and the
    accuracy budget is missed; 2 something you can put right; 70 a bug of aot; 130 interrupted.

    \b
    Examples:
      aot build model.py --precision fp8 --target sm89 --target sm120
      aot build model.py --precision int8 --budget cosine=0.99 --until graph
      aot build model.py --precision auto --profile batch
      aot build model.aot
    """
    from pathlib import Path

    from aot.artifact_write import check_name, check_output, check_place
    from aot.config import Request, parse
    from aot.pipeline import build
    from aot.store import Store
    from aot.store_admin import keep_limit, size_limit

    given = {
        "model": model,
        "precision": precision,
        "route": route,
        "backend": backend,
        "targets": targets,
        "profile": profile,
        "calibration": calibration,
        "budget": _options.budget(budget),
        "search": not no_search,
        "dims": _options.dims(dims),
        "surgery": {"without": without, "verify": verify},
        "patterns": _options.patterns(plugins, no_plugins),
        "engine": _options.engine(strip, version_compatible, no_lean_runtime, hardware_compatible),
        "until": until,
        "lock": Path(lock) if lock else None,
        "locked": locked,
        "output": Path(output) if output else None,
        "workers": workers,
        "fresh": fresh,
    }
    request = parse(Request, given, "the command line")
    if request.output is not None:
        check_name(request.output)
        check_output(request.output)
    else:
        check_place(Path("NAME.aot"))  # named after the model, in this folder
    store, limit = Store(), size_limit()
    with reporter() as progress:
        with store.using():
            result = build(request, store, progress)
        keep_limit(store, limit, progress)
    summary = dict(result.summary)
    summary["warnings"] = list(dict.fromkeys([*progress.warnings, *summary["warnings"]]))
    if as_json:
        click.echo(json.dumps(summary))
    else:
        click.echo(describe(summary))
    return 0 if result.accepted else 1


def describe(summary: Mapping[str, Any]) -> str:
    """The summary for people."""
    nodes, quantized, checked = summary["nodes"], summary["quantized"], summary["verification"]["graph"]
    lines = [f"{summary['artifact']}  ({summary['precision']})", ""]
    lines.append(table([(stage["name"], took(stage["seconds"], stage["cached"])) for stage in summary["stages"]]))
    facts = [("nodes", f"{nodes['exported']} -> {nodes['final']}")]
    if quantized["qdq"]:
        ops = ", ".join(f"{count} {op}" for op, count in summary["quantized_ops"].items())
        facts.append(("quantized", f"{quantized['ops']} ops ({ops}), {quantized['qdq']} DequantizeLinear"))
    facts.append(("graph to source", _numbers(checked)))
    for plugin, why, count in _replaced(summary["replaced"]):
        facts.append((plugin, f"in {count} {'place' if count == 1 else 'places'} that the model writes out: {why}"))
    if checked.get("metric"):
        metric = checked["metric"]
        facts.append(("metric", f"{metric['eager']:.5g} eager, {metric['graph']:.5g} graph"))
    lines += ["", table(facts)]
    if summary["choice"]:
        from aot.report.choice import paragraph as chosen

        lines += ["", *chosen(summary["choice"])]
    shown: Sequence[str] = ()
    if summary["search"]:
        lines += ["", *search.paragraph(summary["search"])]
        shown = search.sentences(summary["search"])
    if summary["engines"]:
        rows = [
            (
                engine["file"],
                size_of(engine["bytes"]),
                took(engine["seconds"], engine["cached"]),
                _numbers(engine["verification"]),
            )
            for engine in summary["engines"]
        ]
        lines += ["", table(rows)]
    else:
        onnx = summary["route"] == "onnx"
        lines += [
            "",
            f"  a prepared artifact; finish it on a machine with a GPU{'' if onnx else ' and torch-tensorrt'}:",
            f"    aot build {summary['artifact']}{'' if onnx else ' --route ' + summary['route']}",
        ]
        if onnx:
            named = " --precision fp16" if summary["precision"] == "auto" else ""
            lines += [
                "  or build an RTX engine here, e.g. for sm89:",
                f"    aot build {summary['artifact']} --target sm89{named}",
            ]
    warnings = [f"  warning: {warning}" for warning in summary["warnings"] if warning not in shown]
    if warnings:
        lines += ["", *warnings]
    if not summary["accepted"]:
        lines += ["", "  not accepted:", *(f"    {reason}" for reason in summary["reasons"])]
    return "\n".join(lines)


def _replaced(places: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, int]]:
    """(plugin, why, in how many places it replaces what the model computes)."""
    counts = Counter((place["plugin"], place["why"]) for place in places if place["replaced"])
    return [(plugin, why, count) for (plugin, why), count in counts.items()]


def _numbers(found: Mapping[str, Any]) -> str:
    if not found["ran"]:
        return str(found["reason"])
    parts = [f"cosine {number(found['cosine'])}", f"relative L2 {number(found['relative_l2'])}"]
    if found["cosine"] is None:
        parts = []
    if found.get("flips") is not None:
        parts.append(f"flips {found['flips']:.3%}")
    return f"{', '.join(parts)} ({found['cases']} cases)"
