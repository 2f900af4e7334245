"""Writing what a command makes beside its answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aot.errors import UsageError


@contextmanager
def writing(what: str, where: str, fix: str) -> Iterator[None]:
    """Raises UsageError, `what` cannot be written, for an error of the file system."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{what} cannot be written: {error.strerror or error}", where=where, fix=fix) from error
