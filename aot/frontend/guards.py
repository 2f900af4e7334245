"""What a trace asked about sizes, and for which of the declared sizes the answer would have been another.

torch.export follows one example. Each time the code asks about a size (`x.shape[1] > 4`), it takes the example's
answer and notes the condition, a guard. Here guards are read with the line that asked, and tried over the
declared ranges: where one is false, the program is not what the model does there.
"""

from __future__ import annotations

import logging
import math
import random
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.printers import PythonPrinter

from aot.declaration import Dim, ModelSpec
from aot.frontend import lines

_ADDED = re.compile(r"^(?:eval|runtime_assert)(?: \(forcing_spec\))? (.+?) \[guard added\]")
_EVERY = 300
"""Up to this many sizes of a Dim are all tried; of more, the ends, what the guard names, and steps between."""


class Listener(logging.Handler):
    """Hears of each guard while the code that asked is still on the stack."""

    LOGGER = "torch.fx.experimental.symbolic_shapes"

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.asked: dict[str, tuple[lines.Line | None, bool]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line behind a guard."""
        found = _ADDED.match(record.getMessage())
        if found:
            self.asked.setdefault(found[1], lines.of_frame(sys._getframe()))


@dataclass(frozen=True)
class Guard:
    """A condition on Dims: its variables are named after them. `own`: asked by the model, not inside torch."""

    condition: sympy.Basic
    dims: tuple[Dim, ...]
    line: lines.Line | None
    own: bool

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether the example's answer is the answer at these sizes. An expression that has no value is false."""
        try:
            value = self.condition.xreplace({_symbol(dim): sympy.Integer(sizes[dim.name]) for dim in self.dims})
            return bool(value)
        except (TypeError, ValueError, ZeroDivisionError, AssertionError):
            return False

    @property
    def harmless(self) -> bool:
        """Whether it only excludes what torch treats apart to lay out memory: `a != b` or `a >= 2` inside torch."""
        if self.own or not isinstance(self.condition, sympy.Rel):
            return False
        least = self.condition.reversed if self.condition.lhs.is_number else self.condition
        return isinstance(least, sympy.Ne) or least in (sympy.Ge(least.lhs, 2), sympy.Gt(least.lhs, 1))

    def missed(self) -> dict[str, int] | None:
        """Sizes in the declared ranges at which it is false; None where it holds throughout, as far as tried."""
        return next((sizes for sizes in self.tries() if not self.holds(sizes)), None)

    def tries(self, multiples: Mapping[str, int] | None = None) -> Iterator[dict[str, int]]:
        """Sizes of its Dims to try; of a Dim in `multiples`, only multiples of that number."""
        steps = multiples or {}
        choices = {dim.name: self._sizes(dim, steps.get(dim.name, 1)) for dim in self.dims}
        if not all(choices.values()):
            return
        if len(choices) == 1:
            yield from ({name: size} for name, sizes in choices.items() for size in sizes)
            return
        draw = random.Random(0)
        yield from ({name: sizes[end] for name, sizes in choices.items()} for end in (0, -1))
        shared = set.intersection(*(set(sizes) for sizes in choices.values()))
        yield from (dict.fromkeys(choices, size) for size in sorted(shared)[:20])
        yield from ({name: draw.choice(sizes) for name, sizes in choices.items()} for _ in range(_EVERY))

    def _sizes(self, dim: Dim, multiple: int) -> list[int]:
        every = multiples_of(dim, multiple)
        if len(every) <= _EVERY:
            return list(every)
        named = {int(n) + near for n in self.condition.atoms(sympy.Integer) for near in (-1, 0, 1)} | {dim.bounds[1]}
        ends = {*every[: _EVERY // 2], *every[-8:]}
        steps = every[:: max(len(every) // (_EVERY // 2), 1)]
        return sorted({*ends, *steps, *(size for size in named if size in every)})

    def __str__(self) -> str:
        return str(PythonPrinter().doprint(self.condition))


def multiples_of(dim: Dim, number: int) -> range:
    """The sizes of a Dim that are multiples of a number."""
    step = math.lcm(dim.multiple_of, number)
    low, _, high = dim.bounds
    return range(-(-low // step) * step, high + 1, step)


def found(env: ShapeEnv | None, asked: Mapping[str, tuple[lines.Line | None, bool]], spec: ModelSpec) -> list[Guard]:
    """The guards of a trace, in the order in which they arose. Those on anything but Dims are left out."""
    if env is None:
        return []
    dims = _dims(env, spec)
    conditions = [guard.expr for guard in env.guards]
    conditions += [late.expr for several in env.deferred_runtime_asserts.values() for late in several]
    order = {text: place for place, text in enumerate(asked)}
    made = []
    for condition in sorted(dict.fromkeys(conditions), key=lambda c: order.get(str(c), len(order))):
        if not condition.free_symbols or not condition.free_symbols <= set(dims):
            continue
        line, own = asked.get(str(condition), (None, False))
        expressed = _solved(condition.xreplace({symbol: expression for symbol, (_, expression) in dims.items()}))
        used = {_symbol(dim): dim for dim, _ in dims.values()}
        if expressed.free_symbols:
            names = sorted(expressed.free_symbols, key=str)
            made.append(Guard(expressed, tuple(used[name] for name in names), line, own))
    return made


def _solved(condition: sympy.Basic) -> sympy.Basic:
    """`seq == 9` for `6*b*seq == 54*b`: an equation that has one solution for one of its sizes."""
    if isinstance(condition, sympy.Eq) and len(condition.free_symbols) > 1:
        difference = condition.lhs - condition.rhs
        for symbol in sorted(difference.free_symbols, key=str):
            if difference.is_polynomial(*difference.free_symbols):
                found = [root for root in sympy.solve(difference, symbol) if root.is_Integer and root > 0]
                if len(found) == 1:
                    return sympy.Eq(symbol, found[0], evaluate=False)
    return condition


def env_of_error(error: BaseException) -> ShapeEnv | None:
    """The record of sizes of an export that failed; it is reached through the frames that the exception left."""
    seen: list[BaseException] = []
    while error not in seen:
        seen.append(error)
        for frame, _ in traceback.walk_tb(error.__traceback__):
            for value in frame.f_locals.values():
                if isinstance(value, ShapeEnv):
                    return value
                if isinstance(value, torch._subclasses.FakeTensorMode) and value.shape_env is not None:
                    return value.shape_env
        error = error.__cause__ or error.__context__ or error
    return None


def env_of_program(program: torch.export.ExportedProgram) -> ShapeEnv | None:
    """The record of sizes that an exported program was traced with."""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch._subclasses.FakeTensor):
            return value.fake_mode.shape_env
    return None


def _dims(env: ShapeEnv, spec: ModelSpec) -> dict[sympy.Symbol, tuple[Dim, sympy.Expr]]:
    """torch's symbol for a size -> its Dim, and what the symbol is, expressed in the Dim's size."""
    known: dict[sympy.Symbol, tuple[Dim, sympy.Expr]] = {}
    for source, variable in env.source_to_var.items():
        dim = _dim_at(str(source), spec)
        if dim is None:
            continue
        size = _symbol(dim)
        known[variable] = dim, size
        derived = env.replacements.get(variable)
        if derived is not None and len(derived.free_symbols) == 1:
            (root,) = derived.free_symbols
            factor = derived.coeff(root)
            if factor != 0 and derived == factor * root:
                known.setdefault(root, (dim, size / factor))
    return known


def _dim_at(source: str, spec: ModelSpec) -> Dim | None:
    """The Dim behind torch's name of a size: `L['x'].size()[1]`; within a structure the last key names the input."""
    parsed = re.fullmatch(r"L(\[.+)\.size\(\)\[(\d+)\]", source)
    if parsed is None:
        return None
    keys = [key or field for key, field in re.findall(r"\['?([^'\]]+)'?\]|\.(\w+)", parsed[1])]
    for name in ("_".join(keys), keys[0], keys[-1]):
        shape = spec.inputs[name].shape if name in spec.inputs else ()
        dim = shape[int(parsed[2])] if int(parsed[2]) < len(shape) else None
        if isinstance(dim, Dim):
            return dim
    return None


def _symbol(dim: Dim) -> sympy.Symbol:
    return sympy.Symbol(dim.name, integer=True, nonnegative=True)


def refusable(found: Sequence[Guard]) -> list[Guard]:
    """The guards that are false somewhere in the declared ranges, and matter."""
    return [guard for guard in found if not guard.harmless and guard.missed() is not None]


def symbols(env: ShapeEnv, spec: ModelSpec) -> dict[str, Dim]:
    """torch's name for a size -> its Dim."""
    return {str(symbol): dim for symbol, (dim, _) in _dims(env, spec).items()}
