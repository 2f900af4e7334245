"""What forward takes: tensors alone, or nested in dicts, lists and dataclasses beside constants; flat names for all.

A tree is plain data, so that it survives in the store and in an artifact. It is one of

    {"input": NAME}                                     a tensor, by its flat name
    {"constant": VALUE}                                 None, a number or a text, passed as it is
    {"dict": [[KEY, TREE], ...]}
    {"list": [TREE, ...]}, {"tuple": [TREE, ...]}
    {"object": "module:Class", "fields": {NAME: TREE}}  a dataclass or a named tuple
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from aot.errors import DeclarationError

if TYPE_CHECKING:
    from aot.declaration import Input

Tree = Mapping[str, Any]

_classes: dict[str, type] = {}
"""Classes of the declarations read in this process: the data hold their names only."""


def flattened(parameters: Mapping[str, Any]) -> tuple[dict[str, Input], dict[str, Tree]]:
    """The tensors among the parameters by flat name, in order, and the tree of every parameter.

    A tensor that is a parameter of its own keeps the parameter's name; one inside gets the path to it (`cond_gain`,
    `images_0`), with a number where that name is taken. Raises DeclarationError for anything else than an aot.Input,
    None, a number, a text, or a dict, list, tuple, dataclass or named tuple of these.
    """
    inputs: dict[str, Input] = {}
    taken = {name for name, value in parameters.items() if _is_input(value)}
    trees = {name: _tree(value, (name,), inputs, taken) for name, value in parameters.items()}
    return inputs, trees


def _is_input(value: object) -> bool:
    from aot.declaration import Input

    return isinstance(value, Input)


def _tree(value: Any, path: tuple[str, ...], inputs: dict[str, Input], taken: set[str]) -> Tree:
    def grown(key: object, part: Any) -> Tree:
        return _tree(part, (*path, str(key)), inputs, taken)

    if _is_input(value):
        name = path[0] if len(path) == 1 else free("_".join(path), taken)
        taken.add(name)
        inputs[name] = value
        return {"input": name}
    if value is None or isinstance(value, bool | int | float | str):
        return {"constant": value}
    fields = _fields(type(value)) if not isinstance(value, type) else None
    if fields is not None:
        place = f"{type(value).__module__}:{type(value).__qualname__}"
        _classes[place] = type(value)
        return {"object": place, "fields": {name: grown(name, getattr(value, name)) for name in fields}}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str | int):
                raise DeclarationError(f"{shown_path(path)} has the key {key!r}; keys are text", where="@aot.model")
        return {"dict": [[key, grown(key, part)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [grown(index, part) for index, part in enumerate(value)]}
    raise DeclarationError(
        f"input {shown_path(path)} must be an aot.Input, not {type(value).__name__}",
        where="@aot.model",
        fix=f'inputs={{"{path[0]}": aot.Input([batch, 3, 224, 224])}}; also None, a number, a text, '
        "or a dict, list, tuple or dataclass of these",
    )


def _fields(kind: type) -> list[str] | None:
    """The names that a dataclass or a named tuple is made with; None for other classes."""
    if dataclasses.is_dataclass(kind):
        from aot.declaration import Dim

        return None if kind is Dim else [field.name for field in dataclasses.fields(kind) if field.init]
    return list(getattr(kind, "_fields", ())) if issubclass(kind, tuple) and hasattr(kind, "_fields") else None


def free(name: str, taken: set[str]) -> str:
    """An identifier near `name`, with a number where it is taken."""
    name = re.sub(r"\W", "_", name)
    name = name if name.isidentifier() else f"_{name}"
    numbered = (f"{name}_{number}" for number in range(1, len(taken) + 2))
    return name if name not in taken else next(other for other in numbered if other not in taken)


def grown(tree: Tree, given: Mapping[str, Any]) -> Any:
    """What forward takes: the tree with the tensors in place of their names. Objects are made by their classes."""
    match tree:
        case {"input": name}:
            return given[name]
        case {"constant": value}:
            return value
        case {"dict": parts}:
            return {key: grown(part, given) for key, part in parts}
        case {"list": parts}:
            return [grown(part, given) for part in parts]
        case {"tuple": parts}:
            return tuple(grown(part, given) for part in parts)
        case _:
            return _class(tree["object"])(**{name: grown(part, given) for name, part in tree["fields"].items()})


def _class(place: str) -> type:
    if place not in _classes:
        raise DeclarationError(f"the class {place} was not seen in this process", fix="load the declaration first")
    return _classes[place]


def leaves(tree: Tree) -> Iterator[str]:
    """The flat names in a tree, in order."""
    if "input" in tree:
        yield tree["input"]
    for _, part in parts_of(tree):
        yield from leaves(part)


def parts_of(tree: Tree) -> list[tuple[str | int, Tree]]:
    """The keys, indices or fields of a tree, each with what is there; empty for a tensor or a constant."""
    if "dict" in tree:
        return [(key, part) for key, part in tree["dict"]]
    if "fields" in tree:
        return list(tree["fields"].items())
    return list(enumerate(tree.get("list", tree.get("tuple", ()))))


def picked(value: Any, tree: Tree, path: str, refuse: Callable[[str], Exception]) -> Iterator[tuple[str, Any]]:
    """(flat name, value) for every tensor of a nested value, which may leave constants out.

    Raises what `refuse` makes of a message where the value is not of the tree's form.
    """
    if "input" in tree:
        yield tree["input"], value
        return
    if "constant" in tree:
        same = isinstance(value, bool | int | float | str) and value == tree["constant"]
        if value is not None and not same:
            raise refuse(f"{path} is {value!r:.40}, and the declaration fixes {tree['constant']!r}")
        return
    parts = parts_of(tree)
    if "list" in tree or "tuple" in tree:
        size = len(value) if hasattr(value, "__len__") and not isinstance(value, str | Mapping) else None
        if size != len(parts):
            found = f"a {type(value).__name__}" if size is None else f"{size}"
            raise refuse(f"{path} holds {len(parts)} values in the declaration, and here {found}")
    unknown = [key for key in value if key not in dict(parts)] if isinstance(value, Mapping) else []
    if unknown:
        raise refuse(f"{path} has the unknown key {unknown[0]!r}")
    for key, part in parts:
        there, inner = _at(value, key)
        place = f"{path}.{key}" if "fields" in tree else f"{path}[{key!r}]"
        if there:
            yield from picked(inner, part, place, refuse)
        elif any(leaves(part)):
            raise refuse(f"{place} is missing")


def _at(value: Any, key: str | int) -> tuple[bool, Any]:
    if isinstance(value, Mapping):
        return key in value, value.get(key)
    if isinstance(key, str):
        return hasattr(value, key), getattr(value, key, None)
    return True, value[key]


def shown(tree: Tree, names: Mapping[str, str] | None = None) -> str:
    """A tree as Python would write it, for people: `{'gain': cond_gain, 'bias': None}`; `names` stand for inputs."""
    if "input" in tree:
        return names[tree["input"]] if names else str(tree["input"])
    if "constant" in tree:
        return repr(tree["constant"])
    parts = [(key, shown(part, names)) for key, part in parts_of(tree)]
    if "fields" in tree:
        return f"{tree['object'].rpartition(':')[2]}({', '.join(f'{key}={part}' for key, part in parts)})"
    if "dict" in tree:
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in parts) + "}"
    inside = ", ".join(part for _, part in parts)
    return f"[{inside}]" if "list" in tree else f"({inside}{',' * (len(parts) == 1)})"


def shown_path(path: tuple[str, ...]) -> str:
    """`'cond'`, or `'cond' (gain, 0)` for what lies inside."""
    return f"'{path[0]}'" + (f" ({', '.join(path[1:])})" if path[1:] else "")
