"""Finding a small set that is enough: against brute force over all subsets, and how many trials it takes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import pytest

from aot.search.minimal import Spent, enough, minimal


class Oracle:
    """Says whether a set holds all that is needed, and counts how often it was asked."""

    def __init__(self, needed: set[int]) -> None:
        self.needed = needed
        self.asked = 0

    def __call__(self, kept: Sequence[int]) -> bool:
        self.asked += 1
        return self.needed <= set(kept)


def test_bisection_finds_the_shortest_beginning_in_the_logarithm_of_trials() -> None:
    for size, last in itertools.product((1, 2, 7, 64, 1000), (0, 1, 5, 63, 999)):
        if last >= size:
            continue
        oracle = Oracle({last})
        assert enough(list(range(size)), oracle) == list(range(last + 1))
        assert oracle.asked <= math.ceil(math.log2(size)) if size > 1 else oracle.asked == 0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_exactly_what_is_needed_is_found_wherever_it_stands(count: int) -> None:
    size = 12
    for needed in itertools.combinations(range(size), count):
        oracle = Oracle(set(needed))
        assert minimal(list(range(size)), oracle) == list(needed)
        assert oracle.asked <= 2 * count * math.log2(size / count) + 2 * count + 1


def test_one_of_a_thousand_takes_two_trials_a_halving() -> None:
    oracle = Oracle({617})
    assert minimal(list(range(1000)), oracle) == [617]
    assert oracle.asked <= 2 * math.ceil(math.log2(1000)) + 2


def test_of_two_sets_that_are_enough_the_one_earlier_in_the_list_is_taken() -> None:
    assert minimal(list(range(8)), lambda kept: {1, 2} <= set(kept) or {5, 6} <= set(kept)) == [1, 2]


def test_nothing_can_be_left_out_of_the_result_where_gains_add_up() -> None:
    gains = [5.0, 3.0, 2.0, 2.0, 1.0, 1.0, 0.5]

    def suffices(kept: Sequence[int]) -> bool:
        return sum(gains[i] for i in kept) >= 8.0

    found = minimal(list(range(7)), suffices)
    assert suffices(found)
    assert not any(suffices([i for i in found if i != left]) for left in found)
    smallest = min(n for n in range(8) for some in itertools.combinations(range(7), n) if suffices(some))
    assert len(found) == smallest == 2


def test_when_no_more_trials_are_allowed_what_is_left_is_kept() -> None:
    def limited(most: int) -> tuple[Oracle, Callable[[Sequence[int]], bool]]:
        oracle = Oracle({3, 40})

        def ask(kept: Sequence[int]) -> bool:
            if oracle.asked == most:
                raise Spent
            return oracle(kept)

        return oracle, ask

    for most in range(30):
        oracle, ask = limited(most)
        found = minimal(list(range(64)), ask)
        assert {3, 40} <= set(found)
        assert oracle.asked <= most
    assert minimal(list(range(64)), limited(40)[1]) == [3, 40]
