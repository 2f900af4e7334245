"""One contender at one size: its process, what was measured, and the row that says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aot.bench.accuracy import Distance
from aot.bench.contender import Job
from aot.bench.figures import P99_FROM, percentile, spread
from aot.bench.worker import Failed, Worker

if TYPE_CHECKING:
    from aot.arrays import Arrays
    from aot.bench.timing import Warm

FIGURES = (
    *("p50_ms", "p90_ms", "p99_ms", "spread", "first_ms", "load_ms", "throughput", "launches"),
    *("gpu_bytes", "host_bytes", "energy_mj", "cosine", "relative_l2"),
)
"""The fields of a row that are measured."""


@dataclass
class Lane:
    """name: unlike every other's. job None: it cannot run here, `failed` says why.

    first: seconds from nothing to the first result, `load` of them before the call. blocks: seconds of single runs, one
    list for each block. pace: (calls, seconds) back to back. lacks: what could not be measured, and why.
    """

    name: str
    tool: str
    job: Job | None
    failed: str | None = None
    label: str | None = None
    precision: str | None = None
    worker: Worker | None = None
    first: float | None = None
    load: float | None = None
    outputs: Arrays = field(default_factory=dict)
    warm: Warm | None = None
    blocks: list[Sequence[float]] = field(default_factory=list)
    pace: tuple[int, float] | None = None
    energy: float | None = None
    launches: int | None = None
    gpu_bytes: int | None = None
    host_bytes: int | None = None
    distance: Distance = field(default_factory=Distance)
    lacks: dict[str, str] = field(default_factory=dict)

    @property
    def running(self) -> Worker | None:
        """Its process, None where it cannot go on."""
        return self.worker if self.failed is None else None

    @contextmanager
    def trying(self, what: str = "") -> Iterator[None]:
        """What fails inside is the lane's end, or with `what`, only that is not measured."""
        try:
            yield
        except Failed as error:
            if what:
                self.lacks[what] = str(error)
            else:
                self.failed = str(error)
                self.close()

    def close(self) -> None:
        """End its process."""
        if self.worker is not None:
            self.worker.close()
            self.worker = None

    @property
    def runs(self) -> list[float]:
        """The seconds of all runs."""
        return [seconds for block in self.blocks for seconds in block]

    def row(self, sizes: Mapping[str, int], items: int) -> dict[str, Any]:
        """Plain data, with `reason` for what is None. items: how many a call has, for the throughput."""
        about = {"tool": self.tool, "name": self.name, "label": self.label, "precision": self.precision}
        if self.failed is not None or not self.blocks:
            return {**about, "sizes": dict(sizes), "runs": 0, **dict.fromkeys(FIGURES), "reason": self.failed}
        runs, lacks = self.runs, dict(self.lacks)
        ms: dict[int, float | None] = {p: round(percentile(runs, p) * 1e3, 5) for p in (50, 90, 99)}
        if len(runs) < P99_FROM:
            ms[99] = None
            lacks["p99_ms"] = f"{len(runs)} runs, and it takes {P99_FROM}: --runs {P99_FROM}"
        calls, seconds = self.pace or (len(runs), sum(runs))
        figures = (
            *ms.values(),
            _rounded(spread(self.blocks), 4),
            _rounded(self.first, 6, 1e3),
            _rounded(self.load, 6, 1e3),
            _rounded(calls * items / seconds, 3),
            self.launches,
            self.gpu_bytes,
            self.host_bytes,
            _rounded(self.energy, 4),
            self.distance.cosine,
            self.distance.relative_l2,
        )
        found = dict(zip(FIGURES, figures, strict=True))
        return {**about, "sizes": dict(sizes), "runs": len(runs), **found, "reason": self._reason(lacks)}

    def _reason(self, lacks: Mapping[str, str]) -> str | None:
        """What is wrong with the answers, then what is missing, by reason; None where nothing is."""
        reasons: dict[str, list[str]] = {}
        for what, why in lacks.items():
            reasons.setdefault(why, []).append(what)
        said = [f"{', '.join(whats)}: {why}" for why, whats in reasons.items()]
        return "; ".join([*([self.distance.wrong] if self.distance.wrong else []), *said]) or None


def _rounded(value: float | None, digits: int, scale: float = 1.0) -> float | None:
    return None if value is None else round(value * scale, digits)
