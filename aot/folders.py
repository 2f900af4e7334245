"""Moving finished folders into place in one step."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # <fcntl.h>, <linux/fs.h>
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
"""What a rename onto a folder that holds something, or onto a link to one, says."""
_ONE_BY_ONE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""What `renameat2` says where the file system cannot exchange two names: NFS, some FUSE."""
_TRIES = 5


def put(new: Path, place: Path, aside: Path) -> None:
    """Move the folder `new` to `place`; what lay there is then at `aside`, a free name, for the caller to remove.

    There is no instant at which `place` is missing, where the file system can exchange two names; elsewhere it is
    missing between two renames. Raises OSError; what lay at `place` is then still there.
    """
    for tried in range(_TRIES):
        try:
            os.rename(new, place)
            return
        except OSError as error:
            if error.errno not in _TAKEN or tried == _TRIES - 1:
                raise
        if _exchanged(new, place):
            os.rename(new, aside)
            return
        with suppress(FileNotFoundError):  # gone meanwhile: all the better
            os.rename(place, aside)
            try:
                os.rename(new, place)
                return
            except OSError as error:
                if error.errno not in _TAKEN:
                    os.rename(aside, place)
                    raise
                remove(aside)  # someone else was faster


def remove(path: Path) -> None:
    """Delete a folder, or a link or file in its place, as far as that goes: on NFS, what is open stays until closed."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False where that cannot be. Raises OSError."""
    function = _renameat2()
    if function is None:
        return False
    import ctypes

    if function(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _ONE_BY_ONE or number == errno.ENOENT:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


@cache
def _renameat2() -> Any:
    """`renameat2` of the C library, None where it has none."""
    if sys.platform != "linux":
        return None
    import ctypes

    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
