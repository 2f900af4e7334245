"""Importing the user's file, and turning what goes wrong in it into an error that points at their line."""

from __future__ import annotations

import difflib
import importlib
import linecache
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from aot import trace
from aot.decorator import Declaration
from aot.errors import AotError, DeclarationError, UsageError

SUFFIXES = (".py", ".pt2", ".onnx")
EXAMPLE = 'decorate the function that builds it: @aot.model(inputs={"x": aot.Input([batch, 3, 224, 224])})'


@dataclass(frozen=True)
class Place:
    """Where a declaration is: a file, or an importable module; and the attribute asked for, if any.

    folder goes first on sys.path, as it would for `python model.py` (the working folder for a module).
    """

    module: str
    file: Path | None
    attribute: str | None
    folder: Path

    def __str__(self) -> str:
        base = str(self.file) if self.file else self.module
        return f"{base}:{self.attribute}" if self.attribute else base


def place(model: str) -> Place:
    """Read `x.py`, `x.py:name` or `package.module:attribute`. Raises UsageError for a file that is not there."""
    base, colon, attribute = model.rpartition(":")
    if not colon:
        base, attribute = model, ""
    if base.endswith(".py"):
        file = Path(base)
        if not file.is_file():
            raise missing(file)
        file = file.resolve()
        return Place(file.stem, file, attribute or None, file.parent)
    return Place(base, None, attribute or None, Path.cwd())


def missing(path: Path) -> UsageError:
    """The error for a path that is not a file, with the name in its folder that is near, if any is."""
    folder = path.parent
    if path.is_dir():
        return UsageError(f"'{path}' is a folder, not a file", fix="name the file in it that declares the model")
    if not folder.is_dir():
        return UsageError(f"no such folder: {folder}", where=str(path), fix="check the path")
    # Stems alone are compared: a shared suffix makes short names look alike.
    stems = {e.stem: e.name for e in sorted(folder.iterdir()) if e.suffix in SUFFIXES and e.is_file()}
    same = [name for stem, name in stems.items() if stem == path.stem]
    near = same or [stems[stem] for stem in difflib.get_close_matches(path.stem, stems, n=1, cutoff=0.7)]
    hint = f"did you mean '{folder / near[0]}'?" if near else "check the path"
    return UsageError(f"no such file: {path}", fix=hint)


_current: str | None = None


def load(where: Place) -> Declaration[Any]:
    """Import the module and find the declaration.

    Raises DeclarationError: for what its code raises, where it declares no model, several without a choice,
    or where the attribute is something else. UsageError where the module does not exist.
    """
    return _chosen(where, imported(where))


def imported(where: Place) -> ModuleType:
    """The module itself. Raises DeclarationError for what its code raises, UsageError where it does not exist."""
    enter(where)
    return _from_file(where) if where.file else _from_name(where)


def enter(where: Place) -> None:
    """Put the model's folder first on sys.path and forget what was imported from there, or for the model before."""
    global _current
    leave()
    _current = str(where.folder)
    sys.path.insert(0, _current)
    _forget(_current)


def leave() -> None:
    """Take the folder of the model that is loaded, if any is, from sys.path, and forget what was imported from it."""
    global _current
    if _current is not None:
        if _current in sys.path:
            sys.path.remove(_current)
        _forget(_current)
        _current = None


def _forget(folder: str) -> None:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name != "__main__" and trace.is_local(file) and _under(file, folder):
            del sys.modules[name]
    importlib.invalidate_caches()


def current() -> Path:
    """The folder of the model that is loaded, or where Python looks first: whose `plugins/` a model's code means."""
    return Path(_current or sys.path[0] or ".")


def _under(file: str | None, folder: str) -> bool:
    return file is not None and os.path.abspath(file).startswith(f"{folder}{os.sep}")


