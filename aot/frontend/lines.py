"""Which line of the model's own code is to blame: of an exception, of the running stack, of a node.

The model's code is what is neither torch nor Python nor aot nor a library of numbers: the user's files, and libraries
of models, whose lines say more than the user's call of them.
"""

from __future__ import annotations

import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

_TORCH = str(Path(torch.__file__).parent) + "/"
_AOT = str(Path(__file__).resolve().parent.parent) + "/"
_PYTHON = sysconfig.get_paths()["stdlib"] + "/"
_PACKAGES = ("/site-packages/", "/dist-packages/")
_NUMBERS = tuple(f"{packages}{name}/" for packages in _PACKAGES for name in ("numpy", "sympy", "mpmath"))
_IN_STACK_TRACE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
# Where a size becomes a bool or a number: the frame that asked for it lies outside.
_ASKING = (_TORCH + "fx/", _TORCH + "__init__.py", _TORCH + "_logging/", _TORCH + "utils/", _TORCH + "_export/")


class Line(NamedTuple):
    """A place in source code."""

    file: str
    line: int
    function: str

    @property
    def code(self) -> str:
        """The text there; empty where the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        inside = f" in {self.function}" if self.function != "<module>" else ""
        return f"{self.file}:{self.line}{inside}" + (f": {self.code}" if self.code else "")


def of_error(error: BaseException) -> Line | None:
    """The innermost line of the model that an exception passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    return innermost(Line(frame.filename, frame.lineno or 0, frame.name) for frame in frames)


def of_text(text: str) -> Line | None:
    """The innermost line of the model in a stack trace that is text."""
    return innermost(Line(file, int(number), name) for file, number, name in _IN_STACK_TRACE.findall(text))


def of_node(node: Any) -> Line | None:
    """The line of the model behind a node of an exported program."""
    return of_text(node.meta.get("stack_trace") or "")


def of_frame(frame: FrameType | None) -> tuple[Line | None, bool]:
    """The innermost line of the model in a running stack, and whether it asked itself, rather than through torch."""
    own: bool | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if is_model(file):
            return Line(file, frame.f_lineno, frame.f_code.co_name), own is not False
        if file.startswith(_TORCH) and not file.startswith(_ASKING):
            own = False
        frame = frame.f_back
    return None, False


def innermost(lines: Iterable[Line]) -> Line | None:
    """The last of these lines, outermost first, that is the model's."""
    return next((line for line in reversed(list(lines)) if is_model(line.file)), None)


def is_model(file: str) -> bool:
    """Whether code in that file is the model's, not torch's, Python's, aot's, or a library's of numbers."""
    if file.startswith(("<", _TORCH, _AOT)):
        return False
    packaged = any(folder in file for folder in _PACKAGES)
    return not any(folder in file for folder in _NUMBERS) if packaged else not file.startswith(_PYTHON)
