"""The content of an ONNX file, as protobuf gives it, and what is said of one that is none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aot.errors import GraphError

if TYPE_CHECKING:
    import onnx


def proto_of(path: Path) -> onnx.ModelProto:
    """The model of a file, its external weights left on disk. Raises GraphError for bytes that are no ONNX model."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        if not path.stat().st_size:
            raise ValueError("the file is empty")
        return onnx.load(str(path), load_external_data=False)
    except DecodeError as error:
        raise _undecodable(path) from error
    except (OSError, ValueError) as error:
        raise not_whole(path, error) from error


def not_whole(path: Path, error: BaseException) -> GraphError:
    """The error for a file that is not read to its end, and why: the first line of what was raised."""
    said = f"it cannot be read: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return GraphError(
        f"not a whole ONNX model: {lines[0] if lines else type(error).__name__}",
        where=str(path),
        fix="export or copy it again, external data beside it",
    )


def _undecodable(path: Path) -> GraphError:
    """The error for bytes that are no protobuf."""
    with path.open("rb") as file:
        start = file.read(1024)
    if start.startswith(b"version https://git-lfs"):
        what, fix = "it is a pointer of Git LFS, not the file itself", "git lfs pull"
    elif start.isascii() and not any(byte < 9 for byte in start):
        what, fix = "it is text", "check the path, or export it again"
    else:
        what, fix = "it is cut off, damaged or of another format", "export or copy it again"
    return GraphError(f"not a whole ONNX model: {what}", where=str(path), fix=fix)
