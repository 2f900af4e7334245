"""Recipes that extend others: a file says what it has in common with another by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.errors import UsageError, unknown

_KEY = "extends"
_SUFFIX = ".yaml"


@dataclass(frozen=True)
class Whole:
    """The settings of a recipe together with those that it extends. inherited: the keys that its own file does not
    hold (`placement.keep`), each with the name of the recipe that does."""

    data: dict[str, Any]
    inherited: Mapping[str, str]


def extended(data: dict[str, Any], path: Path, seen: tuple[Path, ...] = ()) -> Whole:
    """The settings of the recipe file `path`, `data`, on top of those of the recipe that it extends.

    Nested settings are merged key by key; a list replaces a list. A name is looked up beside the file and then among
    the built-ins, the file itself left out: a project's own `int8.yaml` can extend the built-in `int8`.
    Raises UsageError for a name that does not exist and where recipes extend each other in a circle.
    """
    name = data.get(_KEY)
    if name is None:
        return Whole(data, {})
    seen = (*seen, path.resolve())
    base = _find(name, path)
    if base.resolve() in seen:
        circle = " -> ".join(file.stem for file in (*seen, base.resolve()))
        raise UsageError(
            f"recipes extend each other in a circle: {circle}",
            where=str(path),
            fix=f"take '{_KEY}: {name}' out of one of them",
        )
    from aot.config import read

    below = extended(read(base), base, seen)
    own = {key: value for key, value in data.items() if key != _KEY}
    said = {**dict.fromkeys(_keys(below.data), base.stem), **below.inherited}
    return Whole(_merged(below.data, own), {key: file for key, file in said.items() if key not in set(_keys(own))})


def check_calibrator(name: str, path: Path) -> None:
    """Raise UsageError, with the nearest name, where no calibrator of the recipe file `path` is called that."""
    from aot import calibrator

    if name not in calibrator.names():
        refusal = unknown("calibrator", name, calibrator.names())
        raise UsageError(refusal.what, where=f"{path}: calibrator", fix=refusal.fix)


def _find(name: Any, path: Path) -> Path:
    from aot import content

    if not isinstance(name, str):
        raise UsageError(
            f"{_KEY}: expected the name of a recipe, got {name!r}", where=str(path), fix=f"e.g. {_KEY}: int8"
        )
    beside = {file.stem: file for file in path.parent.glob(f"*{_SUFFIX}") if file.resolve() != path.resolve()}
    known = {**content.names("calib"), **beside}
    if name in known:
        return known[name]
    where, stem = f"{path}: {_KEY}", name.removesuffix(_SUFFIX)
    if stem in known and "/" not in name:
        raise UsageError(
            f"{_KEY}: a recipe is named without {_SUFFIX}, got {name!r}", where=where, fix=f"write {_KEY}: {stem}"
        )
    if stem == path.stem:
        raise UsageError(
            f"the recipe extends itself, and no other one is called '{stem}'",
            where=where,
            fix=f"name another recipe, or leave {_KEY} out",
        )
    refusal = unknown("recipe", name, set(known) - {path.stem})
    raise UsageError(refusal.what, where=where, fix=refusal.fix)


def _keys(data: Mapping[str, Any], head: str = "") -> Iterator[str]:
    """Every key at every depth, with dots."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{head}{key}.")
        else:
            yield f"{head}{key}"


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """`own` over `base`, mappings merged at every depth."""
    result = dict(base)
    for key, value in own.items():
        below = result.get(key)
        result[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result
