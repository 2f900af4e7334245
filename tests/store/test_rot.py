"""A byte of the store that is not as it was written: `aot cache verify` says so, and who reads it makes it again."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from aot import artifact
from aot.store import FACTS, Store, sha256
from aot.store_admin import damage, entries
from tests.e2e.harness import DIM, Here, write_mlp_onnx

BUILD = ("build", "mlp.onnx", *DIM, "--precision", "int8", "--backend", "onnxruntime", "--json")
UNREAD = {"verify-export"}
"""What no stage and no artifact reads the files of: their facts say it all."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Here:
    base = tmp_path_factory.mktemp("rot")
    (base / "project").mkdir()
    aot = Here(base / "project", base / "store")
    write_mlp_onnx(aot.folder / "mlp.onnx")
    first = aot(*BUILD)
    assert first.code == 0, first.err
    return aot


def contents(folder: Path) -> dict[str, str]:
    """The digest of every file of an entry or artifact that a build makes the same each time."""
    found = (path for path in sorted(folder.glob("*/*/**/*")) if path.is_file() and path.name != FACTS)
    return {str(path.relative_to(folder)): sha256(path) for path in found}


def flip(path: Path, place: int) -> None:
    """Another byte, with neither the size nor the times changed."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[place % len(data)] ^= 0x10
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def stages(store: Store) -> list[str]:
    return sorted({item.stage for item in entries(store)})


def test_a_flipped_byte_of_any_entry_is_found_and_made_again(built: Here, tmp_path: Path) -> None:
    """One entry at a time is damaged, and all that was made from it is asked for again."""
    truth = contents(built.store / "aot")
    found = stages(Store(built.store / "aot"))
    assert {"export", "collect", "observe", "calibrate", "quantize", "reference", "verify", "build"} <= set(found)
    for stage in found:
        aot = Here(built.folder, tmp_path / stage)
        shutil.copytree(built.store, aot.store)
        store = Store(aot.store / "aot")
        (kept,) = [item for item in entries(store) if item.stage == stage]
        entry = store.look(stage, kept.key)
        assert entry is not None
        for name in entry.files:
            flip(entry.path / name, entry.files[name]["bytes"] // 2)
        for item in entries(store):
            if item.key != kept.key:
                shutil.rmtree(item.path)
        said = aot(*BUILD, "-o", str(tmp_path / f"{stage}.aot"))
        assert said.code == 0, said.err
        warned = [warning for warning in said.json["warnings"] if "damaged" in warning]
        assert len(warned) == (stage not in UNREAD), (stage, warned)
        if stage in UNREAD:
            assert damage(store)[1] == [kept.path]
            assert aot(*BUILD, "-o", str(tmp_path / f"{stage}.aot")).worked_on == {"verify export"}
        assert damage(store)[1] == []
        after = contents(aot.store / "aot")
        assert {name: after[name] for name in truth} == truth


def test_verify_names_what_is_damaged_and_a_build_makes_it_again(built: Here, tmp_path: Path) -> None:
    aot = Here(built.folder, tmp_path / "store")
    shutil.copytree(built.store, aot.store)
    store = Store(aot.store / "aot")
    assert aot("cache", "verify", "--json").json["damaged"] == []
    (item,) = [item for item in entries(store) if item.stage == "observe"]
    record = next((store.root / "sources").iterdir())
    flip(next(path for path in item.path.iterdir() if path.name != FACTS), 100)
    flip(record, 200)
    said = aot("cache", "verify", "--json")
    assert (said.code, set(said.json["damaged"])) == (1, {str(item.path), str(record)})
    assert store.look("observe", item.key) is None  # no build takes it up any more
    again = aot(*BUILD)
    assert again.code == 0
    assert again.worked_on == {"load", "observe"}
    assert aot("cache", "verify").code == 0


def test_an_unchanged_rebuild_reads_no_file_of_an_entry(built: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Store, entry: object) -> bool:
        raise AssertionError(entry)

    monkeypatch.setattr(Store, "sound", refuse)
    assert built(*BUILD).worked_on == set()


def test_a_tar_whose_unpacked_copy_is_damaged_is_unpacked_again(
    built: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tar = tmp_path / "mlp.tar"
    assert built(*BUILD, "-o", str(tar)).code == 0
    first = artifact.load(str(tar)).final.model
    flip(first, 300)
    again = artifact.load(str(tar)).final.model
    assert again == first
    assert sha256(again) == sha256(built.folder / "mlp.aot/graph/model.onnx")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_flips_anywhere_in_the_store_change_no_artifact(built: Here, tmp_path: Path) -> None:
    """300 random bits of random files; all stages but those that made the damaged file are asked for again."""
    chance = random.Random(5)
    reference = json.loads((built.folder / "mlp.aot" / "manifest.json").read_text())["files"]
    noticed = 0
    for number in range(300):
        aot = Here(built.folder, tmp_path / "store")
        shutil.copytree(built.store, aot.store)
        store = Store(aot.store / "aot")
        files = [path for path in sorted(store.root.rglob("*")) if path.is_file() and path.stat().st_size]
        path = chance.choice(files)
        flip(path, chance.randrange(path.stat().st_size))
        for item in entries(store):
            if item.path not in path.parents and chance.random() < 0.7:
                shutil.rmtree(item.path)
        output = tmp_path / f"{number}.aot"
        said = aot(*BUILD, "-o", str(output))
        assert said.code == 0, (path, said.err)
        made = json.loads((output / "manifest.json").read_text())["files"]
        for name in ("graph/model.onnx", "ranges/ranges.json", "engines/cpu.onnx"):
            assert made[name] == reference[name], (path, name)
        noticed += any("damaged" in warning for warning in said.json["warnings"])
        for folder in (aot.store, output):
            shutil.rmtree(folder)
    assert noticed >= 20


def test_arrays_of_a_damaged_entry_are_never_read(tmp_path: Path) -> None:
    """Not even where the format would not notice: a byte of a float in an uncompressed file is another float."""
    from aot.progress import Silent
    from aot.records import Record
    from aot.run import Run

    run = Run(Store(tmp_path), said := Silent())

    def make(folder: Path) -> dict[str, int]:
        np.save(folder / "x.npy", np.ones(4, np.float32))
        return {}

    def asked() -> Record:
        return Run(Store(tmp_path), said).stage(Record, "arrays", make, config={}, inputs=[])

    path = run.stage(Record, "arrays", make, config={}, inputs=[]).path / "x.npy"
    flip(path, path.stat().st_size - 1)
    assert np.load(path)[3] != 1
    np.testing.assert_array_equal(np.load(asked().path / "x.npy"), np.ones(4, np.float32))
    assert len(said.warnings) == 1
    assert "is made again" in said.warnings[0]
