"""The built-in recipes: each is read, means its name, and is documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.config import PRECISIONS, Placement, Recipe, Weights, load
from aot.content import names

RECIPES = names("calib")
BUDGETS = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.995, "int8": 0.95, "fp8": 0.98}


def test_every_precision_has_a_recipe_of_its_name() -> None:
    assert set(PRECISIONS) <= set(RECIPES)


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_recipe_of_that_name_has_that_precision_and_budget(name: str) -> None:
    recipe = load(Recipe, RECIPES[name])
    assert recipe.precision == name
    assert recipe.budget.cosine == BUDGETS[name]
    assert recipe.compute == (name if name in {"fp32", "fp16", "bf16"} else "fp16")
    assert recipe.calibrator == "max"


def test_fp32_also_bounds_the_relative_error() -> None:
    assert load(Recipe, RECIPES["fp32"]).budget.relative_l2 == 1e-3


def test_the_table_names_every_key(root: Path) -> None:
    text = (root / "calib/README.md").read_text()
    keys = {*Recipe.model_fields} - {"placement", "weights"}
    keys |= {f"placement.{key}" for key in Placement.model_fields} | {f"weights.{key}" for key in Weights.model_fields}
    missing = [key for key in keys if f"`{key}`" not in text]
    assert not missing


def test_the_example_in_the_readme_is_a_recipe(root: Path, tmp_path: Path) -> None:
    text = (root / "calib/README.md").read_text()
    example = tmp_path / "careful.yaml"
    example.write_text(text.split("```yaml\n")[1].split("```")[0])
    assert load(Recipe, example).placement.keep == ("encoder.layer.0.*", "*.output.dense")
