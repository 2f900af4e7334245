"""Whose fault the error of the outputs is: followed back from the outputs to the layers at which it entered.

Errors of quantization are taken as independent, so that their squares add up. Of the squared error of a value, the part
that its own layer makes of exact inputs entered here; the rest came in, and is divided among what the layer reads:
where terms are added, by their squared errors; elsewhere by their squared relative errors, as for products. The shares
of all layers add up to 1. It takes no runs beside the one that measured both errors, and it sees what no look at single
layers can: a difference of two close values passes the blame on to the layers that made them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Stands for an error that is not finite: beyond any that is.
_ENDLESS = 1e30
_SUMS = frozenset({"Add", "Sub", "Sum", "Concat", "Mean"})


@dataclass(frozen=True)
class Source:
    """One value: what it is made of, its sum of squares, that of its error, and of the error that its layer makes of
    exact inputs (None: not known, taken as none)."""

    value: str
    op: str
    reads: tuple[str, ...]
    square: float
    error: float
    added: float | None


def shares(values: Sequence[Source], outputs: Sequence[str]) -> dict[str, float]:
    """The share of every value, in an order in which each comes after what it reads. Outputs weigh by their relative
    squared errors; all is 0 where they have none."""
    by_name = {one.value: one for one in values}
    claims = {name: _relative(by_name[name], by_name[name].error) for name in outputs if name in by_name}
    total = sum(claims.values())
    claims = {name: claim / total for name, claim in claims.items()} if total else {}
    found: dict[str, float] = {}
    for one in reversed(values):
        claim = claims.get(one.value, 0.0)
        own = _own(one)
        came = {name: _weight(by_name[name], one.op) for name in one.reads if name in by_name}
        entering = sum(came.values())
        found[one.value] = claim * own if entering else claim
        for name, weight in came.items():
            if entering:
                claims[name] = claims.get(name, 0.0) + claim * (1 - own) * weight / entering
    return found


def _own(one: Source) -> float:
    error, added = _finite(one.error), _finite(one.added or 0.0)
    return min(1.0, added / error) if error else 1.0


def _weight(one: Source, reader: str) -> float:
    return _finite(one.error) if reader in _SUMS else _relative(one, one.error)


def _relative(one: Source, error: float) -> float:
    if not math.isfinite(one.square):
        return 0.0  # not finite in the reference either: nothing to say
    if not one.square:
        return 1.0 if error else 0.0
    return min(_ENDLESS, _finite(error) / one.square)


def _finite(value: float) -> float:
    return min(value, _ENDLESS) if math.isfinite(value) else _ENDLESS
