"""Who runs when: what slows the machine for a while is to hit all contenders alike."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

BLOCKS = 20
"""Rounds of a measurement; in each, every contender has one block of consecutive runs."""
FEWEST, MOST = 20, 2000
"""Runs of a contender where not their number but seconds are given; see `runs_for`."""


def runs_for(seconds: float, once: float) -> int:
    """How many runs of `once` seconds fit into `seconds`, at least FEWEST and at most MOST."""
    return max(FEWEST, min(MOST, int(seconds / max(once, 1e-9))))


def rounds(runs: Mapping[str, int], seed: int) -> Iterator[Sequence[tuple[str, int]]]:
    """For every round its blocks, (name, runs), in an order of its own, the same for the same seed.

    A contender's runs are shared out evenly; where there are fewer than rounds, some rounds are without it.
    """
    order = random.Random(seed)
    for number in range(BLOCKS):
        names = list(runs)
        order.shuffle(names)
        shares = {name: runs[name] * (number + 1) // BLOCKS - runs[name] * number // BLOCKS for name in names}
        yield [(name, share) for name, share in shares.items() if share]
