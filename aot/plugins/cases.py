"""What a kernel is run with: sizes that are odd, 0 and 1, every dtype, attribute and config. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aot.plugins.checking import INTERPRETED
from aot.plugins.header import REST, Header

# One a symbol, all odd and none alike; then what a block does not end at.
_ODD = (5, 3, 7, 9, 11, 13)
_LARGE = (67, 131)
_LEADING: tuple[tuple[int, ...], ...] = ((3,), (), (2, 3), (1,), (0,), (67,))


@dataclass(frozen=True)
class Trial:
    """One run. shapes: of the inputs. chosen: name of TYPES -> dtype. config: an index into CONFIGS.

    misaligned: tensors start at no multiple of 16 bytes. huge: there are more elements than an int32 counts.
    """

    shapes: Mapping[str, tuple[int, ...]]
    chosen: Mapping[str, str]
    attributes: Mapping[str, Any]
    config: int = 0
    misaligned: bool = False
    huge: bool = False

    def describe(self) -> str:
        """For people."""
        shapes = ", ".join(f"{name} {list(shape)}" for name, shape in self.shapes.items())
        types = " ".join(self.chosen.values())
        attributes = " ".join(f"{name}={value}" for name, value in self.attributes.items())
        parts = [types, shapes, attributes, f"config {self.config}", "misaligned" if self.misaligned else ""]
        parts += ["more than 2^31 elements"] if self.huge else []
        return "; ".join(part for part in parts if part)


def sizes(header: Header) -> list[dict[str, Any]]:
    """Sizes by name from SHAPES, REST a tuple: odd ones first, then each alone at its ends and beyond a block."""
    base: dict[str, Any] = {}
    for place, symbol in enumerate(header.symbols()):
        base[symbol] = _LEADING[0] if symbol == REST else header.bound(symbol).near(_ODD[place % len(_ODD)])
    found = [base]
    for symbol in header.symbols():
        if symbol == REST:
            found += [{**base, REST: leading} for leading in _LEADING[1:]]
            continue
        bound = header.bound(symbol)
        found += [{**base, symbol: bound.near(size)} for size in (bound.least, 1, *_LARGE)]
    distinct: list[dict[str, Any]] = []
    for one in found:
        if one not in distinct:
            distinct.append(one)
    return distinct


def shapes(header: Header, found: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of the inputs for these sizes."""
    made = {}
    for name, axes in header.shapes.items():
        shape: list[int] = []
        for axis in axes:
            if axis == REST:
                shape += found[REST]
            else:
                shape.append(axis if isinstance(axis, int) else found[axis])
        made[name] = tuple(shape)
    return made


def defaults(header: Header) -> dict[str, Any]:
    """The attributes as they are when a caller leaves them out; the first to check with where that is not possible."""
    return {
        one.name: header.attributes[one.name][0] if one.default is None else one.default
        for one in header.schema.attributes
    }


def interpreted(header: Header, chosen: Mapping[str, str]) -> bool:
    """Whether the interpreter computes in these dtypes as a GPU does."""
    tensors = (*header.schema.inputs, *header.schema.outputs)
    return INTERPRETED.issuperset(header.schema.dtypes(tensors, chosen))


def base(header: Header) -> tuple[dict[str, Any], dict[str, Any]]:
    """(sizes, attributes) of the first run."""
    plain = defaults(header)
    if not header.cases:
        return sizes(header)[0], plain
    case = header.cases[0]
    return {name: case[name] for name in header.symbols()}, {name: case.get(name, plain[name]) for name in plain}


def occurring(header: Header) -> list[tuple[dict[str, tuple[int, ...]], dict[str, Any]]]:
    """(shapes, attributes) to run: those of CASES where the plugin has them, else every size with the defaults."""
    plain = defaults(header)
    if not header.cases:
        return [(shapes(header, found), plain) for found in sizes(header)]
    return [(shapes(header, case), {name: case.get(name, plain[name]) for name in plain}) for case in header.cases]


def trials(
    header: Header, configs: Sequence[Mapping[str, Any]], combinations: Sequence[Mapping[str, str]]
) -> Iterator[Trial]:
    """All that the interpreter runs: every size in every dtype, then every config, attribute and a misaligned start.

    combinations: of dtypes.
    """
    everything = occurring(header)
    ends = (everything[0], everything[-1])
    for chosen in combinations:
        for shape, attributes in everything:
            yield Trial(shape, chosen, attributes)
        shape, attributes = everything[0]
        yield Trial(shape, chosen, attributes, misaligned=True)
    for chosen in combinations[:1]:
        for config in range(1, len(configs)):
            for shape, attributes in ends:
                yield Trial(shape, chosen, attributes, config)
        yield from _attributes(header, chosen, ends)


def compiled_trials(
    header: Header,
    configs: Sequence[Mapping[str, Any]],
    combinations: Sequence[Mapping[str, str]],
    fixed: Sequence[str],
) -> Iterator[Trial]:
    """All that a GPU runs, where every fixed size is a kernel to compile: every size in the first dtypes, in the others
    those that need no kernel of their own, and the last; every config in the first and the last dtypes.

    Kernels are compiled for tensors that start at a multiple of 16 bytes, as all do in an engine.
    """
    everything = occurring(header)
    first, last = everything[0], everything[-1]
    constants = [(_named(header, shape, fixed), attributes) for shape, attributes in everything]
    alike = [one for one, known in zip(everything, constants, strict=True) if known == constants[0] or one is last]
    for place, chosen in enumerate(combinations):
        for shape, attributes in alike if place else everything:
            yield Trial(shape, chosen, attributes)
        if place in (0, len(combinations) - 1):
            for config in range(1, len(configs)):
                yield Trial(last[0], chosen, last[1], config)
    yield from _attributes(header, combinations[0], (first, last))


def _attributes(
    header: Header, chosen: Mapping[str, str], sizes: Sequence[tuple[dict[str, tuple[int, ...]], dict[str, Any]]]
) -> Iterator[Trial]:
    """Every other value of each attribute."""
    for name, values in header.attributes.items():
        for shape, attributes in sizes:
            for value in values:
                if value != attributes[name]:
                    yield Trial(shape, chosen, {**attributes, name: value})


def _named(header: Header, shape: Mapping[str, Sequence[int]], names: Sequence[str]) -> dict[str, int]:
    """The sizes of these names."""
    return {
        axis: size
        for name, axes in header.shapes.items()
        for axis, size in zip(reversed(axes), reversed(shape[name]), strict=False)
        if axis in names and isinstance(axis, str)
    }
