"""Writing what a command makes beside its answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from aot.errors import UsageError

PAGE, ARRAYS = b"<!doctype html", b"PK"
"""How a page and an `.npz` begin."""


@contextmanager
def writing(what: str, where: str, fix: str) -> Iterator[None]:
    """Raises UsageError, `what` cannot be written, for an error of the file system."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{what} cannot be written: {error.strerror or error}", where=where, fix=fix) from error


def check_kind(path: str, begins: bytes, where: str) -> None:
    """Raise UsageError where a file of another kind would be lost: neither empty nor beginning with `begins`."""
    found = b""
    if os.path.isfile(path):
        with suppress(OSError), open(path, "rb") as file:
            found = file.read(len(begins))
    if found not in (b"", begins):
        kind = "a page" if begins == PAGE else "an .npz file"
        raise UsageError(
            f"will not overwrite what is not {kind}", where=where, fix="give another place, or remove it first"
        )


@contextmanager
def replacing(path: str, begins: bytes, what: str, where: str, fix: str) -> Iterator[Path]:
    """A free name; the file that the block makes there takes the place of `path`, whole or not at all.

    Raises UsageError as `check_kind` and `writing` do.
    """
    check_kind(path, begins, where)
    target = Path(os.path.realpath(path))
    with writing(what, where, fix):
        if target.exists() and not target.is_file():
            yield target  # a device or a pipe; a folder, which the block cannot open
            return
        with TemporaryDirectory(dir=target.parent, prefix=".aot-") as folder:
            new = Path(folder, target.name)
            yield new
            os.replace(new, target)
