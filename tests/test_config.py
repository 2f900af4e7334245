"""Settings that cannot be are refused where they are read, in words that say what to write instead."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from aot.config import Budget, ProfileFile, Recipe, Settings, load, parse
from aot.errors import UsageError


def refusal(kind: type[Settings], folder: Path, text: str) -> UsageError:
    path = folder / "own.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(kind, path)
    assert "own.yaml" in str(caught.value.where)
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("precison: fp16", "unknown setting 'precison'", "did you mean 'precision'?"),
        ("calibrator: max", "precision: required", "add a line 'precision: ...'"),
        ("precision: fp9", "precision: unknown value 'fp9'", "did you mean 'fp"),
        ("precision: int8\nplacement: {ops: [MatMull]}", "unknown value 'MatMull'", "did you mean 'MatMul'?"),
        (
            "precision: int8\nplacement: {ops: [Softmax]}",
            "unknown value 'Softmax'",
            "MatMul, Gemm, Conv, ConvTranspose",
        ),
        ("precision: int8\nplacement: {ops: Conv}", "placement.ops: expected a list, e.g. [Conv]", "ops: [Conv]"),
        ("precision: int8\nplacement: {min_channels: -1}", "must be at least 0, got -1", "at least 0"),
        ("precision: int8\nplacement: {mincount: 1}", "unknown setting 'mincount'", "did you mean 'min_channels'?"),
        ("precision: int8\nplacement: 3", "expected settings of its own", "KEY: VALUE"),
        ("precision: int8\nper_channel: maybe", "expected true or false", "per_channel: true"),
        ("precision: int8\nbudget: {cosine: 2}", "budget.cosine: must be at most 1, got 2", "at most 1"),
        ("precision: int8\nbudget: {cosine: high}", "expected a number, got 'high'", "cosine: 0.99"),
        ("- int8", "expected a mapping of settings", "key: value"),
        ("a: [", "cannot read the settings", "YAML"),
    ],
)
def test_a_recipe_that_cannot_be(tmp_path: Path, text: str, what: str, fix: str) -> None:
    error = refusal(Recipe, tmp_path, text)
    assert what in error.what
    assert fix in str(error.fix)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("targets: sm89", "targets: expected a list, e.g. [sm89], got 'sm89'"),
        ("profiles: [{batch: 8}]", "profiles.0.batch: expected a list, e.g. [1, 8, 64], got 8"),
        ("profiles: [{batch: [1, 8]}]", "profiles.0.batch: expected [min, opt, max]"),
        ("profiles: [{batch: [1, 8, 9, 9]}]", "profiles.0.batch: expected 3 values"),
        ("profiles: {batch: [1, 8, 9]}", "profiles: expected a list"),
        ("engine: {workspace_mib: 0}", "engine.workspace_mib: must be above 0"),
        ("engine: {optimization_level: 1.5}", "expected a whole number"),
        ("verify: {sizes: [{batch: -3}]}", "verify.sizes.0.batch: must be at least 0"),
        ("verify: {flop_limit: 0}", "verify.flop_limit: must be above 0"),
    ],
)
def test_a_profile_file_that_cannot_be(tmp_path: Path, text: str, what: str) -> None:
    assert what in refusal(ProfileFile, tmp_path, text).what


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("precision: int8\ncompute: fp16\nprecision: fp8\n", 3),
        ("precision: int8\nbudget:\n  cosine: 1\n  cosine: 0\n", 4),
    ],
)
def test_a_key_given_twice_is_refused_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    error = refusal(Recipe, tmp_path, text)
    assert "is given twice" in error.what
    assert str(error.where).endswith(f"own.yaml:{line}")


@pytest.mark.parametrize(
    "limits",
    [{"cosine": 1.01}, {"cosine": -1.5}, {"relative_l2": -1}, {"max_abs": -0.1}, {"metric": -1}, {"cosine": math.nan}],
)
def test_a_limit_that_nothing_can_keep_or_miss_is_refused(limits: dict[str, float]) -> None:
    with pytest.raises(UsageError) as caught:
        parse(Budget, limits, "--budget")
    assert caught.value.fix


def test_limits_at_their_bounds_are_taken() -> None:
    assert parse(Budget, {"cosine": 1, "relative_l2": 0, "max_abs": 0, "metric": 0}, "--budget").cosine == 1
