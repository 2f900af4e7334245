"""`aot serve`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from aot.serving import Options, serve
from aot.serving.options import OPTIONS


def _options(command: Callable[..., int]) -> Callable[..., int]:
    """The options of the server's table, in its order."""
    for option in reversed(OPTIONS):
        shown: dict[str, Any] = (
            {"is_flag": True}
            if option.metavar is None
            else {"type": option.kind, "metavar": option.metavar, "show_default": option.default is not None}
        )
        command = click.option(option.name, option.field, default=option.default, help=option.help, **shown)(command)
    return command


@click.command("serve", no_args_is_help=True)
@click.argument("artifact")
@_options
def command(**given: Any) -> int:
    """Serve ARTIFACT over HTTP and gRPC, by the Open Inference Protocol (KServe v2).

    \b
    Examples:
      aot serve minilm.aot
      aot serve minilm.aot --host 0.0.0.0 --max-batch 32 --max-wait-ms 5
    """
    return serve(Options(**given))
