"""What a comparison measures and what it refuses."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from aot import arrays
from aot.compare import compare, flip_limit, judge, measure, worst
from aot.config import Budget

TIGHT = Budget(cosine=0.999)


def test_numbers_agree_with_their_definitions() -> None:
    rng = np.random.default_rng(0)
    ref = rng.normal(size=(7, 11)).astype(np.float32)
    got = (ref + rng.normal(scale=0.01, size=ref.shape)).astype(np.float32)
    found = measure(ref, got)
    a, b = ref.astype(np.float64).ravel(), got.astype(np.float64).ravel()
    assert found.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), rel=1e-12)
    assert found.relative_l2 == pytest.approx(np.linalg.norm(b - a) / np.linalg.norm(a), rel=1e-12)
    assert found.max_abs == pytest.approx(np.abs(b - a).max(), rel=1e-12)
    assert found.max_rel == pytest.approx(np.abs(b - a).max() / np.abs(a).max(), rel=1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1.0, 1e300])
def test_the_scale_of_an_output_does_not_change_the_verdict(scale: float) -> None:
    ref = np.random.default_rng(1).normal(size=64) * scale
    assert compare({"y": ref}, {"y": ref * 1.0001}, TIGHT).accepted
    assert not compare({"y": ref}, {"y": np.zeros_like(ref)}, TIGHT).accepted


def test_zeros_in_place_of_a_tiny_output_fail_every_relative_limit() -> None:
    ref = np.full(8, 1e-9, np.float32)
    for budget in (Budget(cosine=0.5), Budget(relative_l2=0.9)):
        assert not compare({"y": ref}, {"y": np.zeros(8, np.float32)}, budget).accepted


def test_two_zero_outputs_are_equal_and_one_zero_output_is_not() -> None:
    zero, one = np.zeros(3, np.float32), np.ones(3, np.float32)
    assert measure(zero, zero).cosine == 1.0
    assert (measure(zero, one).cosine, measure(zero, one).relative_l2) == (0.0, 1.0)
    assert (measure(one, zero).cosine, measure(one, zero).relative_l2) == (0.0, 1.0)


def test_an_empty_output_passes_with_a_notice() -> None:
    for dtype in ("float32", "int64"):
        empty = {"y": np.zeros((0, 4), dtype)}
        verdict = compare(empty, empty, TIGHT)
        assert verdict.accepted
        assert verdict.notices == ("output 'y' is empty: nothing to compare",)


def test_equal_patterns_of_nan_and_infinity_pass_with_a_notice() -> None:
    ref = np.array([1.0, np.nan, np.inf, -np.inf, 2.0], np.float32)
    verdict = compare({"y": ref}, {"y": ref.copy()}, TIGHT)
    assert verdict.accepted
    assert verdict.outputs["y"].nonfinite == {"ref": 3, "got": 3, "mismatched": 0}
    assert "3 of 5 values are NaN or infinite" in verdict.notices[0]


@pytest.mark.parametrize("got", [[1.0, 2.0, np.inf], [1.0, np.nan, -np.inf], [np.nan, np.nan, np.inf]])
def test_different_patterns_of_nan_and_infinity_fail(got: list[float]) -> None:
    ref = np.array([1.0, np.nan, np.inf], np.float32)
    verdict = compare({"y": ref}, {"y": np.array(got, np.float32)}, Budget())
    assert verdict.reasons == ("output 'y': NaN or infinities at 1 places where the reference differs",)


def test_the_finite_rest_is_judged_by_its_numbers() -> None:
    ref = np.array([np.nan, 1.0, 2.0, 3.0], np.float32)
    assert not compare({"y": ref}, {"y": np.array([np.nan, 3.0, -2.0, 1.0], np.float32)}, TIGHT).accepted


def test_masks_and_indices_are_judged_by_flip_rate() -> None:
    ref = np.arange(1000) % 2 == 0
    got = ref.copy()
    got[:40] ^= True  # 4 %: what a cosine of 0.99 allows (4.5 %), and 0.999 (1.4 %) does not
    assert measure(ref, got).flips == pytest.approx(0.04)
    assert measure(ref, got).cosine is None
    assert compare({"y": ref}, {"y": got}, Budget(cosine=0.99)).accepted
    assert not compare({"y": ref}, {"y": got}, Budget(cosine=0.999)).accepted


def test_the_flip_limit_is_the_sign_disagreement_of_correlated_normals() -> None:
    rng = np.random.default_rng(2)
    x, noise = rng.normal(size=(2, 400_000))
    rho = 0.9
    y = rho * x + math.sqrt(1 - rho**2) * noise
    assert flip_limit(rho) == pytest.approx(((x > 0) != (y > 0)).mean(), abs=3e-3)


def test_padding_is_left_out_where_the_mask_covers_the_leading_dims() -> None:
    mask = np.array([[1, 1, 0], [1, 0, 0]], np.int64)
    ref = np.random.default_rng(3).normal(size=(2, 3, 5)).astype(np.float32)
    got = np.where(mask[..., None] != 0, ref, 100).astype(np.float32)
    pooled = ref[:, 0]
    assert compare({"h": ref, "p": pooled}, {"h": got, "p": pooled}, TIGHT, inputs={"m": mask}, padding="m").accepted
    assert not compare({"h": ref}, {"h": got}, TIGHT).accepted
    assert not compare({"p": pooled}, {"p": -pooled}, TIGHT, inputs={"m": mask}, padding="m").accepted


def test_another_dtype_or_shape_or_a_missing_output_fails_naming_both_sides() -> None:
    one = np.ones((2, 3), np.float32)
    assert "float32 in eager and float16 in graph" in compare({"y": one}, {"y": one.astype("f2")}, Budget()).reasons[0]
    assert "[2, 3] in eager and [3, 2] in graph" in compare({"y": one}, {"y": one.T}, Budget()).reasons[0]
    assert "output 'y': graph has no such output" in compare({"y": one}, {"z": one}, Budget()).reasons[0]


def test_bfloat16_is_compared_also_after_a_trip_through_npz(tmp_path: Path) -> None:
    value = np.array([1.5, -2.25, 3.0]).astype(ml_dtypes.bfloat16)
    arrays.save(tmp_path / "x.npz", {"y": value})
    back = arrays.load(tmp_path / "x.npz")
    assert compare({"y": value}, back, Budget(cosine=1.0, max_abs=0.0)).accepted
    assert not compare({"y": value}, {"y": -back["y"]}, Budget(cosine=0.5)).accepted


def test_every_limit_of_a_budget_is_applied() -> None:
    ref = np.array([3.0, 4.0])
    got = np.array([3.0, 5.0])  # relative_l2 0.2, max_abs 1
    assert compare({"y": ref}, {"y": got}, Budget(relative_l2=0.21, max_abs=1.0)).accepted
    reasons = compare({"y": ref}, {"y": got}, Budget(relative_l2=0.19, max_abs=0.9)).reasons
    assert reasons == ("output 'y': relative_l2 0.2 is above 0.19", "output 'y': max_abs 1 is above 0.9")


def test_the_worst_numbers_decide_and_are_plain_json() -> None:
    ref = {"a": np.ones(3), "b": np.array([1.0, -1.0]), "k": np.array([1, 2])}
    verdict = compare(ref, {"a": np.ones(3), "b": np.array([-1.0, 1.0]), "k": np.array([1, 3])}, Budget())
    found = verdict.worst()
    assert found["cosine"] == pytest.approx(-1.0)
    assert (found["max_abs"], found["flips"]) == (2.0, 0.5)
    json.dumps([m.to_json() for m in verdict.outputs.values()], allow_nan=False)
    assert worst([]) == {"cosine": None, "relative_l2": None, "max_abs": None, "max_rel": None, "flips": None}
    assert judge(found, Budget(cosine=0.9))[0] == "cosine -1 is below 0.9"


def test_a_number_is_written_with_the_digits_that_set_it_apart_from_the_limit() -> None:
    found = {"cosine": 0.999999987, "relative_l2": 0.10000001, "max_abs": 0.5}
    limits = Budget(cosine=1, relative_l2=0.1, max_abs=0.1)
    assert judge(found, limits) == [
        "cosine 0.99999999 is below 1",
        "relative_l2 0.10000001 is above 0.1",
        "max_abs 0.5 is above 0.1",
    ]


def test_comparing_arrays_does_not_import_torch() -> None:
    script = (
        "import sys, numpy as np\n"
        "from aot.compare import compare\nfrom aot.config import Budget\n"
        "same = {'y': np.ones(4, np.float32)}\n"
        "assert compare(same, same, Budget(cosine=0.99)).accepted\n"
        "assert 'torch' not in sys.modules\n"
        "import torch\nassert compare(same, same, Budget()).accepted\nassert sys.modules['torch'] is torch\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
