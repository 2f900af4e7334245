"""Recipes that extend others: a file says what it has in common with another by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aot.errors import UsageError, unknown

_KEY = "extends"


def extended(data: dict[str, Any], path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The settings of the recipe file `path`, `data`, on top of those of the recipe that it extends.

    Nested settings are merged key by key; a list replaces a list. A name is looked up beside the file and then among
    the built-ins, the file itself left out: a project's own `int8.yaml` can extend the built-in `int8`.
    Raises UsageError for a name that does not exist and where recipes extend each other in a circle.
    """
    name = data.get(_KEY)
    if name is None:
        return data
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

    own = {key: value for key, value in data.items() if key != _KEY}
    return _merged(extended(read(base), base, seen), own)


def _find(name: Any, path: Path) -> Path:
    from aot import content

    if not isinstance(name, str):
        raise UsageError(
            f"{_KEY}: expected the name of a recipe, got {name!r}", where=str(path), fix=f"e.g. {_KEY}: int8"
        )
    beside = {file.stem: file for file in path.parent.glob("*.yaml") if file.resolve() != path.resolve()}
    known = {**content.names("calib"), **beside}
    if name not in known:
        refusal = unknown("recipe", name, set(content.names("calib")) - {path.stem})
        raise UsageError(refusal.what, where=f"{path}: {_KEY}", fix=refusal.fix)
    return known[name]


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """`own` over `base`, mappings merged at every depth."""
    result = dict(base)
    for key, value in own.items():
        below = result.get(key)
        result[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result
