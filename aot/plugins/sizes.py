"""Sizes that vary, recorded while a plugin's functions compute with them.

`outputs` and `launch` run on integers where sizes are known, and on `Size` where they are not. What they compute then
is an expression, which an engine evaluates for the sizes that it meets. As plain data it is an integer,
`["size", INPUT, AXIS]`, or `[OP, LEFT, RIGHT]` with OP one of OPERATIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from aot.errors import PluginError

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "ceil": lambda a, b: -(-a // b),
    "max": max,
    "min": min,
}


class Varies(PluginError):
    """A size that has to be fixed varies: no fault of the plugin, and nothing where its function takes its place."""


class Size:
    """An integer that is known when the engine runs. It adds, subtracts, multiplies and divides (//), nothing else."""

    __slots__ = ("tree",)

    def __init__(self, tree: Any) -> None:
        self.tree = tree

    def __add__(self, other: int | Size) -> Size:
        return _joined("+", self, other)

    def __radd__(self, other: int) -> Size:
        return _joined("+", other, self)

    def __sub__(self, other: int | Size) -> Size:
        return _joined("-", self, other)

    def __rsub__(self, other: int) -> Size:
        return _joined("-", other, self)

    def __mul__(self, other: int | Size) -> Size:
        return _joined("*", self, other) if isinstance(other, Size) or other != 1 else self

    def __rmul__(self, other: int) -> Size:
        return self * other

    def __floordiv__(self, other: int | Size) -> Size:
        return _joined("//", self, other)

    def __rfloordiv__(self, other: int) -> Size:
        return _joined("//", other, self)

    def _refuse(self, *_: object) -> NoReturn:
        raise Varies(
            f"{describe(self.tree)} varies, so nothing can be decided by it before the engine runs",
            fix="compute with + - * //, ceil_div and at_most alone, or let the kernel decide; fixed(size) asks for a "
            "fixed one",
        )

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __mod__ = __rmod__ = __truediv__ = __rtruediv__ = __pow__ = __neg__ = _refuse
    __index__ = __int__ = __float__ = _refuse
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return describe(self.tree)


def _joined(op: str, left: int | Size, right: int | Size) -> Size:
    return Size([op, tree_of(left), tree_of(right)])


def tree_of(size: int | Size) -> Any:
    """The expression as plain data. Raises PluginError for what is no size."""
    if isinstance(size, Size):
        return size.tree
    if isinstance(size, bool) or not isinstance(size, int):
        raise PluginError(f"{size!r} is not a size", fix="a size is an integer")
    return size


def varying(name: str, axis: int) -> Size:
    """The size of an axis of an input."""
    return Size(["size", name, axis])


def evaluate(tree: Any, sizes: Mapping[str, Sequence[int]]) -> int:
    """The value of an expression for inputs of these shapes."""
    if isinstance(tree, int):
        return tree
    op, left, right = tree
    if op == "size":
        return int(sizes[left][right])
    return OPERATIONS[op](evaluate(left, sizes), evaluate(right, sizes))


DEEPEST = 50
"""Operations inside each other that an expression may have."""


def is_expression(tree: Any, inputs: Collection[str], depth: int = 0) -> bool:
    """Whether plain data, of whatever origin, is an expression of the sizes of these inputs."""
    if type(tree) is int:
        return True
    if not isinstance(tree, list | tuple) or len(tree) != 3 or depth > DEEPEST:
        return False
    op, left, right = tree
    if op == "size":
        return left in inputs and type(right) is int
    return (
        isinstance(op, str)
        and op in OPERATIONS
        and is_expression(left, inputs, depth + 1)
        and is_expression(right, inputs, depth + 1)
    )


def read(tree: Any) -> set[tuple[str, int]]:
    """(input, axis) of every size that an expression reads."""
    if isinstance(tree, int):
        return set()
    op, left, right = tree
    return {(left, right)} if op == "size" else read(left) | read(right)


def describe(tree: Any) -> str:
    """For people: `x[0] * ceil(x[1], 4)`."""
    if isinstance(tree, int):
        return str(tree)
    op, left, right = tree
    if op == "size":
        return f"{left}[{right}]"
    if op.isalpha():
        return f"{op}({describe(left)}, {describe(right)})"
    return f"({describe(left)} {op} {describe(right)})"


def ceil_div(a: Any, b: Any) -> Any:
    """a / b, rounded up: how many blocks of b hold a."""
    return _joined("ceil", a, b) if isinstance(a, Size) or isinstance(b, Size) else -(-a // b)


def at_most(size: Any, limit: int) -> Any:
    """The size, or the limit where it is more than that."""
    return _joined("min", size, limit) if isinstance(size, Size) else min(size, limit)


def fixed(size: Any, what: str = "a size that the kernel takes as a constant") -> int:
    """The size as an integer. Raises PluginError for one that varies."""
    if isinstance(size, Size):
        raise Varies(
            f"{what} must be fixed, and {describe(size.tree)} varies",
            fix="give that axis a number in place of a Dim; `aot plugin compile` takes it as --size NAME=N",
        )
    return int(size)


def power_of_two(size: Any, what: str = "a size that a block must hold") -> int:
    """The least power of two that is not less: the length of a block that holds `size` elements."""
    return 1 << max(fixed(size, what) - 1, 0).bit_length()
