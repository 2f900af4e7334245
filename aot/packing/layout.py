"""Reading an OCI image layout that somebody else may have written: every blob is held against its digest and size."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aot.errors import ArtifactError
from aot.runtime import untar
from aot.runtime.files import COPY
from aot.store import sha256

LAYOUT = "oci-layout"
INDEX = "index.json"
IMAGE = "application/vnd.oci.image.manifest.v1+json"
MODEL = "application/vnd.cncf.model.manifest.v1+json"
CONFIG = "application/vnd.cncf.model.config.v1+json"
LAYER = r"application/vnd\.cncf\.model\.[a-z.]+\.v1\.tar"
LARGEST = 4 << 20
"""Of a JSON document, in bytes: what registries take as a manifest."""
LAYERS = 10_000


def members(layout: Path, shown: str) -> Iterator[untar.Member]:
    """The files of all layers. Raises ArtifactError for a layout, blob or layer that is not what it has to be."""
    image = image_of(layout, shown)
    config = json_of(blob(layout, image.get("config"), re.escape(CONFIG), shown), f"{shown}: the config")
    layers = image.get("layers")
    if not isinstance(layers, list) or not 0 < len(layers) <= LAYERS:
        raise _damaged("the manifest lists no layers, or too many", shown)
    held = config.get("modelfs")
    digests = [one.get("digest") if isinstance(one, dict) else None for one in layers]
    if not isinstance(held, dict) or held.get("diffIds") != digests:
        raise _damaged("the config lists other layers than the manifest", shown)
    seen = set[str]()
    for descriptor in layers:
        path = blob(layout, descriptor, LAYER, shown)
        for member in untar.members(path, f"{shown}/{path.relative_to(layout)}"):
            if member.name in seen:
                raise _damaged("two layers hold the same file", f"{shown}: {member.name}")
            seen.add(member.name)
            yield member


def image_of(layout: Path, shown: str) -> dict[str, Any]:
    """The manifest of the one model that the layout holds. Raises ArtifactError for none, several or another kind."""
    version = json_of(layout / LAYOUT, f"{shown}/{LAYOUT}").get("imageLayoutVersion")
    if version != "1.0.0":
        raise _damaged(f"an OCI image layout of version {version!r} instead of 1.0.0", f"{shown}/{LAYOUT}")
    manifests = json_of(layout / INDEX, f"{shown}/{INDEX}").get("manifests")
    if not isinstance(manifests, list) or not all(isinstance(one, dict) for one in manifests):
        raise _damaged("the index lists no images", f"{shown}/{INDEX}")
    found = {str(one.get("digest")) for one in manifests}  # one with two tags is listed twice
    if len(found) != 1:
        raise ArtifactError(
            f"the layout holds {len(found)} images instead of one",
            where=f"{shown}/{INDEX}",
            fix=f"copy one of them: skopeo copy oci:{shown}:TAG oci:ONE",
        )
    path = blob(layout, manifests[0], re.escape(IMAGE), shown)
    image = json_of(path, f"{shown}/{path.relative_to(layout)}")
    if image.get("artifactType") != MODEL:
        raise _damaged("the image is not a model: its artifactType is another one", f"{shown}/{INDEX}")
    return image


def holds_one_model(path: Path) -> bool:
    """Whether the folder is a layout of one model, and of nothing else."""
    try:
        image_of(path, str(path))
    except ArtifactError:
        return False
    return True


def blob(layout: Path, descriptor: Any, kind: str, shown: str) -> Path:
    """The file behind a descriptor. Raises ArtifactError where it is another one, or not of media type `kind`, a
    regular expression."""
    if not isinstance(descriptor, Mapping):
        raise _damaged("a descriptor is missing, or is no object", shown)
    media_type, digest, size = (descriptor.get(name) for name in ("mediaType", "digest", "size"))
    if not isinstance(media_type, str) or not re.fullmatch(kind, media_type):
        raise _damaged(f"a blob of media type {media_type!r}, which no model of aot has", shown)
    if not isinstance(digest, str) or not re.fullmatch("sha256:[0-9a-f]{64}", digest) or type(size) is not int:
        raise _damaged("a descriptor without a SHA-256 digest and a size", shown)
    name = f"blobs/{digest.replace(':', '/')}"
    path, where = layout / name, f"{shown}/{name}"
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise _damaged("a blob is not a plain file", where)
        if found.st_size != size:
            raise _damaged(f"a blob has {found.st_size} bytes instead of {size}", where)
        if sha256(path) != digest.removeprefix("sha256:"):
            raise _damaged("a blob is damaged: its SHA-256 differs", where)
    except OSError as error:
        raise _damaged(f"a blob cannot be read: {error.strerror}", where) from error
    return path


def json_of(path: Path, shown: str) -> dict[str, Any]:
    """A JSON object of at most 4 MiB. Raises ArtifactError for anything else."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            raise _damaged("a file is missing, or larger than 4 MiB", shown)
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise _damaged(f"a file cannot be read: {error.strerror}", shown) from error
    except (ValueError, RecursionError) as error:
        raise _damaged(f"not JSON: {error}", shown) from error
    if not isinstance(data, dict):
        raise _damaged("not a JSON object", shown)
    return data


def _damaged(what: str, where: str) -> ArtifactError:
    return ArtifactError(what, where=where, fix=COPY)
