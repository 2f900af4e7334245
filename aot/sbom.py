"""`sbom.cdx.json`: what an artifact was made of and with, as a CycloneDX 1.6 bill of materials.

Components: the Python packages that had a part in it, TensorRT among them, and the files that the model is made of,
with their digests. It holds no time and no random number, so equal builds have equal bills: the serial number is made
of the contents (RFC 4122, version 5). Format: https://cyclonedx.org/docs/1.6/json/.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any

from aot.store import digest

SBOM = "sbom.cdx.json"
_SPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://cyclonedx.org/schema/bom-1.6.schema.json")


def bill(
    name: str, aot: str, packages: Iterable[tuple[str, str]], files: Mapping[str, str], graph: str
) -> dict[str, Any]:
    """The bill of a model.

    aot: the version that wrote it. packages: (name, version), each once or more. files: SHA-256 (hex) by path. graph:
    SHA-256 of the final graph, which is the model's own digest.
    """
    found = [_package(*one) for one in sorted({(_normal(name), version) for name, version in packages})]
    found += [_file(path, sha256) for path, sha256 in sorted(files.items())]
    model = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": name,
        "hashes": [{"alg": "SHA-256", "content": graph}],
    }
    body = {
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "aot", "version": aot}]},
            "component": model,
        },
        "components": found,
        "dependencies": [
            {"ref": "model", "dependsOn": [one["bom-ref"] for one in found]},
            *({"ref": one["bom-ref"]} for one in found),
        ],
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_SPACE, digest(body))}",
        "version": 1,
        **body,
    }


def _package(name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    licenses = _licenses(name, version)
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        **({"licenses": licenses} if licenses else {}),
    }


def _file(path: str, sha256: str) -> dict[str, Any]:
    return {
        "type": "file",
        "bom-ref": f"file:{path}",
        "name": path,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
    }


def _normal(name: str) -> str:
    """A package's name as a package URL has it."""
    return name.lower().replace("_", "-").replace(".", "-")


def _licenses(name: str, version: str) -> list[dict[str, Any]]:
    """What the package's metadata says, where that version is installed here: an SPDX expression, else names."""
    try:
        said = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return []
    if said["Version"] != version:
        return []
    for expression in said.get_all("License-Expression") or ():
        return [{"expression": expression}]
    classified = [
        line.rpartition(" :: ")[2] for line in said.get_all("Classifier") or () if line.startswith("License :: ")
    ]
    text = "".join(said.get_all("License") or ()).strip()
    names = sorted(set(classified)) or ([text] if text and "\n" not in text and len(text) < 100 else [])
    return [{"license": {"name": one}} for one in names]
