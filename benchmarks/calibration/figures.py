"""What each model is for, as one number: the model's own score, or how far its answers are those of FP32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibration.data import Arrays, example

Outputs = Mapping[str, Any]
Run = Callable[[Mapping[str, Any]], Outputs]


@dataclass(frozen=True)
class Figure:
    """name: with its unit, higher is better. of: (a run, held-out batches, outputs of FP32 on them) -> the figure."""

    name: str
    of: Callable[[Run, Sequence[Arrays], Sequence[Outputs]], float]


def _own(folder: str, metric: str, output: str) -> Callable[[Run, Sequence[Arrays], Sequence[Outputs]], float]:
    """The metric that an example declares, which knows the only output as `output`."""

    def of(run: Run, _: Sequence[Arrays], __: Sequence[Outputs]) -> float:
        return float(example(folder)[metric](lambda **inputs: {output: next(iter(run(inputs).values()))}))

    return of


def _compared(
    output: int, share: Callable[[Any, Any], tuple[float, float]]
) -> Callable[[Run, Sequence[Arrays], Sequence[Outputs]], float]:
    """A share over all held-out batches: `share(FP32's output, the other's)` is (how many agree, of how many)."""

    def of(run: Run, batches: Sequence[Arrays], wanted: Sequence[Outputs]) -> float:
        parts = [share(_at(output, w), _at(output, run(batch))) for batch, w in zip(batches, wanted, strict=True)]
        agree, total = np.sum(parts, axis=0)
        return float(agree / total) if total else 1.0

    return of


def _at(index: int, outputs: Outputs) -> Any:
    """An output by its place: names are the exporter's."""
    return np.asarray(list(outputs.values())[index], np.float64)


def _overlap(threshold: float) -> Callable[[Any, Any], tuple[float, float]]:
    """Intersection over union of what lies above the threshold."""

    def share(wanted: Any, got: Any) -> tuple[float, float]:
        one, other = wanted > threshold, got > threshold
        return float((one & other).sum()), float((one | other).sum())

    return share


def _same_side(wanted: Any, got: Any) -> tuple[float, float]:
    """How many are on the same side of 0.5."""
    return float(((wanted > 0.5) == (got > 0.5)).sum()), float(wanted.size)


def _same_top(near: int = 0, blank: int | None = None) -> Callable[[Any, Any], tuple[float, float]]:
    """How many have the same largest class, or one `near` it; those that both call `blank` are left out."""

    def share(wanted: Any, got: Any) -> tuple[float, float]:
        one, other = wanted.argmax(-1), got.argmax(-1)
        counted = np.ones_like(one, bool) if blank is None else (one != blank) | (other != blank)
        return float((np.abs(one - other) <= near)[counted].sum()), float(counted.sum())

    return share


def _error() -> Callable[[Run, Sequence[Arrays], Sequence[Outputs]], float]:
    """Minus the mean distance of the first output to FP32's."""

    def of(run: Run, batches: Sequence[Arrays], wanted: Sequence[Outputs]) -> float:
        pairs = zip(batches, wanted, strict=True)
        apart = [np.abs(_at(0, run(batch)) - _at(0, w)).ravel() for batch, w in pairs]
        return -float(np.concatenate(apart).mean())

    return of


SENTENCES = Figure("rank correlation with grades", _own("minilm", "spearman", "embedding"))
VIEWS = Figure("same object over others, cosine", _own("mobilenet", "same_object", "features"))
TEXT_AREA = Figure("text area, IoU with FP32", _compared(0, _overlap(0.3)))
CHARACTERS = Figure("characters as FP32", _compared(0, _same_top(blank=0)))
FILE_TYPE = Figure("file types as FP32", _compared(0, _same_top()))
SPEAKING = Figure("speech or not, as FP32", _compared(0, _same_side))
PITCH = Figure("pitch as FP32 within 20 cents", _compared(0, _same_top(near=1)))
NOTES = Figure("notes, IoU with FP32", _compared(1, _overlap(0.3)))
OPINION = Figure("- mean error of opinion score", _error())
