"""The numbers of a comparison, and whether they keep a budget.

Polygraphy walks the outputs (`Comparator.compare_accuracy`); the judgement is ours, because its stock
tolerances are absolute: they pass an output of scale 1e-9 that was replaced by zeros, and fail on values
that merely cross zero. Everything here is relative to the reference's own scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aot.config import Budget
from aot.torchless import torchless

if TYPE_CHECKING:
    import numpy as np

    from aot.arrays import Arrays

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Metrics:
    """How far one output is from its reference.

    cosine: of the flattened float64 values; 1 where both are all zeros, 0 where only one is.
    relative_l2: ||got - ref|| / ||ref||.  max_abs: max |got - ref|.  max_rel: max |got - ref| / max |ref|.
    Where the reference is all zeros and the result is not, both relative numbers are 1.
    These four are None for bool and integer outputs, which are judged by `flips`, the share of elements
    that differ. nonfinite: how many NaN and infinities each side holds and at how many places they
    disagree; the four numbers cover the places that are finite on both sides.
    failure: what no number can excuse (a missing output, another dtype or shape).
    """

    elements: int = 0
    cosine: float | None = None
    relative_l2: float | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    flips: float | None = None
    nonfinite: Mapping[str, int] = field(default_factory=lambda: {"ref": 0, "got": 0, "mismatched": 0})
    failure: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data, every number finite."""
        return asdict(self) | {"nonfinite": dict(self.nonfinite)}


@dataclass(frozen=True)
class Verdict:
    """Metrics by output, and what the budget says of them.

    reasons: why not accepted, empty where accepted. notices: what passed and should still be known.
    """

    outputs: Mapping[str, Metrics]
    reasons: tuple[str, ...]
    notices: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether nothing stands against it."""
        return not self.reasons

    def worst(self) -> dict[str, float | None]:
        """The worst of every number over the outputs; None where no output has it."""
        return worst(metrics.to_json() for metrics in self.outputs.values())


_WORST = {"cosine": min, "relative_l2": max, "max_abs": max, "max_rel": max, "flips": max}


def worst(measured: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """The worst of every number over several measurements; None where none of them has it."""
    rows = list(measured)
    found: dict[str, float | None] = {}
    for name, pick in _WORST.items():
        values = [row[name] for row in rows if row.get(name) is not None]
        found[name] = float(pick(values)) if values else None
    return found


def compare(
    reference: Arrays,
    got: Arrays,
    budget: Budget,
    *,
    inputs: Arrays | None = None,
    padding: str | None = None,
    names: tuple[str, str] = ("eager", "graph"),
) -> Verdict:
    """Compare the outputs of one run with the reference, output by output.

    `padding` names a mask among `inputs`: an output whose leading dimensions are the mask's shape is
    compared only where the mask is not 0. `names` are what the two sides are called in messages.
    """
    from polygraphy.comparator import Comparator, RunResults
    from polygraphy.comparator.struct import IterationResult

    mask = inputs[padding] if inputs is not None and padding is not None else None
    found: dict[str, Metrics] = {}

    def judge_outputs(ref: Mapping[str, Array], out: Mapping[str, Array]) -> dict[str, bool]:
        values = dict(out.items())
        for name, wanted in ref.items():
            found[name] = measure(wanted, values.get(name), mask, names)
        # Polygraphy computes quantiles for its log of every output that is keyed by its name: seconds for
        # large outputs, for a log that nobody reads. A key of another form skips that.
        return {f"output {name}": not judge(metrics.to_json(), budget) for name, metrics in found.items()}

    with torchless(), _quiet():
        results = RunResults()
        for side, outputs in zip(names, (reference, got), strict=True):
            results.append((side, [IterationResult(dict(outputs))]))
        Comparator.compare_accuracy(results, compare_func=judge_outputs)

    reasons: list[str] = []
    notices: list[str] = []
    for name, metrics in found.items():
        reasons += [f"output '{name}': {reason}" for reason in judge(metrics.to_json(), budget)]
        if not metrics.elements and metrics.failure is None:
            masked = " outside the padding" if reference[name].size else ""
            notices.append(f"output '{name}' is empty{masked}: nothing to compare")
        if metrics.nonfinite["ref"] and not metrics.nonfinite["mismatched"]:
            notices.append(
                f"output '{name}': {metrics.nonfinite['ref']} of {metrics.elements} values are NaN or infinite, "
                f"the same on both sides; the rest was compared"
            )
    return Verdict(found, tuple(reasons), tuple(notices))


@contextmanager
def _quiet() -> Iterator[None]:
    from polygraphy.logger import G_LOGGER

    with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        yield


def measure(
    ref: Array, got: Array | None, mask: Array | None = None, names: tuple[str, str] = ("eager", "graph")
) -> Metrics:
    """The metrics of one output; see `Metrics`."""
    if got is None:
        return Metrics(failure=f"{names[1]} has no such output")
    if ref.dtype != got.dtype:
        return Metrics(failure=f"dtype is {ref.dtype} in {names[0]} and {got.dtype} in {names[1]}")
    if ref.shape != got.shape:
        return Metrics(failure=f"shape is {list(ref.shape)} in {names[0]} and {list(got.shape)} in {names[1]}")
    if mask is not None and ref.ndim >= mask.ndim and ref.shape[: mask.ndim] == mask.shape:
        keep = mask != 0
        ref, got = ref[keep], got[keep]
    if ref.dtype.kind in "biu":
        return Metrics(elements=ref.size, flips=float((ref != got).mean()) if ref.size else 0.0)
    return _measure_floats(ref, got)


def _measure_floats(ref: Array, got: Array) -> Metrics:
    import numpy as np

    a, b = ref.astype(np.float64).ravel(), got.astype(np.float64).ravel()
    kinds_a, kinds_b = _kinds(a), _kinds(b)
    nonfinite = {
        "ref": int(np.count_nonzero(kinds_a)),
        "got": int(np.count_nonzero(kinds_b)),
        "mismatched": int(np.count_nonzero(kinds_a != kinds_b)),
    }
    if nonfinite["ref"] or nonfinite["got"]:
        both = (kinds_a == 0) & (kinds_b == 0)
        a, b = a[both], b[both]
    return replace(_numbers(a, b), elements=int(ref.size), nonfinite=nonfinite)


def _kinds(values: Array) -> Array:
    """0 where finite, 1 NaN, 2 +Inf, 3 -Inf."""
    import numpy as np

    kinds = np.zeros(values.shape, np.int8)
    kinds[np.isnan(values)] = 1
    kinds[np.isposinf(values)] = 2
    kinds[np.isneginf(values)] = 3
    return kinds


def _numbers(a: Array, b: Array) -> Metrics:
    """The four numbers of finite vectors. Both are divided by their own largest value before they are
    squared, so that neither 1e-200 nor 1e200 leaves float64's range."""
    import numpy as np

    top_a = float(np.abs(a).max(initial=0.0))
    top_b = float(np.abs(b).max(initial=0.0))
    error = b - a
    max_abs = float(np.abs(error).max(initial=0.0))
    if top_a == 0.0 or top_b == 0.0:
        same = top_a == top_b
        distance = 0.0 if same else 1.0
        return Metrics(cosine=float(same), relative_l2=distance, max_abs=max_abs, max_rel=distance)
    unit_a, unit_b = a / top_a, b / top_b
    norm_a = math.sqrt(float(unit_a @ unit_a))
    cosine = float(unit_a @ unit_b) / (norm_a * math.sqrt(float(unit_b @ unit_b))) if max_abs else 1.0
    scaled = error / top_a
    return Metrics(
        cosine=min(1.0, max(-1.0, cosine)),
        relative_l2=math.sqrt(float(scaled @ scaled)) / norm_a,
        max_abs=max_abs,
        max_rel=max_abs / top_a,
    )


