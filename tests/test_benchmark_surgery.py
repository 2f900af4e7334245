"""What the benchmark of graph surgery counts, compares and says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

from surgery import page
from surgery.count import ops_of
from surgery.difference import relative
from surgery.models import MODELS


def row(
    tool: str, nodes: int = 10, seconds: float = 0.1, difference: float | None = 0.0, **more: Any
) -> dict[str, Any]:
    empty = {"before": 20, "peak_mb": 1, "noise": 0.0, "reason": None}
    return {"model": "m", "tool": tool, "nodes": nodes, "seconds": seconds, "difference": difference, **empty, **more}


class TestCount:
    def test_bodies_and_calls_count_and_constants_do_not(self, tmp_path: Path) -> None:
        model = onnx.parser.parse_model("""
            <ir_version: 8, opset_import: ["": 17, "own": 1]>
            g (bool c, float[2] x) => (float[2] y) {
                one = Constant <value_float = 1.0> ()
                twice = own.twice (x)
                again = own.twice (twice)
                y = If (c) <
                    then_branch = t () => (float[2] a) { a = Add (again, one) },
                    else_branch = e () => (float[2] b) { b = Sub (again, one) }
                >
            }
            <domain: "own", opset_import: ["": 17]>
            twice (x) => (y) { s = Add (x, x)  y = Identity (s) }
        """)
        onnx.save(model, tmp_path / "model.onnx")

        assert ops_of(tmp_path / "model.onnx") == {"Add": 3, "Identity": 2, "Sub": 1, "If": 1}


class TestDifference:
    @pytest.mark.parametrize(
        ("wanted", "got", "expected"),
        [
            ([4.0, -8.0], [4.0, -8.0], 0.0),
            ([4.0, -8.0], [4.5, -8.0], 0.5 / 8),
            ([0.0, 0.0], [0.0, 0.25], 0.25),
            ([1.0, np.inf], [1.0, np.inf], 0.0),
            ([1.0, np.nan], [1.0, np.nan], 0.0),
            ([1.0, np.inf], [1.0, -np.inf], np.inf),
            ([1.0, 2.0], [1.0, np.nan], np.inf),
            ([1.0, 2.0], [[1.0, 2.0]], np.inf),
            ([], [], 0.0),
        ],
    )
    def test_relative_to_the_largest_magnitude(self, wanted: Any, got: Any, expected: float) -> None:
        assert relative(np.array(wanted, np.float32), np.array(got, np.float32)) == expected

    def test_another_dtype_is_no_equal(self) -> None:
        assert relative(np.zeros(2, np.float32), np.zeros(2, np.int64)) == np.inf


class TestMisses:
    def test_none(self) -> None:
        assert page.misses([row("onnxsim", seconds=0.07), row("aot")]) == []

    @pytest.mark.parametrize(
        ("ours", "said"),
        [
            (row("aot", nodes=11), "m: 11 nodes, onnxsim leaves 10"),
            (row("aot", seconds=0.16), "m: 0.16 s, 1.6 times onnxsim's 0.10 s, which leaves 10 nodes"),
            (row("aot", difference=2e-5), "m: differs by 2.0e-05; the original"),
            (row("aot", difference=None, reason="does not run: why"), "m: no result"),
        ],
    )
    def test_each_goal(self, ours: dict[str, Any], said: str) -> None:
        (miss,) = page.misses([row("onnxsim"), ours])

        assert miss.startswith(said)

    def test_a_wrong_result_sets_no_mark(self) -> None:
        wrong = row("onnxslim", nodes=3, seconds=0.01, difference=1e-4)

        assert page.misses([wrong, row("aot")]) == []

    def test_rounding_of_an_unsteady_model_sets_one(self) -> None:
        unsteady = row("onnxslim", nodes=3, difference=1e-4, noise=5e-5)

        assert page.misses([unsteady, row("aot")]) == ["m: 10 nodes, onnxslim leaves 3"]


class TestPage:
    def test_tables_replace_what_lies_between_the_marks(self, tmp_path: Path) -> None:
        readme = tmp_path / "README.md"
        readme.write_text(f"before\n{page.START}\nold\n{page.END}\nafter\n")

        page.update(readme, [row("onnxsim", difference=1e-3), row("aot")])

        text = readme.read_text()
        assert text.startswith(f"before\n{page.START}\n")
        assert text.endswith(f"{page.END}\nafter\n")
        assert "| m | 20 |  | (10) · 0.10 s |  | 10 · 0.10 s |" in text
        assert "| m | 20 |  | 1 · 1e-03 |  | 1 · 0 |" in text
        assert "old" not in text

    def test_a_failure_is_a_dash_with_its_reason_below(self) -> None:
        failed = {"nodes": None, "seconds": None, "difference": None, "reason": "failed: RuntimeError: why"}

        text = page.text([row("onnxslim") | failed, row("onnxsim") | failed, row("aot")])

        assert "| m | 20 | - | - |  | 10 · 0.10 s |" in text
        assert "- m, onnxslim, onnxsim: failed: RuntimeError: why" in text


@pytest.mark.parametrize("name", MODELS)
def test_samples_have_the_shape_and_dtype_of_their_input(name: str) -> None:
    for of, make in MODELS[name].samples.items():
        shape = tuple(size if isinstance(size, int) else size.bounds[1] for size in MODELS[name].inputs[of].shape)
        made = make(shape)
        assert (made.shape, made.dtype.name) == (shape, MODELS[name].inputs[of].dtype)
        assert np.isfinite(made).all()
