"""`unpack` gives back the folder, byte for byte, whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest

from aot import artifact as aot_artifact
from aot.errors import ArtifactError, UsageError
from aot.packing import oci, output, tar
from aot.packing.unpack import unpack
from tests.packing.artifacts import artifact, files
from tests.packing.damage import flip, members_of, tar_of

WRITERS = {"tar": tar.write, "layout": oci.write}
both = pytest.mark.parametrize("form", WRITERS)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return artifact(tmp_path / "tiny.aot", {"sm89": b"plan of sm89" * 100, "sm120": b"plan of sm120" * 100})


@both
@pytest.mark.parametrize("engines", [{}, {"sm90": b"p"}, {"sm89": b"p" * 3, "sm90": b"q" * 5000}], ids=["0", "1", "2"])
def test_what_was_packed_comes_back_byte_for_byte(tmp_path: Path, form: str, engines: dict[str, bytes]) -> None:
    tiny = artifact(tmp_path / "tiny.aot", engines)
    WRITERS[form](tiny, tmp_path / "packed")
    unpack(str(tmp_path / "packed"), tmp_path / "new/folder/back.aot")
    assert files(tmp_path / "new/folder/back.aot") == files(tiny)
    assert len(aot_artifact.load(str(tmp_path / "new/folder/back.aot")).engines) == len(engines)


def test_the_tar_is_the_one_that_a_build_writes(tmp_path: Path) -> None:
    tar.write(artifact(tmp_path / "tiny.aot", {"sm90": b"plan"}), tmp_path / "packed.tar")
    built = artifact(tmp_path / "built.tar", {"sm90": b"plan"})
    theirs = dict(members_of(built))
    assert [name for name, _ in members_of(tmp_path / "packed.tar")] == list(theirs)
    assert theirs["engines/sm90.plan"] == b"plan"
    unpack(str(built), tmp_path / "back.aot")
    tar.write(tmp_path / "back.aot", tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == built.read_bytes()


@both
def test_a_damaged_source_leaves_nothing(tiny: Path, tmp_path: Path, form: str) -> None:
    WRITERS[form](tiny, tmp_path / "packed")
    largest = max((p for p in [tmp_path / "packed", *tmp_path.glob("packed/**/*")] if p.is_file()),
                  key=lambda path: path.stat().st_size)  # fmt: skip
    flip(largest, 600)
    with pytest.raises(ArtifactError, match=r"damaged|digest differs"):
        unpack(str(tmp_path / "packed"), tmp_path / "to/back.aot")
    assert list((tmp_path / "to").iterdir()) == []


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ([("engines", b"x")], "not a readable tar|its files cannot be told apart"),
        ([("graph/model.onnx/inside", b"x")], "its files cannot be told apart"),
        ([("engines/sm90.plan", b"not built by them")], "the manifest does not list this file"),
        ([("n" * 300, b"x")], "its files cannot be told apart"),
    ],
)
def test_members_that_clash_or_are_not_listed(tiny: Path, tmp_path: Path, members: list[Any], what: str) -> None:
    tar.write(tiny, tmp_path / "good.tar")
    tar_of(tmp_path / "bad.tar", [*members_of(tmp_path / "good.tar"), *members])
    with pytest.raises(ArtifactError, match=what):
        unpack(str(tmp_path / "bad.tar"), tmp_path / "to/back.aot")
    assert list((tmp_path / "to").iterdir()) == []


def test_an_artifact_that_is_there_is_replaced_only_where_that_is_asked_for(tiny: Path, tmp_path: Path) -> None:
    tar.write(tiny, tmp_path / "packed.tar")
    there = artifact(tmp_path / "there.aot")
    before = files(there)
    with pytest.raises(UsageError, match="there is one already") as refused:
        unpack(str(tmp_path / "packed.tar"), there)
    assert refused.value.fix == "replace it with --force, or give another place"
    assert files(there) == before
    unpack(str(tmp_path / "packed.tar"), there, overwrite=True)
    assert files(there) == files(tiny)


def test_what_is_no_artifact_is_never_replaced(tiny: Path, tmp_path: Path) -> None:
    tar.write(tiny, tmp_path / "packed.tar")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/one.jpg").write_bytes(b"x")
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tiny)
    for name in ("photos", "file", "link", "packed.tar"):
        with pytest.raises(UsageError, match="will not overwrite what is not an artifact folder"):
            unpack(str(tmp_path / "packed.tar"), tmp_path / name, overwrite=True)
    assert files(tmp_path / "photos").keys() == {"one.jpg"}
    (tmp_path / "empty").mkdir()
    unpack(str(tmp_path / "packed.tar"), tmp_path / "empty")
    assert files(tmp_path / "empty") == files(tiny)


@both
def test_a_form_replaces_its_own_kind_alone(tiny: Path, tmp_path: Path, form: str) -> None:
    WRITERS[form](tiny, tmp_path / "packed")
    before = files(tmp_path)
    with pytest.raises(UsageError, match="there is one already"):
        WRITERS[form](tiny, tmp_path / "packed")
    with pytest.raises(UsageError, match="will not overwrite"):
        WRITERS[form](tiny, tiny, overwrite=True)
    WRITERS[form](tiny, tmp_path / "packed", overwrite=True)
    assert files(tmp_path) == before


def test_a_layout_of_several_images_is_not_replaced(tiny: Path, tmp_path: Path) -> None:
    oci.write(tiny, tmp_path / "oci")
    index = (tmp_path / "oci/index.json").read_text()
    more = '"manifests":[{"digest":"sha256:' + "0" * 64 + '"},'
    (tmp_path / "oci/index.json").write_text(index.replace('"manifests":[', more))
    with pytest.raises(UsageError, match="will not overwrite what is not an OCI image layout of one model"):
        oci.write(tiny, tmp_path / "oci", overwrite=True)


def test_a_folder_is_unpacked_already(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is unpacked already"):
        unpack(str(tiny), tmp_path / "back.aot")


@both
def test_a_place_that_takes_nothing(tiny: Path, tmp_path: Path, form: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    for place in (tmp_path / "file/packed", Path("/proc/packed"), tmp_path / ("n" * 300)):
        with pytest.raises(UsageError, match="cannot be written") as refused:
            WRITERS[form](tiny, place)
        assert refused.value.where == str(place)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(UsageError, match="Permission denied"):
        tar.write(tiny, tmp_path / "locked/packed.tar")


@both
def test_a_full_disk_leaves_what_was_there(
    tiny: Path, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS[form](tiny, tmp_path / "packed")
    before = files(tmp_path)

    def full(*arguments: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tar if form == "tar" else oci, "add", full)
    with pytest.raises(UsageError, match="No space left on device") as refused:
        WRITERS[form](tiny, tmp_path / "packed", overwrite=True)
    assert refused.value.fix is not None
    assert refused.value.fix.startswith("free some space")
    assert files(tmp_path) == before
    monkeypatch.setattr(output, "swap", full)
    with pytest.raises(UsageError, match="No space left on device"):
        unpack(str(tmp_path / "packed"), tmp_path / "to/back.aot")
    assert list((tmp_path / "to").iterdir()) == []


def test_what_a_killed_run_left_is_swept(tiny: Path, tmp_path: Path) -> None:
    left = tmp_path / ".packed.4194304-1.new"  # no process has that number: it is above the largest
    shutil.copytree(tiny, left)
    tar.write(tiny, tmp_path / "packed")
    assert not left.exists()
