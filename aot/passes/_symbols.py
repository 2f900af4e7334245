"""Whole numbers that depend on sizes, as polynomials of them.

A number that is known is an `int`; any other is a `Polynomial`, so that arithmetic on both is written as usual. Equal
polynomials are equal numbers at all sizes. An atom is the name of a dim, which is never negative, or of something that
is not followed any further: those begin with `!`, or with `?` where they may be negative.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping

_Monomial = tuple[str, ...]


class Polynomial:
    """A sum of products of atoms with whole coefficients: {("B", "S"): 2, (): 1} is 2·B·S + 1. Not constant."""

    __slots__ = ("_key", "terms")

    def __init__(self, terms: Mapping[_Monomial, int]) -> None:
        self.terms = dict(terms)
        self._key = frozenset(self.terms.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        return "+".join(
            "*".join([*([] if factor == 1 and atoms else [str(factor)]), *atoms])
            for atoms, factor in sorted(self.terms.items())
        )

    def __add__(self, other: int | Polynomial) -> int | Polynomial:
        total = Counter(self.terms)
        for atoms, factor in _terms(other).items():
            total[atoms] += factor
        return _made(total)

    __radd__ = __add__

    def __neg__(self) -> Polynomial:
        return Polynomial({atoms: -factor for atoms, factor in self.terms.items()})

    def __sub__(self, other: int | Polynomial) -> int | Polynomial:
        return self + -other

    def __rsub__(self, other: int) -> int | Polynomial:
        return -self + other

    def __mul__(self, other: int | Polynomial) -> int | Polynomial:
        if isinstance(other, int):
            return Polynomial({atoms: factor * other for atoms, factor in self.terms.items()}) if other else 0
        product: Counter[_Monomial] = Counter()
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                product[tuple(sorted(left + right))] += a * b
        return _made(product)

    __rmul__ = __mul__

    @property
    def name(self) -> str | None:
        """The name of the dim that this is and nothing else; None for anything more."""
        ((atoms, factor), *rest) = self.terms.items()
        return atoms[0] if not rest and factor == 1 and len(atoms) == 1 and atoms[0][0] not in "!?" else None


@functools.cache
def atom(name: str) -> Polynomial:
    """The number of that name."""
    return Polynomial({(name,): 1})


def _terms(number: int | Polynomial) -> Mapping[_Monomial, int]:
    return number.terms if isinstance(number, Polynomial) else {(): int(number)}


def _made(terms: Mapping[_Monomial, int]) -> int | Polynomial:
    kept = {atoms: factor for atoms, factor in terms.items() if factor}
    return kept.get((), 0) if kept.keys() <= {()} else Polynomial(kept)


def at_least(number: int | Polynomial) -> int | None:
    """A lower bound that holds at all sizes; None where there is none to be seen."""
    low = 0
    for atoms, factor in _terms(number).items():
        if not atoms:
            low = factor
        elif factor < 0 or any(one.startswith("?") for one in atoms):
            return None
    return low


def divide(a: int | Polynomial, b: int | Polynomial) -> int | Polynomial:
    """The quotient, rounded toward zero. Raises ZeroDivisionError."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    exact = quotient(a, b)
    return exact if exact is not None else opaque("/", a, b)


def quotient(a: int | Polynomial, b: int | Polynomial) -> int | Polynomial | None:
    """a/b where nothing is left over; else None. Long division, the monomials of the highest degree first.

    Where b is zero there is no quotient to be wrong about.
    """
    if b == 0:
        raise ZeroDivisionError
    if isinstance(b, int):
        if any([factor % b for factor in _terms(a).values()]):
            return None
        return _made({atoms: factor // b for atoms, factor in _terms(a).items()})
    by, divisor = max(_terms(b).items(), key=_degree)
    found: int | Polynomial = 0
    while a != 0:
        top, factor = max(_terms(a).items(), key=_degree)
        left = Counter(top)
        left.subtract(by)
        if factor % divisor or min(left.values(), default=0) < 0:
            return None
        step = _made({tuple(sorted(left.elements())): factor // divisor})
        found, a = found + step, a - step * b
    return found


def _degree(term: tuple[_Monomial, int]) -> tuple[int, _Monomial]:
    """The order of monomials: one that stays as it is when both are multiplied with a third."""
    return len(term[0]), term[0]


def opaque(op: str, *numbers: int | Polynomial) -> Polynomial:
    """A number that is a function of others and is not followed further: the same function of the same, the same."""
    signed = any((at_least(one) or 0) < 0 or at_least(one) is None for one in numbers)
    return atom(f"{'?' if signed else '!'}({op} {', '.join(map(str, numbers))})")
