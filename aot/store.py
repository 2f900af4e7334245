"""The input-addressed store: a stage's result lives under the digest of everything it was made from.

Layout, under one root (`$XDG_CACHE_HOME/aot` by default):

    STAGE/KEY/            a finished entry; `entry.json` holds its facts and the size of every file
    tmp/                  work in progress; renamed into place when whole, swept when its owner is gone
    locks/                one lock a key, so that concurrent builds of the same thing do the work once

Killed at any instant, an entry is either whole or not there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aot.errors import StoreError

FACTS = "entry.json"


def digest(value: object) -> str:
    """SHA-256 (hex) of plain data in canonical JSON. Raises TypeError for anything JSON cannot hold."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sha256(path: str | Path) -> str:
    """The SHA-256 (hex) of a file. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def default_root() -> Path:
    """The user's cache folder for aot; `XDG_CACHE_HOME` moves it."""
    import platformdirs

    return Path(os.environ.get("XDG_CACHE_HOME") or platformdirs.user_cache_path()) / "aot"


@dataclass(frozen=True)
class Entry:
    """A finished result: its key, its folder, its facts, and whether this run found it ready-made."""

    stage: str
    key: str
    path: Path = field(compare=False)
    facts: Mapping[str, Any] = field(compare=False)
    cached: bool = field(default=True, compare=False)
    seconds: float = field(default=0.0, compare=False)


class Store:
    """Entries under `root`; see the module's docstring for the layout."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()

    def home(self, stage: str, key: str) -> Path:
        """Where the entry is, or would be."""
        return self.root / stage / key

    def get(self, stage: str, key: str) -> Entry | None:
        """The entry if it is there and whole, else None."""
        home = self.home(stage, key)
        try:
            record = json.loads((home / FACTS).read_text())
            whole = all((home / name).stat().st_size == size for name, size in record["files"].items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        if not whole:
            return None
        with suppress(OSError):  # a store that cannot be written can be read all the same
            os.utime(home / FACTS)  # `aot cache gc` goes by it
        return Entry(stage, key, home, record["facts"])

    def fetch(self, stage: str, key: str, make: Callable[[Path], Mapping[str, Any]], *, fresh: bool = False) -> Entry:
        """Return the entry for `key`; where it is missing, `make(folder)` writes it and returns its facts.

        `fresh` replaces an entry that exists. Raises StoreError when the disk refuses; an error from
        `make` passes through and leaves nothing behind.
        """
        found = None if fresh else self.get(stage, key)
        if found:
            return found
        started = time.perf_counter()
        try:
            with self.lock(key):
                found = None if fresh else self.get(stage, key)
                if found:
                    return found
                facts = self._make(stage, key, make)
        except OSError as error:
            raise self._refused(error) from error
        return Entry(stage, key, self.home(stage, key), facts, cached=False, seconds=time.perf_counter() - started)

    def _make(self, stage: str, key: str, make: Callable[[Path], Mapping[str, Any]]) -> Mapping[str, Any]:
        home = self.home(stage, key)
        home.parent.mkdir(parents=True, exist_ok=True)
        with self.workspace() as work:
            facts = dict(make(work))
            files = {str(p.relative_to(work)): p.stat().st_size for p in sorted(work.rglob("*")) if p.is_file()}
            (work / FACTS).write_text(json.dumps({"facts": facts, "files": files}, indent=1))
            if home.exists():  # damaged, or being replaced: out of the way first, for a rename needs a free name
                self._discard(home)
            os.rename(work, home)
        return facts

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """A folder of our own under tmp/, on the store's disk, gone at the end unless renamed away.

        Its name carries our pid, so that `sweep` knows whose it is.
        """
        work = self.root / "tmp" / f"{os.getpid()}-{time.time_ns()}"
        work.mkdir(parents=True)
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _discard(self, home: Path) -> None:
        """Move a folder out of sight in one step, then delete it."""
        doomed = self.root / "tmp" / f"{os.getpid()}-{time.time_ns()}"
        doomed.parent.mkdir(parents=True, exist_ok=True)
        os.rename(home, doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold the lock of that name, across processes. Raises OSError where the disk refuses."""
        import filelock

        path = self.root / "locks" / f"{name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(str(path)):
            yield

    def remember(self, kind: str, name: str, data: Mapping[str, Any]) -> None:
        """Write a small named record (not input-addressed), atomically."""
        path = self.root / kind / f"{name}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{name}.{os.getpid()}.partial")
            partial.write_text(json.dumps(data))
            os.replace(partial, path)
        except OSError as error:
            raise self._refused(error) from error

    def recall(self, kind: str, name: str) -> dict[str, Any] | None:
        """The named record, or None where there is none that can be read."""
        try:
            data = json.loads((self.root / kind / f"{name}.json").read_text())
        except (OSError, ValueError):
            return None
        return data if isinstance(data, dict) else None

    def _refused(self, error: OSError) -> StoreError:
        reason = error.strerror or str(error)
        return StoreError(
            f"the store cannot be written: {reason}",
            where=str(error.filename or self.root),
            fix="free some space or set XDG_CACHE_HOME to a folder that can be written; nothing finished was lost",
        )
