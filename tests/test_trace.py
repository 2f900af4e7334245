"""Which reads a recorder notices, and which it leaves out."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from aot import trace


def files(record: trace.Recorded) -> set[str]:
    return {os.path.basename(path) for path in record["files"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "weights.bin").write_bytes(b"1234")
    return tmp_path


def test_a_file_opened_for_reading_counts_and_one_written_does_not(folder: Path) -> None:
    with trace.Recorder() as seen:
        (folder / "weights.bin").read_bytes()
        (folder / "result.bin").write_bytes(b"")
        os.close(os.open(folder / "made.txt", os.O_WRONLY | os.O_CREAT))
    assert files(seen.record()) == {"weights.bin"}


def test_weights_beside_a_config_count_as_well(folder: Path) -> None:
    with trace.Recorder() as seen:
        json.loads((folder / "config.json").read_text())
    assert files(seen.record()) == {"config.json", "weights.bin"}


def test_what_safetensors_opens_is_seen(folder: Path) -> None:
    pytest.importorskip("safetensors")
    from safetensors.numpy import load_file, save_file

    save_file({"w": np.ones(3, np.float32)}, folder / "model.safetensors")
    from safetensors import safe_open

    with trace.Recorder() as seen:
        import safetensors

        with safetensors.safe_open(folder / "model.safetensors", "np") as opened:
            opened.get_tensor("w")
    assert files(seen.record()) == {"model.safetensors"}
    assert safetensors.safe_open is safe_open
    with trace.Recorder() as seen:
        load_file(folder / "model.safetensors")
    assert files(seen.record()) == {"model.safetensors"}


def test_a_mapped_file_is_seen(folder: Path) -> None:
    np.save(folder / "mapped.npy", np.zeros(10_000))
    with trace.Recorder() as seen:
        mapped = np.load(folder / "mapped.npy", mmap_mode="r")
        seen.opened.clear()
    assert files(seen.record()) == {"mapped.npy"}
    del mapped


@pytest.mark.parametrize("name", ["code.py", "library.so", "library.so.6", "x.dist-info/METADATA"])
def test_code_and_metadata_are_not_data(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    with trace.Recorder() as seen:
        path.read_bytes()
        Path("/proc/self/status").read_bytes()
    assert files(seen.record()) == set()


def test_the_store_itself_is_not_data(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store/entry.json").write_text("{}")
    with trace.Recorder(ignore=tmp_path / "store") as seen:
        (tmp_path / "store/entry.json").read_text()
    assert files(seen.record()) == set()


def test_a_temporary_file_that_is_gone_is_left_out(tmp_path: Path) -> None:
    with trace.Recorder() as seen:
        (tmp_path / "scratch").write_text("")
        (tmp_path / "scratch").read_text()
        (tmp_path / "scratch").unlink()
    assert files(seen.record()) == set()


def test_local_modules_count_also_where_they_were_imported_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "tr_inner.py").write_text("")
    (tmp_path / "tr_outer.py").write_text("def use():\n    import tr_inner\n")
    outer = importlib.import_module("tr_outer")
    importlib.import_module("tr_inner")
    with trace.Recorder() as seen:
        outer.use()
    assert files(seen.record()) == {"tr_inner.py"}


def test_a_file_that_was_only_touched_is_digested_once(folder: Path) -> None:
    with trace.Recorder() as seen:
        (folder / "config.json").read_text()
    record = seen.record()
    kept: list[str] = []
    assert trace.unchanged(record, lambda: kept.append("first"))
    os.utime(folder / "config.json", ns=(1, 1))
    assert trace.unchanged(record, lambda: kept.append("touched"))
    assert trace.unchanged(record, lambda: kept.append("again"))
    assert kept == ["touched"]


def test_a_change_is_named(folder: Path) -> None:
    with trace.Recorder() as seen:
        (folder / "config.json").read_text()
    record = json.loads(json.dumps(seen.record()))
    assert trace.unchanged(record)
    key = trace.key(record, folder)
    (folder / "weights.bin").write_bytes(b"4321")
    assert trace.changes(record) == [str(folder / "weights.bin")]
    assert trace.key(trace.renewed(record), folder) != key
    (folder / "weights.bin").write_bytes(b"1234")
    assert trace.unchanged(record)
    assert trace.key(record, folder) == key


def test_nothing_is_recorded_between_phases(folder: Path) -> None:
    with trace.Recorder() as seen:
        pass
    (folder / "config.json").read_text()
    assert files(seen.record()) == set()


def test_the_standard_library_and_installed_packages_are_not_local() -> None:
    assert not trace.is_local(json.__file__)
    assert not trace.is_local(np.__file__)
    assert not trace.is_local(trace.__file__)
    assert not trace.is_local("<string>")
    assert not trace.is_local(None)
    assert trace.is_local(__file__)
