"""Looking after the store: what it holds, what may go, what is damaged."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.artifact_write import alive
from aot.errors import StoreError
from aot.store import FACTS, Store

# Folders of the store that hold something else than STAGE/KEY/ entries.
WORK, BUILDS = "tmp", "builds"


@dataclass(frozen=True)
class Item:
    """One entry. used: when it was made or last taken up (seconds since 1970)."""

    stage: str
    key: str
    path: Path
    bytes: int
    used: float
    whole: bool

    def age_days(self) -> float:
        """Days since it was used."""
        return max(0.0, time.time() - self.used) / 86400

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"stage": self.stage, "key": self.key, "bytes": self.bytes, "used": self.used, "whole": self.whole}


@dataclass(frozen=True)
class Collected:
    """What a collection did. swept: leftovers of killed builds. kept_for: running builds that kept the rest."""

    removed: int
    swept: int
    bytes: int
    kept_for: int

    def to_json(self) -> dict[str, int]:
        """Plain data."""
        return {"removed": self.removed, "swept": self.swept, "bytes": self.bytes, "running_builds": self.kept_for}


def entries(store: Store) -> Iterator[Item]:
    """Every entry of the store, damaged ones included."""
    for home in sorted(store.root.glob("*/*/")):
        stage, key = home.parent.name, home.name
        if stage == WORK or len(key) != 64:
            continue
        facts = home / FACTS
        try:
            stat = (facts if facts.exists() else home).stat()
        except FileNotFoundError:  # removed by someone else meanwhile
            continue
        whole = store.get(stage, key) is not None
        if facts.exists():  # that read was ours, and does not count as use
            with suppress(OSError):
                os.utime(facts, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        yield Item(stage, key, home, _size(home), stat.st_mtime, whole)


def collect_garbage(store: Store, *, older_than_days: float | None = None, max_bytes: int | None = None) -> Collected:
    """Remove leftovers of dead processes, damaged entries, entries not used for so long, and the longest unused
    ones while the rest is larger than `max_bytes`.

    An entry whose lock is held stays. While a build is running, every whole entry stays: which of them it has
    already taken up cannot be told. Raises StoreError where the disk refuses.
    """
    try:
        swept, freed = _sweep(store)
        running = len(running_builds(store))
        found = sorted(entries(store), key=lambda item: item.used)
        total = sum(item.bytes for item in found)
        removed = 0
        for item in found:
            old = older_than_days is not None and item.age_days() > older_than_days
            over = max_bytes is not None and total > max_bytes
            if item.whole and (running or not (old or over)):
                continue
            if _remove(store, item):
                removed += 1
                freed += item.bytes
                total -= item.bytes
    except OSError as error:
        raise StoreError(
            f"the store cannot be cleaned: {error.strerror or error}", where=str(error.filename or store.root)
        ) from error
    asked = older_than_days is not None or max_bytes is not None
    return Collected(removed, swept, freed, running if asked else 0)


def _remove(store: Store, item: Item) -> bool:
    """Move an entry out of sight in one step, then delete it; False where its lock is held."""
    import filelock

    path = store.root / "locks" / f"{item.key}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(str(path), timeout=0), store.workspace() as work:
            os.rename(item.path, work / "entry")
    except (filelock.Timeout, FileNotFoundError):
        return False
    return True


def _sweep(store: Store) -> tuple[int, int]:
    """Delete work in progress whose process is gone; (how many, bytes)."""
    count = freed = 0
    for path in (store.root / WORK).glob("*"):
        pid = path.name.partition("-")[0]
        if pid.isdigit() and not alive(int(pid)):
            freed += _size(path)
            shutil.rmtree(path, ignore_errors=True)
            count += 1
    return count, freed


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


@contextmanager
def in_use(store: Store) -> Iterator[None]:
    """Mark that this process is building with the store, for `collect_garbage`. Raises StoreError."""
    mark = store.root / BUILDS / f"{os.getpid()}-{time.time_ns()}"
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise StoreError(
            f"the store cannot be written: {error.strerror}",
            where=str(error.filename or store.root),
            fix="free some space or set XDG_CACHE_HOME to a folder that can be written",
        ) from error
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


def running_builds(store: Store) -> list[int]:
    """The processes that build with this store now; marks of dead ones are removed."""
    found = []
    for mark in (store.root / BUILDS).glob("*-*"):
        pid = int(mark.name.partition("-")[0])
        if alive(pid):
            found.append(pid)
        else:
            mark.unlink(missing_ok=True)
    return found
