"""Who runs when."""

from __future__ import annotations

from collections import Counter

from aot.bench.schedule import BLOCKS, FEWEST, MOST, rounds, runs_for


def test_every_contender_has_one_block_a_round_and_all_its_runs_in_the_end() -> None:
    found = list(rounds({"a": 100, "b": 47, "c": 2000}, seed=0))
    assert len(found) == BLOCKS
    total: Counter[str] = Counter()
    for blocks in found:
        assert sorted(name for name, _ in blocks) == ["a", "b", "c"]
        total.update(dict(blocks))
    assert total == {"a": 100, "b": 47, "c": 2000}
    assert {dict(blocks)["a"] for blocks in found} == {100 // BLOCKS}
    assert {dict(blocks)["b"] for blocks in found} == {2, 3}


def test_the_order_is_another_in_each_round_and_the_same_for_a_seed() -> None:
    runs = {name: 100 for name in "abcd"}
    orders = [tuple(name for name, _ in blocks) for blocks in rounds(runs, seed=3)]
    assert len(set(orders)) > BLOCKS // 2
    assert {order[0] for order in orders} == set("abcd")  # nobody is always first
    assert orders == [tuple(name for name, _ in blocks) for blocks in rounds(runs, seed=3)]
    assert orders != [tuple(name for name, _ in blocks) for blocks in rounds(runs, seed=4)]


def test_fewer_runs_than_rounds_are_spread_over_the_rounds() -> None:
    found = [dict(blocks).get("a", 0) for blocks in rounds({"a": 5}, seed=0)]
    assert sum(found) == 5
    assert max(found) == 1
    assert [number for number, runs in enumerate(found) if runs] == [3, 7, 11, 15, 19]


def test_seconds_become_runs_within_bounds() -> None:
    assert runs_for(10.0, 0.01) == 1000
    assert runs_for(10.0, 5.0) == FEWEST
    assert runs_for(10.0, 1e-6) == MOST
