"""Looking after the store: what it holds, what may go, what is damaged."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot import folders, locks, timing_cache
from aot.errors import StoreError, UsageError
from aot.progress import Progress
from aot.store import FACTS, IN_USE, LOCKS, MADE, TMP, Store, unsealed

KEY = 64
"""How long a key is: what else a folder of the store holds is no entry."""
RECORD = ".json"
AHEAD = 60.0
"""Seconds by which the time of an entry may be ahead of the clock."""
LIMIT = "AOT_CACHE_LIMIT"
"""The environment variable with the size that the store may have after a build."""


@dataclass(frozen=True)
class Item:
    """One entry. used: when it was made or last taken up (seconds since 1970, by the clock that dates its files).
    age: seconds since then. whole: None where the disk does not let it be read."""

    stage: str
    key: str
    path: Path
    bytes: int
    used: float
    age: float
    whole: bool | None

    def age_days(self) -> float:
        """Days since it was used."""
        return self.age / locks.DAY

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"stage": self.stage, "key": self.key, "bytes": self.bytes, "used": self.used, "whole": self.whole}


@dataclass(frozen=True)
class Collected:
    """What a collection did. swept: leftovers of killed processes. bytes: given back. in_use: entries that would have
    gone, and that somebody uses."""

    removed: int
    swept: int
    bytes: int
    in_use: int

    def to_json(self) -> dict[str, int]:
        """Plain data."""
        return {"removed": self.removed, "swept": self.swept, "bytes": self.bytes, "in_use": self.in_use}


def entries(store: Store) -> list[Item]:
    """Every entry of the store, damaged ones included; which does not count as use. Raises StoreError."""
    with _telling(store, "read"):
        return list(_entries(store))


def _entries(store: Store) -> Iterator[Item]:
    now = _now(store)
    for stage in _listed(store.root):
        if stage.name in (TMP, LOCKS) or not stage.is_dir():
            continue
        for home in _listed(stage):
            if len(home.name) != KEY or not home.is_dir():
                continue
            try:
                used = _used(home)
                if used > now + AHEAD:  # dated by a clock that was ahead: from now on it ages as everything does
                    with suppress(OSError):
                        os.utime(home / FACTS)
                        used = _used(home)
            except FileNotFoundError:  # removed by someone else meanwhile
                continue
            whole: bool | None = None
            with suppress(OSError):
                whole = store.read(stage.name, home.name) is not None
            yield Item(stage.name, home.name, home, _size(home), used, max(0.0, now - used), whole)


def collect_garbage(store: Store, *, older_than_days: float | None = None, max_bytes: int | None = None) -> Collected:
    """Remove leftovers of processes that are gone, damaged entries, entries and records not used for so long, and the
    longest unused entries while all are larger than `max_bytes`.

    What somebody uses stays: an entry that a running build has taken up or makes, what a process loaded. Raises
    StoreError where the disk refuses.
    """
    with _telling(store, "cleaned"):
        swept, freed = _sweep(store)
        found = sorted(_entries(store), key=lambda item: item.used)
        total = sum(item.bytes for item in found)
        removed = in_use = 0
        for item in found:
            old = older_than_days is not None and item.age_days() > older_than_days
            over = max_bytes is not None and total > max_bytes
            if item.whole is not False and not (old or over):
                continue
            if not _remove(store, item):
                in_use += 1
                continue
            removed += 1
            freed += item.bytes
            total -= item.bytes
        if older_than_days is not None:
            _forget(store, older_than_days * locks.DAY)
        _drop_locks(store)
    return Collected(removed, swept, freed, in_use)


@contextmanager
def _telling(store: Store, done: str) -> Iterator[None]:
    """Raise StoreError where the disk refuses that the store is read or cleaned."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"the store cannot be {done}: {error.strerror or error}",
            where=str(error.filename or store.root),
            fix="run it as the user whose store it is, where its disk can be written",
        ) from error


def damage(store: Store) -> tuple[int, list[Path]]:
    """How much there is, and what of it is not as it was written, every file read: entries, records, timing caches.

    An entry that only its digests give away counts as missing from then on. Raises StoreError where a disk refuses.
    """
    checked, found = 0, []
    for item in entries(store):
        checked += 1
        entry = store.look(item.stage, item.key)
        if entry is None or not store.sound(entry):
            found.append(item.path)
            if entry is not None:
                store.condemn(entry)
    with _telling(store, "read"):
        caches = [path for path in _listed(store.root / timing_cache.FOLDER) if path.suffix == timing_cache.SUFFIX]
        for is_whole, paths in ((_is_sealed, _records(store)), (timing_cache.is_whole, caches)):
            for path in paths:
                checked += 1
                with suppress(FileNotFoundError):  # removed meanwhile
                    if not is_whole(path):
                        found.append(path)
    return checked, found


