"""SCHEMA and TYPES: what an op takes and gives.

    SCHEMA = "(T x, T residual, float32 scale, float eps=1e-6) -> (T y, T total)"
    TYPES = {"T": "float32 float16 bfloat16"}

A tensor is declared with its dtype, or with a name from TYPES that stands for one of several, the same wherever the
name occurs. Attributes are int, float, bool, str or int[], a tuple of integers (`int[] strides=[1, 1]`), and follow the
tensors. An output's dtype follows from the inputs'.

No input may be left out: an engine gives a plugin every input that it declares. A bias that a layer has not got is
zeros, a mask is ones; or the op without it is a plugin of its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from aot.errors import PluginError

DTYPES = (
    "float32", "float16", "bfloat16", "float8_e4m3fn", "int8", "uint8", "int32", "int64", "bool",
)  # fmt: skip
ATTRIBUTES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str, "int[]": tuple}
NODE_TYPES = "aot.plugin.types"
"""Metadata of an ONNX node: the dtypes that each input and then each output may have, `float32 float16;float32`."""
ONNX_TYPES = {
    "float32": "float", "float16": "float16", "bfloat16": "bfloat16", "float8_e4m3fn": "float8e4m3fn", "int8": "int8",
    "uint8": "uint8", "int32": "int32", "int64": "int64", "bool": "bool",
}  # fmt: skip
"""A dtype as ONNX's schemas write it."""
TENSORRT_TYPES = {
    "float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16", "float8_e4m3fn": "FP8", "int8": "INT8", "uint8": "UINT8",
    "int32": "INT32", "int64": "INT64", "bool": "BOOL",
}  # fmt: skip
"""A dtype as TensorRT's DataType names it."""
Value = int | float | bool | str | tuple[int, ...]

_FORM = re.compile(r"\s*\((?P<given>.*)\)\s*->\s*(?P<made>.*\S)\s*", re.S)
_ARGUMENT = re.compile(r"(?P<kind>\w+(?:\[\])?\??)\s+(?P<name>[A-Za-z_]\w*)\s*(?:=\s*(?P<default>.+))?", re.S)
_COMMA = re.compile(r",(?![^\[]*\])")  # not within [1, 1]


@dataclass(frozen=True)
class Tensor:
    """An input or output; `kind` is a dtype or a name from TYPES."""

    name: str
    kind: str


@dataclass(frozen=True)
class Attribute:
    """`default` None: the caller gives it."""

    name: str
    kind: str
    default: Value | None = None


@dataclass(frozen=True)
class Schema:
    """What an op takes and gives. types: the dtypes that each name stands for."""

    inputs: tuple[Tensor, ...]
    attributes: tuple[Attribute, ...]
    outputs: tuple[Tensor, ...]
    types: Mapping[str, tuple[str, ...]]

    def torch(self) -> str:
        """As torch writes it, without the op's name."""
        given = [f"Tensor {one.name}" for one in self.inputs]
        given += [
            f"{one.kind} {one.name}" + ("" if one.default is None else f"={_literal(one.default)}")
            for one in self.attributes
        ]
        made = ", ".join(f"Tensor {one.name}" for one in self.outputs)
        return f"({', '.join(given)}) -> " + (made if len(self.outputs) == 1 else f"({made})")

    def allowed(self, tensor: Tensor) -> tuple[str, ...]:
        """The dtypes that a tensor may have."""
        return self.types.get(tensor.kind, (tensor.kind,))

    def combinations(self) -> Iterator[dict[str, str]]:
        """Every dtype for every name of TYPES that an input is declared with: name -> dtype."""
        names = [name for name in self.types if any(one.kind == name for one in self.inputs)]
        for chosen in product(*(self.types[name] for name in names)):
            yield dict(zip(names, chosen, strict=True))

    def chosen(self, dtypes: Sequence[str]) -> dict[str, str]:
        """name of TYPES -> dtype, for inputs of these dtypes. Raises PluginError for those that it does not take."""
        found: dict[str, str] = {}
        for one, dtype in zip(self.inputs, dtypes, strict=True):
            if dtype not in self.allowed(one):
                raise PluginError(f"'{one.name}' is {dtype}, and may be {', '.join(self.allowed(one))}")
            if one.kind in self.types and found.setdefault(one.kind, dtype) != dtype:
                first = next(other.name for other in self.inputs if other.kind == one.kind)
                raise PluginError(f"'{first}' is {found[one.kind]} and '{one.name}' {dtype}: both are {one.kind}")
        return found

    def dtypes(self, tensors: Sequence[Tensor], chosen: Mapping[str, str]) -> tuple[str, ...]:
        """The dtypes of inputs or outputs where the names of TYPES are chosen."""
        return tuple(chosen.get(one.kind, one.kind) for one in tensors)


