"""What commands write beside their answers: whole or not at all, and over nothing of another kind."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import onnx
import pytest

from aot.cli import _main as cli
from aot.cli._writing import ARRAYS, PAGE, replacing
from aot.errors import UsageError
from aot.text import table, visible


def write(path: Path, begins: bytes, data: bytes) -> None:
    with replacing(str(path), begins, "it", str(path), "elsewhere") as file:
        file.write_bytes(data)


@pytest.mark.parametrize(
    "command", [("run", "m.aot", "-o", "model.py"), ("diff", "m.onnx", "m.aot", "--plot", "model.py")]
)
def test_a_command_that_would_overwrite_another_kind_of_file_says_so_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text("mine")
    assert cli.call([*command, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["what"].startswith("will not overwrite what is not")
    assert Path("model.py").read_text() == "mine"


@pytest.mark.parametrize(("begins", "data"), [(PAGE, b"<!doctype html><p>"), (ARRAYS, b"PK\x03\x04")])
def test_one_of_the_same_kind_and_an_empty_file_are_replaced(tmp_path: Path, begins: bytes, data: bytes) -> None:
    path, link = tmp_path / "page", tmp_path / "link"
    path.touch()
    link.symlink_to("page")
    write(path, begins, data + b"1")
    write(link, begins, data + b"2")
    assert (path.read_bytes(), link.is_symlink()) == (data + b"2", True)
    assert sorted(os.listdir(tmp_path)) == ["link", "page"]


def test_what_ends_half_way_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "y.npz"
    path.write_bytes(b"PK old")

    def half() -> None:
        with replacing(str(path), ARRAYS, "it", str(path), "elsewhere") as file:
            file.write_bytes(b"PK ne")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(UsageError, match="it cannot be written: No space left on device"):
        half()
    assert path.read_bytes() == b"PK old"
    assert os.listdir(tmp_path) == ["y.npz"]


def test_a_device_is_written_to_and_a_folder_is_not(tmp_path: Path) -> None:
    write(Path("/dev/null"), PAGE, b"<!doctype html>")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(UsageError, match="Is a directory"):
        write(tmp_path, PAGE, b"<!doctype html>")


def test_what_a_file_names_moves_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("Foo\x1b[2J", ["x"], ["y"])],
            "g",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4])],
            [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])],
        )
    )
    onnx.save(model, tmp_path / "m.onnx")
    assert cli.call(["optimize", str(tmp_path / "m.onnx"), str(tmp_path / "out.onnx")]) == 2
    said = capsys.readouterr().err
    assert r"ONNX has no op 'Foo\x1b[2J'" in said
    assert "\x1b" not in said
    assert table([["a\x1b[2J\n", "é"]], indent="") == r"a\x1b[2J\n  é"
    assert visible("a\n\tb\u202e") == "a\n\tb" + r"\u202e"
