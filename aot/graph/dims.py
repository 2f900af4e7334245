"""Names for the dims of inputs that have none, for as long as passes run.

Nothing more will ever be known of such a dim, so what has it is known as well as can be. Without a name, or with one
that reads as if an inference had made it up (`unk__5`, which files have from tf2onnx), every value that it reaches
would be asked for again and again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import count

import onnx_ir as ir

from aot.graph.inference import made_up
from aot.graph.state import walk

_NAME = re.compile(r"[A-Za-z_]\w*")


@contextmanager
def named_inputs(model: ir.Model) -> Iterator[None]:
    """Name the dims of the inputs; afterwards they are as they were, and so are all that had the same made-up names."""
    stated = [(value, value.shape) for value in model.graph.inputs if value.shape is not None]
    if not any([_is_nameless(size) for _, shape in stated for size in shape]):
        yield
        return
    taken = {size.value for value in _values(model) for size in value.shape or () if not isinstance(size, int)}
    fresh = (name for number in count() if (name := f"dim_{number}") not in taken)
    names: dict[str, str] = {}
    for value, shape in stated:
        sizes = [size if isinstance(size, int) else size.value for size in shape]
        for axis, size in enumerate(sizes):
            if size is None:
                sizes[axis] = next(fresh)
            elif isinstance(size, str) and made_up(size) and size not in names:
                names[size] = next(fresh)
        value.shape = ir.Shape(sizes)
    _rename(model, names)
    try:
        yield
    finally:
        _rename(model, {new: old for old, new in names.items()})
        for value, shape in stated:
            value.shape = shape


def _is_nameless(size: int | ir.SymbolicDim) -> bool:
    return not isinstance(size, int) and made_up(size.value)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    for node in walk(model.graph):
        yield from node.outputs


def _rename(model: ir.Model, names: Mapping[str, str]) -> None:
    """Put other names in the place of some, also where they stand in expressions such as `64*S`."""

    @cache  # few texts, each at many places
    def renamed(text: str) -> str:
        return _NAME.sub(lambda found: names.get(found[0], found[0]), text)

    for value in _values(model) if names else ():
        shape = value.shape
        told = [] if shape is None else [size.value for size in shape if not isinstance(size, int) and size.value]
        if shape is not None and any([renamed(text) != text for text in told]):
            value.shape = ir.Shape(
                [size if isinstance(size, int) or not size.value else renamed(size.value) for size in shape]
            )