def _literal(value: Value) -> str:
    if isinstance(value, tuple):
        return str(list(value))
    return f'"{value}"' if isinstance(value, str) else repr(value)


def valued(attribute: Attribute, value: Any) -> Value | None:
    """What is given for an attribute as its kind has it, integers for floats and lists for tuples taken; None for
    anything else."""
    wanted = ATTRIBUTES[attribute.kind]
    if wanted is tuple:
        right = isinstance(value, list | tuple) and all(type(one) is int for one in value)
        return tuple(value) if right else None
    if wanted is float and type(value) is int:
        return float(value)
    right = isinstance(value, int | float | bool | str) and type(value) is wanted
    return value if right else None


def parse_types(types: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """TYPES, read. Raises PluginError."""
    found = {}
    for name, text in types.items():
        dtypes = tuple(str(text).split())
        for dtype in dtypes:
            if dtype not in DTYPES:
                raise PluginError(
                    f"TYPES: {name} names '{dtype}', which is no dtype", fix=f"one of {', '.join(DTYPES)}"
                )
        if not dtypes or name in DTYPES or name in ATTRIBUTES:
            raise PluginError(f"TYPES: '{name}' cannot be the name of {dtypes or 'no dtype'}", fix='T = "float32"')
        found[name] = dtypes
    return found


def parse(text: str, types: Mapping[str, tuple[str, ...]]) -> Schema:
    """SCHEMA, read. Raises PluginError, which says which argument is wrong."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise PluginError(f"SCHEMA is not of the form (inputs, attributes) -> (outputs): {text!r}")
    inputs: list[Tensor] = []
    attributes: list[Attribute] = []
    for argument in _arguments(form["given"]):
        match = _ARGUMENT.fullmatch(argument)
        kind = match["kind"] if match else None
        if match is None or kind is None or not (kind in ATTRIBUTES or kind in types or kind in DTYPES):
            raise _unreadable(argument, types)
        if kind in ATTRIBUTES:
            attributes.append(Attribute(match["name"], kind, _default(match)))
        elif match["default"] is not None or attributes:
            raise PluginError(f"SCHEMA: '{argument}' is a tensor, which has no default and stands before attributes")
        else:
            inputs.append(Tensor(match["name"], kind))
    outputs = _outputs(form["made"], types)
    _check(inputs, attributes, outputs, types)
    return Schema(tuple(inputs), tuple(attributes), tuple(outputs), dict(types))


def _arguments(text: str) -> list[str]:
    return [part.strip() for part in _COMMA.split(text) if part.strip()]


def _unreadable(argument: str, types: Mapping[str, tuple[str, ...]]) -> PluginError:
    if "?" in argument.partition("=")[0]:
        return PluginError(
            f"SCHEMA: '{argument}' may be left out, and an engine gives a plugin every input that it declares",
            fix="take a tensor that changes nothing, zeros for a bias, or make the op without it a plugin of its own",
        )
    kinds = ", ".join([*types, *DTYPES, *ATTRIBUTES])
    return PluginError(f"SCHEMA: '{argument}' is not KIND NAME", fix=f"KIND is one of {kinds}")


def _default(match: re.Match[str]) -> Value | None:
    if match["default"] is None:
        return None
    try:
        value: Any = ast.literal_eval(match["default"].strip())
    except (ValueError, SyntaxError):
        value = None
    found = valued(Attribute(match["name"], match["kind"]), value)
    if found is None:
        raise PluginError(f"SCHEMA: the default of '{match['name']}' is not {match['kind']}: {match['default']}")
    return found


def _outputs(text: str, types: Mapping[str, tuple[str, ...]]) -> list[Tensor]:
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    outputs = []
    for part in _arguments(inner):
        match = _ARGUMENT.fullmatch(part)
        if match is None or match["default"] is not None or not (match["kind"] in types or match["kind"] in DTYPES):
            raise _unreadable(part, types)
        outputs.append(Tensor(match["name"], match["kind"]))
    return outputs


def _check(
    inputs: Sequence[Tensor],
    attributes: Sequence[Attribute],
    outputs: Sequence[Tensor],
    types: Mapping[str, tuple[str, ...]],
) -> None:
    names = [*(one.name for one in (*inputs, *outputs)), *(one.name for one in attributes)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PluginError(f"SCHEMA: '{twice}' occurs twice")
    if not inputs or not outputs:
        raise PluginError("SCHEMA: an op takes a tensor and gives one, at least")
    known = {one.kind for one in inputs}
    for one in outputs:
        if one.kind in types and one.kind not in known:
            raise PluginError(
                f"SCHEMA: the dtype of '{one.name}' does not follow from the inputs, none of which is {one.kind}"
            )
