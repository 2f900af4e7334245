"""How far a contender's answers are from the reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aot.compare import Metrics, measure, worst
from aot.runners import matched

if TYPE_CHECKING:
    import numpy as np

    from aot.arrays import Arrays


@dataclass(frozen=True)
class Distance:
    """The worst over the outputs; integer and bool outputs have neither number, and where one side alone is NaN or
    infinite there is none. wrong: what no number says."""

    cosine: float | None = None
    relative_l2: float | None = None
    wrong: str | None = None


def distance(reference: Arrays, got: Arrays, inputs: Mapping[str, Any], padding: str | None) -> Distance:
    """Of one run. Outputs may be of another floating-point dtype than the reference's; padding is left out."""
    given = matched(reference, got)
    mask = inputs[padding] if padding is not None else None
    found = {
        name: measure(wanted, _as(wanted, given.get(name)), mask, ("the reference", "the contender"))
        for name, wanted in reference.items()
    }
    numbers = worst(metrics.to_json() for metrics in found.values())
    wrong = next((f"output '{name}': {said}" for name, metrics in found.items() if (said := _wrong(metrics))), None)
    if any(metrics.nonfinite["mismatched"] for metrics in found.values()):  # the numbers are of the rest alone
        return Distance(wrong=wrong)
    return Distance(numbers["cosine"], numbers["relative_l2"], wrong)


def furthest(distances: Iterable[Distance]) -> Distance:
    """The worst of several runs."""
    every = list(distances)
    cosines = [one.cosine for one in every if one.cosine is not None]
    errors = [one.relative_l2 for one in every if one.relative_l2 is not None]
    wrong = next((one.wrong for one in every if one.wrong), None)
    return Distance(min(cosines, default=None), max(errors, default=None), wrong)


def _as(wanted: np.ndarray[Any, Any], got: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any] | None:
    floats = got is not None and wanted.dtype.kind in "fV" and got.dtype.kind in "fV"  # V: those of ml_dtypes
    return got.astype(wanted.dtype) if floats and got is not None else got


def _wrong(metrics: Metrics) -> str | None:
    if metrics.failure:
        return metrics.failure
    if metrics.nonfinite["mismatched"]:
        return f"{metrics.nonfinite['mismatched']} of {metrics.elements} values are NaN or infinite on one side alone"
    return f"{metrics.flips:.2%} of the values differ" if metrics.flips else None
