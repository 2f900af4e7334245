"""Named arrays on disk: `.npz` files that keep the dtypes numpy lacks (bfloat16)."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Arrays = dict[str, np.ndarray[Any, Any]]

MARK = ":"
INFLATED = 4 << 30
"""Bytes that compressed members may take; stored ones are as large as the file."""
_NOT_NUMPYS = ("bfloat16", "float8")
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, EOFError, ValueError, TypeError, AttributeError, KeyError, MemoryError,
    OverflowError, RecursionError, RuntimeError, NotImplementedError, SyntaxError,
)  # fmt: skip
"""What zipfile and numpy raise for damaged, encrypted or unknown members, names and headers."""


def save(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write an uncompressed `.npz`. A dtype that is not numpy's own is kept as its bits, its name in the member's."""
    import numpy as np

    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            stored = np.asarray(array)
            if stored.dtype.isbuiltin != 1:
                name = f"{name}{MARK}{stored.dtype.name}"
                stored = stored.view(f"u{stored.dtype.itemsize}")
            # Sizes are unknown when a member is opened for writing, hence the forced 64-bit header.
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, stored, allow_pickle=False)


def load(path: Path) -> Arrays:
    """Read what `save` (or `numpy.savez`) wrote; nothing in it is unpickled.

    Raises ValueError for a file that is neither, whose arrays are not as large as they say, or that grows beyond
    `INFLATED` bytes where it is compressed; OSError where it cannot be read.
    """
    found: Arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            grown = sum(one.file_size for one in archive.infolist() if one.compress_type != zipfile.ZIP_STORED)
            if grown > INFLATED:
                raise ValueError(f"compressed, it would grow to {grown:,} bytes: more than {INFLATED:,}")
            for info in archive.infolist():
                member = info.filename.removesuffix(".npy")
                array = _read(archive, info)
                name, mark, dtype = member.rpartition(MARK)
                narrow = mark and dtype.startswith(_NOT_NUMPYS)  # other names may hold the mark: "input:0"
                found[name if narrow else member] = array.view(dtype_named(dtype)) if narrow else array
    except OSError:
        raise
    except _DAMAGED as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error
    return found


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray[Any, Any]:
    """One array, for which memory is taken only once the file is known to hold as much."""
    from numpy.lib import format

    readers = {(1, 0): format.read_array_header_1_0, (2, 0): format.read_array_header_2_0}
    with archive.open(info) as member:
        version = format.read_magic(member)
        if version not in readers:
            raise ValueError(f"'{info.filename}' is of the .npy format {version}, which plain arrays are not")
        shape, _, dtype = readers[version](member)
        needed, held = math.prod(shape) * dtype.itemsize, info.file_size - member.tell()
        if dtype.hasobject or needed != held:
            raise ValueError(f"'{info.filename}' says {list(shape)} of {dtype}, {needed:,} bytes, and holds {held:,}")
    with archive.open(info) as member:
        found: np.ndarray[Any, Any] = format.read_array(member, allow_pickle=False)
        return found


def dtype_named(name: str) -> np.dtype[Any]:
    """The numpy dtype of an aot dtype name; `bfloat16` and the FP8 types come from `ml_dtypes`."""
    import numpy as np

    if name.startswith(_NOT_NUMPYS):
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
    return np.dtype(name)
