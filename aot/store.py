"""The input-addressed store: a stage's result lives under the digest of everything it was made from.

Layout, under one root (`$XDG_CACHE_HOME/aot` by default):

    STAGE/KEY/            a finished entry; `entry.json` holds its facts, and the size and digest of every file
    KIND/NAME.json        a small named record: what a declaration read, the ops of a graph
    tmp/                  work in progress, renamed into place when whole; what killed processes left is swept by `gc`
    locks/KEY.lock        held while the entry is made: concurrent builds of the same thing do the work once
    locks/KEY.use         shared by those who use the entry: `gc` leaves it alone

Killed at any instant, an entry is either whole or not there. That takes no lock: without them (a file system that has
none) work may be done twice, and the result is the same. When an entry was last used is the time of its `entry.json`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aot import folders, locks
from aot.errors import StoreError

FACTS = "entry.json"
TMP, LOCKS, MADE, IN_USE = "tmp", "locks", ".lock", ".use"
_HELD: dict[Path, locks.Lock] = {}
_SEAL = len('{"sha256":"",') + 64


def digest(value: object) -> str:
    """SHA-256 (hex) of plain data in canonical JSON. Raises TypeError for anything JSON cannot hold."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sha256(path: str | Path) -> str:
    """The SHA-256 (hex) of a file. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def default_root() -> Path:
    """The user's cache folder for aot; `XDG_CACHE_HOME` moves it. Raises StoreError for a name that is not UTF-8."""
    import platformdirs

    root = Path(os.environ.get("XDG_CACHE_HOME") or platformdirs.user_cache_path()) / "aot"
    try:
        str(root).encode()
    except UnicodeEncodeError:
        raise StoreError(
            "the store's name is not UTF-8, and onnx opens no file below it",
            where=ascii(str(root)),
            fix="set XDG_CACHE_HOME to a folder whose name is",
        ) from None
    return root


def sealed(data: Mapping[str, Any]) -> bytes:
    """A mapping, not an empty one, as JSON that begins with the digest of the rest of it."""
    rest = json.dumps(data).removeprefix("{").encode()
    return f'{{"sha256":"{hashlib.sha256(rest).hexdigest()}",'.encode() + rest


def unsealed(content: bytes) -> dict[str, Any]:
    """What was sealed. Raises ValueError where a byte of it is not as it was."""
    rest = content[_SEAL:]
    if content[:_SEAL] != f'{{"sha256":"{hashlib.sha256(rest).hexdigest()}",'.encode():
        raise ValueError("the content is not what was written")
    data = json.loads(b"{" + rest)
    assert isinstance(data, dict)
    return data


@dataclass(frozen=True)
class Entry:
    """A finished result: its key, its folder, its facts, and whether this run found it ready-made.

    files: {bytes, sha256} of each, by its path in the folder. ensure: called before they are read, it makes sure that
    they are as they were written.
    """

    stage: str
    key: str
    path: Path = field(compare=False)
    facts: Mapping[str, Any] = field(compare=False)
    cached: bool = field(default=True, compare=False)
    seconds: float = field(default=0.0, compare=False)
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False, repr=False)
    ensure: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)


class Workspace:
    """A folder of our own under `tmp/`, on the store's disk; gone with `close`, unless renamed away before.

    Closed by itself when nobody refers to it any more; when the process is killed, `gc` removes what it held.
    """

    def __init__(self, root: Path) -> None:
        tmp = root / TMP
        tmp.mkdir(parents=True, exist_ok=True)
        claim = locks.Claim(tmp)
        self.path = claim.path
        self.close = weakref.finalize(self, _close, claim, os.getpid())
        try:
            self.path.mkdir()
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


def _close(claim: locks.Claim, owner: int) -> None:
    if os.getpid() == owner:  # not what a fork inherited
        folders.remove(claim.path)
        folders.remove(aside_of(claim.path))
        claim.release()


def aside_of(work: Path) -> Path:
    """The name, under the claim of a workspace, for what makes way for it."""
    return work.with_name(f"{work.name}.old")


