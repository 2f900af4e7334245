"""The files of an artifact: where they lie, and whether they are what the manifest says."""

from __future__ import annotations

import errno
import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aot.errors import ArtifactError, UsageError
from aot.store import Store, sha256

MANIFEST = "manifest.json"
GIVE = "give the folder or the .tar that `aot build` wrote"
COPY = "copy the artifact again, or build it again"
REBUILD = "build it again: aot build MODEL"
SCHEMA = 1
CLASHES = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG)
"""What the names of a tar's members cause, not the disk: one is a file and a folder at once, or too long."""


def manifest_data(folder: Path, shown: str) -> dict[str, Any]:
    """`manifest.json` of an artifact folder as plain data, of a schema that this aot reads; its fields are not checked.

    Raises ArtifactError for a file that is missing or is not JSON, and for a newer schema.
    """
    where = f"{shown}/{MANIFEST}"
    try:
        data = json.loads((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise ArtifactError("not an artifact: it has no manifest.json", where=shown, fix=GIVE) from None
    except OSError as error:
        raise ArtifactError(f"the manifest cannot be read: {error.strerror}", where=where, fix=COPY) from error
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"the manifest is not JSON: {error}", where=where, fix=REBUILD) from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if not isinstance(version, int):
        raise ArtifactError("the manifest is not one of aot's: it has no schema_version", where=where, fix=REBUILD)
    if version > SCHEMA:
        raise ArtifactError(
            f"the artifact has schema version {version}, and this aot reads up to {SCHEMA}",
            where=where,
            fix="upgrade aot, or build the artifact again with this version",
        )
    return dict(data)


def check(folder: Path, name: str, size: int, digest: str, shown: str) -> None:
    """Raise ArtifactError, naming the file, where it is missing, is a link out of the artifact, or changed.

    size: in bytes. digest: its SHA-256 (hex), which takes a second for every one to two gigabytes.
    """
    path, where = folder / name, f"{shown}/{name}"
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise ArtifactError("a file of the artifact is a link that leaves it", where=where, fix=COPY)
    try:
        found = path.stat().st_size
        seen = sha256(path) if found == size else None
    except OSError as error:
        raise ArtifactError(
            f"a file of the artifact cannot be read: {error.strerror}", where=where, fix=COPY
        ) from error
    if found != size:
        raise ArtifactError(f"a file of the artifact has {found} bytes instead of {size}", where=where, fix=COPY)
    if seen != digest:
        raise ArtifactError("a file of the artifact is damaged: its SHA-256 differs", where=where, fix=COPY)


def unpacked(name: str) -> Path:
    """The folder of an artifact: the path itself, or where its `.tar` is unpacked, once, in the store.

    Raises UsageError for a path that is not there, ArtifactError for a tar that is damaged or would write
    outside its folder.
    """
    path = Path(name)
    try:
        if path.is_dir():
            return path
        there = path.is_file()
    except OSError as error:  # a folder above that may not be searched, a name that is too long
        raise UsageError(f"the artifact cannot be read: {error.strerror}", where=name, fix=GIVE) from error
    if not there:
        raise UsageError(f"no such artifact: {name}", fix=GIVE)

    def extract(folder: Path) -> Mapping[str, Any]:
        try:
            with tarfile.open(path, "r:") as tar:
                tar.extractall(folder, filter="data")
        except (tarfile.TarError, KeyError) as error:  # KeyError: a link to a member that it lacks
            raise ArtifactError(f"not a readable tar: {error}", where=name, fix=f"copy it again, or {GIVE}") from error
        except OSError as error:
            if error.errno not in CLASHES:
                raise
            raise ArtifactError(f"not a readable tar: {error.strerror}", where=name, fix=GIVE) from error
        if not (folder / MANIFEST).is_file():
            raise ArtifactError("not an artifact: it has no manifest.json", where=name, fix=GIVE)
        return {"from": path.name}

    try:
        key = sha256(path)
    except OSError as error:
        raise ArtifactError(f"the artifact cannot be read: {error.strerror}", where=name, fix=COPY) from error
    return Store().fetch("unpacked", key, extract).path
