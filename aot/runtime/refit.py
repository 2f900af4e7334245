"""Putting the weights into a stripped plan: by name, from a safetensors file that lies beside it.

The file is mapped, and TensorRT copies from there, so that a process needs no memory for weights of its own. Format:
https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import ctypes
import json
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

from aot.errors import ArtifactError, EngineError
from aot.runtime.log import last_lines

WEIGHTS = "weights.safetensors"
DTYPES = {"F32": "FLOAT", "F16": "FLOAT16", "BF16": "BFLOAT16"}
"""Dtypes by their names in the file, as ONNX names them."""
_TENSORRT = {"F32": "FLOAT", "F16": "HALF", "BF16": "BF16"}
_SIZES = {"F32": 4, "F16": 2, "BF16": 2}
_HEADER = 100 << 20
"""Bytes that a header may have; the format's own limit."""
REBUILD = "build it again: aot build"


@dataclass(frozen=True)
class Weight:
    """One tensor of the file. dtype: as the file names it. start: its first byte in the file."""

    dtype: str
    count: int
    start: int


def header(path: Path) -> dict[str, Weight]:
    """What a safetensors file holds, by name. Raises ArtifactError where it is not one, or says what cannot be."""
    try:
        with path.open("rb") as file:
            length, size = int.from_bytes(file.read(8), "little"), path.stat().st_size
            if not 2 <= length <= min(_HEADER, size - 8):
                raise ValueError(f"its header of {length} bytes does not fit")
            said = json.loads(file.read(length))
        return {
            name: _weight(name, one, 8 + length, size - 8 - length)
            for name, one in said.items()
            if name != "__metadata__"
        }
    except OSError as error:
        raise ArtifactError(
            f"the weights cannot be read: {error.strerror}", where=str(path), fix="copy the artifact again"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise ArtifactError(f"not a file of weights: {said}", where=str(path), fix=REBUILD) from error


def _weight(name: str, said: Mapping[str, Any], at: int, room: int) -> Weight:
    dtype, shape, (start, end) = said["dtype"], said["shape"], said["data_offsets"]
    if not all(type(size) is int and size >= 0 for size in (*shape, start, end)):
        raise ValueError(f"'{name}' has a size that is no number")
    count = prod(shape)
    if end > room or end - start != count * _SIZES[dtype]:
        raise ValueError(f"'{name}' does not lie where it says")
    return Weight(dtype, count, at + start)


def refit(trt: ModuleType, engine: Any, log: Any, path: Path) -> int:
    """Give a deserialized engine every weight that it takes, from the file; return how many that were.

    Raises ArtifactError where the file lacks one, or has it in another size or dtype; EngineError where TensorRT takes
    what it was given and refuses all the same.
    """
    held = header(path)
    refitter = trt.Refitter(engine, log)
    taken = refitter.get_all_weights()
    missing = [name for name in taken if name not in held]
    if missing:
        raise ArtifactError(
            f"the weights lack {len(missing)} that the engine takes: {_some(missing)}", where=str(path), fix=REBUILD
        )
    # A private copy as far as Python knows, which gives no address of a map that cannot be written; nothing writes.
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        try:
            for name in taken:
                _give(trt, refitter, name, held[name], ctypes.addressof(first), path)
            lacking = refitter.get_missing_weights()
            if lacking or not refitter.refit_cuda_engine():
                said = last_lines(log.errors) or "it gives no reason"
                lacks = f"it still lacks {_some(lacking)}; " if lacking else ""
                raise EngineError(f"TensorRT does not take the weights: {lacks}{said}", where=str(path), fix=REBUILD)
        finally:
            del refitter, first  # the map cannot be closed while anything points into it
    return len(taken)


def _give(trt: ModuleType, refitter: Any, name: str, weight: Weight, base: int, path: Path) -> None:
    wanted, dtype = refitter.get_weights_prototype(name), getattr(trt.DataType, _TENSORRT[weight.dtype])
    if (wanted.dtype, wanted.size) != (dtype, weight.count):
        raise ArtifactError(
            f"weight '{name}' has {weight.count} elements of {dtype}, and the engine takes {wanted.size} of "
            f"{wanted.dtype}",
            where=str(path),
            fix=REBUILD,
        )
    if not refitter.set_named_weights(name, trt.Weights(dtype, base + weight.start, weight.count)):
        raise EngineError(f"TensorRT does not take weight '{name}'", where=str(path), fix=REBUILD)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
