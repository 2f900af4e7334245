"""Every error a user can cause, as one tree.

    AotError                      anything aot raises on purpose; exit code 2
    ├── UsageError                an option, a name or a file given on the command line
    ├── DeclarationError          model.py: what it declares, or does not
    ├── ExportError               torch.export or torch.onnx could not keep what was promised
    ├── GraphError                a node of the ONNX graph
    ├── PluginError               a plugin's file
    ├── CalibrationError          calibration data or the ranges found in it
    ├── ProfileError              an optimization profile
    ├── TargetError               what a backend cannot do for a target, found before any work
    ├── EngineError               the vendor's builder or runtime said no
    ├── InputError                an array that a loaded engine does not take
    ├── ArtifactError             an artifact that is damaged, foreign or incomplete
    ├── LockError                 what a lock says is not what is here; exit code 1
    └── StoreError                the disk under the store

A command that ran and whose answer is no (accuracy budget missed) is not an error: it exits with 1.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from aot.breaks import Break


class AotError(Exception):
    """One message in three parts: what is wrong, where, and what to do next."""

    exit_code = 2

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  at:  {self.where}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class UsageError(AotError):
    """An option, a name or a file given on the command line."""


class DeclarationError(AotError):
    """What model.py declares, or does not."""


class ExportError(AotError):
    """torch.export or torch.onnx could not keep what the declaration promised.

    breaks: the reasons as data, where they are known by line.
    """

    def __init__(
        self, what: str, *, where: str | None = None, fix: str | None = None, breaks: Sequence[Break] = ()
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.breaks = tuple(breaks)

    @classmethod
    def of(cls, reason: Break, where: str | None = None) -> ExportError:
        """The error for one reason; `where` stands in for a line that is not known."""
        return cls(reason.what, where=reason.where or where, fix=reason.fix, breaks=(reason,))


class GraphError(AotError):
    """A node of the ONNX graph."""


class PluginError(AotError):
    """A plugin's file: what it declares, or does not, and what its functions do."""


class CalibrationError(AotError):
    """Calibration data, or the ranges found in it."""


class ProfileError(AotError):
    """An optimization profile."""


class TargetError(AotError):
    """Something a backend cannot do for a target, found before any work."""


class EngineError(AotError):
    """The vendor's builder or runtime refused."""


class InputError(AotError):
    """An array that a loaded engine does not take: its name, dtype or shape."""


class ArtifactError(AotError):
    """An artifact that is damaged, foreign or incomplete."""


class LockError(AotError):
    """A build cannot be the one that was locked, or is not: something changed, which it names."""

    exit_code = 1


class StoreError(AotError):
    """The disk under the store."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that does not exist, with the nearest one that does."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return UsageError(f"unknown {kind} '{name}'", fix=f"{hint}there are: {', '.join(choices) or 'none'}")
