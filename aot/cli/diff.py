"""`aot diff`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from aot.cli import _options
from aot.cli._progress import reporter
from aot.cli._writing import PAGE, check_kind, replacing
from aot.text import number, table, visible

if TYPE_CHECKING:
    from aot.run import Run
    from aot.runners import Runnable


@click.command("diff", no_args_is_help=True)
@click.argument("reference", metavar="A")
@click.argument("other", metavar="B")
@click.option("--budget", multiple=True, metavar="KEY=VALUE", help="cosine, relative_l2 or max_abs; missed: exit 1.")
@click.option(
    "--dim",
    "dims",
    multiple=True,
    metavar="NAME=MIN:OPT:MAX",
    help="The range of a Dim, where neither side declares it.",
)
@click.option("--layers", "by_layer", is_flag=True, help="Also where error enters, layer by layer.")
@click.option("--plot", metavar="FILE.html", help="Write that as a page with a plot as well; implies --layers.")
@_options.json_option
def command(
    reference: str,
    other: str,
    budget: tuple[str, ...],
    dims: tuple[str, ...],
    by_layer: bool,
    plot: str | None,
    as_json: bool,
) -> int:
    """Compare B with A on the same inputs, output by output.

    A and B are each an artifact, an .onnx file, or a model as `aot build` takes it (run in eager PyTorch).
    The inputs are the references that travel in an artifact, else random ones at the minimum, optimum and
    maximum of every Dim. NaN, a missing output, another dtype or shape always miss.

    --layers runs the graphs of both side by side on onnxruntime: every value that both compute under one name,
    the error it has in the whole graph, and the error that its own layer adds to exact inputs.

    \b
    Examples:
      aot diff model.py model.aot --budget cosine=0.999
      aot diff model.py model.aot --layers --plot layers.html
    """
    from aot.compare import compare
    from aot.config import Budget
    from aot.errors import UsageError
    from aot.run import Run
    from aot.runners import cases_for, matched, open_two
    from aot.store import Store

    limits = Budget(**_options.budget(budget))
    if limits.metric is not None:
        raise UsageError(
            "diff compares outputs, not metrics", where="--budget metric", fix="aot build --budget metric="
        )
    if plot is not None:
        check_kind(plot, PAGE, f"--plot {plot}")
    rows = []
    reasons: list[str] = []
    store = Store()
    with reporter() as progress, store.using():
        run = Run(store, progress)
        first, second = open_two(reference, other, _options.dims(dims), run)
        with first.open() as one, second.open() as two:
            for name, inputs, padding in cases_for(first, second):
                wanted = one(inputs)
                got = matched(wanted, two(inputs))
                verdict = compare(wanted, got, limits, inputs=inputs, padding=padding, names=("A", "B"))
                reasons += [f"case '{name}', {reason}" for reason in verdict.reasons]
                rows += [
                    {"case": name, "output": output, **metrics.to_json()} for output, metrics in verdict.outputs.items()
                ]
        layers = _layers(first, second, dims, run) if by_layer or plot else None
    if plot and layers:
        _write(plot, layers)
    if as_json:
        sides = {side: {"name": of.name, "is": of.label} for side, of in (("a", first), ("b", second))}
        answer = {**sides, "accepted": not reasons, "reasons": reasons, "rows": rows}
        click.echo(json.dumps(answer if layers is None else {**answer, "layers": layers}))
    else:
        click.echo(f"A  {first.name}: {first.label}\nB  {second.name}: {second.label}\n")
        head = ("case", "output", "cosine", "relative L2", "max abs", "flips")
        numbers = ("cosine", "relative_l2", "max_abs", "flips")
        click.echo(table([head, *((r["case"], r["output"], *(number(r[n]) for n in numbers)) for r in rows)]))
        if layers:
            from aot.report import layers as report

            click.echo(visible(f"\n{report.text(layers)}"))
        if reasons:
            click.echo(visible("\n".join(["", "not the same:", *(f"  {reason}" for reason in reasons)])))
    return 1 if reasons else 0


def _layers(first: Runnable, second: Runnable, dims: tuple[str, ...], run: Run) -> dict[str, Any]:
    """The rows of `aot.layers.errors`, and what they are of, as plain data."""
    from aot.layers.errors import layer_errors
    from aot.layers.opening import graph_of
    from aot.runners import cases_for

    given = _options.dims(dims)
    one, label = graph_of(first, second, given, run)
    two, label2 = graph_of(second, first, given, run)
    cases = [inputs for _, inputs, _ in cases_for(first, second)]
    run.progress.stage("layers")
    found = layer_errors(one, two, cases, run.progress, len(cases))
    return {
        "a": f"{first.name}: {label}",
        "b": f"{second.name}: {label2}",
        "cases": found.cases,
        "alone": list(found.alone),
        "rows": [row.to_json() for row in found.rows],
    }


def _write(plot: str, layers: Mapping[str, Any]) -> None:
    from aot.report.layers import page

    with replacing(plot, PAGE, "the page", f"--plot {plot}", "give a file in a folder that exists") as file:
        file.write_text(page(layers))
