"""What a plugin's file says of itself, read without running it: neither torch nor triton is imported for that."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.errors import PluginError
from aot.plugins.schema import Attribute, Schema, parse, parse_types, valued

DATA = {
    "NAME": str, "SCHEMA": str, "TYPES": dict, "SHAPES": dict, "SIZES": dict, "ATTRIBUTES": dict, "CASES": list,
}  # fmt: skip
"""The parts that are written as literals, and what they are."""
FUNCTIONS = ("reference", "outputs", "launch", "kernel")
OPTIONAL = ("TYPES", "SIZES", "ATTRIBUTES", "CASES")
TORCHS_OWN = ("aten", "prim", "prims", "quantized", "torchvision", "higher_order")
REST = "..."
"""In SHAPES: any number of leading axes, the same wherever it stands."""


@dataclass(frozen=True)
class Bound:
    """What a named size may be: `least` to `greatest`, in steps of `multiple`. greatest None: no limit."""

    least: int = 0
    greatest: int | None = None
    multiple: int = 1

    def holds(self, size: int) -> bool:
        """Whether it may be this."""
        return self.least <= size and (self.greatest is None or size <= self.greatest) and size % self.multiple == 0

    def near(self, size: int) -> int:
        """What it may be nearest above `size`, or below where nothing is."""
        size = max(size, self.least)
        size = -(-size // self.multiple) * self.multiple
        return size if self.greatest is None else min(size, self.greatest // self.multiple * self.multiple)

    def __str__(self) -> str:
        upper = "" if self.greatest is None else f" to {self.greatest}"
        return f"{self.least}{upper or ' or more'}" + (f", a multiple of {self.multiple}" if self.multiple > 1 else "")


@dataclass(frozen=True)
class Header:
    """The declared part of a plugin.

    name: of the op, and of the file. domain: of torch's op, of the ONNX node, and TensorRT's plugin namespace.
    shapes: for each input its axes, each the name of a size, a number, or REST in front. attributes: values to check
    beside the defaults. cases: sizes and attributes to check with, by name, where sizes hang together.
    lines: the line where each part stands.
    """

    file: Path
    name: str
    domain: str
    schema: Schema
    shapes: Mapping[str, tuple[str | int, ...]]
    sizes: Mapping[str, Bound]
    attributes: Mapping[str, tuple[Any, ...]]
    cases: tuple[Mapping[str, Any], ...]
    about: str
    lines: Mapping[str, int]

    @property
    def qualified(self) -> str:
        """`domain::name`, as torch writes it."""
        return f"{self.domain}::{self.name}"

    def at(self, part: str) -> str:
        """`file:line` of a part."""
        return f"{self.file}:{self.lines.get(part, 1)}"

    def error(self, what: str, part: str, fix: str | None = None) -> PluginError:
        """The error for a part of this file."""
        return PluginError(f"plugin {self.name}: {what}", where=self.at(part), fix=fix)

    def symbols(self) -> tuple[str, ...]:
        """The named sizes, in the order of SHAPES; REST among them."""
        found = (axis for axes in self.shapes.values() for axis in axes if isinstance(axis, str))
        return tuple(dict.fromkeys(found))

    def keys(self, name: str, rank: int) -> list[Any]:
        """What the size of each axis of an input is called: a name from SHAPES, a number, or (REST, place).

        Raises PluginError for a number of axes that SHAPES does not allow.
        """
        axes = self.shapes[name]
        inner = [axis for axis in axes if axis != REST]
        leading = rank - len(inner)
        if leading < 0 or (leading and len(inner) == len(axes)):
            raise PluginError(f"'{name}' has {rank} axes where SHAPES says '{' '.join(map(str, axes))}'")
        return [*((REST, place) for place in range(leading)), *inner]

    def bound(self, symbol: str) -> Bound:
        """What a named size may be."""
        return self.sizes.get(symbol, Bound())


def read(file: Path) -> Header:
    """Read a plugin's file. Raises PluginError with file and line: for syntax, a missing part, a wrong declaration."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except SyntaxError as error:
        text = (error.text or "").strip()
        at = f"{file}:{error.lineno}" + (f": {text}" if text else "")
        raise PluginError(f"plugin {file.stem}: {type(error).__name__}: {error.msg}", where=at) from error
    except (ValueError, MemoryError, RecursionError) as error:  # NUL bytes; nested deeper than Python's parser goes
        said = str(error) or "it is nested too deeply"
        raise PluginError(f"plugin {file.stem} is not Python source: {said}", where=str(file)) from error
    except OSError as error:
        raise PluginError(f"plugin {file.stem} cannot be read: {error.strerror}", where=str(file)) from error
    lines, assigned = _parts(tree)
    for part in (*DATA, *FUNCTIONS, "CONFIGS"):
        if part not in lines and part not in OPTIONAL:
            raise PluginError(
                f"plugin {file.stem} has no {part}", where=f"{file}:1", fix=f"see what {part} is in aot/plugin.py"
            )
    data: dict[str, Any] = {}
    for part, kind in DATA.items():
        if part in lines:
            data[part] = _literal(file, part, kind, assigned.get(part), lines[part])
    try:
        return _header(file, data, lines, (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " "))
    except PluginError as error:
        if error.where is not None:
            raise
        named = error.what.split()[0].rstrip(":")
        line = lines.get(named, 1)
        raise PluginError(f"plugin {file.stem}: {error.what}", where=f"{file}:{line}", fix=error.fix) from error


def _parts(tree: ast.Module) -> tuple[dict[str, int], dict[str, ast.expr]]:
    """The line of every name that the module defines, and the expressions assigned to names."""
    lines: dict[str, int] = {}
    assigned: dict[str, ast.expr] = {}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            lines[statement.name] = statement.lineno
        elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    lines[target.id], assigned[target.id] = statement.lineno, statement.value
        elif isinstance(statement, ast.ImportFrom):
            lines.update({alias.asname or alias.name: statement.lineno for alias in statement.names})
    return lines, assigned


