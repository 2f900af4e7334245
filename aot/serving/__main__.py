"""`python -m aot.serving ARTIFACT`: what a container runs, with neither click nor the compiler."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from aot import __version__
from aot.errors import AotError
from aot.serving import Options, serve
from aot.serving.options import OPTIONS

INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """The arguments, from the table of options."""
    made = argparse.ArgumentParser(
        prog="python -m aot.serving",
        description="Serve an artifact: the Open Inference Protocol over HTTP and gRPC.",
    )
    made.add_argument("artifact", help="a folder or a .tar that `aot build` wrote")
    made.add_argument("--version", action="version", version=__version__)
    for option in OPTIONS:
        if option.metavar is None:
            made.add_argument(option.name, action="store_true", help=option.help)
        else:
            shown = "" if option.default is None else " Default: %(default)s."
            made.add_argument(
                option.name, type=option.kind, default=option.default, metavar=option.metavar, help=option.help + shown
            )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal comes; the exit code: 0, 1 where requests were cut off, 2 for a user's error."""
    given = vars(parser().parse_args(arguments))
    try:
        return serve(Options(**given))
    except AotError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:  # before there is a server that could stop
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
