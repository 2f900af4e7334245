"""One `.tar`: the form that `aot build -o NAME.tar` writes too."""

from __future__ import annotations

import tarfile
from pathlib import Path

from aot.artifact import read_manifest
from aot.artifact_write import add, in_order
from aot.packing.output import check_place, replacing
from aot.runtime.files import MANIFEST
from aot.store import sha256

KIND = "a tar"
SIGNATURE = "manifest.sig"
"""See signature.py. The manifest does not list it, since it is made from the manifest."""


def check(artifact: Path, to: Path, *, overwrite: bool = False) -> Path:
    """What `write` would put there. Raises UsageError where it is there already and must not be replaced."""
    check_place(to, KIND, _is_tar, overwrite=overwrite)
    return to


def write(artifact: Path, to: Path, *, overwrite: bool = False) -> list[Path]:
    """Write the artifact as one tar: the manifest first, the rest by name, without owners and times.

    Raises UsageError where `to` cannot be written, or is there already and must not be replaced.
    """
    with (
        replacing(to, KIND, _is_tar, overwrite=overwrite) as new,
        tarfile.open(new, "w", format=tarfile.PAX_FORMAT) as tar,
    ):
        add(tar, artifact, in_order(names(artifact)))
    return [to]


def digest(to: Path) -> str:
    """Of the whole file."""
    return f"sha256:{sha256(to)}"


def names(artifact: Path) -> list[str]:
    """The files that make up an artifact folder: the manifest, its signature where there is one, what it lists."""
    signature = {SIGNATURE} if (artifact / SIGNATURE).is_file() else set[str]()
    return sorted({MANIFEST, *signature, *read_manifest(artifact).files})


def _is_tar(path: Path) -> bool:
    return path.is_file() and tarfile.is_tarfile(path)
