"""An OCI image layout in the form of the CNCF ModelPack specification, which registries store and clusters mount.

Media types, annotations and the config's fields are those of https://github.com/modelpack/model-spec (docs/spec.md,
config.md, annotations.md); the layout is that of https://github.com/opencontainers/image-spec (image-layout.md).

The same artifact gives the same bytes on any machine and day: a layer is a tar of files by name, owned by root, of time
zero; JSON has sorted keys and no spaces; the time of creation is the artifact's. Layers are not compressed: weights and
plans hardly get smaller, the specification advises against it, and what a deflate or zstd library writes depends on
its version. One layer a part, so that a registry and a node that have a model get only what changed of it:

    manifest     manifest.json and its signature
    reports      report.json, report.html and other files beside the manifest
    evidence     calibration ranges, the comparison with eager, the search
    references   inputs and eager outputs
    kernels      those of plugins, a layer for each target
    graph        the final graph, a layer for each of its files
    engines      a layer for each target, and one for the weights that stripped plans take
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

from aot.artifact import Manifest, read_manifest
from aot.artifact_write import add
from aot.packing.layout import CONFIG, IMAGE, INDEX, LAYOUT, MODEL, holds_one_model
from aot.packing.output import check_place, replacing
from aot.packing.tar import SIGNATURE, names
from aot.runtime.files import MANIFEST
from aot.runtime.manifest import GRAPH
from aot.store import sha256

IMAGE_INDEX = "application/vnd.oci.image.index.v1+json"
FILEPATH = "org.cncf.model.filepath"
TAG = "latest"
KIND = "an OCI image layout of one model"

PARTS = {"manifest": "weight.config", "reports": "doc", "evidence": "doc", "references": "dataset", "kernels": "code",
         "graph": "weight", "engines": "weight"}  # fmt: skip
"""Every kind of part and its media type, in the order of the layers."""
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8", "fp8": "float8_e4m3"}
"""As the specification names them; it has no word for int4."""


def media_type(part: str) -> str:
    """Of a layer: an uncompressed tar of that kind of files."""
    return f"application/vnd.cncf.model.{PARTS[part.partition('/')[0]]}.v1.tar"


def part_of(name: str) -> str:
    """Which part a file of an artifact belongs to: its kind, and after a slash which one of that kind."""
    folders = PurePosixPath(name).parts[:-1]
    if name in (MANIFEST, SIGNATURE):
        return "manifest"
    if not folders:
        return "reports"
    if "graph" in folders:
        return f"graph/{name}"
    if "kernels" in folders:
        return f"kernels/{'/'.join(folders)}"
    if folders[0] == "engines":
        return f"engines/{PurePosixPath(name).name.partition('.')[0]}"
    return "references" if folders[0] == "references" else "evidence"


def check(artifact: Path, to: Path, *, overwrite: bool = False) -> Path:
    """What `write` would put there. Raises UsageError where it is there already and must not be replaced."""
    check_place(to, KIND, holds_one_model, overwrite=overwrite)
    return to


def write(artifact: Path, to: Path, *, overwrite: bool = False) -> list[Path]:
    """Write the artifact as an OCI image layout.

    Raises UsageError where `to` cannot be written, or is there already and must not be replaced.
    """
    with replacing(to, KIND, holds_one_model, overwrite=overwrite) as new:
        blobs = new / "blobs/sha256"
        blobs.mkdir(parents=True)
        manifest = read_manifest(artifact)
        layers = [_layer(blobs, artifact, part, files) for part, files in _parts(names(artifact))]
        config = _document(blobs, CONFIG, _config(manifest, layers))
        image = {
            "schemaVersion": 2,
            "mediaType": IMAGE,
            "artifactType": MODEL,
            "config": config,
            "layers": layers,
            "annotations": _annotations(manifest),
        }
        named = {**_document(blobs, IMAGE, image), "annotations": {"org.opencontainers.image.ref.name": TAG}}
        index = {"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": [{**named, "artifactType": MODEL}]}
        (new / INDEX).write_bytes(canonical(index))
        (new / LAYOUT).write_bytes(canonical({"imageLayoutVersion": "1.0.0"}))
    return sorted(path for path in to.rglob("*") if path.is_file())


def digest(to: Path) -> str:
    """Of the image's manifest, by which a registry knows it: `REGISTRY/NAME@sha256:...`."""
    return str(json.loads((to / INDEX).read_bytes())["manifests"][0]["digest"])


def canonical(data: Mapping[str, Any]) -> bytes:
    """JSON that depends on the data alone: ASCII, sorted keys, no spaces."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _parts(files: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Every part and its files, in the order of the layers."""
    order = list(PARTS)

    def place(name: str) -> tuple[int, str, str]:
        part = part_of(name)
        return order.index(part.partition("/")[0]), part, name

    return [(part, list(found)) for part, found in groupby(sorted(files, key=place), key=part_of)]


def _layer(blobs: Path, artifact: Path, part: str, files: Sequence[str]) -> dict[str, Any]:
    """Write a layer; return its descriptor."""
    written = blobs / "layer"
    with tarfile.open(written, "w", format=tarfile.PAX_FORMAT) as tar:
        add(tar, artifact, files)
    kind, _, which = part.partition("/")
    path = which if kind in ("graph", "kernels") else part
    return {**_blob(written, media_type(part)), "annotations": {FILEPATH: path}}


def _document(blobs: Path, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Write JSON as a blob; return its descriptor."""
    written = blobs / "document"
    written.write_bytes(canonical(data))
    return _blob(written, kind)


def _blob(written: Path, kind: str) -> dict[str, Any]:
    """Give a file the name of its digest; return its descriptor."""
    digest, size = sha256(written), written.stat().st_size
    written.rename(written.with_name(digest))
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size}


def _config(manifest: Manifest, layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the model is, in the specification's words. Uncompressed, a layer's digest is that of its content."""
    low, compute = manifest.plan["precision"], manifest.plan["recipe"]["compute"]
    described = {
        "format": _format(manifest),
        "precision": ",".join(DTYPES[name] for name in dict.fromkeys((compute, low)) if name in DTYPES),
    }
    if low not in ("fp32", "fp16", "bf16"):
        described["quantization"] = low
    return {
        "descriptor": {"name": manifest.name, "createdAt": manifest.history[-1].created},
        "config": described,
        "modelfs": {"type": "layers", "diffIds": [layer["digest"] for layer in layers]},
    }


def _format(manifest: Manifest) -> str:
    if any(part.engine.facts["backend"] != "onnxruntime" for part in manifest.engines):
        return "tensorrt"
    return "onnx" if GRAPH in manifest.files else "pt2"


def _annotations(manifest: Manifest) -> dict[str, str]:
    """What a registry shows."""
    targets = [part.engine.facts["target"] for part in manifest.engines]
    holds = f"engines for {', '.join(targets)}" if targets else "prepared, without an engine"
    return {
        "org.opencontainers.image.title": manifest.name,
        "org.opencontainers.image.description": f"{manifest.plan['precision']}, {holds}",
        "org.opencontainers.image.created": manifest.history[-1].created,
    }
