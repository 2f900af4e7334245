"""What a garbage collection takes, and what it never takes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aot.store import FACTS, Store, digest
from aot.store_admin import collect_garbage, entries


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def add(store: Store, name: str, size: int = 100, days_ago: float = 0.0) -> str:
    def make(folder: Path) -> Mapping[str, Any]:
        (folder / "data").write_bytes(bytes(size))
        return {}

    key = digest(name)
    entry = store.fetch("stage", key, make)
    then = time.time() - days_ago * 86400
    os.utime(entry.path / FACTS, (then, then))
    return key


def keys(store: Store) -> set[str]:
    return {entry.key for entry in entries(store)}


def test_what_was_not_used_for_so_long_goes(store: Store) -> None:
    old, new = add(store, "old", days_ago=40), add(store, "new", days_ago=3)
    assert collect_garbage(store, older_than_days=30).removed == 1
    assert keys(store) == {new}
    assert old not in keys(store)


def test_the_longest_unused_go_until_the_rest_fits(store: Store) -> None:
    added = [add(store, str(age), size=1000, days_ago=age) for age in (3, 2, 1)]
    collect_garbage(store, max_bytes=2500)
    assert keys(store) == set(added[1:])


def test_a_damaged_entry_always_goes(store: Store) -> None:
    key = add(store, "x")
    (store.home("stage", key) / "data").write_bytes(b"")
    assert [entry.whole for entry in entries(store)] == [False]
    assert collect_garbage(store).removed == 1


def test_an_entry_whose_lock_is_held_stays(store: Store) -> None:
    key = add(store, "x", days_ago=99)
    with store.lock(key):
        assert collect_garbage(store, older_than_days=1).removed == 0
    assert keys(store) == {key}
    assert collect_garbage(store, older_than_days=1).removed == 1
