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
        runs = self.runs if self.failed is None else []
        lacks = dict(self.lacks) if runs else {}
        ms = {p: round(percentile(runs, p) * 1e3, 5) if runs else None for p in (50, 90, 99)}
        if runs and len(runs) < P99_FROM:
            ms[99] = None
            lacks["p99"] = f"{len(runs)} runs, and it takes {P99_FROM}: --runs {P99_FROM}"
        calls, seconds = self.pace or (len(runs), sum(runs))
        reasons: dict[str, list[str]] = {}
        for what, why in lacks.items():
            reasons.setdefault(why, []).append(what)
        said = [f"{', '.join(whats)}: {why}" for why, whats in reasons.items()]
        noise = spread(self.blocks) if runs else None
        return {
            "tool": self.tool,
            "name": self.name,
            "label": self.label,
            "precision": self.precision,
            "sizes": dict(sizes),
            "runs": len(runs),
            "p50_ms": ms[50],
            "p90_ms": ms[90],
            "p99_ms": ms[99],
            "spread": None if noise is None else round(noise, 4),
            "first_ms": None if self.first is None else round(self.first * 1e3, 3),
            "load_ms": None if self.load is None else round(self.load * 1e3, 3),
            "throughput": round(calls * items / seconds, 3) if runs else None,
            "launches": self.launches,
            "gpu_bytes": self.gpu_bytes,
            "host_bytes": self.host_bytes,
            "energy_mj": None if self.energy is None else round(self.energy, 4),
            "cosine": self.distance.cosine,
            "relative_l2": self.distance.relative_l2,
            "reason": self.failed
            or "; ".join([*([self.distance.wrong] if self.distance.wrong else []), *said])
            or None,
        }