def _literal(file: Path, part: str, kind: type, written: ast.expr | None, line: int) -> Any:
    try:
        value = ast.literal_eval(written) if written is not None else None
    except (ValueError, TypeError, MemoryError, RecursionError):  # calls, unhashable keys, depth
        value = None
    if not isinstance(value, kind):
        raise PluginError(
            f"plugin {file.stem}: {part} is not a literal {kind.__name__}",
            where=f"{file}:{line}",
            fix="write it out: it is read without running the file",
        )
    return value


def _header(file: Path, data: Mapping[str, Any], lines: Mapping[str, int], about: str) -> Header:
    domain, mark, name = data["NAME"].partition("::")
    if not mark or not domain.isidentifier() or not name.isidentifier():
        raise PluginError(f"NAME: {data['NAME']!r} is not DOMAIN::OP", fix=f'NAME = "mine::{file.stem}"')
    if name != file.stem:
        raise PluginError(
            f"NAME: the op is '{name}' and the file '{file.name}'", fix=f"rename one: {name}.py is looked for"
        )
    if domain in TORCHS_OWN or domain.startswith("onnx"):
        raise PluginError(f"NAME: the domain '{domain}' is taken", fix=f'NAME = "mine::{name}"')
    schema = parse(data["SCHEMA"], parse_types(data.get("TYPES", {})))
    shapes = _shapes(data["SHAPES"], schema)
    named = {axis for axes in shapes.values() for axis in axes if isinstance(axis, str)}
    return Header(
        file,
        name,
        domain,
        schema,
        shapes,
        _sizes(data.get("SIZES", {}), named),
        _attributes(data.get("ATTRIBUTES", {}), schema),
        _cases(data.get("CASES", []), shapes, schema),
        about,
        lines,
    )


def _shapes(given: Mapping[str, Any], schema: Schema) -> dict[str, tuple[str | int, ...]]:
    names = [one.name for one in schema.inputs]
    if sorted(given) != sorted(names):
        raise PluginError(f"SHAPES: it names {', '.join(given)}, and the inputs are {', '.join(names)}")
    found = {}
    for name in names:
        axes = [int(axis) if axis.isdigit() else axis for axis in str(given[name]).split()]
        for place, axis in enumerate(axes):
            if isinstance(axis, str) and not axis.isidentifier() and (axis != REST or place):
                raise PluginError(
                    f"SHAPES: '{given[name]}' of '{name}' cannot be read",
                    fix="names of sizes and numbers, separated by spaces; '...' in front for any leading axes",
                )
        found[name] = tuple(axes)
    return found


def _sizes(given: Mapping[str, Any], named: set[str]) -> dict[str, Bound]:
    found: dict[str, Bound] = {}
    for name, bounds in given.items():
        if name not in named or name == REST:
            raise PluginError(f"SIZES: no input has a size '{name}'", fix=f"SHAPES names {', '.join(sorted(named))}")
        try:
            bound = Bound(*bounds)
            right = bound.least >= 0 and bound.multiple >= 1 and bound.holds(bound.near(bound.least))
        except TypeError:
            right = False
        if not right:
            raise PluginError(
                f"SIZES: '{name}' is {bounds!r}, not (least, greatest) or (least, greatest, multiple of)",
                fix="None for the greatest is no limit",
            )
        found[name] = bound
    return found


def _cases(
    given: Sequence[Any], shapes: Mapping[str, tuple[str | int, ...]], schema: Schema
) -> tuple[Mapping[str, Any], ...]:
    named_sizes = {axis for axes in shapes.values() for axis in axes if isinstance(axis, str)}
    wanted = named_sizes | {one.name for one in schema.attributes if one.default is None}
    allowed = wanted | {one.name for one in schema.attributes}
    for case in given:
        if not isinstance(case, dict) or not wanted <= case.keys() <= allowed:
            raise PluginError(
                f"CASES: {case!r} does not give {', '.join(sorted(wanted))}, with other attributes at most",
                fix="a dict: name of a size or attribute -> value; '...' -> a tuple of leading axes",
            )
        for name in wanted & named_sizes:
            size = case[name]
            right = isinstance(size, tuple | list) if name == REST else type(size) is int and size >= 0
            if not right:
                raise PluginError(
                    f"CASES: the size '{name}' is {size!r}", fix="an integer; of '...' a tuple of integers"
                )
    kinds = {one.name: one for one in schema.attributes}
    return tuple(
        {name: _value("CASES", kinds[name], value) if name in kinds else value for name, value in case.items()}
        for case in given
    )


def _value(part: str, attribute: Attribute, value: Any) -> Any:
    found = valued(attribute, value)
    if found is None:
        raise PluginError(f"{part}: '{attribute.name}' is {value!r}, and SCHEMA says {attribute.kind}")
    return found


def _attributes(given: Mapping[str, Any], schema: Schema) -> dict[str, tuple[Any, ...]]:
    known = {one.name: one for one in schema.attributes}
    for name, values in given.items():
        if name not in known or not isinstance(values, list | tuple):
            raise PluginError(f"ATTRIBUTES: '{name}' is not an attribute with a list of values")
    for one in schema.attributes:
        if one.default is None and not given.get(one.name):
            raise PluginError(f"SCHEMA: '{one.name}' has no default, so ATTRIBUTES must give a value to check with")
    found = {
        name: tuple(_value("ATTRIBUTES", known[name], value) for value in values) for name, values in given.items()
    }
    found.update({one.name: (False, True) for one in known.values() if one.kind == "bool" and one.name not in found})
    return found
