"""What pydantic found wrong with settings, said in the words of somebody who writes them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aot.errors import UsageError, unknown

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

_EXPECTED = {
    "bool": ("true or false", "true"),
    "int": ("a whole number", "8"),
    "float": ("a number", "0.99"),
    "string": ("a name", "max"),
    "path": ("a path", "out.aot"),
    "model": ("settings of its own (key: value)", "KEY: VALUE"),
    "dict": ("a mapping", "batch: [1, 8, 64]"),
}
_BOUNDS = {
    "greater_than": "above",
    "greater_than_equal": "at least",
    "less_than": "below",
    "less_than_equal": "at most",
}


def refused(
    kind: type[BaseModel], error: ValidationError, where: str, inherited: Mapping[str, str] | None = None
) -> UsageError:
    """The error for the first thing that is wrong. Unknown keys come first: a mistyped one explains a missing one.

    inherited: the keys that come from another file, each with what that is called.
    """
    found = error.errors()
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    # A union names the member that was tried, which is no key.
    first = {**first, "loc": tuple(part for part in first["loc"] if not str(part).startswith("constrained-"))}
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        refusal = unknown("setting", str(first["loc"][-1]), _owner(kind, first["loc"][:-1]).model_fields)
        return UsageError(refusal.what, where=f"{where}: {place}", fix=refusal.fix)
    if first["type"] == "contradiction":
        said = first["ctx"]
        base = (inherited or {}).get(said["key"])
        if base is None:
            return UsageError(said["what"], where=where, fix=said["fix"])
        return UsageError(f"{said['what']} ({said['key']} comes from {base})", where=where, fix=said["instead"])
    what, fix = _said(str(first["loc"][-1]) if first["loc"] else "settings", place, first)
    return UsageError(what, where=where, fix=fix)


def _owner(kind: type[BaseModel], path: Sequence[int | str]) -> type[BaseModel]:
    """The settings that a path of keys leads to."""
    owner: Any = kind
    for part in path:
        field = owner.model_fields.get(str(part))
        inner = field.annotation if field is not None else None
        owner = inner if isinstance(inner, type) and hasattr(inner, "model_fields") else owner
    found: type[BaseModel] = owner
    return found


def _said(key: str, place: str, first: Mapping[str, Any]) -> tuple[str, str]:
    """What is wrong with one value, and what to do."""
    kind, value, context = first["type"], first["input"], first.get("ctx", {})
    got = f"got {_yaml(value)}"
    if kind == "missing" and key.isdigit():
        triple = place.rpartition(".")[0]
        return f"{triple}: expected [min, opt, max], {got}", f"e.g. {triple.rpartition('.')[2]}: [1, 8, 64]"
    if kind == "missing":
        return f"{place}: required, and not there", f"add a line '{key}: ...'"
    if kind in ("tuple_type", "list_type"):
        example = "[1, 8, 64]" if isinstance(value, int) else f"[{value}]" if isinstance(value, str) else "[...]"
        return f"{place}: expected a list, e.g. {example}, {got}", f"write {key}: {example}"
    if kind == "too_long":
        return f"{place}: expected {context.get('max_length', 'fewer')} values, {got}", f"e.g. {key}: [1, 8, 64]"
    if kind == "literal_error":
        known = [one.strip("' ") for one in str(context["expected"]).replace(" or ", ", ").split(", ")]
        near = difflib.get_close_matches(str(value), known, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'? " if near else ""
        return f"{place}: unknown value {_yaml(value)}", f"{hint}there are: {', '.join(known)}"
    if kind in _BOUNDS:
        limit = next(iter(context.values()))
        limit = int(limit) if float(limit).is_integer() else limit
        return f"{place}: must be {_BOUNDS[kind]} {limit}, {got}", f"give {key} a value {_BOUNDS[kind]} {limit}"
    if kind == "finite_number":
        return f"{place}: must be a finite number, {got}", f"leave {key} out for no limit"
    name = kind.split("_")[0]
    if name not in _EXPECTED:
        return f"{place}: {first['msg']}, {got}", f"correct {key}"
    expected, example = _EXPECTED[name]
    shown = example if example.startswith("KEY") else f"{key}: {example}" if not key.isdigit() else example
    return f"{place}: expected {expected}, {got}", f"e.g. {shown}"


def _yaml(value: Any) -> str:
    """A value as it is written in YAML, in one line."""
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else repr(value)
