"""Writing an artifact so that no half-made one can ever be taken for whole.

Everything is written to a hidden sibling, `.NAME.aot.CLAIM.new`, and changes places with what is there in one step.
What a killed run leaves behind is swept by the next one (see `aot/locks.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot import folders, locks
from aot.artifact import FilePart, Manifest
from aot.errors import ArtifactError, UsageError
from aot.runtime.files import MANIFEST, manifest_digest
from aot.store import Store, digest

CHUNK = 1 << 20


@dataclass(frozen=True)
class Contents:
    """What goes into an artifact: its manifest (files still empty), files to copy and texts to write, by name."""

    manifest: Manifest
    copies: Mapping[str, Path]
    texts: Mapping[str, str]


def check_name(output: Path) -> None:
    """Raise UsageError for a name with -o that is neither of the two forms of an artifact."""
    if output.suffix not in (".aot", ".tar") or not output.stem:
        base = output.with_suffix("") if output.name else output / "model"
        raise UsageError(
            "an artifact is a folder NAME.aot or one file NAME.tar",
            where=f"-o {output}",
            fix=f"-o {base}.aot, or -o {base}.tar",
        )


def check_place(output: Path) -> None:
    """Raise ArtifactError where nothing can be written beside `output`.

    Folders above it that are missing are made by `write`, and are not made here.
    """
    folder = output.absolute().parent
    try:
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise unwritable(output, error) from error


def check_outside(output: Path) -> None:
    """Raise UsageError where `output` lies in an artifact's folder: it would be a file that the manifest does not list,
    and gone with the next build."""
    for above in Path(os.path.realpath(output)).parents:
        if above.suffix == ".aot" and os.path.isfile(above / MANIFEST):
            raise UsageError(
                "nothing is written into an artifact", where=str(output), fix=f"give a place outside of {above.name}"
            )


def check_output(output: Path) -> None:
    """Raise ArtifactError where `output` cannot be written, or is something else than an artifact; UsageError
    where it lies in one."""
    check_outside(output)
    check_place(output)
    if output.suffix == ".tar":
        if output.is_dir():
            raise ArtifactError(
                "the output is a folder, and its name says .tar", where=str(output), fix="give another name with -o"
            )
        return
    if output.is_dir():
        try:
            foreign = any(output.iterdir()) and not (output / MANIFEST).is_file()
        except OSError as error:
            raise unwritable(output, error) from error
        if foreign:
            raise ArtifactError(
                "will not overwrite a folder that is not an artifact",
                where=str(output),
                fix="give another name with -o, or remove the folder first",
            )
    elif output.exists():
        raise ArtifactError(
            "will not overwrite a file with an artifact folder",
            where=str(output),
            fix="give another name with -o, e.g. -o model.aot",
        )


def is_current(output: Path, identity: str) -> bool:
    """Whether `output` already holds exactly that artifact: same identity, every file there with its size."""
    data, sizes = _stored(output)
    try:
        whole = data["digest"] == manifest_digest(data) and data["identity"] == identity
        return whole and all(sizes.get(name) == file["bytes"] for name, file in data["files"].items())
    except (KeyError, TypeError, AttributeError):
        return False


def is_accepted(output: Path) -> bool:
    """Whether `output` holds an artifact that kept its accuracy budget."""
    data, _ = _stored(output)
    return isinstance(data, dict) and data.get("accepted") is True


def _stored(output: Path) -> tuple[Any, Mapping[str, int]]:
    """The manifest that lies in `output` and the size of every file; (None, {}) where that cannot be read."""
    try:
        if output.suffix == ".tar":
            with tarfile.open(output, "r:") as tar:
                first = tar.next()
                stored = tar.extractfile(first) if first is not None and first.name == MANIFEST else None
                if stored is None:
                    return None, {}
                return json.load(stored), {member.name: member.size for member in tar}
        found = (path for path in output.rglob("*") if path.is_file())
        sizes = {path.relative_to(output).as_posix(): path.stat().st_size for path in found}
        return json.loads((output / MANIFEST).read_bytes()), sizes
    except (OSError, ValueError, RecursionError, tarfile.TarError):
        return None, {}


def write(output: Path, contents: Contents, store: Store) -> bool:
    """Write the artifact, replacing the one that is there; False where another build has written it meanwhile.

    Raises ArtifactError when the disk refuses; the previous artifact is then still in place.
    """
    check_output(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with store.lock(f"output-{digest(str(output.absolute()))}"), sibling(output) as new:
            if is_current(output, contents.manifest.identity):
                return False
            new.mkdir()
            _fill(new, contents)
            if output.suffix == ".tar":
                packed = new.with_suffix(".tarnew")
                names = (path.relative_to(new).as_posix() for path in new.rglob("*") if path.is_file())
                with tarfile.open(packed, "w", format=tarfile.PAX_FORMAT) as tar:
                    add(tar, new, in_order(names))
                os.replace(packed, output)
            else:
                swap(new, output)
    except OSError as error:
        raise unwritable(output, error) from error
    return True


def unwritable(output: Path, error: OSError) -> ArtifactError:
    """The error for an output that the disk refuses; space is spoken of only where space is what lacks."""
    full = error.errno in locks.FULL
    place = f"give another place with -o, in a folder where you may write{'' if full else ', e.g. -o ' + output.name}"
    return ArtifactError(
        f"the artifact cannot be written: {error.strerror or error}",
        where=str(output),
        fix=f"free some space or {place}; finished stages are kept in the store" if full else place,
    )


def _fill(folder: Path, contents: Contents) -> None:
    files: dict[str, FilePart] = {}
    for name, text in contents.texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = text.encode()
        path.write_bytes(data)
        files[name] = FilePart(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    for name, source in contents.copies.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        files[name] = _copy(source, path)
    manifest = contents.manifest.model_copy(update={"files": dict(sorted(files.items()))})
    described = manifest.model_dump(mode="json")
    (folder / MANIFEST).write_text(json.dumps({**described, "digest": manifest_digest(described)}, indent=1))


def _copy(source: Path, target: Path) -> FilePart:
    total, size = hashlib.sha256(), 0
    with source.open("rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(CHUNK):
            total.update(chunk)
            writer.write(chunk)
            size += len(chunk)
    return FilePart(bytes=size, sha256=total.hexdigest())


def in_order(names: Iterable[str]) -> list[str]:
    """The manifest first, then the rest by name."""
    return sorted(names, key=lambda name: (name != MANIFEST, name))


def add(tar: tarfile.TarFile, folder: Path, names: Iterable[str]) -> None:
    """Put these files of the folder into a tar, without owner and time, so that equal content is equal bytes."""
    for name in names:
        info = tarfile.TarInfo(name)
        info.size = (folder / name).stat().st_size
        info.mode = 0o644
        with (folder / name).open("rb") as file:
            tar.addfile(info, file)


def swap(new: Path, output: Path) -> None:
    """Put the folder `new` in the place of `output`; where the disk refuses, `output` is as it was."""
    old = new.with_suffix(".old")
    folders.put(new, output, old)
    folders.remove(old)


@contextmanager
def sibling(output: Path) -> Iterator[Path]:
    """A free hidden name beside the output, and nothing of it left at the end."""
    sweep(output)
    claim = locks.Claim(output.parent, f".{output.name}.")
    new = claim.path.with_name(f"{claim.path.name}.new")
    try:
        yield new
    finally:
        folders.remove(new)
        new.with_suffix(".tarnew").unlink(missing_ok=True)
        claim.release()


def sweep(output: Path) -> None:
    """Remove what killed runs left beside `output`, as far as the disk lets; an old artifact whose replacement never
    arrived goes back."""
    pattern = re.compile(rf"(\.{re.escape(output.name)}\.[0-9a-f-]+)\.(new|old|tarnew|lock)")
    found: dict[str, list[Path]] = {}
    with suppress(OSError):
        for path in sorted(output.parent.iterdir()):
            if match := pattern.fullmatch(path.name):
                found.setdefault(match[1], []).append(path)
        for claimed in locks.abandoned(output.parent, set(found)):
            for path in found[claimed.name]:
                if path.suffix == ".old" and not output.exists():
                    os.rename(path, output)
                else:
                    folders.remove(path)
