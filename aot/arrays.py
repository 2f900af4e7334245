"""Named arrays on disk: `.npz` files that keep the dtypes numpy lacks (bfloat16)."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Arrays = dict[str, np.ndarray[Any, Any]]

MARK = ":"
_NOT_NUMPYS = ("bfloat16", "float8")


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
    """Read what `save` (or `numpy.savez`) wrote. Raises OSError or ValueError for a file that is neither."""
    import numpy as np

    found: Arrays = {}
    with np.load(path, allow_pickle=False) as archive:
        for member in archive.files:
            array = archive[member]
            name, mark, dtype = member.rpartition(MARK)
            if mark and dtype.startswith(_NOT_NUMPYS):  # other names may hold the mark: "input:0"
                found[name] = array.view(dtype_named(dtype))
            else:
                found[member] = array
    return found


def dtype_named(name: str) -> np.dtype[Any]:
    """The numpy dtype of an aot dtype name; `bfloat16` and the FP8 types come from `ml_dtypes`."""
    import numpy as np

    if name.startswith(_NOT_NUMPYS):
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
    return np.dtype(name)
