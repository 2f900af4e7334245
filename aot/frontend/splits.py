"""A guard that does not hold for every declared size, as a sentence: where it splits, and which ranges work."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import sympy
from torch.utils._sympy.functions import ToFloat

from aot.breaks import Break
from aot.declaration import Dim, ModelSpec
from aot.frontend.failures import SCALE
from aot.frontend.guards import Guard, multiples_of

_PERIODS = ("Mod", "//", "floor", "ceil")
_LARGEST = 512
"""Multiples of more than this are not looked for."""
_LEAST = 2
"""A range with fewer multiples of a number than this is not declared in steps of it."""
_FURTHER = 100
"""So many multiples of a number are tried at least, those beyond the range included."""
_CONVERTED = re.compile(r"\bmath\.\w+\(|\b(?:float|int|round)\(")
_INDEX = "x[:, torch.arange(torch.sym_min(n, x.shape[1]))] for x[:, :n]"


def explained(missed: Sequence[Guard], spec: ModelSpec) -> Break:
    """The Break for guards that are false somewhere in the declared ranges: the first that the model's own code
    asked, else the first that arose."""
    guard = next((one for one in missed if one.own), missed[0])
    if guard.line and ("interpolate" in guard.line.code or "scale_factor" in guard.line.code):
        kind, what, fix = SCALE
        return _made(kind, what, guard, spec, fix)
    number = _number(guard, spec)
    if number is not None:
        return number
    steps = _multiples([one for one in missed if one.own or not guard.own])
    if steps:
        return _steps(guard, steps, spec)
    if len(guard.dims) == 1:
        return _split(guard, [one for one in missed if one.dims == guard.dims], spec)
    names = " and ".join(f"'{dim.name}'" for dim in guard.dims)
    if isinstance(guard.condition, sympy.Eq) and guard.condition.lhs.is_Symbol and guard.condition.rhs.is_Symbol:
        one, other = (dim.name for dim in guard.dims)
        return _made(
            "sizes that must agree",
            f"Dims {names} must always be equal",
            guard,
            spec,
            f"use one Dim for both: put '{one}' where '{other}' stands",
        )
    at = guard.missed() or {}
    return _made(
        "size split",
        f"the model does not treat all sizes of Dims {names} alike: it was traced where {guard}, which is false at "
        + ", ".join(f"{name}={size}" for name, size in at.items()),
        guard,
        spec,
        f"write the model so that it does not ask this, or declare ranges in which {guard} always holds",
    )


def _number(guard: Guard, spec: ModelSpec) -> Break | None:
    """The Break where a number of Python's own was computed from a size, which torch then takes for a constant."""
    code = guard.line.code if guard.line else ""
    made = _CONVERTED.search(code)
    if not isinstance(guard.condition, sympy.Eq) or not (made or guard.condition.has(ToFloat)):
        return None
    names = " and ".join(f"'{dim.name}'" for dim in guard.dims)
    return _made(
        "number from a size",
        f"a Python number is computed from the size of Dim {names}, and the export keeps the one of its example",
        guard,
        spec,
        "compute it so that it follows the size: "
        "x.shape[0] without int() or float(), torch.sym_sqrt(size) or size ** 0.5 for math.sqrt(size), "
        "and torch.log(torch.scalar_tensor(size)) for math.log(size)",
    )


def _split(guard: Guard, all_of_dim: Sequence[Guard], spec: ModelSpec) -> Break:
    (dim,) = guard.dims
    stretches = _stretches(all_of_dim, dim)
    works = [(first, last) for first, last, good in stretches if good]
    others = [(first, last) for first, last, good in stretches if not good]
    if not works:
        return _made(
            "size split", f"no size of Dim '{dim.name}' ({dim}) keeps all that the code asks", guard, spec, None
        )
    if not guard.own and len(works) == 1 and works[0][0] == works[0][1]:
        return _fixed(guard, dim, works[0][0], spec)
    said = str(guard)
    if _count(others) > _count(works):  # which way the example went says nothing: name the way of most sizes
        works, others = others, works
        said = str(replace(guard, condition=sympy.Not(guard.condition)))
    offers = [_offer(dim, first, last) for first, last in (*works, *others)]
    code = guard.line.code if guard.line else ""
    least = re.search(r"\b(?<!sym_)(min|max)\(", code)
    cut = not guard.own and re.search(r"\[[^\]]*:[^\]]*\]", code)
    return _made(
        "size split",
        f"the code does not treat all sizes of Dim '{dim.name}' ({dim}) alike: {said} holds for {_ranges(works)} only",
        guard,
        spec,
        f"declare {dim.name} = {offers[0]}"
        + "".join(f", or {offer}" for offer in offers[1:4])
        + (f"; or keep all sizes with torch.sym_{least[1]} in place of {least[1]}" if least else "")
        + (f"; or keep all sizes with an index in place of the slice: {_INDEX}" if cut else ""),
    )


def _fixed(guard: Guard, dim: Dim, only: int, spec: ModelSpec) -> Break:
    if guard.line and guard.line.code.startswith("for "):
        return _made(
            "loop over a Dim",
            f"the loop runs once for each of the {dim.name}, and is written out for one number of them",
            guard,
            spec,
            f"compute with the whole tensor at once, or declare the axis as {only}",
        )
    return _made(
        "size fixed",
        f"Dim '{dim.name}' ({dim}) came out fixed at {only}: the code works for that size only",
        guard,
        spec,
        f"make the code independent of the size, or declare the axis as {only}",
    )


