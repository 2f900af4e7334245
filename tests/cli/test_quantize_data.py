"""`aot quantize`: data in every form, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from aot.cli import _main as cli
from tests.cli.test_quantize import arrays, exact, given, net, npz, quantize, refused


class TestData:
    def ranges(self, target: Path) -> list[float]:
        """The scales of activations, in order."""
        model = onnx.load(target)
        values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        return [float(values[node.input[1]]) for node in model.graph.node if node.op_type == "QuantizeLinear"]

    def test_all_forms_of_the_same_data_give_the_same_ranges(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, recipe, data = given(tmp_path / "in.onnx"), exact(tmp_path / "e.yaml"), arrays()
        folder = tmp_path / "batches"
        folder.mkdir()
        for number in range(4):
            part = {name: values[8 * number : 8 * number + 8] for name, values in data.items()}
            np.savez(folder / f"{number}.npz", **part)
        (tmp_path / "given.py").write_text(
            "from pathlib import Path\nimport numpy as np\n\n\ndef batches():\n"
            "    for path in sorted((Path(__file__).parent / 'batches').glob('*.npz')):\n"
            "        yield dict(np.load(path))\n"
        )
        monkeypatch.chdir(tmp_path)
        found = []
        for form in (npz(tmp_path / "d.npz"), folder, "given.py:batches", "given:batches"):
            quantize(capsys, source, tmp_path / "out.onnx", "--calibration", recipe, "--data", form)
            found.append(self.ranges(tmp_path / "out.onnx"))
        assert found == [found[0]] * 4
        assert found[0][0] == pytest.approx(np.abs(data["x"][:24]).max() / 127, rel=1e-6)

    def test_workers_change_nothing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        source, recipe, data = given(tmp_path / "in.onnx"), exact(tmp_path / "e.yaml"), npz(tmp_path / "d.npz")
        found = []
        for workers in (1, 2):
            target = tmp_path / f"{workers}.onnx"
            quantize(capsys, source, target, "--calibration", recipe, "--data", data, "--workers", workers)
            found.append(self.ranges(target))
        assert found[0] == found[1]
        assert "--workers" in refused(capsys, source, target, "--workers", "0")["what"]

    def test_without_any_inputs_are_generated_and_a_warning_says_so(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source = given(tmp_path / "in.onnx")
        assert cli.call(["quantize", str(source), str(tmp_path / "o.onnx"), "--dim", "batch=1:4:8", "--json"]) == 0
        said = capsys.readouterr()
        assert json.loads(said.out)["calibration"]["generated"] is True
        assert "warning: no data is given" in said.err

    def test_one_batch_is_compared_on_itself_and_a_warning_says_so(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        source, data = given(tmp_path / "in.onnx"), npz(tmp_path / "d.npz", **arrays(samples=1))
        assert cli.call(["quantize", str(source), str(tmp_path / "o.onnx"), "--data", str(data), "--json"]) == 0
        said = capsys.readouterr()
        assert "nothing is held out" in said.err
        assert json.loads(said.out)["cosine"] > 0.99

    def test_without_bounds_of_a_dim_both_ways_out_are_named(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        error = refused(capsys, given(tmp_path / "in.onnx"), tmp_path / "o.onnx")
        assert "'batch' (input 'x', axis 0)" in error["what"]
        assert error["fix"] == "give --data, or add --dim batch=1:8:64"

    @pytest.mark.parametrize(
        ("change", "what", "where"),
        [
            ({"x": None}, "the data lacks x", "d.npz"),
            ({"z": np.zeros(32)}, "the data has unknown z", "d.npz"),
            ({"x": np.zeros((32, 32))}, "expected float32, got float64", "batch 0 (samples 0 to 7), input 'x'"),
            ({"kind": np.zeros(32, np.int32)}, "expected int64, got int32", "batch 0 (samples 0 to 7), input 'kind'"),
            ({"x": np.zeros((32, 31), np.float32)}, "axis 1 has size 31, expected 32", "input 'x'"),
            ({"x": np.zeros((32, 32, 1), np.float32)}, "expected shape [batch, 32], got [8, 32, 1]", "input 'x'"),
            ({"kind": np.arange(31)}, "the arrays do not hold equally many samples", "d.npz"),
            ({"x": np.zeros((0, 32), np.float32), "kind": np.arange(0)}, "the file holds no samples", "d.npz"),
        ],
    )
    def test_that_does_not_fit_is_named(
        self, change: dict[str, Any], what: str, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        data = {name: values for name, values in (arrays() | change).items() if values is not None}
        assert (
            cli.call(
                [
                    "quantize",
                    str(given(tmp_path / "in.onnx")),
                    str(tmp_path / "o.onnx"),
                    "--json",
                    "--data",
                    str(npz(tmp_path / "d.npz", **data)),
                ]
            )
            == 2
        )
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["what"].startswith(what)
        assert where in error["where"]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["d.npz", "in.onnx"]

    def test_nan_names_the_batch_and_the_input(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        data = arrays()
        data["x"][17, 3] = np.nan
        error = refused(
            capsys, given(tmp_path / "in.onnx"), tmp_path / "o.onnx", "--data", npz(tmp_path / "d.npz", **data)
        )
        assert error["what"] == "1 of 256 values are NaN or infinite"
        assert "batch 2 (samples 16 to 23), input 'x'" in error["where"]

    def test_an_empty_folder_and_files_that_are_none(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        source, folder = given(tmp_path / "in.onnx"), tmp_path / "empty"
        folder.mkdir()
        (tmp_path / "text.npz").write_text("no archive")
        for data, what in (
            (folder, "the folder holds no .npz file"),
            (tmp_path / "text.npz", "not an .npz file of arrays"),
            (tmp_path / "none.npz", "no such file"),
            (tmp_path / "data.csv", "calibration data of an unknown form"),
            (tmp_path / "nowhere", "no such folder"),
        ):
            assert cli.call(["quantize", str(source), str(tmp_path / "o.onnx"), "--data", str(data), "--json"]) == 2
            assert json.loads(capsys.readouterr().out)["error"]["what"].startswith(what)

    @pytest.mark.parametrize(
        ("code", "what"),
        [
            ("def batches():\n    yield {}['x']\n", "running batches(): KeyError: 'x'"),
            ("def batches():\n    return 3\n", "batches() returned int, not batches"),
            ("def batches():\n    return []\n", "batches() yields no batch"),
            ("batches = 3\n", "'batches' is no function"),
            ("", "'batches' is not in given"),
        ],
    )
    def test_a_function_that_fails_is_named_with_its_line(
        self, code: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "given.py").write_text(code)
        place = f"{tmp_path / 'given.py'}:batches"
        assert (
            cli.call(
                ["quantize", str(given(tmp_path / "in.onnx")), str(tmp_path / "o.onnx"), "--data", place, "--json"]
            )
            == 2
        )
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["what"] == what
        assert "given" in error["where"] or "batches" in error["where"]

    @pytest.mark.parametrize(
        ("size", "value", "what"),
        [
            (0, 1, "the data hold no samples"),
            (4, 0, "every value of every input is 0: no range can be taken from that"),
        ],
    )
    def test_that_tell_nothing_are_refused(
        self, size: int, value: int, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        batch = f"{{'x': np.full(({size}, 32), {value}, 'f4'), 'kind': np.zeros({size}, 'i8')}}"
        (tmp_path / "given.py").write_text(f"import numpy as np\n\n\ndef batches():\n    yield from 2 * [{batch}]\n")
        place = f"{tmp_path / 'given.py'}:batches"
        error = refused(capsys, given(tmp_path / "in.onnx"), tmp_path / "o.onnx", "--data", place)
        assert (error["what"], error["where"]) == (what, f"--data {place}")

    def test_a_fixed_batch_takes_whole_batches_only(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        model = net()
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = 5
        source, data = given(tmp_path / "in.onnx", model), npz(tmp_path / "d.npz")
        found = quantize(capsys, source, tmp_path / "o.onnx", "--data", data)
        assert (found["calibration"]["batches"], found["calibration"]["heldout"]) == (5, 1)
        few = npz(tmp_path / "few.npz", **arrays(samples=3))
        assert "the model takes batches of 5" in refused(capsys, source, tmp_path / "o.onnx", "--data", few)["what"]
