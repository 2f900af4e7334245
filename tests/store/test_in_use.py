"""A collection never takes what is in use, whatever the clock says; what it takes goes in the order of use."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aot.errors import UsageError
from aot.progress import Silent
from aot.store import FACTS, LOCKS, TMP, Store, digest
from aot.store_admin import bytes_of, collect_garbage, entries, keep_limit, size_limit

ROOT = Path(__file__).parent.parent.parent
DAY = 86400.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def add(store: Store, name: str, size: int = 100, at: float | None = None) -> str:
    def make(folder: Path) -> Mapping[str, Any]:
        (folder / "data").write_bytes(bytes(size))
        return {}

    key = digest(name)
    entry = store.fetch("stage", key, make)
    if at is not None:
        os.utime(entry.path / FACTS, (at, at))
    return key


def keys(store: Store) -> set[str]:
    return {entry.key for entry in entries(store)}


@contextmanager
def elsewhere(store: Store, code: str) -> Iterator[subprocess.Popen[str]]:
    """Another process at work with the store; it goes on when its standard input ends."""
    head = f"import sys\nfrom pathlib import Path\nfrom aot.store import *\nstore = Store(Path({str(store.root)!r}))\n"
    body = textwrap.dedent(code)
    with subprocess.Popen(
        [sys.executable, "-c", head + body],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


USES = """
    with store.using():
        entry = store.get("stage", {key!r})
        print("ready", flush=True)
        sys.stdin.read()
        print(len((entry.path / "data").read_bytes()))
