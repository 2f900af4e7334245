"""`verify` says of every damage what it is and where, in each form, and never raises for one."""

from __future__ import annotations

import json
import os
import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aot.errors import ArtifactError, UsageError
from aot.packing import oci, tar
from aot.packing.unpack import unpack
from aot.packing.verify import Verdict, verify
from tests.packing.artifacts import artifact, files
from tests.packing.damage import blob, flip, members_of, read_blob, rewrite, special, tar_of

FORMS = ("folder", "tar", "layout")


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One artifact in every form; not to be changed."""
    folder = tmp_path_factory.mktemp("forms")
    made = artifact(folder / "tiny.aot", {"sm89": b"plan of sm89" * 100, "sm120": b"plan of sm120" * 100})
    tar.write(made, folder / "tiny.tar")
    oci.write(made, folder / "oci")
    return {"folder": made, "tar": folder / "tiny.tar", "layout": folder / "oci"}


@pytest.fixture
def folder(forms: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(forms["folder"], tmp_path / "tiny.aot"))


@pytest.fixture
def packed(forms: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copy(forms["tar"], tmp_path / "tiny.tar"))


@pytest.fixture
def layout(forms: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(forms["layout"], tmp_path / "oci"))


def said(path: Path) -> list[tuple[str, str]]:
    """(where, what) of every problem, the path of the artifact left out."""
    return [(one.where.removeprefix(str(path)).lstrip("/:"), one.what) for one in verify(str(path)).problems]


@pytest.mark.parametrize("form", FORMS)
def test_a_whole_artifact_has_no_problem_in_any_form(forms: dict[str, Path], form: str) -> None:
    contents = files(forms["folder"])
    size = sum((forms["folder"] / name).stat().st_size for name in contents)
    found = verify(str(forms[form]))
    assert found == Verdict(str(forms[form]), form, "tiny", len(contents), size, "no", ())  # type: ignore[arg-type]
    assert found.to_json()["ok"] is True


def test_a_path_that_is_not_there_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such artifact"):
        verify(str(tmp_path / "nothing.aot"))


# A folder.


def test_every_changed_file_is_named(folder: Path) -> None:
    names = sorted(set(files(folder)) - {"manifest.json"})
    for name in names:
        flip(folder / name, 3)
    assert said(folder) == [(name, "a file of the artifact is damaged: its SHA-256 differs") for name in names]


def test_missing_longer_and_unknown_files_are_named(folder: Path) -> None:
    (folder / "engines/sm89.timing").unlink()
    with (folder / "engines/sm89.plan").open("ab") as file:
        file.write(b"!")
    (folder / "engines/sm90.plan").write_bytes(b"who built this?")
    (folder / "notes\x1b[2J.txt").write_bytes(b"")
    assert said(folder) == [
        ("engines/sm89.plan", "a file of the artifact has 1201 bytes instead of 1200"),
        ("engines/sm89.timing", "a file of the artifact is missing"),
        ("engines/sm90.plan", "the manifest does not list this file"),
        ("'notes\\x1b[2J.txt'", "the manifest does not list this file"),
    ]


def test_a_link_is_followed_inside_the_artifact_alone(folder: Path, tmp_path: Path) -> None:
    plan = folder / "engines/sm89.plan"
    plan.rename(tmp_path / "plan")
    plan.symlink_to(tmp_path / "plan")
    assert said(folder) == [("engines/sm89.plan", "a file of the artifact is a link that leaves it")]
    plan.unlink()
    shutil.move(tmp_path / "plan", folder / "engines/same")
    plan.symlink_to("same")
    assert said(folder) == [("engines/same", "the manifest does not list this file")]


def test_a_folder_that_is_a_link_is_no_part_of_an_artifact(folder: Path, tmp_path: Path) -> None:
    (folder / "engines").rename(tmp_path / "engines")
    (folder / "engines").symlink_to(tmp_path / "engines")
    assert said(folder) == [("engines", "a file of the artifact is a link that leaves it")]


def test_a_pipe_is_not_read(folder: Path) -> None:
    (folder / "graph/model.onnx").unlink()
    os.mkfifo(folder / "graph/model.onnx")
    assert said(folder) == [("graph/model.onnx", "not a plain file, nor a link to one")]


@pytest.mark.parametrize(
    ("manifest", "what"),
    [
        (None, "not an artifact: it has no manifest.json"),
        (b"{", "the manifest is not JSON"),
        (b"[]", "the manifest is not one of aot's"),
        (b'{"schema_version": 99}', "the artifact has schema version 99"),
        (b'{"schema_version": 1}', "the manifest is damaged: kind: Field required"),
    ],
)
def test_a_manifest_that_is_none(folder: Path, manifest: bytes | None, what: str) -> None:
    (folder / "manifest.json").unlink()
    if manifest is not None:
        (folder / "manifest.json").write_bytes(manifest)
    ((_, found),) = said(folder)
    assert found.startswith(what)


# A tar.


def test_a_tar_by_gnu_tar_is_as_good(folder: Path, tmp_path: Path) -> None:
    """`./` in front of names and members for folders, as `tar -C FOLDER -c .` makes them."""
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT) as made:
        made.add(folder, ".")
    assert said(tmp_path / "x.tar") == []


def test_a_tar_cut_anywhere_is_not_whole(packed: Path, tmp_path: Path) -> None:
    data, cut = packed.read_bytes(), tmp_path / "cut.tar"
    with tarfile.open(packed) as tar:
        *_, last = tar
    end = -(-(last.offset_data + last.size) // 512) * 512
    places = {0, 1, 511, 512, 513, end - 1, *random.Random(0).sample(range(end), 40)}
    for place in sorted(places):
        cut.write_bytes(data[:place])
        assert said(cut) != [], place
    cut.write_bytes(data[:end])  # what comes after that says that it ends
    assert said(cut) == []


def entry(size: bytes, kind: bytes = b"0", name: bytes = b"manifest.json") -> bytes:
    """A header of a tar that says any size."""
    fields = [(name, 100), (b"0000644", 8), (b"0", 8), (b"0", 8), (size, 12), (b"0", 12), (b" " * 8, 8), (kind, 1)]
    fields += [(b"", 100), (b"ustar", 6), (b"00", 2), (b"", 247)]
    header = b"".join(value.ljust(width, b"\0") for value, width in fields)
    return header[:148] + b"%06o\0 " % sum(header) + header[156:]


HUGE = b"\x80" + (1 << 62).to_bytes(11, "big")
NEGATIVE = b"\xff" + (2**88 - 512).to_bytes(11, "big")


@pytest.mark.parametrize("kind", [b"0", b"x", b"g", b"L", b"K", b"S", b"1", b"D"])
@pytest.mark.parametrize("size", [HUGE, NEGATIVE, b"77777777777", b"not octal!!"])
def test_a_header_may_claim_any_size(tmp_path: Path, kind: bytes, size: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(entry(size, kind) + bytes(1 << 16))
    assert said(tmp_path / "x.tar") != []


def test_headers_of_headers_end(tmp_path: Path) -> None:
    header = entry(b"%011o" % 512, b"x") + b"11 path=abc\n".ljust(512, b"\0")
    (tmp_path / "x.tar").write_bytes(header * 5000 + bytes(1024))
    assert said(tmp_path / "x.tar") != []


ESCAPES: dict[str, Any] = {
    "..": ("../outside", b"x"),
    "inner ..": ("graph/../../outside", b"x"),
    "absolute": ("/tmp/outside", b"x"),
    "backslash": ("graph\\..\\outside", b"x"),
    "newline": ("graph/a\nb", b"x"),
    "empty": ("", b"x"),
    "link": special("graph/link", tarfile.SYMTYPE, linkname="../../etc/passwd"),
    "hard link": special("graph/link", tarfile.LNKTYPE, linkname="manifest.json"),
    "device": special("graph/zero", tarfile.CHRTYPE, devmajor=1, devminor=5),
    "pipe": special("graph/pipe", tarfile.FIFOTYPE),
    "sparse": special("graph/sparse", tarfile.REGTYPE, size=512, pax_headers={"GNU.sparse.map": "0,512",
                      "GNU.sparse.size": str(1 << 50)}),
    "pax size": special("graph/big", tarfile.REGTYPE, pax_headers={"size": "-1024"}),
    "twice": ("manifest.json", b"{}"),
}  # fmt: skip


@pytest.mark.parametrize("which", ESCAPES)
def test_members_that_no_artifact_has(packed: Path, tmp_path: Path, which: str) -> None:
    tar_of(tmp_path / "x.tar", [*members_of(packed), ESCAPES[which]])
    assert said(tmp_path / "x.tar") != []
    with pytest.raises(ArtifactError):
        unpack(str(tmp_path / "x.tar"), tmp_path / "to/back.aot")
    assert not (tmp_path / "to/back.aot").exists()
    assert list((tmp_path / "to").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"no tar" * 1000, bytes(10240)], ids=["empty", "text", "zeros"])
def test_what_is_no_tar(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    assert len(said(tmp_path / "x.tar")) == 1


def test_a_compressed_tar_is_not_read(packed: Path, tmp_path: Path) -> None:
    """What it unpacks to has no bound."""
    import gzip

    (tmp_path / "x.tar").write_bytes(gzip.compress(packed.read_bytes()))
    ((_, what),) = said(tmp_path / "x.tar")
    assert what.startswith("not a readable tar")


# A layout.


def test_a_missing_and_a_damaged_blob_are_named(layout: Path) -> None:
    largest = max((layout / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    name, data = f"blobs/sha256/{largest.name}", largest.read_bytes()
    flip(largest, len(data) // 2)
    assert said(layout) == [(name, "a blob is damaged: its SHA-256 differs")]
    largest.write_bytes(data[:-1])
    assert said(layout) == [(name, f"a blob has {len(data) - 1} bytes instead of {len(data)}")]
    largest.unlink()
    assert said(layout) == [(name, "a blob cannot be read: No such file or directory")]
    largest.symlink_to("/dev/zero")
    assert said(layout) == [(name, "a blob is not a plain file")]


@pytest.mark.parametrize("name", ["oci-layout", "index.json"])
def test_a_layout_without_its_two_documents(layout: Path, name: str) -> None:
    (layout / name).unlink()
    assert said(layout) == [(name, "a file is missing, or larger than 4 MiB")]


def drop_layer(manifest: Any, config: Any, layers: list[bytes]) -> None:
    layers.pop()
    manifest["layers"].pop()
    config["modelfs"]["diffIds"].pop()


def repeat_layer(manifest: Any, config: Any, layers: list[bytes]) -> None:
    layers.append(layers[0])
    manifest["layers"].append(dict(manifest["layers"][0]))
    del config["modelfs"]


def compress(manifest: Any, config: Any, layers: list[bytes]) -> None:
    manifest["layers"][0]["mediaType"] += "+gzip"


def other_kind(manifest: Any, config: Any, layers: list[bytes]) -> None:
    manifest["artifactType"] = "application/vnd.example"


def other_diff_ids(manifest: Any, config: Any, layers: list[bytes]) -> None:
    config["modelfs"]["diffIds"].reverse()


def garbage(manifest: Any, config: Any, layers: list[bytes]) -> None:
    layers[0] = b"garbage"
    del config["modelfs"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (drop_layer, "a file of the artifact is missing"),
        (repeat_layer, "two layers hold the same file"),
        (
            compress,
            "a blob of media type 'application/vnd.cncf.model.weight.config.v1.tar+gzip', which no model of aot",
        ),
        (other_kind, "the image is not a model: its artifactType is another one"),
        (other_diff_ids, "the config lists other layers than the manifest"),
        (garbage, "not a readable tar"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_layout_whose_digests_are_right_and_its_content_is_not(
    layout: Path, change: Callable[..., None], what: str
) -> None:
    rewrite(layout, change)
    assert {found[: len(what)] for _, found in said(layout)} == {what}


def test_one_image_with_two_tags_is_one_and_two_images_are_not(layout: Path) -> None:
    index = json.loads((layout / "index.json").read_bytes())
    index["manifests"] *= 2
    (layout / "index.json").write_text(json.dumps(index))
    assert said(layout) == []
    index["manifests"][1] = {**index["manifests"][1], "digest": f"sha256:{'0' * 64}"}
    (layout / "index.json").write_text(json.dumps(index))
    assert said(layout) == [("index.json", "the layout holds 2 images instead of one")]


WRONG: tuple[Any, ...] = (None, [], {}, 0, -1, 1e308, True, "x", "sha256:../../../etc/passwd", [None], [{}], 1 << 70)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value in plain data."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


def put(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = dict(data) if isinstance(data, dict) else list(data)
    changed[path[0]] = put(data[path[0]], path[1:], value)
    return changed


@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("document", ["oci-layout", "index.json", "manifest", "config"])
def test_any_wrong_value_in_a_document_is_answered_in_words(layout: Path, document: str, count: int) -> None:
    """Most are refused; an annotation may be anything."""
    index = json.loads((layout / "index.json").read_bytes())
    manifest = read_blob(layout, index["manifests"][0])
    inner = {"manifest": manifest, "config": read_blob(layout, manifest["config"])}
    data = inner[document] if document in inner else json.loads((layout / document).read_bytes())
    cases = [(place, value) for place in places(data) for value in WRONG]
    cases = random.Random(0).sample(cases, min(len(cases), count))
    refused = 0
    for place, value in cases:
        wrong = put(data, place, value)
        if document == "config":
            wrong = {**manifest, "config": {**manifest["config"], **blob(layout, wrong)}}
        if document in inner:
            wrong = {"schemaVersion": 2, "manifests": [{**index["manifests"][0], **blob(layout, wrong)}]}
        (layout / ("oci-layout" if document == "oci-layout" else "index.json")).write_text(json.dumps(wrong))
        refused += said(layout) != []
    assert refused > len(cases) / 3


@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", ["tar", "layout"])
def test_a_flipped_bit_is_found_or_harmless(forms: dict[str, Path], tmp_path: Path, form: str, count: int) -> None:
    """Harmless is what unpacks to the same bytes: padding, and of a tar's headers the owner."""
    original = forms[form]
    everything = [original] if original.is_file() else [path for path in sorted(original.rglob("*")) if path.is_file()]
    chance, damaged = random.Random(count), tmp_path / original.name
    found = 0
    (shutil.copytree if original.is_dir() else shutil.copy)(original, damaged)
    for _ in range(count):
        which = chance.choice(everything)
        victim = damaged if original.is_file() else damaged / which.relative_to(original)
        place, bit = chance.randrange(which.stat().st_size), chance.randrange(8)
        flip(victim, place, bit)
        if verify(str(damaged)).problems:
            found += 1
        else:
            unpack(str(damaged), tmp_path / "back.aot", overwrite=True)
            assert files(tmp_path / "back.aot") == files(forms["folder"]), (which, place, bit)
        flip(victim, place, bit)
    assert found > count // 4
