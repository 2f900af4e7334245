"""Which precision `--precision auto` takes, and why: the rule, over what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, inf, log
from typing import Any

from aot.config import PRECISIONS, Precision

CANDIDATES: tuple[Precision, ...] = ("fp16", "int8", "fp8")
"""What is compared, the widest first."""
MARGIN = 0.03
"""A narrower precision is taken where it saves more than this share of the time: less is noise, or not worth it."""


@dataclass(frozen=True)
class Candidate:
    """A precision and what is known of it. out: why it cannot be taken, None where it can.

    cosine, relative_l2: the worst over outputs and cases, of the engine where it ran, else of the graph. ms: the
    median milliseconds of a run at the optimum of every profile; empty where none was timed.
    """

    precision: Precision
    out: str | None = None
    cosine: float | None = None
    relative_l2: float | None = None
    ms: tuple[float, ...] = ()

    @property
    def time(self) -> float:
        """The geometric mean over the profiles: each counts the same, however long a run of it takes."""
        return exp(sum(log(ms) for ms in self.ms) / len(self.ms))


@dataclass(frozen=True)
class Choice:
    """What was chosen (None: not yet, there was no engine to time), why, and from what.

    on: the GPU or CPU that the times are of. sizes: of every profile, the Dims at its optimum.
    """

    precision: Precision | None
    reason: str
    candidates: tuple[Candidate, ...]
    on: str | None = None
    sizes: tuple[Mapping[str, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` restores an equal choice."""
        return {
            "precision": self.precision,
            "reason": self.reason,
            "margin": MARGIN,
            "on": self.on,
            "sizes": [dict(sizes) for sizes in self.sizes],
            "candidates": [{**asdict(one), "ms": list(one.ms)} for one in self.candidates],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Choice:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError for data that is no choice."""
        candidates = tuple(
            Candidate(
                precision=_precision(one["precision"]),
                out=None if one["out"] is None else str(one["out"]),
                cosine=None if one["cosine"] is None else float(one["cosine"]),
                relative_l2=None if one["relative_l2"] is None else float(one["relative_l2"]),
                ms=tuple(float(ms) for ms in one["ms"]),
            )
            for one in data["candidates"]
        )
        if any(len(one.ms) not in (0, len(data["sizes"])) for one in candidates):
            raise ValueError("a candidate has not one time for each profile")
        return cls(
            precision=None if data["precision"] is None else _precision(data["precision"]),
            reason=str(data["reason"]),
            candidates=candidates,
            on=None if data["on"] is None else str(data["on"]),
            sizes=tuple({str(dim): int(size) for dim, size in sizes.items()} for sizes in data["sizes"]),
        )


def _precision(name: Any) -> Precision:
    found = next((known for known in PRECISIONS if known == name), None)
    if found is None:
        raise ValueError(f"precision {name!r}")
    return found


def pick(candidates: Sequence[Candidate], on: str | None = None, sizes: Sequence[Mapping[str, int]] = ()) -> Choice:
    """Of those that can be taken, the widest whose time is within MARGIN of the fastest.

    candidates: in the order of CANDIDATES, one of them not out; where two or more are not, those are timed. Between
    two that are equally wide and equally fast the smaller relative L2 decides.
    """
    able = [one for one in candidates if one.out is None]
    if len(able) == 1:
        chosen, why = able[0], ["nothing else can be taken"]
    else:
        fastest = min(one.time for one in able)
        good = [one for one in able if one.time * (1 - MARGIN) <= fastest]
        chosen = min(good, key=lambda one: (one.precision != CANDIDATES[0], _error(one)))
        why = [_compared(chosen, able)]
    why += [f"{one.precision} is out: {one.out}" for one in candidates if one.out is not None]
    return Choice(chosen.precision, "; ".join(why), tuple(candidates), on, tuple(sizes))


def _error(one: Candidate) -> float:
    return inf if one.relative_l2 is None else one.relative_l2


def _compared(chosen: Candidate, able: Sequence[Candidate]) -> str:
    """The chosen one's speed beside the others'."""
    base, *rest = able
    if chosen is base:
        others = " and ".join(f"{one.precision} runs {base.time / one.time:.2f} times as fast" for one in rest)
        return f"{others}, and a narrower precision is taken from {1 / (1 - MARGIN):.2f} times on"
    others = "".join(f"; {one.precision} {base.time / one.time:.2f} times" for one in rest if one is not chosen)
    return f"{base.time / chosen.time:.2f} times as fast as {base.precision}{others}"