"""


@pytest.mark.parametrize("at", [1.0, time.time() + 400 * DAY], ids=["long ago", "in the future"])
def test_what_a_running_build_took_up_stays(store: Store, at: float) -> None:
    """Also where the clock went back or forth since."""
    used, other = add(store, "used", at=at), add(store, "other", at=at)
    with elsewhere(store, USES.format(key=used)) as build:
        os.utime(store.home("stage", used) / FACTS, (at, at))
        found = collect_garbage(store, max_bytes=0)
        assert (found.removed, found.in_use) == (1, 1)
        assert keys(store) == {used}
        assert other not in keys(store)
        assert build.communicate("")[0] == "100\n"
    assert collect_garbage(store, max_bytes=0).removed == 1


def test_what_a_killed_build_used_may_go(store: Store) -> None:
    key = add(store, "used")
    with elsewhere(store, USES.format(key=key)) as build:
        build.kill()
        build.wait()
        assert collect_garbage(store, max_bytes=0).removed == 1


def test_what_was_replaced_while_it_was_in_use_stays(store: Store) -> None:
    def make(folder: Path) -> Mapping[str, Any]:
        (folder / "data").write_bytes(b"other")
        return {}

    key = add(store, "used")
    with elsewhere(store, USES.format(key=key)) as build:
        store.fetch("stage", key, make, fresh=True)
        assert collect_garbage(store, max_bytes=0).removed == 0
        assert build.communicate("")[0] == "5\n"


def test_what_is_being_made_and_spooled_stays(store: Store) -> None:
    making = """
        def make(folder):
            (folder / "data").write_bytes(b"half")
            print("ready", flush=True)
            sys.stdin.read()
            (folder / "more").write_bytes(b"whole")
            return {}
        print(len(store.fetch("stage", digest("new"), make).files))
    """
    with elsewhere(store, making) as build:
        assert collect_garbage(store, max_bytes=0, older_than_days=0).swept == 0
        assert build.communicate("")[0] == "2\n"
    assert keys(store) == {digest("new")}


def test_builds_that_begin_while_a_collection_runs_find_an_entry_whole_or_make_it(store: Store) -> None:
    """Collections against a process that takes up, reads and makes the same three entries all the time."""
    hammering = """
        def make(folder):
            (folder / "data").write_bytes(bytes(100))
            return {}
        import time
        print("ready", flush=True)
        while True:
            time.sleep(0.002)
            with store.using():
                for name in "abc":
                    entry = store.fetch("stage", digest(name), make)
                    assert (entry.path / "data").read_bytes() == bytes(100)
    """
    removed, until = 0, time.monotonic() + 30
    with elsewhere(store, hammering) as build:
        while removed < 20 and time.monotonic() < until:
            removed += collect_garbage(store, max_bytes=0).removed
        assert build.poll() is None
    assert removed >= 20


def test_work_of_killed_processes_is_swept_and_its_locks_go(store: Store) -> None:
    add(store, "kept")
    code = """
        work = store.workspace()
        (work.path / "data").write_bytes(b"half")
        store.lock("other").__enter__()
        print("ready", flush=True)
        sys.stdin.read()
    """
    with elsewhere(store, code) as build:
        assert collect_garbage(store).swept == 0
        build.kill()
        build.wait()
        assert collect_garbage(store).swept == 1
    assert list((store.root / TMP).iterdir()) == []
    assert {path.name.split(".")[0] for path in (store.root / LOCKS).iterdir()} <= {digest("kept")}


def test_the_least_recently_used_go_first_and_looking_is_no_use(store: Store) -> None:
    now = time.time()
    oldest, middle, newest = (add(store, str(age), size=1000, at=now - age * DAY) for age in (3, 2, 1))
    assert store.get("stage", oldest) is not None
    store.look("stage", middle)
    list(entries(store))
    collect_garbage(store, max_bytes=3000)
    assert keys(store) == {oldest, newest}


def test_what_a_clock_dated_ahead_ages_from_the_first_collection_on(store: Store) -> None:
    ahead, real = add(store, "ahead", at=time.time() + 999 * DAY), add(store, "real", at=time.time() - 40 * DAY)
    assert collect_garbage(store, older_than_days=30).removed == 1
    assert keys(store) == {ahead}
    assert real not in keys(store)
    (item,) = entries(store)
    assert item.used <= time.time() + 1
    os.utime(store.home("stage", ahead) / FACTS, (1.0, 1.0))  # the clock was set back to 1970 when it was used
    assert collect_garbage(store, older_than_days=30).removed == 1


def test_records_that_nobody_read_for_so_long_go(store: Store) -> None:
    for name in ("old", "read"):
        store.remember("sources", name, {"x": 1})
        os.utime(store.root / f"sources/{name}.json", (1.0, 1.0))
    assert store.recall("sources", "read") == {"x": 1}
    collect_garbage(store, older_than_days=30)
    assert store.recall("sources", "old") is None
    assert store.recall("sources", "read") == {"x": 1}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *(("10G", 10**10), ("20", 2 * 10**10), ("0", 0), ("1.5 TB", 15 * 10**11), ("500m", 5 * 10**8)),
        *(("1GiB", 1 << 30), ("7B", 7), ("3kb", 3000), ("2Ki", 2048)),
    ],
)
def test_a_size_is_said_in_any_unit(text: str, count: int) -> None:
    assert bytes_of(text, "--max-size") == count


@pytest.mark.parametrize("text", ["", "G", "ten", "-1G", "10X", "1e3", "nan", "10GG"])
def test_what_is_no_size_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="is no size"):
        bytes_of(text, "--max-size")
    monkeypatch.setenv("AOT_CACHE_LIMIT", text or " ")
    with pytest.raises(UsageError, match="is no size") as caught:
        size_limit()
    assert caught.value.where == "AOT_CACHE_LIMIT"


def test_a_standing_limit_is_kept_and_a_store_that_cannot_be_cleaned_is_a_warning(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOT_CACHE_LIMIT", "3KB")
    now, progress = time.time(), Silent()
    added = [add(store, str(age), size=1000, at=now - age * DAY) for age in (3, 2, 1)]
    keep_limit(store, size_limit(), progress)
    assert keys(store) == set(added[1:])
    monkeypatch.delenv("AOT_CACHE_LIMIT")
    assert size_limit() is None

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    keep_limit(store, 0, progress)
    assert progress.warnings == [
        "the store is not held to AOT_CACHE_LIMIT: the store cannot be cleaned: Permission denied"
    ]
