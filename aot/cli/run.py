"""`aot run`."""

from __future__ import annotations

import json

import click

from aot.cli import _options
from aot.cli._writing import ARRAYS, check_kind, replacing
from aot.text import table


@click.command("run", no_args_is_help=True)
@click.argument("artifact")
@click.option("-i", "--inputs", "--input", "inputs", metavar="X.npz", help="Inputs by name. Default: random ones.")
@click.option("--size", "sizes", multiple=True, metavar="NAME=N,...", help="Sizes of random inputs. Default: optimum.")
@click.option("-o", "--output", metavar="Y.npz", help="Where to write the outputs.")
@click.option("--engine", metavar="TARGET", help="sm90, ..., or cpu for the final graph. Default: what runs here.")
@_options.json_option
def command(
    artifact: str, inputs: str | None, sizes: tuple[str, ...], output: str | None, engine: str | None, as_json: bool
) -> int:
    """Run ARTIFACT: an engine that fits this machine, else its final graph on onnxruntime.

    \b
    Examples:
      aot run minilm.aot --size batch=3,seq=11
      aot run minilm.aot --inputs x.npz --output y.npz
    """
    import time

    from aot import arrays
    from aot.errors import UsageError
    from aot.runners import make_inputs, of_artifact, read_inputs

    if inputs and sizes:
        raise UsageError("--inputs and --size contradict each other", fix="give one of them")
    if output:
        check_kind(output, ARRAYS, output)
    side = of_artifact(artifact, engine)
    feed = read_inputs(inputs, side.spec) if inputs else make_inputs(side.spec, _options.sizes(sizes))
    with side.open() as session:
        started = time.perf_counter()
        outputs = session(feed)
        seconds = time.perf_counter() - started
    if output:
        fix = "give another place with -o, e.g. -o y.npz"
        with replacing(output, ARRAYS, "the outputs", output, fix) as file:
            arrays.save(file, outputs)
    described = [
        {"name": name, "dtype": value.dtype.name, "shape": list(value.shape)} for name, value in outputs.items()
    ]
    if as_json:
        found = {"artifact": artifact, "ran": side.label, "seconds": seconds, "outputs": described, "file": output}
        click.echo(json.dumps(found))
        return 0
    click.echo(f"{side.label}, {'inputs from ' + inputs if inputs else 'random inputs'}, {seconds * 1000:.1f} ms")
    click.echo(table([(str(one["name"]), str(one["dtype"]), str(one["shape"])) for one in described]))
    if output:
        click.echo(f"written to {output}")
    return 0
