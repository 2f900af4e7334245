"""`aot optimize`: weights in files beside the model, which are read where they lie and never overwritten."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from aot.cli import _main as cli
from tests.cli.test_optimize import refused, run, with_weight


class TestWeightsBesideTheFile:
    def source(self, folder: Path) -> Path:
        text = """<ir_version: 8, opset_import: ["" : 20]>
        net (float[n,64] x) => (float[n,64] y) { a = Identity(x)  y = MatMul(a, w) }"""
        model = with_weight(text, 64, 64)
        onnx.save(model, folder / "in.onnx", save_as_external_data=True, location="in.weights", size_threshold=0)
        return folder / "in.onnx"

    def test_they_stay_beside_it(self, tmp_path: Path) -> None:
        source, target = self.source(tmp_path), tmp_path / "out.onnx"
        assert cli.call(["optimize", str(source), str(target)]) == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "in.onnx",
            "in.weights",
            "out.onnx",
            "out.onnx.data",
        ]
        x = np.ones((2, 64), np.float32)
        np.testing.assert_array_equal(run(target, x=x)[0], run(source, x=x)[0])

    def test_a_file_written_over_itself_keeps_its_numbers_and_the_old_weights_are_named(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = self.source(tmp_path)
        x = np.ones((2, 64), np.float32)
        expected = run(path, x=x)[0]
        for old in ("in.weights", "in.onnx.data", "in.onnx.2.data"):
            assert cli.call(["optimize", str(path), str(path), "--json"]) == 0
            said = capsys.readouterr()
            assert json.loads(said.out)["left"] == [str(tmp_path / old)]
            assert said.err == f"left: {tmp_path / old}, which nothing of in.onnx reads any more; other models may\n"
            (tmp_path / old).unlink()
            np.testing.assert_array_equal(run(path, x=x)[0], expected)

    @pytest.mark.parametrize("through_another", [False, True])
    def test_weights_that_another_model_reads_stay(self, through_another: bool, tmp_path: Path) -> None:
        """Two models may keep their weights in one file, whatever its name; nothing in it says so."""
        source, path, shared = self.source(tmp_path), tmp_path / "a.onnx", tmp_path / "shared.onnx"
        assert cli.call(["optimize", str(source), str(path)]) == 0
        shared.write_bytes(path.read_bytes())  # reads a.onnx.data
        assert cli.call(["optimize", str(source if through_another else path), str(path)]) == 0
        x = np.ones((2, 64), np.float32)
        for one in (shared, path):
            np.testing.assert_array_equal(run(one, x=x)[0], run(source, x=x)[0])

    def test_an_output_that_would_replace_weights_of_the_input_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = self.source(tmp_path)
        before = (tmp_path / "in.weights").read_bytes()
        (tmp_path / "link.onnx").symlink_to("in.weights")
        for name in ("in.weights", "link.onnx"):
            assert refused(capsys, source, tmp_path / name)["what"] == "the output holds weights of the input"
        assert (tmp_path / "in.weights").read_bytes() == before

    def test_small_weights_leave_no_empty_file(self, tmp_path: Path) -> None:
        text = """<ir_version: 8, opset_import: ["" : 20]>
        net (float[n,2] x) => (float[n,2] y) { a = Identity(x)  y = MatMul(a, w) }"""
        source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
        model = with_weight(text, 2, 2)
        onnx.save(model, source, save_as_external_data=True, location="in.weights", size_threshold=0)
        assert cli.call(["optimize", str(source), str(target)]) == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.onnx", "in.weights", "out.onnx"]
        x = np.ones((3, 2), np.float32)
        np.testing.assert_array_equal(run(target, x=x)[0], run(source, x=x)[0])

    def test_stopped_between_its_two_files_neither_is_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source, replace = self.source(tmp_path), os.replace

        def stop(old: str | Path, new: str | Path) -> None:
            if Path(new).suffix == ".onnx":
                raise KeyboardInterrupt
            replace(old, new)

        monkeypatch.setattr(os, "replace", stop)
        assert cli.call(["optimize", str(source), str(tmp_path / "out.onnx")]) == 130
        assert capsys.readouterr().err == "interrupted; nothing was written\n"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.onnx", "in.weights"]

    def test_weights_that_the_input_reads_are_not_removed_with_the_old_output(self, tmp_path: Path) -> None:
        source, target = self.source(tmp_path), tmp_path / "out.onnx"
        assert cli.call(["optimize", str(source), str(target)]) == 0
        again = tmp_path / "again.onnx"
        again.write_bytes(target.read_bytes())  # reads out.onnx.data, too
        assert cli.call(["optimize", str(again), str(target)]) == 0
        x = np.ones((2, 64), np.float32)
        np.testing.assert_array_equal(run(again, x=x)[0], run(source, x=x)[0])

    def test_missing_ones_are_named(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        source = self.source(tmp_path)
        (tmp_path / "in.weights").unlink()
        assert "in.weights" in refused(capsys, source, tmp_path / "out.onnx")["what"]

    def test_a_weight_longer_than_its_file_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        source = self.source(tmp_path)
        os.truncate(tmp_path / "in.weights", 100)
        refused(capsys, source, tmp_path / "out.onnx")
        assert not (tmp_path / "out.onnx").exists()
