"""Progress on standard error: one live line on a terminal, else one line a finished stage."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import click

from aot.text import took, visible

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


class Lines:
    """One line a finished stage. Keeps the warnings.

    As a context it sends what the model's own code prints to standard error, for standard output is the answer's.
    """

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._printed = redirect_stdout(sys.stderr)

    def __enter__(self) -> Lines:
        self._printed.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._printed.__exit__(None, None, None)

    def stage(self, name: str, detail: str = "") -> None: ...

    def step(self, done: int, total: int, what: str = "") -> None: ...

    def finished(self, name: str, seconds: float, cached: bool, detail: str = "") -> None:
        self._write(f"{name:<14} {took(seconds, cached):>9}  {detail}".rstrip())

    def warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)
            self._write(f"warning: {message}")

    def _write(self, line: str) -> None:
        click.echo(visible(line), err=True)


class Live(Lines):
    """Adds a line that is redrawn: the stage in progress, and a bar once it counts steps.

    rich takes longer to import than a whole unchanged rebuild, so it comes with the first step.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._name = ""

    def __exit__(self, *_: object) -> None:
        self._clear()
        super().__exit__()

    def stage(self, name: str, detail: str = "") -> None:
        self._clear()
        self._name = name
        click.echo(
            f"\r\x1b[2K{name} ... {detail}"[: os.get_terminal_size(sys.stderr.fileno()).columns], nl=False, err=True
        )

    def step(self, done: int, total: int, what: str = "") -> None:
        if self._bar is None:
            self._bar = self._started()
            self._task = self._bar.add_task(self._name)
        assert self._task is not None
        self._bar.update(self._task, completed=done, total=total or None, description=f"{self._name} {what}".strip())

    def _started(self) -> Bar:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        click.echo("\r\x1b[2K", nl=False, err=True)
        text = TextColumn("{task.description}", markup=False)
        columns = (SpinnerColumn(), text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        bar.start()
        return bar

    def _clear(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        click.echo("\r\x1b[2K", nl=False, err=True)

    def _write(self, line: str) -> None:
        self._clear()
        super()._write(line)


def reporter() -> Lines:
    """The one that fits what standard error is."""
    # What onnx-ir leaves as it is, it logs as a warning, which without any handler would be printed.
    logging.getLogger("onnx_ir").addHandler(logging.NullHandler())
    return Live() if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else Lines()