class Store:
    """Entries under `root`; see the module's docstring for the layout."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root()
        self._pins: dict[Path, locks.Lock] | None = None
        self._sound: set[str] = set()

    def home(self, stage: str, key: str) -> Path:
        """Where the entry is, or would be."""
        return self.root / stage / key

    @contextmanager
    def using(self) -> Iterator[None]:
        """While the block runs, what it gets from the store stays there, whatever `aot cache gc` is asked to remove."""
        if self._pins is not None:
            yield
            return
        self._pins = {}
        try:
            yield
        finally:
            pins, self._pins = self._pins, None
            for pin in pins.values():
                pin.release()

    def hold(self, key: str) -> None:
        """Until this process ends, the entry stays in the store: its files are read whenever somebody asks for them."""
        self._share(key, _HELD)

    def _pin(self, key: str) -> None:
        """Before the entry is looked for: once it is seen, nobody may take it away."""
        if self._pins is not None:
            self._share(key, self._pins)

    def _share(self, key: str, held: dict[Path, locks.Lock]) -> None:
        path = self._locks() / f"{key}{IN_USE}"
        if path not in held:
            with suppress(OSError):  # without locks, what was used lately stays
                path.parent.mkdir(parents=True, exist_ok=True)
                pin = locks.lock(path, shared=True)
                assert pin is not None
                held[path] = pin

    def get(self, stage: str, key: str) -> Entry | None:
        """The entry if it is there and whole, else None: the files have the sizes that they had, see `sound`."""
        self._pin(key)
        entry = self.look(stage, key)
        if entry is not None:
            with suppress(OSError):  # a store that cannot be written can be read all the same
                os.utime(entry.path / FACTS)
        return entry

    def look(self, stage: str, key: str) -> Entry | None:
        """The same, and it does not count as use."""
        try:
            return self.read(stage, key)
        except OSError:
            return None

    def read(self, stage: str, key: str) -> Entry | None:
        """The same; raises OSError where it cannot be told, since the disk does not let it be read."""
        home = self.home(stage, key)
        try:
            record = unsealed((home / FACTS).read_bytes())
            files: Mapping[str, Any] = record["files"]
            if any((home / name).stat().st_size != file["bytes"] for name, file in files.items()):
                return None
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return Entry(stage, key, home, record["facts"], files=files)

    def sound(self, entry: Entry) -> bool:
        """Whether every file of it is what was written, by its digest; each entry is read once in a process."""
        if entry.key not in self._sound:
            try:
                same = all(sha256(entry.path / name) == file["sha256"] for name, file in entry.files.items())
            except OSError:
                same = False
            if not same:
                return False
            self._sound.add(entry.key)
        return True

    def condemn(self, entry: Entry) -> None:
        """Let a damaged entry count as missing: the next one to ask for it makes it again. Raises StoreError."""
        try:
            with self.lock(entry.key):
                found = self.look(entry.stage, entry.key)  # someone else may have made it again meanwhile
                if found is not None and not self.sound(found):
                    (entry.path / FACTS).unlink(missing_ok=True)
        except OSError as error:
            raise self.refused(error) from error

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
                made = self._make(stage, key, make, fresh)
        except OSError as error:
            raise self.refused(error) from error
        return Entry(**{**vars(made), "cached": False, "seconds": time.perf_counter() - started})

    def _make(self, stage: str, key: str, make: Callable[[Path], Mapping[str, Any]], fresh: bool) -> Entry:
        self._pin(key)
        home = self.home(stage, key)
        home.parent.mkdir(parents=True, exist_ok=True)
        with self.workspace() as work:
            facts = dict(make(work))
            files = {
                str(path.relative_to(work)): {"bytes": path.stat().st_size, "sha256": sha256(path)}
                for path in sorted(work.rglob("*"))
                if path.is_file() and not path.name.startswith(".nfs")  # deleted while open: gone when it is closed
            }
            (work / FACTS).write_bytes(sealed({"facts": facts, "files": files}))
            found = None if fresh else self.look(stage, key)
            if found is not None:  # made by others who could not lock either, and they may be using it
                return found
            folders.put(work, home, aside_of(work))
        self._sound.add(key)
        return Entry(stage, key, home, facts, files=files)

    def workspace(self) -> Workspace:
        """A folder for work in progress, on the store's disk. Raises OSError where the disk refuses."""
        return Workspace(self.root)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold the lock of that name, across processes; where none can be had, the block runs all the same.

        So it must do no harm when it runs twice at once, but for work that is done twice.
        """
        held = None
        with suppress(OSError):
            self._locks().mkdir(parents=True, exist_ok=True)
            held = locks.lock(self._locks() / f"{name}{MADE}")
        try:
            yield
        finally:
            if held is not None:
                held.release()

    def _locks(self) -> Path:
        return self.root / LOCKS

    def write(self, path: Path, content: bytes) -> None:
        """Write a small file of the store in one step. Raises OSError, and the file is then as it was."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self.workspace() as work:
            (work / "new").write_bytes(content)
            os.replace(work / "new", path)

    def remember(self, kind: str, name: str, data: Mapping[str, Any]) -> None:
        """Write a small named record (not input-addressed), atomically.

        It saves time, and nothing depends on it: where the disk refuses, what there was stays.
        """
        with suppress(OSError):
            self.write(self.root / kind / f"{name}.json", sealed(data))

    def recall(self, kind: str, name: str) -> dict[str, Any] | None:
        """The named record, or None where there is none that is as it was written."""
        path = self.root / kind / f"{name}.json"
        try:
            data = unsealed(path.read_bytes())
        except (OSError, ValueError):
            return None
        with suppress(OSError):
            os.utime(path)
        return data

    def refused(self, error: OSError) -> StoreError:
        """The error for a disk that refuses."""
        if error.errno in locks.FULL:
            fix = "free some space (aot cache gc --max-size 10G), or set XDG_CACHE_HOME to a folder on another disk"
        elif error.errno == errno.EXDEV:
            fix = "let all folders of the store lie on one file system"
        else:
            fix = "set XDG_CACHE_HOME to a folder that can be written"
        return StoreError(
            f"the store cannot be written: {error.strerror or error}",
            where=str(error.filename or self.root),
            fix=f"{fix}; nothing finished was lost",
        )

    def unreadable(self, error: OSError) -> StoreError:
        """The error for a disk that does not give back what it was given."""
        return StoreError(
            f"what was built cannot be read: {error.strerror or error}",
            where=str(error.filename or self.root),
            fix="build again; where that does not help: aot cache verify, and look after the disk",
        )