def _from_file(where: Place) -> ModuleType:
    assert where.file is not None
    # A stem that hides another module (types.py) keeps that module working under its name.
    taken = where.module in sys.modules or where.module in sys.stdlib_module_names
    module = ModuleType(f"aot_{where.module}" if taken else where.module)
    module.__file__ = str(where.file)
    sys.modules[module.__name__] = module
    source = where.file.read_bytes()
    if b"\0" in source:
        line = source[: source.index(b"\0")].count(b"\n") + 1
        raise DeclarationError(
            "the file holds NUL bytes, so it is not Python source",
            where=f"{where.file}:{line}",
            fix="save it as UTF-8 text",
        )
    with user_code(f"importing {where.file.name}"):
        # Compiled here rather than by the import system: a cached .pyc of the same second and size is stale.
        code = compile(source, str(where.file), "exec", dont_inherit=True)
        exec(code, module.__dict__)
    return module


def _from_name(where: Place) -> ModuleType:
    with user_code(f"importing {where.module}"):
        try:
            return importlib.import_module(where.module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{where.module}.".startswith(f"{error.name}."):
                raise
    raise UsageError(
        f"no module named '{where.module}'",
        where=f"searched from {where.folder}",
        fix="write package.module:attribute, importable from the working folder, or the path of a .py file",
    )


def _chosen(where: Place, module: ModuleType) -> Declaration[Any]:
    found: dict[str, Declaration[Any]] = {}
    for name, value in vars(module).items():
        if isinstance(value, Declaration) and not any(value is other for other in found.values()):
            found[name] = value
    if where.attribute is not None:
        return _attribute(where, module, found)
    at = str(where.file or where.module)
    form = where.file.name if where.file else where.module
    if not found:
        raise DeclarationError("no model is declared here", where=at, fix=EXAMPLE)
    if len(found) > 1:
        choices = ", ".join(f"{form}:{name}" for name in found)
        raise DeclarationError(
            f"{len(found)} models are declared here: {', '.join(found)}", where=at, fix=f"choose one: {choices}"
        )
    return next(iter(found.values()))


def _attribute(where: Place, module: ModuleType, found: dict[str, Declaration[Any]]) -> Declaration[Any]:
    assert where.attribute is not None
    value: Any = module
    for part in where.attribute.split("."):
        if not hasattr(value, part):
            known = [name for name in vars(value) if not name.startswith("_")] if hasattr(value, "__dict__") else []
            near = difflib.get_close_matches(part, list(found) or known, n=1, cutoff=0.4)
            declared = f"declared there: {', '.join(found)}" if found else EXAMPLE
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise DeclarationError(f"'{part}' is not in {where.module}", where=str(where), fix=hint + declared)
        value = getattr(value, part)
    if not isinstance(value, Declaration):
        kind = "a class" if isinstance(value, type) else f"a {type(value).__name__}"
        raise DeclarationError(f"'{where.attribute}' is {kind}, not a declared model", where=str(where), fix=EXAMPLE)
    return value


@contextmanager
def user_code(doing: str) -> Iterator[None]:
    """Run the user's code: whatever it raises becomes a DeclarationError at the deepest line that is theirs.

    An AotError keeps its type and message and gains the line. KeyboardInterrupt passes through.
    """
    try:
        yield
    except AotError as error:
        line = deepest(error)
        if line is None:
            raise
        place = f"{line} ({error.where})" if error.where else line
        raise type(error)(error.what, where=place, fix=error.fix) from error
    except SyntaxError as error:
        text = (error.text or "").strip()
        at = f"{error.filename}:{error.lineno}" + (f": {text}" if text else "")
        raise DeclarationError(f"{doing}: {type(error).__name__}: {error.msg}", where=at) from error
    except (Exception, SystemExit) as error:  # their code may raise anything
        said = " ".join(str(error).split()) or "(no message)"
        lacks = error.name if isinstance(error, ModuleNotFoundError) else None
        fix = f"install {lacks}, or correct the name" if lacks else None
        raise DeclarationError(f"{doing}: {type(error).__name__}: {said}", where=deepest(error), fix=fix) from error


def deepest(error: BaseException) -> str | None:
    """`file:line in function: text` of the innermost frame that is the user's own; None where there is none."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if trace.is_local(frame.filename)]
    if not own:
        return None
    last = own[-1]
    text = linecache.getline(last.filename, last.lineno or 0).strip()
    inside = f" in {last.name}" if last.name != "<module>" else ""
    return f"{last.filename}:{last.lineno}{inside}" + (f": {text}" if text else "")
