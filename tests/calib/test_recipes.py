"""The built-in recipes: each is read, means its name, and is documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.config import PRECISIONS, Placement, Recipe, Weights, load
from aot.content import names

RECIPES = names("calib")
BUDGETS = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.995, "int8": 0.95, "fp8": 0.98, "int4": 0.95}


def recipe(name: str) -> Recipe:
    return load(Recipe, RECIPES[name])


def differences(name: str, base: str) -> set[str]:
    """The keys in which two recipes differ, sections opened."""
    one, other = recipe(name), recipe(base)
    found = set()
    for key in Recipe.model_fields:
        mine, theirs = getattr(one, key), getattr(other, key)
        if mine != theirs and key in ("placement", "weights"):
            found |= {f"{key}.{k}" for k in type(mine).model_fields if getattr(mine, k) != getattr(theirs, k)}
        elif mine != theirs:
            found.add(key)
    return found


def test_every_precision_has_a_recipe_of_its_name() -> None:
    assert set(PRECISIONS) <= set(RECIPES)


def test_the_recipes_there_are() -> None:
    others = {
        "int8-smooth",
        "int8-strict",
        "fp8-strict",
        "fp8-adaptive",
        "fp8-convolutions",
        "mixed-fp16",
        "mixed-bf16",
        "weight-only-int8",
    }
    assert set(RECIPES) == {*PRECISIONS, *others}


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_recipe_of_that_name_has_that_precision_and_budget(name: str) -> None:
    found = recipe(name)
    assert found.precision == name
    assert found.budget.cosine == BUDGETS[name]
    assert found.compute == (name if name in {"fp32", "fp16", "bf16"} else "fp16")


def test_fp32_also_bounds_the_relative_error() -> None:
    assert recipe("fp32").budget.relative_l2 == 1e-3


def test_smooth_is_int8_with_smoothing() -> None:
    assert differences("int8-smooth", "int8") == {"calibrator", "weights.smooth"}


def test_strict_fp8_takes_every_layer_and_attention() -> None:
    strict = recipe("fp8-strict")
    assert strict.strict
    assert strict.placement == Placement(
        ops=("MatMul", "Gemm", "Conv", "ConvTranspose"),
        attention=True,
        depthwise=True,
        sensitive=True,
        slow=True,
        min_channels=0,
    )


def test_adaptive_fp8_rounds_weights_by_what_layers_put_out() -> None:
    assert differences("fp8-adaptive", "fp8") == {"weights.rounding"}


def test_fp8_leaves_out_what_is_slower_in_it_and_another_recipe_does_not() -> None:
    assert not recipe("fp8").placement.slow
    assert differences("fp8-convolutions", "fp8-adaptive") == {"placement.slow", "placement.min_channels"}


def test_strict_int8_takes_every_layer_and_attention() -> None:
    strict, base = recipe("int8-strict"), recipe("int8-smooth")
    assert strict.strict
    wide = {"attention": True, "sensitive": True, "min_channels": 0}
    assert strict.placement == base.placement.model_copy(update=wide)


@pytest.mark.parametrize("base", ["fp16", "bf16"])
def test_mixed_precision_only_adds_operators_that_stay_fp32(base: str) -> None:
    assert differences(f"mixed-{base}", base) == {"keep_fp32"}
    assert {"Softmax", "LayerNormalization", "Pow", "CumSum"} <= {*recipe(f"mixed-{base}").keep_fp32}


def test_weight_only_leaves_activations_wide() -> None:
    found = recipe("weight-only-int8")
    assert (found.precision, found.activations, found.per_channel) == ("int8", False, True)


def test_the_table_names_every_recipe_and_key(root: Path) -> None:
    text = (root / "calib/README.md").read_text()
    keys = {*Recipe.model_fields} - {"placement", "weights"}
    keys |= {f"placement.{key}" for key in Placement.model_fields} | {f"weights.{key}" for key in Weights.model_fields}
    missing = [key for key in (*keys, *RECIPES) if f"`{key}`" not in text]
    assert not missing


def test_the_example_in_the_readme_is_a_recipe(root: Path, tmp_path: Path) -> None:
    text = (root / "calib/README.md").read_text()
    example = tmp_path / "careful.yaml"
    example.write_text(text.split("```yaml\n")[1].split("```")[0])
    found = load(Recipe, example)
    assert found.placement.keep == ("encoder.layer.0.*", "*.output.dense")
    assert (found.placement.ops, found.placement.residual) == (("MatMul", "Gemm"), True)
