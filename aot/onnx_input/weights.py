"""Whether a weight holds what it says of itself, told without reading it."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from aot.errors import GraphError

if TYPE_CHECKING:
    import onnx

LARGEST_SPARSE = 1 << 28
"""Elements of a sparse tensor, which is read as a dense one: 1 GiB in FP32."""
_BITS = {"FLOAT": 32, "DOUBLE": 64, "BOOL": 8, "STRING": 0}
"""Of dtypes whose names do not say it."""
_FIELDS = {
    "FLOAT": "float_data", "COMPLEX64": "float_data", "STRING": "string_data", "INT64": "int64_data",
    "DOUBLE": "double_data", "COMPLEX128": "double_data", "UINT32": "uint64_data", "UINT64": "uint64_data",
}  # fmt: skip
"""Where elements stand one by one, by dtype; of all others it is int32_data. https://onnx.ai/onnx/api/classes.html"""
_TYPED = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")


def check(tensor: onnx.TensorProto, folder: Path, where: str) -> None:
    """Raise GraphError for an unknown dtype, sizes that no tensor has, or fewer bytes than dtype and sizes ask for.

    External data are looked for beside the file, in `folder`; a path that leads out of it is refused.
    """
    import onnx

    if tensor.data_type not in set(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}:
        raise _wrong(tensor, f"is of dtype {tensor.data_type}, which ONNX does not have", where)
    count = math.prod(tensor.dims)
    if min(tensor.dims, default=0) < 0 or count >= 1 << 63:
        raise _wrong(tensor, f"has the sizes {list(tensor.dims)}, which no tensor has", where)
    size = _size(tensor, count)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        _check_external(tensor, size, folder, where)
    elif tensor.HasField("raw_data"):
        if len(tensor.raw_data) != size:
            raise _short(tensor, size, len(tensor.raw_data), where)
    else:
        _check_typed(tensor, count, where)


def _check_typed(tensor: onnx.TensorProto, count: int, where: str) -> None:
    """Elements that stand one by one: as many as the sizes ask for, in the field of the dtype."""
    import onnx

    held = {field: len(getattr(tensor, field)) for field in _TYPED if len(getattr(tensor, field))}
    if count and not held:
        raise _wrong(tensor, f"has the sizes {list(tensor.dims)} and no data", where)
    name = onnx.TensorProto.DataType.Name(tensor.data_type)
    field = _FIELDS.get(name, "int32_data")
    wrong = next((other for other in held if other != field), None)
    if wrong is not None:
        raise _wrong(tensor, f"is of dtype {name.lower()}, and its elements are {wrong}", where)
    needed = 2 * count if name.startswith("COMPLEX") else count
    packed = _size(tensor, count)  # where several elements share a byte, and each byte is one number
    if count and held[field] not in (needed, min(packed, count)):
        raise _wrong(tensor, f"needs {needed} elements for {list(tensor.dims)}, and has {held[field]}", where)


def check_sparse(tensor: onnx.SparseTensorProto, folder: Path, where: str) -> None:
    """Raise GraphError for values or indices that `check` does not take, or sizes that no dense tensor should have."""
    for part in (tensor.values, tensor.indices):
        check(part, folder, where)
    count = math.prod(tensor.dims)
    if min(tensor.dims, default=0) < 0 or count > LARGEST_SPARSE:
        raise _wrong(tensor.values, f"is sparse, and dense it has {count:,} elements", where)


def _size(tensor: onnx.TensorProto, count: int) -> int:
    """Bytes of `count` elements; 4-bit and 2-bit ones share bytes. Strings have none of their own: 0."""
    import onnx

    name = onnx.TensorProto.DataType.Name(tensor.data_type)
    digits = re.search(r"\d+", name)
    return -(-count * (_BITS[name] if digits is None else int(digits[0])) // 8)


def _check_external(tensor: onnx.TensorProto, size: int, folder: Path, where: str) -> None:
    said = {entry.key: entry.value for entry in tensor.external_data}
    location = said.get("location", "")
    inside = os.path.normpath(location)
    if not location or os.path.isabs(location) or inside.split(os.sep)[0] in (os.pardir, os.curdir):
        raise _wrong(tensor, f"lies in '{location}', which is no file beside the model", where)
    path = folder / inside
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise _wrong(tensor, f"lies in '{location}', a link to a file that is not beside the model", where)
    if not path.is_file():
        raise _wrong(tensor, f"lies in '{location}', and there is no such file beside the model", where)
    try:
        offset, length = int(said.get("offset") or 0), int(said.get("length") or size)
    except ValueError:
        offset = length = -1
    if offset < 0 or length < 0:
        raise _wrong(tensor, f"lies in '{location}' at a place that is no number of bytes", where)
    held = min(length, path.stat().st_size - offset)
    if held < size:
        raise _short(tensor, size, max(held, 0), f"{location} at byte {offset}, of {where}")


def _short(tensor: onnx.TensorProto, size: int, held: int, where: str) -> GraphError:
    import onnx

    dtype = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
    return _wrong(tensor, f"needs {size} bytes for {list(tensor.dims)} of {dtype}, and has {held}", where)


def _wrong(tensor: onnx.TensorProto, what: str, where: str) -> GraphError:
    return GraphError(
        f"not a whole ONNX model: weight '{tensor.name}' {what}",
        where=where,
        fix="export or copy it again, external data beside it",
    )
