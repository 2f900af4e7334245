"""Where a form is written: beside its place first, under a hidden name, and swapped in when it is whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aot import locks
from aot.artifact_write import check_outside, sibling, swap
from aot.errors import UsageError
from aot.store import Store, digest


def check_apart(source: str, places: Iterable[Path]) -> None:
    """Raise UsageError where one of these places lies in another or is it, or lies in what is read, or has that in it.

    The source itself may be one: a tar is read before it is replaced.
    """
    taken = [Path(os.path.realpath(source))]
    for place in places:
        check_outside(place)
        here = Path(os.path.realpath(place))
        for other in taken if here != taken[0] else ():
            if here.is_relative_to(other) or other.is_relative_to(here):
                raise UsageError(
                    "one cannot be written into the other, nor in its place",
                    where=f"{place}, {other}",
                    fix="give another place",
                )
        taken.append(here)


@contextmanager
def replacing(to: Path, kind: str, ours: Callable[[Path], bool], *, overwrite: bool) -> Iterator[Path]:
    """A free hidden name beside `to`; the file or folder that the block makes there takes the place of `to`.

    kind: what is written, as in «an OCI image layout». ours: whether what is there already is of that kind, which alone
    `overwrite` replaces. Raises UsageError where it is not, where something is there and `overwrite` is false, and
    where the disk refuses; `to` is then as it was.
    """
    check_place(to, kind, ours, overwrite=overwrite)
    place = to.absolute()
    try:
        _make_folder(place.parent)
        with Store().lock(f"output-{digest(str(place))}"), sibling(place) as new:
            check_place(to, kind, ours, overwrite=overwrite)  # somebody may have written it while we waited
            try:
                yield new
                if new.is_dir():
                    swap(new, place)
                else:
                    os.replace(new, place)
            finally:
                if new.is_file():
                    new.unlink()
    except OSError as error:
        raise UsageError(
            f"{kind} cannot be written: {error.strerror or error}",
            where=str(to),
            fix="free some space, or give another place" if error.errno in locks.FULL else "give another place",
        ) from error


def check_place(to: Path, kind: str, ours: Callable[[Path], bool], *, overwrite: bool) -> None:
    """Raise UsageError where something is at `to` that must not be replaced; an empty folder may."""
    try:
        if to.is_dir() and Path.cwd().is_relative_to(to.resolve()):
            raise UsageError(
                f"{kind} cannot take the place of the folder that you are in", where=str(to), fix="give another place"
            )
        if not os.path.lexists(to) or (to.is_dir() and not to.is_symlink() and not any(to.iterdir())):
            return
        same = not to.is_symlink() and ours(to)
    except OSError as error:
        raise UsageError(
            f"{kind} cannot be written: {error.strerror or error}", where=str(to), fix="give another place"
        ) from error
    if not same:
        raise UsageError(
            f"will not overwrite what is not {kind}", where=str(to), fix="give another place, or remove it first"
        )
    if not overwrite:
        raise UsageError("there is one already", where=str(to), fix="replace it with --force, or give another place")


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
