"""What lies in an artifact of any form: every file, read once, with its size and digest, and what is wrong with it."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from aot.artifact import FilePart, Manifest, prepared_of, read_manifest
from aot.artifact_write import CHUNK
from aot.errors import ArtifactError, UsageError
from aot.packing import layout
from aot.packing.tar import SIGNATURE
from aot.runtime import untar
from aot.runtime.files import COPY, GIVE, MANIFEST, MOST
from aot.runtime.untar import Member

Form = Literal["folder", "tar", "layout"]
LARGEST = {MANIFEST: MOST, SIGNATURE: 1 << 12}
"""In bytes: these two are held in memory."""


@dataclass(frozen=True)
class Problem:
    """Something that an artifact is not as it has to be."""

    what: str
    where: str


@dataclass(frozen=True)
class Contents:
    """files: size in bytes and SHA-256 of every file. manifest, signature: the bytes of these two, None for none."""

    files: dict[str, FilePart]
    manifest: bytes | None
    signature: bytes | None


def form_of(name: str) -> Form:
    """The form of an artifact, by what lies there. Raises UsageError for a path that is missing or cannot be read."""
    path = Path(name)
    try:
        if path.is_dir():
            return "layout" if (path / layout.LAYOUT).exists() or (path / layout.INDEX).exists() else "folder"
        if path.is_file():
            return "tar"
    except OSError as error:
        raise UsageError(f"the artifact cannot be read: {error.strerror}", where=name, fix=GIVE) from error
    raise UsageError(f"no such artifact: {name}", fix="give an artifact folder, a .tar or an OCI image layout")


def read(name: str, into: Path | None = None) -> Contents:
    """Read all of an artifact. into: a folder where its files are written too.

    Whether they are what the manifest lists, `problems` says. Raises ArtifactError for what cannot be an artifact, and
    UsageError for what cannot be read; OSError where `into` cannot be written.
    """
    members = {"folder": _in_folder, "tar": untar.members, "layout": layout.members}[form_of(name)]
    files, kept = dict[str, FilePart](), dict[str, bytes]()
    try:
        for member in _readable(members(Path(name), name), name):
            files[member.name], held = _read(member, into, f"{name}/{member.name}")
            if member.name in LARGEST:
                kept[member.name] = held
    except untar.DAMAGED as error:
        raise ArtifactError(f"not a readable tar: {error}", where=name, fix=COPY) from error
    except OSError as error:  # of what is written
        if error.errno not in untar.CLASHES:
            raise
        raise ArtifactError(f"its files cannot be told apart: {error.strerror}", where=name, fix=COPY) from error
    return Contents(files, kept.get(MANIFEST), kept.get(SIGNATURE))


def _readable(members: Iterator[Member], shown: str) -> Iterator[Member]:
    """The same members. Raises UsageError where the disk does not give them."""
    try:
        yield from members
    except OSError as error:
        raise _unreadable(error, shown) from error


def _unreadable(error: OSError, shown: str) -> UsageError:
    return UsageError(f"it cannot be read: {error.strerror or error}", where=shown, fix=COPY)


def _read(member: Member, into: Path | None, shown: str) -> tuple[FilePart, bytes]:
    """Read a file, and write it below `into`; its bytes where they are held in memory, else none."""
    largest = LARGEST.get(member.name)
    if largest is not None and member.size > largest:
        raise ArtifactError(f"a file has {member.size} bytes, which none of this name has", where=shown, fix=COPY)
    total, size, held = hashlib.sha256(), 0, []
    if into is not None:
        (into / member.name).parent.mkdir(parents=True, exist_ok=True)
    with nullcontext() if into is None else (into / member.name).open("xb") as copy:
        while chunk := _chunk(member, shown):
            total.update(chunk)
            size += len(chunk)
            if copy is not None:
                copy.write(chunk)
            if largest is not None:
                held.append(chunk)
    if size != member.size:
        raise ArtifactError(f"a file has {size} bytes instead of {member.size}", where=shown, fix=COPY)
    return FilePart(bytes=size, sha256=total.hexdigest()), b"".join(held)


def _chunk(member: Member, shown: str) -> bytes:
    try:
        return member.file.read(CHUNK)
    except OSError as error:
        raise _unreadable(error, shown) from error


def _in_folder(folder: Path, shown: str) -> Iterator[Member]:
    """The files of an artifact folder. Raises ArtifactError for a link out of it, a device and the like."""

    def refuse(error: OSError) -> None:
        raise error

    if not (folder / MANIFEST).exists():  # else all of a home folder might be read first
        raise ArtifactError("not an artifact: it has no manifest.json", where=shown, fix=GIVE)
    root = os.path.realpath(folder)
    for above, folders, files in os.walk(folder, onerror=refuse):
        folders.sort()
        linked = [name for name in folders if Path(above, name).is_symlink()]
        for path in (Path(above, name) for name in sorted([*files, *linked])):
            name = path.relative_to(folder).as_posix()
            where = f"{shown}/{printable(name)}"
            if not Path(os.path.realpath(path)).is_relative_to(root):
                raise ArtifactError("a file of the artifact is a link that leaves it", where=where, fix=COPY)
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                raise ArtifactError("not a plain file, nor a link to one", where=where, fix=COPY)
            with path.open("rb") as file:
                yield Member(name, found.st_size, file)


def manifest_of(contents: Contents, shown: str) -> Manifest:
    """The manifest, with all that `aot` reads in it checked. Raises ArtifactError."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        if contents.manifest is not None:
            (folder / MANIFEST).write_bytes(contents.manifest)
        manifest = read_manifest(folder, shown=shown)
        prepared_of(folder, manifest, shown=shown)
    return manifest


def problems(contents: Contents, manifest: Manifest, shown: str) -> list[Problem]:
    """Every file that is missing, was changed, or is not in the manifest."""
    found = []
    for name, expected in sorted(manifest.files.items()):
        seen = contents.files.get(name)
        if seen is None:
            what = "a file of the artifact is missing"
        elif seen.bytes != expected.bytes:
            what = f"a file of the artifact has {seen.bytes} bytes instead of {expected.bytes}"
        elif seen.sha256 != expected.sha256:
            what = "a file of the artifact is damaged: its SHA-256 differs"
        else:
            continue
        found.append(Problem(what, f"{shown}/{name}"))
    unknown = contents.files.keys() - manifest.files.keys() - LARGEST.keys()
    return found + [Problem("the manifest does not list this file", f"{shown}/{printable(n)}") for n in sorted(unknown)]


def printable(name: str) -> str:
    """The name of a file as it may be shown: without what moves a terminal's cursor, and all of it text."""
    return name if name.isprintable() else ascii(name)
