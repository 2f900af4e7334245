"""`aot diff`."""

from __future__ import annotations

import json

import click

from aot.cli import _options
from aot.cli._progress import reporter
from aot.text import number, table


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
@_options.json_option
def command(reference: str, other: str, budget: tuple[str, ...], dims: tuple[str, ...], as_json: bool) -> int:
    """Compare B with A on the same inputs, output by output.

    A and B are each an artifact, an .onnx file, or a model as `aot build` takes it (run in eager PyTorch).
    The inputs are the references that travel in an artifact, else random ones at the minimum, optimum and
    maximum of every Dim. NaN, a missing output, another dtype or shape always miss.

    \b
    Example:
      aot diff model.py model.aot --budget cosine=0.999
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
    rows = []
    reasons: list[str] = []
    with reporter() as progress:
        run = Run(Store(), progress)
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
    if as_json:
        sides = {side: {"name": of.name, "is": of.label} for side, of in (("a", first), ("b", second))}
        click.echo(json.dumps({**sides, "accepted": not reasons, "reasons": reasons, "rows": rows}))
    else:
        click.echo(f"A  {first.name}: {first.label}\nB  {second.name}: {second.label}\n")
        head = ("case", "output", "cosine", "relative L2", "max abs", "flips")
        numbers = ("cosine", "relative_l2", "max_abs", "flips")
        click.echo(table([head, *((r["case"], r["output"], *(number(r[n]) for n in numbers)) for r in rows)]))
        if reasons:
            click.echo("\n".join(["", "not the same:", *(f"  {reason}" for reason in reasons)]))
    return 1 if reasons else 0
