"""Tensors as the protocol carries them: raw bytes, or numbers in JSON and in the typed fields of gRPC.

Raw: elements in C order, little-endian. Datatypes by the name that the protocol has for them; FP16 and BF16 travel raw
only, since neither JSON nor gRPC has a number of theirs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from aot.errors import InputError, TargetError
from aot.runtime.interchange import NUMPY, Array, bits
from aot.runtime.manifest import Tensor

assert sys.byteorder == "little"
DATATYPES = {
    "bool": "BOOL",
    **{f"{kind}{size}": f"{kind.upper()}{size}" for kind in ("int", "uint") for size in (8, 16, 32, 64)},
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
}
"""The protocol's name of a dtype. BF16 is not in the specification; Triton Inference Server and its clients have it."""
RAW_ONLY = ("FP16", "BF16")
ELEMENTS = 2**48
"""More than any array holds: products of sizes are compared with it before they are computed with."""


def datatype(name: str, tensor: Tensor) -> str:
    """The datatype of an input or output. Raises TargetError where the protocol has none for it."""
    if tensor.dtype not in DATATYPES:
        raise TargetError(
            f"'{name}' is {tensor.dtype}, and the Open Inference Protocol has no datatype for that",
            fix="build the model with inputs and outputs of a wider dtype",
        )
    return DATATYPES[tensor.dtype]


class Reader:
    """Arrays of one input from what a client sent for it. Every method raises InputError, and names the input."""

    def __init__(self, name: str, tensor: Tensor) -> None:
        self._name, self._tensor = name, tensor
        self.datatype = datatype(name, tensor)
        self._bits = bits(tensor.dtype)
        kinds: dict[str, set[type]] = {"b": {bool}, "f": {int, float}}
        self._kinds = kinds.get(self._bits.kind, {int})  # of numbers, in Python

    def shape(self, given: Any, datatype: Any) -> tuple[int, ...]:
        """The shape that a client states, with its datatype held against the model's."""
        if datatype != self.datatype:
            raise self._wrong(f"is {_short(datatype)}, and the model takes {self.datatype}", "send it as that")
        sizes = tuple(given) if isinstance(given, (list, tuple)) else None
        if sizes is None or not all(type(size) is int and size >= 0 for size in sizes):
            raise self._wrong(f"has the shape {_short(given)}", "a shape is a list of whole numbers from 0 on")
        if len(sizes) > 32 or prod(sizes) > ELEMENTS or max(sizes, default=0) > ELEMENTS:
            raise self._wrong(f"has the shape {_short(given)}", "no model takes that many elements")
        return sizes

    def raw(self, data: Any, shape: Sequence[int]) -> Array:
        """From the bytes of its elements; the array shares them where it can."""
        wanted = prod(shape) * self._bits.itemsize
        if len(data) != wanted:
            raise self._wrong(
                f"has {len(data)} bytes, and {self.datatype} {list(shape)} takes {wanted}",
                "send every element, in C order and little-endian",
            )
        array = np.frombuffer(data, self._bits).reshape(tuple(shape))
        if self._bits == np.bool_ and array.size and array.view(np.uint8).max() > 1:
            raise self._wrong("holds a byte that is neither 0 nor 1", "a BOOL is one byte, 0 or 1")
        return self._made(np.require(array, requirements="A"))

    def numbers(self, data: Any, shape: Sequence[int]) -> Array:
        """From the numbers of JSON, flat or nested as the shape says, or of gRPC."""
        if self.datatype in RAW_ONLY:
            raise self._wrong(f"is {self.datatype}, which comes as raw bytes only", "send it as binary data")
        flat = list(self._flat(data, tuple(shape)))
        if not self._kinds.issuperset(map(type, flat)):
            wrong = next(one for one in flat if type(one) not in self._kinds)
            raise self._wrong(f"holds {_short(wrong)}, which is no {self.datatype}", "send numbers that are")
        widest = np.float64 if self._bits.kind == "f" else self._bits
        try:
            with np.errstate(over="raise"):
                array = np.array(flat, widest).astype(self._bits)
        except (OverflowError, FloatingPointError):
            raise self._wrong(f"holds a number that {self.datatype} does not", "send what it can hold") from None
        return self._made(array.reshape(tuple(shape)))

    def _flat(self, data: Any, shape: tuple[int, ...]) -> Iterator[Any]:
        """The elements of a list that is flat, or nested as the shape says."""
        if not isinstance(data, Sequence) or isinstance(data, str):
            raise self._wrong(f"has the data {_short(data)}", "data is a list of elements")
        nested = len(shape) > 1 and len(data) > 0 and isinstance(data[0], list)
        wanted = shape[0] if nested else prod(shape)
        if len(data) != wanted:
            raise self._wrong(
                f"has {len(data)} {'rows' if nested else 'elements'} where its shape {list(shape)} takes {wanted}",
                "send every element, in C order: flat, or nested as the shape is",
            )
        if not nested:
            yield from data
        else:
            for row in data:
                if not isinstance(row, list) or not (len(shape) == 2 or not row or isinstance(row[0], list)):
                    raise self._wrong(f"is nested unevenly: {_short(row)}", "nest it as the shape is, or not at all")
                yield from self._flat(row, shape[1:])

    def _made(self, array: Array) -> Array:
        made: Array = NUMPY.made(array, self._tensor.dtype, NUMPY.look(array))
        return made

    def _wrong(self, what: str, fix: str) -> InputError:
        return InputError(f"input '{self._name}' {what}", where=f"the model takes {self._tensor}", fix=fix)


def to_raw(array: Array) -> memoryview:
    """The bytes of an output's elements, without a copy where they lie in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def metadata(tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Name, datatype and shape of inputs or outputs, -1 where a size varies."""
    return [
        {
            "name": name,
            "datatype": datatype(name, tensor),
            "shape": [size if isinstance(size, int) else -1 for size in tensor.shape],
        }
        for name, tensor in tensors.items()
    ]


def _short(value: Any) -> str:
    """A value from a client for a message: bounded, and not what is nested in it."""
    if isinstance(value, (list, tuple)):
        plain = len(value) <= 8 and all(type(one) is int and abs(one) <= ELEMENTS for one in value)
        return str(list(value)) if plain else f"a list of {len(value)}"
    text = "an object" if isinstance(value, dict) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