def bytes_of(text: str, where: str) -> int:
    """The bytes that `10G`, `500M`, `1.5 TB` or `20GiB` stand for; a number alone counts GB. Raises UsageError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT]?)(i?)B?)?\s*", text, re.IGNORECASE)
    if match is None:
        raise UsageError(f"'{text}' is no size", where=where, fix="give one like 10G, 500M or 1.5T")
    count, unit, binary = match.groups()
    if unit == "" and not text.strip().upper().endswith("B"):
        unit = "G"
    return int(float(count) * (1024 if binary else 1000) ** " KMGT".index((unit or " ").upper()))


def size_limit() -> int | None:
    """How many bytes the store may have after a build, by `AOT_CACHE_LIMIT`. Raises UsageError for what is no size."""
    said = os.environ.get(LIMIT)
    return bytes_of(said, LIMIT) if said else None


def keep_limit(store: Store, limit: int | None, progress: Progress) -> None:
    """Remove the longest unused entries above the limit, where there is one; that this fails is worth a warning."""
    if limit is not None:
        try:
            collect_garbage(store, max_bytes=limit)
        except StoreError as error:
            progress.warn(f"the store is not held to {LIMIT}: {error.what}")


def _used(home: Path) -> float:
    facts = home / FACTS
    return (facts if facts.exists() else home).stat().st_mtime


def _now(store: Store) -> float:
    """The time by the clock that dates the store's files."""
    return locks.clock(store.root / TMP)


def _remove(store: Store, item: Item) -> bool:
    """Move an entry out of sight in one step, then delete it; False where it is in use, or being made."""
    held = []
    try:
        for end in (IN_USE, MADE):
            one = locks.lock(store.root / LOCKS / f"{item.key}{end}", wait=False)
            if one is None:
                return False
            held.append(one)
        if item.whole is not False and _used(item.path) > item.used:  # taken up since, by who could not say so
            return False
        _discard(store, item.path)
    except locks.NoLocksError:  # who uses it cannot be told
        if item.age < locks.DAY:
            return False
        _discard(store, item.path)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in locks.FULL:
            raise  # there is no room for a lock file that was missing: so nobody holds it
        _discard(store, item.path)
    finally:
        for one in held:
            one.release()
    return True


def _discard(store: Store, home: Path) -> None:
    try:
        with store.workspace() as work:
            os.rename(home, work / "entry")
    except OSError as error:
        # A folder on another disk, or in a lower layer of a container's file system, is deleted where it lies; so is
        # one on a disk so full that no folder can be made.
        if error.errno not in (errno.EXDEV, *locks.FULL):
            raise
        (home / FACTS).unlink(missing_ok=True)
        folders.remove(home)


def _sweep(store: Store) -> tuple[int, int]:
    """Delete work in progress whose process is gone; (how many, bytes)."""
    count = freed = 0
    tmp = store.root / TMP
    found: dict[str, list[Path]] = {}
    for path in _listed(tmp):
        found.setdefault(path.name.split(".")[0], []).append(path)
    found.pop("", None)  # .nfs...: deleted while open, gone when it is closed
    for name in locks.abandoned(tmp, set(found)):
        for path in found[name.name]:
            if path.is_dir():
                freed += _size(path)
                count += 1
            folders.remove(path)
    return count, freed


def _forget(store: Store, seconds: float) -> None:
    """Remove named records that were not used for so long."""
    now = _now(store)
    for path in _records(store):
        with suppress(FileNotFoundError):
            if now - path.stat().st_mtime > seconds:
                path.unlink()


def _drop_locks(store: Store) -> None:
    """Remove the locks that nobody holds, of keys without an entry."""
    kept = {home.name for stage in _listed(store.root) if stage.name not in (TMP, LOCKS) for home in _listed(stage)}
    for path in _listed(store.root / LOCKS):
        if path.name.split(".")[0] not in kept:
            with suppress(locks.NoLocksError):
                held = locks.lock(path, wait=False)
                if held is not None:
                    held.release(remove=True)


def _records(store: Store) -> list[Path]:
    return [
        path
        for kind in _listed(store.root)
        if kind.name not in (TMP, LOCKS)
        for path in _listed(kind)
        if path.suffix == RECORD and path.is_file()
    ]


def _is_sealed(path: Path) -> bool:
    try:
        unsealed(path.read_bytes())
    except ValueError:
        return False
    return True


def _listed(folder: Path) -> list[Path]:
    """What lies in a folder, by name; nothing where it is none, or not any more."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _size(folder: Path) -> int:
    """The bytes of all files below it, as far as it is still there."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(base, name)).st_size
    return total
