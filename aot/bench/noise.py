"""What stands between the figures and the truth: other work, clocks, differences smaller than the spread."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from aot.bench.figures import P99_FROM, P99_KNOWN, alike, spread
from aot.bench.lane import Lane
from aot.bench.measuring import Surroundings

BUSY = 0.05
"""A share of the CPUs' time that others may take."""
MOVED = 0.05
"""How far apart the lowest and the highest clock may be, as a share of the highest."""


def warnings(where: str, lanes: Sequence[Lane], around: Surroundings) -> list[str]:
    """One sentence each, beginning with the sizes."""
    timed = [lane for lane in lanes if lane.failed is None and lane.blocks]
    said = [
        f"{slow} takes {apart:.1%} longer than {fast}: no more than the medians of blocks vary ({width:.1%})"
        for fast, slow, apart, width in alike([(one.name, median(one.runs), spread(one.blocks)) for one in timed])
    ]
    restless = [lane.name for lane in timed if lane.warm is not None and not lane.warm.steady]
    if restless:
        said.append(f"not steady when its warm-up ended: {', '.join(restless)}")
    unsure = [lane.name for lane in timed if P99_FROM <= len(lane.runs) < P99_KNOWN]
    if unsure:
        said.append(f"p99 is known with 95% confidence from {P99_KNOWN} runs on; fewer: {', '.join(unsure)}")
    if around.others is not None and around.others > BUSY:
        said.append(f"other processes took {around.others:.0%} of the CPUs' time: repeat it on a quiet machine")
    mhz = [clock["sm_mhz"] for clock in around.clocks]
    if mhz and max(mhz) - min(mhz) > MOVED * max(mhz):
        said.append(f"the GPU's clock moved between {min(mhz)} and {max(mhz)} MHz")
    slowed = sorted({reason for clock in around.clocks for reason in clock["slowed"]})
    if slowed:
        said.append(f"the GPU was slowed: {', '.join(slowed)}")
    return [f"{where}: {one}" for one in said]


def clocks(seen: Sequence[Surroundings]) -> dict[str, Any]:
    """Plain data over all sizes. gpu: {before, after, lowest_sm_mhz, highest_sm_mhz, slowed}, read after each block,
    while the GPU is still at work; None without a GPU. cpu_others: the largest share of
    the CPUs' time that others took."""
    every = [clock for around in seen for clock in around.clocks]
    shares = [around.others for around in seen if around.others is not None]
    mhz = [clock["sm_mhz"] for clock in every]
    gpu = {
        "before": every[0],
        "after": every[-1],
        "lowest_sm_mhz": min(mhz),
        "highest_sm_mhz": max(mhz),
        "slowed": sorted({reason for clock in every for reason in clock["slowed"]}),
    } if every else None  # fmt: skip
    return {"gpu": gpu, "cpu_others": round(max(shares), 4) if shares else None}
