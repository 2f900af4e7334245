"""The command line. Commands are imported when they are asked for, so that `aot --help` starts in a moment."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

import click

from aot import __version__
from aot.errors import AotError

COMMANDS = {
    "build": "Build a verified engine from a model.",
    "run": "Run an artifact on given or random inputs.",
    "diff": "Compare any two of model, ONNX file and artifact.",
    "inspect": "Show what an artifact is and how it was made.",
    "doctor": "Show what this machine can build and run.",
    "cache": "List, shrink or check the store of finished stages.",
}
INTERRUPTED = 130
BROKEN_PIPE = 141
BUG = 70


class LazyGroup(click.Group):
    """Knows its commands by name and one line; `aot.cli.NAME:command` is imported to run one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table above."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name. Raises UsageError with the nearest name."""
        if cmd_name not in COMMANDS:
            from aot.errors import unknown

            raise unknown("command", cmd_name, COMMANDS)
        command = import_module(f"aot.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line a command, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="aot")
def cli() -> None:
    """From a PyTorch model to a verified TensorRT engine, ahead of time.

    \b
    Example:
      aot build model.py --precision fp8 --target sm89
    """


def main() -> None:
    """The entry point of the command `aot`."""
    sys.exit(call(sys.argv[1:]))


def call(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code: 0 done, 1 the answer is no, 2 a user's error, 70 a bug of aot."""
    as_json = "--json" in arguments
    try:
        code = cli.main(list(arguments), prog_name="aot", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        _print_error(as_json, error.format_message(), None, None)
        return 2
    except AotError as error:
        click.echo(f"error: {error}", err=True)
        _print_error(as_json, error.what, error.where, error.fix)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted; finished stages are kept", err=True)
        _print_error(as_json, "interrupted; finished stages are kept", None, "run the command again to go on")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has gone. Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001  the one place where a bug is told from a user's error
        traceback.print_exc()
        click.echo(
            "\nThis is a bug in aot, not in what you did. Please report it with the lines above and the output "
            "of `aot doctor --json`.",
            err=True,
        )
        _print_error(as_json, f"{type(error).__name__}: {error}", None, "report it: this is a bug in aot")
        return BUG
    return code if isinstance(code, int) else 0


def _print_error(as_json: bool, what: str, where: str | None, fix: str | None) -> None:
    if as_json:
        click.echo(json.dumps({"error": {"what": what, "where": where, "fix": fix}}))
