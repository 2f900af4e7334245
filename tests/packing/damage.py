"""What is done to packed artifacts so that they are no longer whole."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def tar_of(path: Path, members: list[tarfile.TarInfo | tuple[str, bytes]]) -> Path:
    """A tar with any headers; a plain file is (name, content)."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member, io.BytesIO(bytes(member.size)))
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return path


def members_of(path: Path) -> list[tuple[str, bytes]]:
    """Name and content of every file of a tar."""
    with tarfile.open(path) as tar:
        return [(one.name, tar.extractfile(one).read()) for one in tar]  # type: ignore[union-attr]


def special(name: str, kind: bytes, **fields: Any) -> tarfile.TarInfo:
    """A member of another kind than a file."""
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def rewrite(layout: Path, change: Callable[[dict[str, Any], dict[str, Any], list[bytes]], None]) -> None:
    """Change the manifest, the config and the layers of a layout, with all digests and sizes made right again."""
    index = json.loads((layout / "index.json").read_bytes())
    (named,) = index["manifests"]
    manifest = read_blob(layout, named)
    config = read_blob(layout, manifest["config"])
    layers = [path_of(layout, layer).read_bytes() for layer in manifest["layers"]]
    change(manifest, config, layers)
    for descriptor, data in zip(manifest["layers"], layers, strict=True):
        descriptor.update(blob(layout, data))
    config.setdefault("modelfs", {"type": "layers", "diffIds": [one["digest"] for one in manifest["layers"]]})
    manifest["config"].update(blob(layout, config))
    named.update(blob(layout, manifest))
    (layout / "index.json").write_text(json.dumps(index))


def path_of(layout: Path, descriptor: Mapping[str, Any]) -> Path:
    """Where the blob lies."""
    return layout / "blobs" / descriptor["digest"].replace(":", "/")


def read_blob(layout: Path, descriptor: Mapping[str, Any]) -> Any:
    """A blob that is JSON."""
    return json.loads(path_of(layout, descriptor).read_bytes())


def blob(layout: Path, content: Any) -> dict[str, Any]:
    """Write bytes, or anything else as JSON, as a blob; return its digest and size."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    found = {"digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}
    path_of(layout, found).write_bytes(data)
    return found


def flip(path: Path, place: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)