def flip_limit(cosine: float) -> float:
    """The share of flipped elements that goes with a cosine: arccos(cosine) / pi.

    It is the probability that two standard normal variables of that correlation differ in sign
    (Sheppard, 1899), so an output `y > 0` and the `y` behind it pass or fail together.
    """
    return math.acos(max(-1.0, min(1.0, cosine))) / math.pi


def _apart(value: float, limit: float, digits: int) -> str:
    """The value in so many digits, or in as many as set it apart from the limit."""
    texts = (f"{value:.{count}g}" for count in range(digits, 18))
    return next(text for text in texts if float(text) != limit)


def judge(measured: Mapping[str, Any], budget: Budget) -> list[str]:
    """Why these numbers miss the budget; empty where they keep it.

    `measured` is one output's metrics or the worst over many, as plain data. A number that is None was
    not measured and is not judged, except a limit on `metric`, which needs a metric that was run.
    """
    reasons = [measured["failure"]] if measured.get("failure") else []
    disagree = (measured.get("nonfinite") or {}).get("mismatched", 0)
    if disagree:
        reasons.append(f"NaN or infinities at {disagree} places where the reference differs")
    cosine, flips = measured.get("cosine"), measured.get("flips")
    if budget.cosine is not None and cosine is not None and cosine < budget.cosine:
        reasons.append(f"cosine {_apart(cosine, budget.cosine, 6)} is below {budget.cosine:g}")
    for name in ("relative_l2", "max_abs"):
        limit, value = getattr(budget, name), measured.get(name)
        if limit is not None and value is not None and value > limit:
            reasons.append(f"{name} {_apart(value, limit, 4)} is above {limit:g}")
    if budget.cosine is not None and flips is not None and flips > flip_limit(budget.cosine):
        reasons.append(
            f"{flips:.3%} of the values flipped, more than the {flip_limit(budget.cosine):.3%} "
            f"that cosine {budget.cosine:g} allows"
        )
    return reasons
