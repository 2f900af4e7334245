"""Which configs are tried: all of CONFIGS, or coordinate descent in a SPACE. A fake timer has planted the fastest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from aot.plugins._timing import worth_repeating
from aot.plugins.descent import LEAST, MOST, Config, search

SPACE: dict[str, Sequence[Any]] = {
    "rows": [1, 2, 4, 8, 16, 32],
    "block": [64, 128, 256, 512, 1024],
    "num_warps": [1, 2, 4, 8, 16],
    "num_stages": [1, 2, 3, 4],
}


class Timer:
    """Milliseconds of a config: 1, and more for every step away from `best` in any parameter."""

    def __init__(self, best: Config, broken: Sequence[Config] = ()) -> None:
        self.best = best
        self.broken = broken
        self.groups: list[list[Config]] = []

    def __call__(self, configs: Sequence[Config]) -> list[float | None]:
        self.groups.append(list(configs))
        return [None if one in self.broken else self.ms(one) for one in configs]

    def ms(self, one: Config) -> float:
        steps = [abs(values.index(one[name]) - values.index(self.best[name])) for name, values in SPACE.items()]
        return 1.0 + sum(steps) + 0.3 * steps[0] * steps[1]  # rows and block hang together a little


START = {"rows": 1, "block": 64, "num_warps": 4, "num_stages": 2}
# Every corner of the space, and its middle.
PLANTED = [
    *(dict(zip(SPACE, chosen, strict=True)) for chosen in product(*((v[0], v[-1]) for v in SPACE.values()))),
    {name: values[len(values) // 2] for name, values in SPACE.items()},
]


@pytest.mark.parametrize("best", PLANTED, ids=lambda one: "-".join(map(str, one.values())))
def test_the_descent_finds_the_fastest_of_600_in_50(best: Config) -> None:
    timer = Timer(best)

    found = search([START], SPACE, timer)

    assert found is not None
    assert (found.config, found.ms) == (best, 1.0)
    assert found.tried <= MOST
    assert found.tried == len({tuple(one.values()) for group in timer.groups for one in group})


def test_without_a_space_every_config_is_timed_once_together_and_the_first_of_equals_is_taken() -> None:
    configs = [{"num_warps": n} for n in (4, 8, 16, 32)]
    groups: list[Sequence[Config]] = []

    def times(group: Sequence[Config]) -> list[float | None]:
        groups.append(group)
        return [None, 2.0, 1.0, 1.0]

    found = search(configs, {}, times)

    assert found is not None
    assert (found.config, found.ms, found.tried) == ({"num_warps": 16}, 1.0, 4)
    assert groups == [configs]


def test_configs_that_do_not_run_are_gone_round() -> None:
    broken = [{**START, "rows": rows} for rows in (8, 16, 32)]
    found = search([START], SPACE, Timer({**START, "rows": 4}, broken))
    assert found is not None
    assert found.config == {**START, "rows": 4}


def test_nothing_is_found_where_nothing_runs() -> None:
    assert search([{"a": 1}], {}, lambda group: [None] * len(group)) is None
    assert search([{"a": 1}], {"a": [1, 2, 3]}, lambda group: [None] * len(group)) is None


def test_a_descent_that_ends_early_begins_again_from_the_next_config() -> None:
    # Two valleys: from the first start only the shallow one is seen.
    def times(group: Sequence[Config]) -> list[float | None]:
        return [
            min(5.0 + abs(one["a"] - 1) + abs(one["b"] - 1), 1.0 + 9 * (one["a"] != 8 or one["b"] != 8))
            for one in group
        ]

    space = {"a": [1, 2, 8], "b": [1, 2, 8]}
    near, far = {"a": 1, "b": 1}, {"a": 8, "b": 8}
    alone, both = search([near], space, times), search([near, far], space, times)
    assert alone is not None
    assert both is not None
    assert alone.tried < LEAST
    assert (alone.config, both.config, both.ms) == (near, far, 1.0)


def test_where_time_is_over_the_best_so_far_is_taken() -> None:
    timer = Timer(PLANTED[-1])
    found = search([START, {**START, "rows": 2}], SPACE, timer, over=lambda: len(timer.groups) == 2)
    assert found is not None
    assert len(timer.groups) == 2  # the start, and every number of rows
    assert found.config == min((one for group in timer.groups for one in group), key=timer.ms)


def test_what_is_hopeless_at_first_is_not_timed_again() -> None:
    assert worth_repeating([2.0, 6.0, 6.1, 2.5], 3.0) == [0, 1, 3]
    assert worth_repeating([2.0, 900.0], math.inf) == [0, 1]


def test_each_group_holds_the_best_so_far_to_be_compared_with() -> None:
    timer = Timer(PLANTED[-1])
    search([START], SPACE, timer)
    best = START
    for group in timer.groups[1:]:
        assert group[0] == best
        best = min(group, key=timer.ms)
