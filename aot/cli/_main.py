"""The command line. Commands are imported when they are asked for, so that `aot --help` starts in a moment."""

from __future__ import annotations

import difflib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType

import click

from aot import __version__
from aot.cli import INTERRUPTED, STOPPED, stopped
from aot.errors import AotError
from aot.text import visible

COMMANDS = {
    "build": "Build a verified engine from a model.",
    "explain": "Say what a build would break on, and where, without building.",
    "optimize": "Write an ONNX file with fewer nodes and equal results.",
    "quantize": "Write an ONNX file with Q/DQ, or in FP16 or BF16, calibrated on your data.",
    "run": "Run an artifact on given or random inputs.",
    "serve": "Serve an artifact over HTTP and gRPC, by the Open Inference Protocol.",
    "diff": "Compare any two of model, ONNX file and artifact.",
    "bench": "Time an artifact beside eager, torch.compile and onnxruntime.",
    "profile": "Show where the time of a run goes, by layer, module and source line.",
    "inspect": "Show what an artifact is and how it was made.",
    "pack": "Pack an artifact: one .tar, or an OCI image layout for registries.",
    "unpack": "Make the artifact folder again from what `aot pack` wrote.",
    "verify": "Check that an artifact is whole, and signed by whom you say.",
    "sign": "Sign an artifact with your key.",
    "plugin": "List, check, tune, compile or begin plugins: ops that a target lacks.",
    "doctor": "Show what this machine can build and run.",
    "cache": "List, shrink or check the store of finished stages.",
}
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


def call(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code: 0 done, 1 the answer is no, 2 a user's error, 70 a bug of aot."""
    as_json = "--json" in arguments
    _open_streams()
    if sys.stdout is None:
        return _failed(False, "standard output is closed", None, "redirect it to a file or to /dev/null")
    with _interrupts() as interrupted:
        try:
            code = _invoked(arguments)
            sys.stdout.flush()
        except (KeyboardInterrupt, click.Abort):
            return _stopped(as_json, stopped(arguments))
        except BrokenPipeError:
            # Whoever read us has gone. Python would complain once more when it flushes stdout at exit.
            _drop_output()
            return BROKEN_PIPE
        except Exception as error:  # noqa: BLE001  the one place where a bug is told from a user's error
            # Torch and others catch what they should not, and raise something of their own out of it.
            return _stopped(as_json, stopped(arguments)) if interrupted else _answer(as_json, error)
    return code if isinstance(code, int) else 0


def _invoked(arguments: Sequence[str]) -> object:
    """What the command returns. click's own `main` would answer an interrupt with an empty line before ours."""
    try:
        with cli.make_context("aot", list(arguments)) as context:
            return cli.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code


def _answer(as_json: bool, error: Exception) -> int:
    """Say what went wrong; return the exit code."""
    if isinstance(error, click.ClickException):
        return _misused(as_json, error)
    if isinstance(error, AotError):
        _failed(as_json, error.what, error.where, error.fix)
        return error.exit_code
    if isinstance(error, OSError) and error.filename is None and (refusal := _output_refused()) is not None:
        _drop_output()
        return _failed(False, f"standard output cannot be written: {refusal}", None, "redirect it to another place")
    traceback.print_exception(error)
    click.echo(
        "\nThis is a bug in aot, not in what you did. Please report it with the lines above and the output "
        "of `aot doctor --json`.",
        err=True,
    )
    _print_error(as_json, f"{type(error).__name__}: {error}", None, "report it: this is a bug in aot")
    return BUG


def _misused(as_json: bool, error: click.ClickException) -> int:
    """What click refuses, in the form of aot's own errors."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "aot"
    if error.message.startswith("Usage:"):  # a command without its arguments: its help is the answer
        click.echo(error.message, err=True)
        _print_error(as_json, "arguments are missing", None, f"{command} --help")
        return 2
    what, fix = error.format_message().rstrip("."), f"{command} --help lists what there is"
    what = what[:1].lower() + what[1:]
    name, known = None, list[str]()
    if isinstance(error, click.NoSuchOption):
        name, what = error.option_name, f"no such option: {error.option_name}"
        known = [name for one in context.command.params for name in one.opts] if context is not None else []
    elif context is not None and isinstance(context.command, click.Group) and "No such command" in error.message:
        name, known = error.message.split("'")[1], context.command.list_commands(context)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5) if name else []
    if near:
        fix = f"did you mean {near[0]}?"
    return _failed(as_json, what, f"{command}", fix)


def _failed(as_json: bool, what: str, where: str | None, fix: str | None) -> int:
    click.echo(visible(f"error: {AotError(what, where=where, fix=fix)}"), err=True)
    _print_error(as_json, what, where, fix)
    return 2


def _stopped(as_json: bool, what: str) -> int:
    click.echo(what, err=True)
    _print_error(as_json, what, None, f"run the command again{' to go on' if what == STOPPED else ''}")
    return INTERRUPTED


def _print_error(as_json: bool, what: str, where: str | None, fix: str | None) -> None:
    if as_json:
        click.echo(json.dumps({"error": {"what": what, "where": where, "fix": fix}}))


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The interrupts that came while the block ran; each raises KeyboardInterrupt, as Python does by itself."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread() or (
        signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield seen  # somebody else decides what an interrupt does
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _open_streams() -> None:
    """Python leaves a closed standard error as None, which neither click nor a progress line can write to."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  for the life of the process


def _output_refused() -> str | None:
    """Why standard output takes nothing, such as a full disk; None where it does."""
    try:
        sys.stdout.write("\n")  # unbuffered, a flush alone would try nothing
        sys.stdout.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _drop_output() -> None:
    """Python would flush what is left once more at exit, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
