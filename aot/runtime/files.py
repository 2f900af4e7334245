"""The files of an artifact: where they lie, and whether they are what the manifest says."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aot.errors import ArtifactError, UsageError
from aot.runtime import untar
from aot.store import Store, sha256

MANIFEST = "manifest.json"
GIVE = "give the folder or the .tar that `aot build` wrote"
COPY = "copy the artifact again, or build it again"
REBUILD = "build it again: aot build MODEL"
MODELS = (".py", ".pt2", ".onnx")
"""How the files of models end, which are not artifacts."""
SCHEMA = 2
"""2: the manifest has a digest of its own; without one, a changed number in it would go unseen."""
DEEPEST = 64
"""Lists and objects in each other that JSON of an artifact may have."""
MOST = 64 << 20
"""Bytes that a manifest may have. A graph of 100,000 nodes has 30 MB, for each has a line that says why it is as it
is."""


def manifest_data(folder: Path, shown: str) -> dict[str, Any]:
    """`manifest.json` of an artifact folder as plain data, of a schema that this aot reads; its fields are not checked.

    Raises ArtifactError for a file that is missing, too large or not JSON, for a newer schema, and where the content is
    not what its digest says.
    """
    where = f"{shown}/{MANIFEST}"
    data = _parsed(folder / MANIFEST, shown)
    version = data.get("schema_version") if isinstance(data, dict) else None
    if type(version) is not int:
        raise ArtifactError("the manifest is not one of aot's: it has no schema_version", where=where, fix=REBUILD)
    if version > SCHEMA:
        raise ArtifactError(
            f"the artifact has schema version {version}, and this aot reads up to {SCHEMA}",
            where=where,
            fix="upgrade aot, or build the artifact again with this version",
        )
    # Those of before had none; one that has is held to it whatever version it says it is.
    if (version >= 2 or "digest" in data) and data.get("digest") != manifest_digest(data):
        raise ArtifactError("the manifest was changed: its digest differs", where=where, fix=COPY)
    return dict(data)


def _parsed(path: Path, shown: str) -> Any:
    where = f"{shown}/{MANIFEST}"
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ArtifactError("the manifest is not a regular file", where=where, fix=GIVE)
        if found.st_size > MOST:
            raise ArtifactError(f"the manifest has {found.st_size} bytes, and at most {MOST} are read", where=where,
                                fix=GIVE)  # fmt: skip
        return _plain(json.loads(path.read_bytes()))
    except FileNotFoundError:
        layout = path.with_name("oci-layout").exists()
        fix = f"an OCI image layout is unpacked first: aot unpack {shown} NAME.aot" if layout else GIVE
        raise ArtifactError("not an artifact: it has no manifest.json", where=shown, fix=fix) from None
    except OSError as error:
        raise ArtifactError(f"the manifest cannot be read: {error.strerror}", where=where, fix=COPY) from error
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"the manifest is not JSON: {error}", where=where, fix=REBUILD) from error


def manifest_digest(data: Mapping[str, Any]) -> str:
    """The SHA-256 (hex) of a manifest's content without its `digest`: what a signature of it signs, and a changed
    number cannot pass."""
    content = {name: value for name, value in data.items() if name != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def json_of(path: Path) -> Any:
    """What a JSON file holds that is a part of an artifact or of a store's entry.

    Raises ArtifactError for one that is missing, larger than `MOST`, or not JSON.
    """
    try:
        if path.stat().st_size > MOST:
            raise ArtifactError(f"a part has more than {MOST:,} bytes", where=str(path), fix=COPY)
        return _plain(json.loads(path.read_bytes()))
    except OSError as error:
        raise ArtifactError(f"a part cannot be read: {error.strerror}", where=str(path), fix=COPY) from error
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"a part is not JSON: {error}", where=str(path), fix=REBUILD) from error


def _plain(data: Any, depth: int = 0) -> Any:
    """The same data. Raises ValueError where it is nested deeper than `DEEPEST`, or text in it is no Unicode."""
    if isinstance(data, str):
        data.encode()  # half a surrogate pair, which JSON can write and nothing can print
    elif isinstance(data, dict | list):
        if depth == DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} deep")
        for value in data:
            _plain(value, depth + 1)
        if isinstance(data, dict):
            for value in data.values():
                _plain(value, depth + 1)
    return data


def damaged(path: Path, why: object) -> ArtifactError:
    """The error for a part whose content is not what its name says."""
    return ArtifactError(f"a part is damaged: {' '.join(str(why).split())}", where=str(path), fix=REBUILD)


def check(folder: Path, name: str, size: int, digest: str, shown: str) -> None:
    """Raise ArtifactError, naming the file, where it is missing, is a link out of the artifact, or changed.

    size: in bytes. digest: its SHA-256 (hex), which takes a second for every one to two gigabytes.
    """
    path, where = folder / name, f"{shown}/{name}"
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise ArtifactError("a file of the artifact is a link that leaves it", where=where, fix=COPY)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ArtifactError("a file of the artifact is not a regular file", where=where, fix=COPY)
        found = status.st_size
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

    There it stays as long as this process lives; a copy that is damaged is made again.

    Raises UsageError for a path that is not there, ArtifactError for a tar that `untar` does not take.
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
    if path.suffix in MODELS:
        raise UsageError("this is a model, and no artifact", where=name, fix=f"build it first: aot build {name}")

    def extract(folder: Path) -> Mapping[str, Any]:
        untar.extract(path, folder, name)
        if not (folder / MANIFEST).is_file():
            raise ArtifactError("not an artifact: it has no manifest.json", where=name, fix=GIVE)
        return {"from": path.name}

    try:
        key = sha256(path)
    except OSError as error:
        raise ArtifactError(f"the artifact cannot be read: {error.strerror}", where=name, fix=COPY) from error
    store = Store()
    store.hold(key)
    entry = store.fetch("unpacked", key, extract)
    if not store.sound(entry):
        store.condemn(entry)
        entry = store.fetch("unpacked", key, extract)
    return entry.path
