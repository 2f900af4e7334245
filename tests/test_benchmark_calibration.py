"""What the benchmarks of calibration and fidelity count, compare and say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

from calibration import apart, fidelity_page, figures, page
from calibration.data import speech
from calibration.judging import compared
from calibration.layers import Layers, layers_of


def timed(tool: str, calibration: float | None = 1.0, peak: int = 100, **more: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "tool": tool,
        "seconds": 3.0,
        "calibration": calibration,
        "peak_mb": peak,
        "reason": None,
        **more,
    }


def judged(tool: str, cosine: float | None, wide: int = 2, model: str = "m", **more: Any) -> dict[str, Any]:
    empty = {"relative_l2": 0.1, "figure": None, "figure_name": None, "quantized": 10, "reason": None}
    return {"model": model, "tool": tool, "cosine": cosine, "wide": wide, **empty, **more}


class TestLayers:
    def test_both_factors_count_over_casts_and_moves_and_a_constant_does_not(self, tmp_path: Path) -> None:
        model = onnx.parser.parse_model("""
            <ir_version: 9, opset_import: ["": 20]>
            g (float[4,4] x) => (float[4,4] y)
            <float s = {0.1}, int8 z = {0}, int8[4,4] w = {1}, float[4,4] f = {1}>
            {
                c = Constant <value_float = 1.0> ()
                q = QuantizeLinear (x, s, z)
                d = DequantizeLinear (q, s, z)
                e = DequantizeLinear (w, s, z)
                t = Transpose (e)
                a = MatMul (d, t)
                b = MatMul (a, e)
                y = MatMul (d, f)
            }
        """)
        onnx.save(model, tmp_path / "model.onnx")

        assert layers_of(tmp_path / "model.onnx") == Layers(quantized=1, wide=2, qdq=3, nodes=7)


class TestCompared:
    def test_the_worst_output_over_all_batches_by_place(self) -> None:
        wanted = [{"a": np.array([1.0, 0.0]), "b": np.array([3.0])}, {"a": np.array([0.0, 0.0]), "b": np.array([4.0])}]
        got = [{"x": np.array([1.0, 1.0]), "y": np.array([3.0])}, {"x": np.array([0.0, 0.0]), "y": np.array([4.0])}]

        found = compared(wanted, got)

        assert found["cosine"] == pytest.approx(1 / np.sqrt(2))
        assert found["relative_l2"] == pytest.approx(1.0)

    def test_a_nan_is_as_far_as_can_be(self) -> None:
        found = compared([{"a": np.array([1.0])}], [{"a": np.array([np.nan])}])

        assert found == {"cosine": 0.0, "relative_l2": np.inf}


class TestFigures:
    def run(self, output: Any) -> figures.Run:
        return lambda batch: {"y": np.asarray(output)}

    def test_overlap_is_intersection_over_union(self) -> None:
        of = figures._compared(0, figures._overlap(0.3))

        assert of(self.run([0.9, 0.9, 0.1]), [{}], [{"y": np.array([0.9, 0.1, 0.9])}]) == pytest.approx(1 / 3)

    def test_characters_that_both_call_blank_are_left_out(self) -> None:
        eye = np.eye(3)

        share = figures._same_top(blank=0)(eye[[0, 1, 2, 0]], eye[[0, 1, 1, 2]])

        assert share == (1.0, 3.0)

    def test_pitch_may_be_one_bin_off(self) -> None:
        eye = np.eye(5)

        assert figures._same_top(near=1)(eye[[0, 2, 4]], eye[[1, 2, 2]]) == (2.0, 3.0)

    def test_errors_are_negative(self) -> None:
        assert figures._error()(self.run([1.0, 4.0]), [{}], [{"y": np.array([2.0, 2.0])}]) == -1.5


class TestGoals:
    def rows(self) -> list[dict[str, Any]]:
        return [timed("forward"), timed("onnxruntime-minmax"), timed("onnxruntime-entropy", peak=1000)]

    @pytest.mark.parametrize(
        ("ours", "missed"),
        [
            (timed("aot-max", 1.5, 60), []),
            (timed("aot-max", 1.6, 60), ["m, aot-max: 1.60 x forward, at most 1.5"]),
            (timed("aot-entropy", 1.6, 600), []),
            (timed("aot-entropy", 2.1, 600), ["m, aot-entropy: 2.10 x forward, at most 2"]),
            (timed("aot-max", 1.5, 61), ["m, aot-max: 0.61 x the memory of onnxruntime-minmax, at most 0.6"]),
            (timed("aot-mse", 1.5, 700), ["m, aot-mse: 0.70 x the memory of onnxruntime-entropy, at most 0.6"]),
        ],
    )
    def test_each(self, ours: dict[str, Any], missed: list[str]) -> None:
        assert page.misses([*self.rows(), ours]) == missed

    def test_the_table_says_met_and_missed_and_what_did_not_run(self, tmp_path: Path) -> None:
        failed = timed("modelopt-max", None, reason="failed: ValueError: why") | {"seconds": None, "peak_mb": None}
        readme = tmp_path / "README.md"
        readme.write_text(f"before\n{page.MARKS[0]}\nold\n{page.MARKS[1]}\nafter\n")

        page.update(readme, [*self.rows(), timed("aot-max", 1.6, 60), failed])

        text = readme.read_text()
        assert "old" not in text
        assert text.startswith("before\n")
        assert text.endswith("after\n")
        assert "| aot-max | 1.6 / 3.0 s · 60 |" in text
        assert "| modelopt-max | - |" in text
        assert "- **missed**: m, aot-max: 1.60 x forward, at most 1.5" in text
        assert "- met: m, aot-max: 0.60 x the memory of onnxruntime-minmax, at most 0.6" in text
        assert "- m modelopt-max: failed: ValueError: why" in text


class TestFidelity:
    def test_closer_than_every_peer_is_no_miss(self) -> None:
        assert fidelity_page.misses([judged("aot-int8", 0.99), judged("onnxruntime-minmax", 0.98)]) == []

    def test_a_peer_that_is_closer_with_as_many_wide_layers(self) -> None:
        (miss,) = fidelity_page.misses([judged("aot-int8", 0.98), judged("onnxruntime-minmax", 0.99, wide=2)])

        assert miss == "m, int8: cosine 0.98000 (2 wide) with aot-int8, onnxruntime-minmax has 0.99000 (2 wide)"

    def test_one_recipe_with_as_few_wide_layers_is_enough(self) -> None:
        rows = [judged("aot-int8", 0.995, wide=1), judged("aot-int8-smooth", 0.98), judged("modelopt-int8-max", 0.99)]

        assert fidelity_page.misses(rows) == []

    def test_closer_at_the_price_of_more_wide_layers_is_said(self) -> None:
        (miss,) = fidelity_page.misses([judged("aot-int8", 0.99, wide=5), judged("modelopt-int8-max", 0.98, wide=2)])

        assert miss == "m, int8: 5 wide layers at least, modelopt-int8-max has 2"

    def test_floors_hold_for_the_best_recipe(self) -> None:
        rows = [judged("aot-int8", 0.98, model="minilm"), judged("aot-int8-smooth", 0.985, model="minilm")]

        (miss,) = fidelity_page.misses(rows)

        assert miss == "minilm, int8: cosine 0.98500 with 12 wide layers at most, the goal is 0.99"

    def test_floors_do_not_count_what_leaves_more_layers_wide_than_the_peer(self) -> None:
        """A recipe that quantizes no convolution of MobileNetV2 is close, and no FP8."""
        rows = [judged("aot-fp8", 0.9999, model="mobilenet", wide=52), judged("aot-fp8-all", 0.99, model="mobilenet")]

        (miss,) = fidelity_page.misses(rows)

        assert miss == "mobilenet, fp8: cosine 0.99000 with 20 wide layers at most, the goal is 0.995"

    def test_precisions_are_apart(self) -> None:
        assert fidelity_page.misses([judged("aot-int8", 0.98), judged("modelopt-fp8-max", 0.999)]) == []

    def test_the_table(self) -> None:
        text = fidelity_page.text(
            [
                judged("aot-int8", 0.987654, figure=0.5, figure_name="share", wanted=1.0),
                judged("onnxruntime-minmax", None, reason="failed: why"),
            ]
        )

        assert "| m | 0.98765 · 0.100 · 0.500 · 10 + 2 |  |  | - |" in text
        assert "The figures: m: share, 1.000 in FP32." in text
        assert "- m onnxruntime-minmax: failed: why" in text


class TestApart:
    def test_what_a_process_prints_is_the_answer_and_its_children_count(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        code = "import json, time\nheld = bytearray(60_000_000)\nfor i in range(0, len(held), 4096): held[i] = 1\n"
        (tmp_path / "child.py").write_text(code + "time.sleep(0.5)\n")
        start = f"import subprocess, sys\nsubprocess.run([sys.executable, {str(tmp_path / 'child.py')!r}])\n"
        (tmp_path / "held.py").write_text(f"{code}{start}print(json.dumps([1, 2]))\n")
        monkeypatch.chdir(tmp_path)

        answer, peak = apart.run("held")

        assert answer == [1, 2]
        assert peak > 120_000_000

    @pytest.mark.parametrize(
        ("code", "reason"),
        [("raise ValueError('why')", "ValueError: why"), ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL")],
    )
    def test_one_that_fails_says_why(
        self, code: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "failing.py").write_text(code)
        monkeypatch.chdir(tmp_path)

        with pytest.raises(apart.NoResultError, match=reason):
            apart.run("failing")

    def test_a_process_that_has_gone_holds_nothing(self) -> None:
        done = subprocess.Popen([sys.executable, "-c", ""])
        done.wait()

        assert apart.resident(done.pid) == 0
        assert apart.resident(os.getpid()) > 1 << 20


def test_made_speech_is_the_same_for_a_seed_and_within_its_bounds() -> None:
    one = speech(3, 8000)

    assert (one.dtype, one.shape) == (np.float32, (8000,))
    np.testing.assert_array_equal(one, speech(3, 8000))
    assert np.abs(one).max() == pytest.approx(0.5)
    assert not np.array_equal(one, speech(4, 8000))