def _count(ranges: Sequence[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def _steps(guard: Guard, steps: dict[str, int], spec: ModelSpec) -> Break:
    dims = [dim for dim in spec.dims.values() if dim.name in steps]
    numbers = sorted(set(steps.values()))
    named = " and ".join(dim.name for dim in dims)
    return _made(
        "sizes in steps",
        f"Dim{'s' if len(dims) > 1 else ''} {named} must be {'multiples' if len(dims) > 1 else 'a multiple'} "
        f"of {' and '.join(map(str, numbers))}",
        guard,
        spec,
        "declare " + " and ".join(f"{dim.name} = {_stepped(dim, steps[dim.name])}" for dim in dims),
    )


def _multiples(missed: Sequence[Guard]) -> dict[str, int]:
    """The least number of which the sizes of each Dim must be multiples for all guards to hold; empty for none."""
    if not any(word in str(guard.condition) for guard in missed for word in _PERIODS):
        return {}
    dims = {dim.name: dim for guard in missed for dim in guard.dims}
    for number in range(2, _LARGEST + 1):
        steps = {name: number for name, dim in dims.items() if len(multiples_of(dim, number)) >= _LEAST}
        if not steps or not _hold(missed, steps):
            continue
        for name in dims:
            fewer = {other: step for other, step in steps.items() if other != name}
            if fewer and _hold(missed, fewer):
                steps = fewer
        return steps
    return {}


def _hold(guards: Sequence[Guard], steps: dict[str, int]) -> bool:
    for guard in guards:
        tried = False
        for sizes in _beyond(guard, steps).tries(steps):
            if not guard.holds(sizes):
                return False
            tried = True
        if not tried:
            return False
    return True


def _beyond(guard: Guard, steps: dict[str, int]) -> Guard:
    """A guard about divisibility, for ranges that go on: what is true of all multiples is true of those there,
    and what fits the few in a range by chance is not."""
    if not any(word in str(guard.condition) for word in _PERIODS):
        return guard
    longer = [
        replace(dim, max=max(dim.bounds[2], dim.bounds[0] + _FURTHER * math.lcm(steps[dim.name], dim.multiple_of)))
        if dim.name in steps
        else dim
        for dim in guard.dims
    ]
    return replace(guard, dims=tuple(longer))


def _stretches(guards: Sequence[Guard], dim: Dim) -> list[tuple[int, int, bool]]:
    """(first, last, whether all guards hold) of the unbroken stretches of a Dim's sizes, ends exact."""

    def good(size: int) -> bool:
        return all(guard.holds({dim.name: size}) for guard in guards)

    sizes = dim.sizes
    tried = sorted({sizes.index(one[dim.name]) for guard in guards for one in guard.tries()})
    made: list[tuple[int, int, bool]] = []
    for place in tried:
        held = good(sizes[place])
        if made and made[-1][2] == held:
            made[-1] = (made[-1][0], place, held)
            continue
        if made:
            low, high = made[-1][1], place
            while high - low > 1:  # the answer changes between two tried sizes
                middle = (low + high) // 2
                low, high = (middle, high) if good(sizes[middle]) != held else (low, middle)
            made[-1] = (made[-1][0], low, made[-1][2])
            made.append((high, place, held))
        else:
            made.append((place, place, held))
    return [(sizes[first], sizes[last], held) for first, last, held in made]


def _ranges(ranges: Sequence[tuple[int, int]]) -> str:
    said = [str(first) if first == last else f"{first}..{last}" for first, last in ranges]
    return ", ".join(said[:6]) + (", ..." if len(said) > 6 else "")


def _offer(dim: Dim, first: int, last: int) -> str:
    if first == last:
        return f"{first} as a fixed size"
    step = f", multiple_of={dim.multiple_of}" if dim.multiple_of > 1 else ""
    return f"aot.Dim('{dim.name}', min={first}, max={last}{step})"


def _stepped(dim: Dim, step: int) -> str:
    low, opt, high = dim.bounds
    up = -(-low // step) * step
    near = min(max(round(opt / step) * step, up), high // step * step)
    return f"aot.Dim('{dim.name}', min={up}, opt={near}, max={high // step * step}, multiple_of={step})"


def places(spec: ModelSpec, dims: Sequence[Dim]) -> str:
    """`input 'x', axis 1` for every axis of these Dims."""
    names = {dim.name for dim in dims}
    return ", ".join(
        f"input '{tensor}', axis {axis}"
        for tensor, declared in spec.inputs.items()
        for axis, dim in enumerate(declared.shape)
        if isinstance(dim, Dim) and dim.name in names
    )


def _made(kind: str, what: str, guard: Guard, spec: ModelSpec, fix: str | None) -> Break:
    at = guard.line
    asked = places(spec, guard.dims)
    asked = f" ({asked})" if kind == "size split" else f" ({guard}; {asked})"
    if at is None:
        return Break(kind, what + asked, fix=fix)
    return Break(kind, what + asked, at.file, at.line, at.function, at.code, fix)
