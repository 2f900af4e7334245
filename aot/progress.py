"""What a build tells the person who waits for it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives stages, steps inside a stage, and warnings; the command line draws them on standard error."""

    def stage(self, name: str, detail: str = "") -> None:
        """A stage begins."""

    def step(self, done: int, total: int, what: str = "") -> None:
        """The stage in progress has done `done` of `total` steps (total 0: unknown)."""

    def finished(self, name: str, seconds: float, cached: bool, detail: str = "") -> None:
        """A stage has ended."""

    def warn(self, message: str) -> None:
        """Something the user should know, which does not stop the build."""


class Silent:
    """Keeps the warnings, draws nothing."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def stage(self, name: str, detail: str = "") -> None:
        """Nothing."""

    def step(self, done: int, total: int, what: str = "") -> None:
        """Nothing."""

    def finished(self, name: str, seconds: float, cached: bool, detail: str = "") -> None:
        """Nothing."""

    def warn(self, message: str) -> None:
        """Keep it."""
        self.warnings.append(message)
