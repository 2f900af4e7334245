"""Percentiles, the spread of blocks, and which differences are noise: known numbers."""

from __future__ import annotations

import pytest

from aot.bench.figures import P99_KNOWN, alike, percentile, spread


@pytest.mark.parametrize(("percent", "value"), [(50, 50), (90, 90), (99, 99), (100, 100), (1, 1)])
def test_a_percentile_of_1_to_100_is_its_own_number(percent: int, value: int) -> None:
    assert percentile(range(100, 0, -1), percent) == value


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert percentile([3.0, 1.0], 50) == 1.0
    assert percentile([3.0, 1.0], 51) == 3.0
    assert percentile([7.0], 99) == 7.0


def test_299_runs_are_the_fewest_whose_slowest_bounds_p99_with_95_percent_confidence() -> None:
    assert 1 - 0.99**P99_KNOWN > 0.95 >= 1 - 0.99 ** (P99_KNOWN - 1)


def test_the_spread_is_that_of_the_medians_and_not_of_single_runs() -> None:
    wild = [1.0, 2.0, 9.0]  # a median of 2
    assert spread([wild] * 10) == 0.0
    medians = [[float(value)] for value in range(1, 11)]
    assert spread(medians) == pytest.approx((9 - 1) / 5.5)


def test_one_block_has_no_spread() -> None:
    assert spread([[1.0, 2.0]]) is None


def test_neighbours_closer_than_their_spread_are_alike() -> None:
    timed = [("slow", 2.0, 0.01), ("b", 1.02, 0.03), ("a", 1.0, 0.0), ("far", 1.5, None)]
    found = alike(timed)
    assert [(fast, slow) for fast, slow, _, _ in found] == [("a", "b")]
    (_, _, apart, width) = found[0]
    assert apart == pytest.approx(0.02)
    assert width == pytest.approx(0.03 * 1.02)
