"""Settings of a recipe that cannot be together, as data: one line a combination, with the reason and the way out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel

    from aot.config import Recipe


# https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/quantized-types-schemes.html
INT4_BLOCKS = (64, 128)


def _floats(recipe: Recipe) -> bool:
    return recipe.precision in ("fp32", "fp16", "bf16")


def _wants(recipe: Recipe) -> str:
    """The first setting that only a recipe that quantizes can mean; empty where there is none."""
    sections: list[tuple[str, BaseModel, tuple[str, ...]]] = [
        ("", recipe, ("activations", "per_channel", "gelu", "strict")),
        ("placement.", recipe.placement, tuple(type(recipe.placement).model_fields)),
        ("weights.", recipe.weights, tuple(type(recipe.weights).model_fields)),
    ]
    for prefix, section, keys in sections:
        for key in keys:
            if getattr(section, key) != type(section).model_fields[key].default:
                return prefix + key
    return ""


@dataclass(frozen=True)
class Rule:
    """key: the setting that has to go or to change; empty: what `_wants` finds. holds: whether the recipe is at fault.
    what: is wrong. fix: what to do. instead: what to do where the key comes from a recipe that this one extends, and
    to leave it out does nothing; empty: to write what it is where no recipe says it. {r} is the recipe, {key} the key.
    """

    key: str
    holds: Callable[[Recipe], bool]
    what: str
    fix: str
    instead: str = ""


# Tried in order.
_RULES: tuple[Rule, ...] = (
    Rule(
        "compute",
        lambda r: _floats(r) and r.compute != r.precision,
        "compute: {r.compute} contradicts precision: {r.precision}, in which everything is computed",
        "leave compute out; it is for int8, fp8 and int4, which compute the rest in it",
        "write extends: {r.precision}",
    ),
    Rule(
        "",
        lambda r: _floats(r) and _wants(r) != "",
        "{key} says how to quantize, and precision: {r.precision} quantizes nothing",
        "leave {key} out, or write precision: int8, fp8 or int4",
        "write extends: {r.precision}",
    ),
    Rule(
        "percentile",
        lambda r: r.percentile != type(r).model_fields["percentile"].default and r.calibrator != "percentile",
        "percentile: {r.percentile:g} is of the calibrator 'percentile', and the recipe has '{r.calibrator}'",
        "write calibrator: percentile, or leave percentile out",
    ),
    Rule(
        "placement.ops",
        lambda r: not _floats(r) and not r.placement.ops,
        "placement.ops is empty, so there is nothing to quantize",
        "name op types: MatMul, Gemm, Conv, ConvTranspose; or write precision: fp16",
    ),
    Rule(
        "placement.residual",
        lambda r: r.placement.residual and r.precision == "fp8",
        "placement.residual is for int8: there are no FP8 kernels that add a skip input",
        "leave placement.residual out",
    ),
    Rule(
        "placement.residual",
        lambda r: not r.activations and r.placement.residual,
        "placement.residual quantizes activations, and activations: false quantizes weights only",
        "leave placement.residual out",
    ),
    Rule(
        "placement.attention",
        lambda r: not r.activations and r.placement.attention,
        "placement.attention quantizes activations, and activations: false quantizes weights only",
        "leave placement.attention out",
    ),
    Rule(
        "gelu",
        lambda r: not r.activations and r.gelu == "tanh",
        "gelu: tanh is for a GELU whose result is quantized, and activations: false quantizes weights only",
        "leave gelu out",
    ),
    Rule(
        "weights.smooth",
        lambda r: not r.activations and r.weights.smooth is not None,
        "weights.smooth makes activations easier to quantize, and activations: false leaves them wide",
        "leave weights.smooth out",
    ),
    Rule(
        "activations",
        lambda r: r.precision == "int4" and r.activations,
        "precision: int4 is for weights: there are no kernels for INT4 activations",
        "write activations: false",
    ),
    Rule(
        "weights.block",
        lambda r: r.precision == "int4" and r.weights.block not in INT4_BLOCKS,
        "weights.block: {r.weights.block}: INT4 weights have one scale for 64 or 128 input channels",
        "write weights.block: 128, or 64",
    ),
    Rule(
        "weights.block",
        lambda r: r.precision != "int4" and r.weights.block is not None,
        "weights.block gives one scale to a block of input channels, which kernels take of INT4 weights alone",
        "leave weights.block out, or write precision: int4",
    ),
)


def contradiction(recipe: Recipe) -> dict[str, str] | None:
    """What cannot be together in the recipe, and what to do about it; None where everything can.

    what, fix: in words. key: the setting that has to change. instead: the fix where that one is inherited.
    """
    for rule in _RULES:
        if rule.holds(recipe):
            key = rule.key or _wants(recipe)
            fix = rule.fix.format(r=recipe, key=key)
            instead = rule.instead.format(r=recipe) or fix.replace(f"leave {key} out", f"write {key}: {_default(key)}")
            return {"what": rule.what.format(r=recipe, key=key), "fix": fix, "key": key, "instead": instead}
    return None


def _default(key: str) -> str:
    """What a setting is where no recipe says it, as YAML."""
    from aot.config import Recipe

    section: Any = Recipe
    *path, last = key.split(".")
    for part in path:
        section = section.model_fields[part].annotation
    value = section.model_fields[last].default
    return str({None: "null", True: "true", False: "false"}.get(value, value))
