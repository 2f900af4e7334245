"""The bill of materials: what the official schema says of it, and that equal builds have equal ones."""

from __future__ import annotations

import hashlib
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from aot import toolchain
from aot.sbom import SBOM, bill
from tests.e2e.harness import DIM, Here, write_mlp_onnx

DIGEST = "0123456789abcdef" * 4
PACKAGES = (("numpy", str(metadata.version("numpy"))), ("My_Package.x", "1.0"), ("torch", "1.0.0"))


def faults(found: dict[str, Any]) -> Any:
    """What the schema of CycloneDX 1.6 has against it."""
    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(found))


def test_it_keeps_the_schema_which_can_find_fault() -> None:
    found = bill("m", "0.1.0", PACKAGES, {"model.py": DIGEST, ".../hub/w.bin": DIGEST}, DIGEST)
    assert faults(found) is None
    assert faults(found | {"version": "one"}) is not None
    assert faults(found | {"components": [{"type": "library"}]}) is not None


def test_packages_have_urls_and_licenses_where_their_metadata_says() -> None:
    parts = {part["name"]: part for part in bill("m", "0.1.0", PACKAGES, {}, DIGEST)["components"]}
    numpy = parts["numpy"]
    url = PackageURL.from_string(numpy["purl"])
    assert (url.type, url.name, url.version) == ("pypi", "numpy", metadata.version("numpy"))
    assert numpy["licenses"] == [{"expression": metadata.metadata("numpy")["License-Expression"]}]
    assert parts["my-package-x"]["purl"] == "pkg:pypi/my-package-x@1.0"  # not installed, so nothing is known
    assert "licenses" not in parts["my-package-x"]
    assert "licenses" not in parts["torch"]  # another version than the one installed


def test_files_have_their_digests() -> None:
    (part,) = bill("m", "0.1.0", (), {"model.py": DIGEST}, DIGEST)["components"]
    assert part == {
        "type": "file",
        "bom-ref": "file:model.py",
        "name": "model.py",
        "hashes": [{"alg": "SHA-256", "content": DIGEST}],
    }


def test_it_depends_on_the_contents_and_on_nothing_else() -> None:
    first = bill("m", "0.1.0", PACKAGES, {"a": DIGEST, "b": DIGEST}, DIGEST)
    again = bill("m", "0.1.0", (*reversed(PACKAGES), PACKAGES[0]), {"b": DIGEST, "a": DIGEST}, DIGEST)
    assert json.dumps(first) == json.dumps(again)
    others = [
        bill("n", "0.1.0", PACKAGES, {"a": DIGEST, "b": DIGEST}, DIGEST),
        bill("m", "0.1.0", PACKAGES[1:], {"a": DIGEST, "b": DIGEST}, DIGEST),
        bill("m", "0.1.0", PACKAGES, {"a": DIGEST, "b": DIGEST[::-1]}, DIGEST),
        bill("m", "0.1.0", PACKAGES, {"a": DIGEST, "b": DIGEST}, DIGEST[::-1]),
    ]
    assert len({one["serialNumber"] for one in (first, *others)}) == 5


@pytest.fixture
def aot(tmp_path: Path) -> Here:
    write_mlp_onnx(tmp_path / "mlp.onnx")
    return Here(tmp_path, tmp_path / "store")


def test_a_build_writes_it_and_the_second_half_adds_to_it(aot: Here) -> None:
    assert aot("build", "mlp.onnx", *DIM, "--until", "graph").code == 0
    first = json.loads((aot.folder / "mlp.aot" / SBOM).read_text())
    assert aot("build", "mlp.aot", "--target", "sm89", "-o", "full.aot").code == 0
    second = json.loads((aot.folder / "full.aot" / SBOM).read_text())
    for found in (first, second):
        assert faults(found) is None
        parts = {part["bom-ref"]: part for part in found["components"]}
        assert f"pkg:pypi/tensorrt-rtx-cu13@{toolchain.version('tensorrt-rtx-cu13')}" in parts
        assert f"pkg:pypi/onnx@{toolchain.version('onnx')}" in parts
        assert (
            parts["file:mlp.onnx"]["hashes"][0]["content"]
            == hashlib.sha256((aot.folder / "mlp.onnx").read_bytes()).hexdigest()
        )
        assert len(json.dumps(found)) < 20_000
    listed = json.loads((aot.folder / "full.aot/manifest.json").read_text())["files"]
    assert SBOM in listed
