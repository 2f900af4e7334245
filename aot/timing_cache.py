"""TensorRT's timing caches: kept per backend version, GPU and driver, shared by every build of a machine.

A cache file begins with one line of JSON (whom it is for, the digest of the rest), so that a damaged, cut or
renamed file is recognised before the vendor's parser sees it. A file that cannot be used is set aside as `*.bad`
with one warning; a build never fails over it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from aot.progress import Progress
from aot.store import Store

FOLDER, SUFFIX = "timing-cache", ".cache"


class TimingCaches:
    """The timing caches of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def path(self, name: str) -> Path:
        """Where the cache of that name (backend version, GPU, driver) is kept."""
        return self._store.root / FOLDER / (re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-") + SUFFIX)

    def attach(self, config: Any, name: str, progress: Progress) -> Lease:
        """Give the builder's config the kept cache, or an empty one where there is none that can be used."""
        lease = Lease(self, config, name, progress)
        cache = lease.kept()
        lease.warm = cache is not None and bool(config.set_timing_cache(cache, False))
        if cache is not None and not lease.warm:
            lease.set_aside("it is for another GPU or version")
        if not lease.warm:
            config.set_timing_cache(config.create_timing_cache(b""), False)
        return lease


class Lease:
    """One build's use of a cache. warm: whether a kept cache was taken up."""

    def __init__(self, caches: TimingCaches, config: Any, name: str, progress: Progress) -> None:
        self._store, self._path = caches._store, caches.path(name)
        self._config, self._name, self._progress = config, name, progress
        self._locked = False
        self._read = b""
        self.warm = False

    def kept(self) -> Any | None:
        """The cache on disk as the vendor's object; None where there is none. What cannot be used is set aside."""
        try:
            self._read = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._progress.warn(f"the timing cache cannot be read ({error.strerror}); building without it")
            return None
        said, blob = _parted(self._read)
        if said is None:
            self.set_aside("it is damaged")
            return None
        if said.get("for") != self._name:
            self.set_aside(f"it is for {said.get('for')}")
            return None
        cache = self._config.create_timing_cache(blob)
        if cache is None:
            self.set_aside("TensorRT does not accept it")
        return cache

    def set_aside(self, reason: str) -> None:
        """Rename the file to `*.bad`, if it still holds what was read, and say so."""
        bad = self._path.with_suffix(".bad")
        with self._lock(), suppress(OSError):  # where the disk refuses the build goes on
            if self._path.read_bytes() == self._read:  # and not what another build has put there meanwhile
                os.replace(self._path, bad)
        self._progress.warn(f"the timing cache is not used: {reason}; set aside as {bad}")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """The lock of the file; a lease takes it once."""
        if self._locked:
            yield
            return
        with self._store.lock(self._path.name):
            self._locked = True
            try:
                yield
            finally:
                self._locked = False

    def write(self, path: Path) -> None:
        """Write the cache as the vendor's own tools read it (`trtexec --timingCacheFile`). Raises OSError."""
        cache = self._config.get_timing_cache()
        if cache is not None:
            path.write_bytes(memoryview(cache.serialize()))

    def save(self) -> bool:
        """Merge what this build timed into the file, under its lock, in one step. False where the disk refuses.

        The file is read again first: another build may have added to it since.
        """
        mine = self._config.get_timing_cache()
        if mine is None:
            return False
        try:
            with self._lock():
                kept = self.kept()
                if kept is not None:
                    mine.combine(kept, False)
                blob = bytes(memoryview(mine.serialize()))
                head = json.dumps({"for": self._name, "sha256": hashlib.sha256(blob).hexdigest()})
                self._store.write(self._path, head.encode() + b"\n" + blob)
        except OSError as error:
            self._progress.warn(f"the timing cache is not kept: {error.strerror or error}")
            return False
        return True


def is_whole(path: Path) -> bool:
    """Whether a kept cache is as it was written. Raises OSError."""
    return _parted(path.read_bytes())[0] is not None


def _parted(data: bytes) -> tuple[dict[str, Any] | None, bytes]:
    """What the first line says, None where the rest is not what it was said of, and the vendor's blob."""
    head, _, blob = data.partition(b"\n")
    try:
        said = json.loads(head)
    except ValueError:
        return None, blob
    if not isinstance(said, dict) or said.get("sha256") != hashlib.sha256(blob).hexdigest():
        return None, blob
    return said, blob
