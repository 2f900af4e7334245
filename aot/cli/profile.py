"""`aot profile`."""

from __future__ import annotations

import json

import click

from aot.cli import _options


@click.command("profile", no_args_is_help=True)
@click.argument("artifact")
@click.option("-i", "--inputs", "--input", "inputs", metavar="X.npz", help="Inputs by name. Default: random ones.")
@click.option("--size", "sizes", multiple=True, metavar="NAME=N,...", help="Sizes of random inputs. Default: optimum.")
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, metavar="N", help="How many to show.")
@click.option("--engine", metavar="TARGET", help="sm90, ..., or cpu for the final graph. Default: what runs here.")
@_options.json_option
def command(
    artifact: str, inputs: str | None, sizes: tuple[str, ...], top: int, engine: str | None, as_json: bool
) -> int:
    """Show where the time of ARTIFACT goes: by layer, with module and source line, by module, by precision.

    An engine is timed by TensorRT's own profiler. Where none runs, the final graph is timed on onnxruntime, and says
    so: there FP16, BF16, INT8 and FP8 are emulated, so its times say little of an engine's.

    \b
    Examples:
      aot profile minilm.aot
      aot profile minilm.aot --size batch=64,seq=128 --top 20
    """
    from aot.backend import Session
    from aot.batches import sizes_of
    from aot.errors import UsageError
    from aot.profiling.attribution import attributed, nodes_of
    from aot.profiling.measuring import measure
    from aot.profiling.sums import Timed
    from aot.profiling.text import shown
    from aot.runners import make_inputs, of_artifact, read_inputs

    if inputs and sizes:
        raise UsageError("--inputs and --size contradict each other", fix="give one of them")
    side = of_artifact(artifact, engine)
    assert side.prepared is not None
    feed = read_inputs(inputs, side.spec) if inputs else make_inputs(side.spec, _options.sizes(sizes))
    with side.open() as session:
        assert isinstance(session, Session)
        ms, times, runs = measure(session, feed)
    layers = attributed(times, nodes_of(side.prepared))
    timed = Timed(side.label, sizes_of(feed, side.spec, artifact), ms, runs, tuple(layers))
    click.echo(json.dumps({"artifact": artifact, **timed.to_json()}) if as_json else shown(timed, top))
    return 0
