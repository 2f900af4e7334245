"""The OCI image layout, read with json, hashlib and tarfile alone, and by skopeo and oras where they are installed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from aot.packing import oci
from tests.packing.artifacts import artifact, files

ENGINES = {"sm89": b"plan of sm89" * 100, "sm120": b"plan of sm120" * 100}
MODEL = "application/vnd.cncf.model."
needs_skopeo = pytest.mark.skipif(shutil.which("skopeo") is None, reason="skopeo is not installed")
needs_registry = pytest.mark.skipif(shutil.which("docker-registry") is None, reason="no docker-registry is installed")
needs_oras = pytest.mark.skipif(shutil.which("oras") is None, reason="oras is not installed")


def blob(layout: Path, descriptor: dict[str, Any]) -> bytes:
    """The bytes behind a descriptor, held against its digest and size."""
    algorithm, _, digest = descriptor["digest"].partition(":")
    data = (layout / "blobs" / algorithm / digest).read_bytes()
    assert hashlib.new(algorithm, data).hexdigest() == digest
    assert len(data) == descriptor["size"]
    return data


def image(layout: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest and the config of the one image."""
    assert json.loads((layout / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    (descriptor,) = json.loads((layout / "index.json").read_bytes())["manifests"]
    manifest = json.loads(blob(layout, descriptor))
    return manifest, json.loads(blob(layout, manifest["config"]))


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    oci.write(artifact(tmp_path / "tiny.aot", ENGINES), tmp_path / "oci")
    return tmp_path / "oci"


def test_every_blob_is_what_its_descriptor_says_and_no_other_is_there(layout: Path) -> None:
    manifest, _ = image(layout)
    index = json.loads((layout / "index.json").read_bytes())["manifests"]
    descriptors = [*index, manifest["config"], *manifest["layers"]]
    for descriptor in descriptors:
        blob(layout, descriptor)
    assert {path.name for path in (layout / "blobs/sha256").iterdir()} == {d["digest"][7:] for d in descriptors}
    assert {path.name for path in layout.iterdir()} == {"oci-layout", "index.json", "blobs"}


def test_the_manifest_and_the_config_have_the_form_of_the_specification(layout: Path) -> None:
    manifest, config = image(layout)
    assert manifest["schemaVersion"] == 2
    assert manifest["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
    assert manifest["artifactType"] == f"{MODEL}manifest.v1+json"
    assert manifest["config"]["mediaType"] == f"{MODEL}config.v1+json"
    for layer in manifest["layers"]:
        assert re.fullmatch(re.escape(MODEL) + r"(weight|weight\.config|doc|code|dataset)\.v1\.tar", layer["mediaType"])
    assert config.keys() == {"descriptor", "config", "modelfs"}
    assert config["descriptor"]["name"] == "tiny"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)", config["descriptor"]["createdAt"])
    assert config["config"] == {"format": "tensorrt", "precision": "float32"}
    contents = [f"sha256:{hashlib.sha256(blob(layout, layer)).hexdigest()}" for layer in manifest["layers"]]
    assert config["modelfs"] == {"type": "layers", "diffIds": contents}
    assert manifest["annotations"]["org.opencontainers.image.description"] == "fp32, engines for sm89, sm120"


def test_a_layer_is_a_part(layout: Path) -> None:
    manifest, _ = image(layout)
    held = {}
    for layer in manifest["layers"]:
        with tarfile.open(fileobj=io.BytesIO(blob(layout, layer))) as tar:
            found = tar.getnames()
        assert found == sorted(found)
        held[layer["annotations"]["org.cncf.model.filepath"]] = layer["mediaType"].removeprefix(MODEL), found
    references = [f"references/{name}" for name in ("b1.in.npz", "b1.out.npz", "b3.in.npz", "b3.out.npz", "cases.json")]
    checked, ranges = "checked/report.json", "ranges/ranges.json"
    assert held == {
        "manifest": ("weight.config.v1.tar", ["manifest.json"]),
        "reports": ("doc.v1.tar", ["aot.lock", "report.html", "report.json", "sbom.cdx.json"]),
        "evidence": ("doc.v1.tar", [checked, ranges]),
        "references": ("dataset.v1.tar", references),
        "graph/model.onnx": ("weight.v1.tar", ["graph/model.onnx"]),
        "engines/sm120": ("weight.v1.tar", [f"engines/sm120.{end}" for end in ("json", "plan", "timing")]),
        "engines/sm89": ("weight.v1.tar", [f"engines/sm89.{end}" for end in ("json", "plan", "timing")]),
    }


def test_the_layers_laid_over_each_other_are_the_artifact(layout: Path, tmp_path: Path) -> None:
    for layer in image(layout)[0]["layers"]:
        with tarfile.open(fileobj=io.BytesIO(blob(layout, layer))) as tar:
            for member in tar:
                assert (member.uid, member.gid, member.mtime, member.mode) == (0, 0, 0, 0o644)
            tar.extractall(tmp_path / "back", filter="data")
    assert files(tmp_path / "back") == files(tmp_path / "tiny.aot")


def test_the_same_artifact_gives_the_same_bytes_elsewhere_and_later(layout: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "of another user/x.aot"
    shutil.copytree(tmp_path / "tiny.aot", elsewhere)
    for path in elsewhere.rglob("*"):
        path.chmod(0o700)
        os.utime(path, (1, 1))
    script = (
        "import os, sys; os.umask(0o077); from pathlib import Path; from aot.packing import oci;"
        "oci.write(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    environment = {**os.environ, "TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", script, str(elsewhere), str(tmp_path / "again")]
    subprocess.run(command, env=environment, check=True, cwd=Path(__file__).parents[2])
    assert files(tmp_path / "again") == files(layout)


def test_a_layer_is_the_ustar_archive_of_posix_with_nothing_of_this_machine_in_it(layout: Path) -> None:
    """Header of 512 bytes, contents in blocks of 512, two empty blocks, all of it filled up to 10,240 bytes."""
    (layer,) = (
        one for one in image(layout)[0]["layers"] if one["annotations"]["org.cncf.model.filepath"] == "manifest"
    )
    data = blob(layout, layer)
    size = int(data[124:135], 8)
    fields = [(b"manifest.json", 100), (b"0000644", 8), (b"0000000", 8), (b"0000000", 8), (b"%011o" % size, 12)]
    fields += [(b"%011o" % 0, 12), (b" " * 8, 8), (b"0", 1), (b"", 100), (b"ustar", 6), (b"00", 2), (b"", 247)]
    header = b"".join(value.ljust(width, b"\0") for value, width in fields)
    header = header[:148] + b"%06o\0 " % sum(header) + header[156:]
    content = data[512 : 512 + size]
    whole = header + content.ljust(-(-size // 512) * 512, b"\0") + bytes(1024)
    assert data == whole.ljust(-(-len(whole) // 10240) * 10240, b"\0")
    assert json.loads(content)["name"] == "tiny"


def test_another_engine_leaves_the_other_blobs_as_they_are(layout: Path, tmp_path: Path) -> None:
    changed = artifact(tmp_path / "new.aot", {**ENGINES, "sm120": b"another plan, of other tactics" * 100})
    oci.write(changed, tmp_path / "new")
    before, after = (
        {layer["annotations"]["org.cncf.model.filepath"]: layer["digest"] for layer in image(found)[0]["layers"]}
        for found in (layout, tmp_path / "new")
    )
    assert before.keys() == after.keys()
    assert {part for part in before if before[part] != after[part]} == {"manifest", "reports", "engines/sm120"}


def test_a_prepared_artifact_is_onnx(tmp_path: Path) -> None:
    oci.write(artifact(tmp_path / "tiny.aot"), tmp_path / "oci")
    manifest, config = image(tmp_path / "oci")
    assert config["config"]["format"] == "onnx"
    assert manifest["annotations"]["org.opencontainers.image.description"] == "fp32, prepared, without an engine"


@pytest.mark.parametrize(
    ("name", "part", "kind"),
    [
        ("manifest.sig", "manifest", "weight.config"),
        ("sbom.json", "reports", "doc"),
        ("kernels/sm90/kernels.json", "kernels/kernels/sm90", "code"),
        ("candidates/int8/kernels/sm90/a.cubin", "kernels/candidates/int8/kernels/sm90", "code"),
        ("candidates/int8/graph/model.onnx.data", "graph/candidates/int8/graph/model.onnx.data", "weight"),
        ("candidates/int8/checked/report.json", "evidence", "doc"),
        ("search/errors.json", "evidence", "doc"),
        ("engines/sm90.kernels", "engines/sm90", "weight"),
        ("engines/weights.safetensors", "engines/weights", "weight"),
        ("something/new.bin", "evidence", "doc"),
    ],
)
def test_every_file_has_its_part(name: str, part: str, kind: str) -> None:
    assert oci.part_of(name) == part
    assert oci.media_type(part) == f"{MODEL}{kind}.v1.tar"


@needs_skopeo
def test_skopeo_reads_and_copies_it(layout: Path, tmp_path: Path) -> None:
    raw = subprocess.run(["skopeo", "inspect", "--raw", f"oci:{layout}"], capture_output=True, check=True).stdout
    assert json.loads(raw) == image(layout)[0]
    config = ["skopeo", "inspect", "--config", "--raw", f"oci:{layout}:latest"]
    assert json.loads(subprocess.run(config, capture_output=True, check=True).stdout) == image(layout)[1]
    for copy in (f"oci:{tmp_path}/other", f"oci-archive:{tmp_path}/other.tar"):
        subprocess.run(["skopeo", "copy", "--quiet", f"oci:{layout}", copy], check=True)
    assert files(tmp_path / "other/blobs") == files(layout / "blobs")


@needs_skopeo
@needs_registry
def test_it_goes_through_a_registry_by_skopeo(layout: Path, tmp_path: Path, registry: str) -> None:
    there = f"docker://{registry}/models/tiny:fp32"
    subprocess.run(["skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{layout}", there], check=True)
    subprocess.run(["skopeo", "copy", "-q", "--src-tls-verify=false", there, f"oci:{tmp_path}/back"], check=True)
    assert files(tmp_path / "back/blobs") == files(layout / "blobs")


@needs_oras
@needs_registry
def test_it_goes_through_a_registry_by_oras(layout: Path, tmp_path: Path, registry: str) -> None:
    there = f"{registry}/models/tiny:fp32"
    to = ["oras", "copy", "--from-oci-layout", f"{layout}:latest", "--to-plain-http", there]
    back = ["oras", "copy", "--from-plain-http", there, "--to-oci-layout", f"{tmp_path}/back:fp32"]
    for command in (to, back):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert files(tmp_path / "back/blobs") == files(layout / "blobs")
