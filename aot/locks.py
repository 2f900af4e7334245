"""Locks between processes, and the names that living processes work under.

A lock is `flock` on a small file: the kernel lets go of it when its holder ends, however that ends. Only its holder may
remove the file, and whoever gets a lock looks whether the path still leads to the file that it locked.

A claim is a name for work in progress, `NAME`, with the lock of `NAME.lock`, held as long as the work goes on. What is
called `NAME` or `NAME.anything` while nobody holds that lock was left by a process that is gone. Unlike a process
number, this holds across containers and hosts that share a folder, and no number is ever used again.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

NONE_HERE = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL)
"""What `flock` says where the file system has no locks, or the server that keeps them is down."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a disk says that takes no more: full, over the user's quota, over the largest file."""
DAY = 86400.0
"""Where there are no locks, nobody can tell who is at work: seconds after which work in progress counts as left."""
STALE = 5
"""How often an operation is tried again whose file was replaced on its server meanwhile."""


class NoLocksError(OSError):
    """The file system has no locks."""


class Lock:
    """A lock that is held, until `release` or until this process and its forks have ended."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self._handle: int | None = handle

    def release(self, *, remove: bool = False) -> None:
        """Let go of it. remove: of its file too, which nobody needs any more. Nothing happens the second time."""
        if self._handle is None:
            return
        if remove:
            with suppress(OSError):
                self.path.unlink()
        os.close(self._handle)
        self._handle = None


def lock(path: Path, *, shared: bool = False, wait: bool = True) -> Lock | None:
    """Lock the file `path`, which is made where it is missing; None where others hold it and `wait` is False.

    shared: beside others that share it. Raises NoLocksError where the file system has no locks, and OSError where the
    file can be neither made nor opened.
    """
    import fcntl

    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    stale = 0
    while True:
        handle = _opened(path, shared)
        try:
            fcntl.flock(handle, how)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(path)):
                    kept, handle = Lock(path, handle), -1
                    return kept
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in NONE_HERE:
                raise NoLocksError(error.errno, error.strerror, str(path)) from error
            stale += 1
            if error.errno != errno.ESTALE or stale > STALE:  # removed on its server between opening and locking
                raise
        finally:
            if handle >= 0:
                os.close(handle)


def _opened(path: Path, shared: bool) -> int:
    """NFS gives an exclusive lock only on what is open for writing; a shared one is for those who may not write."""
    if shared:
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


class Claim:
    """A name that nobody else works under. path: the name; nothing of that name exists yet.

    Raises OSError where nothing can be written in the folder.
    """

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self.path = folder / f"{prefix}{secrets.token_hex(8)}"
        mark = _mark(self.path)
        try:
            held = lock(mark)
            assert held is not None
            self._lock: Lock | None = held
        except NoLocksError:
            self._lock = None  # the file that was made is as old as the work

    def release(self) -> None:
        """Give the name up; what was made under it is removed, or renamed, before."""
        if self._lock is not None:
            self._lock.release(remove=True)
        else:
            _mark(self.path).unlink(missing_ok=True)


def abandoned(folder: Path, names: set[str]) -> Iterator[Path]:
    """Those of the names that no living process claims. Each is locked while the caller clears up after it.

    Raises OSError where a lock can be neither made nor opened.
    """
    now = None
    for name in sorted(names):
        held = None
        try:
            held = lock(_mark(folder / name), wait=False)
            if held is None:
                continue
        except NoLocksError:
            now = clock(folder) if now is None else now
            if abs(now - _newest(folder, name)) < DAY:
                continue
        except OSError as error:
            if error.errno not in FULL:
                raise  # there is no room for a lock file that was missing: so nobody holds it
        try:
            yield folder / name
        finally:
            if held is not None:
                held.release(remove=True)


def _mark(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _newest(folder: Path, name: str) -> float:
    """When any of what has that name was last changed (seconds since 1970); never where it is gone."""
    times = [0.0]
    for path in (folder / name, *(p for p in folder.iterdir() if p.name.startswith(f"{name}."))):
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)


def clock(folder: Path) -> float:
    """The time by the clock that dates the files in `folder` (seconds since 1970): a server's may differ from ours."""
    probe = folder / f"{secrets.token_hex(8)}.clock"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        with suppress(OSError):
            probe.unlink()
