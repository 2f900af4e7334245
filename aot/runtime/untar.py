"""Reading a `.tar` that anybody made: plain files below one folder, and nothing else of what a tar can hold."""

from __future__ import annotations

import errno
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from aot.errors import ArtifactError

MEMBERS = 100_000
"""Members that a tar may have. An artifact has a dozen files, and two for each size that was compared."""
_HEADER = 1 << 20
"""Bytes of one read: tarfile reads a header of any length that it claims at once."""
DAMAGED = (tarfile.TarError, EOFError, KeyError, ValueError, OverflowError, RecursionError)
"""Beside its own errors tarfile raises what numbers, names and headers in headers make of its code."""
CLASHES = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)
"""What the names of members cause, not the disk: one is a file and a folder at once, or too long."""
_FIX = "copy it again, or give the folder or the .tar that `aot build` wrote"


@dataclass(frozen=True)
class Member:
    """A file in a tar, open for reading until the next one is asked for. name: relative, without `..`. size: bytes."""

    name: str
    size: int
    file: IO[bytes]


def members(path: Path, shown: str) -> Iterator[Member]:
    """The files of a tar, in its order. Nothing is decompressed, so that what they hold is bounded by its size.

    Raises ArtifactError for what is no tar, and for a member that no artifact has: a link, a device, a file with holes,
    a path that leaves the folder, a name given twice; OSError where the disk refuses.
    """
    seen = set[str]()
    try:
        with path.open("rb") as file, tarfile.open(fileobj=_Bounded(file), mode="r:") as tar:  # type: ignore[call-overload]
            for count, info in enumerate(tar):
                name = _name(info, shown)
                if count >= MEMBERS:
                    raise _refused(f"it has more than {MEMBERS:,} members", shown)
                if info.isdir():
                    continue
                if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.issparse() or info.size < 0:
                    raise _refused("it holds something else than a plain file", f"{shown}/{name}")
                if name in seen:
                    raise _refused("it holds a file twice", f"{shown}/{name}")
                seen.add(name)
                stored = tar.extractfile(info)
                assert stored is not None
                yield Member(name, info.size, stored)
    except DAMAGED as error:
        raise _refused(str(error) or type(error).__name__, shown) from error


def extract(path: Path, folder: Path, shown: str) -> None:
    """Unpack a tar into `folder`, which is empty. Raises what `members` does."""
    for member in members(path, shown):
        place = folder / member.name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("xb") as file:
                shutil.copyfileobj(member.file, file)
                written = file.tell()
        except DAMAGED as error:
            raise _refused(str(error), f"{shown}/{member.name}") from error
        except OSError as error:
            if error.errno not in CLASHES:
                raise
            raise _refused(str(error.strerror), f"{shown}/{member.name}") from error
        if written != member.size:
            raise _refused("it ends in the middle of a file", f"{shown}/{member.name}")


def _name(info: tarfile.TarInfo, shown: str) -> str:
    """The name as a path below the folder: `./` in front, as `tar -C FOLDER .` writes it, is dropped."""
    path = PurePosixPath(info.name)
    if path.is_absolute() or ".." in path.parts or "\\" in info.name or not info.name.isprintable():
        raise _refused(f"it names a path outside of it: {info.name!a}", shown)
    return str(path)


def _refused(why: str, where: str) -> ArtifactError:
    return ArtifactError(f"not a readable tar: {why}", where=where, fix=_FIX)


class _Bounded:
    """A file of which tarfile, as it looks for members, reads a little at a time."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _HEADER:
            raise tarfile.HeaderError(f"a header of {size} bytes")
        return self._file.read(size)
