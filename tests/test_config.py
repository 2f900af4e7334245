"""Settings that cannot be are refused where they are read, in words that say what to write instead."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from aot.config import Budget, ProfileFile, Recipe, Settings, load, parse
from aot.content import BUILTIN
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


# Recipes that extend others.


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def test_a_recipe_takes_from_another_what_it_does_not_say(tmp_path: Path) -> None:
    written(tmp_path, own="extends: int8\nplacement: {keep: [head]}\nbudget: {relative_l2: 0.1}")
    own, base = load(Recipe, tmp_path / "own.yaml"), load(Recipe, BUILTIN / "calib/int8.yaml")
    assert own.placement == base.placement.model_copy(update={"keep": ("head",)})
    assert own.budget == base.budget.model_copy(update={"relative_l2": 0.1})
    assert (own.precision, own.extends) == ("int8", None)


def test_lists_replace_lists_and_the_nearest_file_wins(tmp_path: Path) -> None:
    written(
        tmp_path,
        low="extends: int8\nplacement: {ops: [Conv], min_channels: 4}",
        top="extends: low\nplacement: {ops: [Gemm]}",
    )
    placement = load(Recipe, tmp_path / "top.yaml").placement
    assert (placement.ops, placement.min_channels, placement.residual) == (("Gemm",), 4, True)


def test_a_recipe_can_extend_the_builtin_of_its_own_name(tmp_path: Path) -> None:
    written(tmp_path, int8="extends: int8\nplacement: {depthwise: true}")
    assert load(Recipe, tmp_path / "int8.yaml").placement.depthwise


def test_recipes_in_a_circle_are_refused_with_the_circle(tmp_path: Path) -> None:
    written(tmp_path, a="extends: b", b="extends: c", c="extends: a")
    with pytest.raises(UsageError, match="in a circle: a -> b -> c -> a"):
        load(Recipe, tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("extends: int9", "unknown recipe 'int9'", "did you mean 'int8'?"),
        ("extends: [int8]", "expected the name of a recipe", "extends: int8"),
        ("extend: int8", "unknown setting 'extend'", "did you mean 'extends'?"),
        ("extends: int8\nweights: {smoth: 0.5}", "unknown setting 'smoth'", "did you mean 'smooth'?"),
        ("extends: int8.yaml", "a recipe is named without .yaml", "write extends: int8"),
        ("extends: own", "the recipe extends itself", "name another recipe"),
        ("extends: own.yaml", "the recipe extends itself", "name another recipe"),
        ("extends: int8\ncalibrator: entrop", "unknown calibrator 'entrop'", "did you mean 'entropy'?"),
    ],
)
def test_an_extension_that_cannot_be(tmp_path: Path, text: str, what: str, fix: str) -> None:
    error = refusal(Recipe, tmp_path, text)
    assert what in error.what
    assert fix in str(error.fix)


# Settings that contradict each other.


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("precision: bf16\ncompute: fp16", "compute: fp16 contradicts precision: bf16"),
        ("extends: int8\nprecision: fp16", "gelu says how to quantize, and precision: fp16 quantizes nothing"),
        ("precision: fp16\nweights: {smooth: 0.5}", "weights.smooth says how to quantize"),
        ("precision: bf16\nstrict: true", "strict says how to quantize"),
        ("precision: int8\npercentile: 99.9", "percentile: 99.9 is of the calibrator 'percentile'"),
        ("precision: int8\nstrict: true\nplacement: {ops: []}", "there is nothing to quantize"),
        ("precision: fp8\nplacement: {residual: true}", "placement.residual is for int8"),
        ("extends: int8\nactivations: false", "placement.residual quantizes activations"),
        ("extends: fp8-strict\nactivations: false", "placement.attention quantizes activations"),
        ("extends: weight-only-int8\nweights: {smooth: 0.5}", "weights.smooth makes activations easier"),
        ("precision: int8\nweights: {block: 64}", "weights.block gives one scale to a block"),
        ("precision: int4\nweights: {block: 128}", "no kernels for INT4 activations"),
        ("precision: int4\nactivations: false", "64 or 128"),
    ],
)
def test_settings_that_cannot_be_together(tmp_path: Path, text: str, what: str) -> None:
    assert what in refusal(Recipe, tmp_path, text).what


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("extends: int8\nprecision: fp8", "(placement.residual comes from int8)", "write placement.residual: false"),
        ("extends: int8\nprecision: bf16", "(compute comes from int8)", "write extends: bf16"),
        ("extends: int8\nprecision: fp16", "(gelu comes from int8)", "write extends: fp16"),
        (
            "extends: int8-smooth\nactivations: false",
            "(placement.residual comes from int8)",
            "placement.residual: false",
        ),
        (
            "extends: int4\nprecision: int8",
            "(weights.block comes from int4)",
            "write weights.block: null, or write precision: int4",
        ),
        ("extends: fp8\nplacement: {residual: true}", "there are no FP8 kernels", "leave placement.residual out"),
    ],
)
def test_a_setting_of_another_recipe_is_named_with_that_and_cannot_be_left_out(
    tmp_path: Path, text: str, what: str, fix: str
) -> None:
    error = refusal(Recipe, tmp_path, text)
    assert what in error.what
    assert fix in str(error.fix)


def test_what_the_error_says_to_write_is_taken(tmp_path: Path) -> None:
    text = "extends: int8\nprecision: fp8"
    assert refusal(Recipe, tmp_path, text).fix == "write placement.residual: false"
    (tmp_path / "own.yaml").write_text(f"{text}\nplacement: {{residual: false}}")
    assert load(Recipe, tmp_path / "own.yaml").precision == "fp8"


def test_what_is_not_quantized_is_computed_in_the_precision() -> None:
    assert [Recipe(precision=p).compute for p in ("fp32", "fp16", "bf16", "int8")] == ["fp32", "fp16", "bf16", "fp16"]


def test_a_recipe_survives_being_written_down() -> None:
    """As a prepared artifact keeps it: every key is there, defaults included."""
    recipe = load(Recipe, BUILTIN / "calib/mixed-bf16.yaml")
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


def test_a_value_that_may_be_a_number_or_a_word_is_named_by_its_key(tmp_path: Path) -> None:
    error = refusal(Recipe, tmp_path, "precision: int8\nweights: {smooth: 1.5}")
    assert error.what.startswith("weights.smooth: ")
    assert "constrained" not in f"{error.what}{error.fix}"
