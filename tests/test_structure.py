"""Nested parameters: the flat names of their tensors, and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

import aot
from aot import batches
from aot.declaration import ModelSpec
from aot.errors import CalibrationError, DeclarationError
from aot.structure import grown, shown

ONE = aot.Input([1])


@dataclasses.dataclass
class Cond:
    """A parameter with fields."""

    gain: Any
    scales: Any = None
    mode: str = "add"


class Pair(NamedTuple):
    """A parameter with fields that have an order."""

    first: Any
    second: Any


def spec(inputs: Mapping[str, Any], **others: Any) -> ModelSpec:
    @aot.model(inputs=inputs, **others)
    def net() -> Any: ...

    return net.spec()


NESTED = spec(
    {
        "x": aot.Input([2]),
        "cond": Cond(ONE, [ONE, {"low-pass": ONE, "q": 0.5}]),
        "pair": (Pair(ONE, None), ONE),
        "mask": None,
        "size": [3, True],
    }
)


def test_tensors_are_named_by_the_path_to_them_in_the_order_of_declaration() -> None:
    assert list(NESTED.inputs) == [
        "x", "cond_gain", "cond_scales_0", "cond_scales_1_low_pass", "pair_0_first", "pair_1",
    ]  # fmt: skip


def test_a_name_that_is_taken_gets_a_number() -> None:
    found = spec({"cond": {"gain": ONE, "a": {"b": ONE}, "a_b": ONE}, "cond_gain": ONE})
    assert list(found.inputs) == ["cond_gain_1", "cond_a_b", "cond_a_b_1", "cond_gain"]


def test_the_tree_becomes_what_forward_takes() -> None:
    given = {name: number for number, name in enumerate(NESTED.inputs)}
    assert {name: grown(tree, given) for name, tree in NESTED.parameters.items()} == {
        "x": 0,
        "cond": Cond(1, [2, {"low-pass": 3, "q": 0.5}]),
        "pair": (Pair(4, None), 5),
        "mask": None,
        "size": [3, True],
    }


def test_it_survives_json() -> None:
    assert ModelSpec.from_json(json.loads(json.dumps(NESTED.to_json()))) == NESTED


def test_plain_parameters_need_no_structure() -> None:
    assert spec({"x": ONE, "y": ONE}).structure == {}
    assert spec({"x": ONE, "y": None}).structure


def test_people_read_it_as_python() -> None:
    assert shown(NESTED.parameters["cond"]) == (
        "Cond(gain=cond_gain, scales=[cond_scales_0, {'low-pass': cond_scales_1_low_pass, 'q': 0.5}], mode='add')"
    )
    assert batches.example(spec({"x": (ONE,), "n": 2})) == "{'x': (...,), 'n': 2}"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), r"input 'cond' must be an aot.Input, not object"),
        ({"a": [np.ones(1)]}, r"input 'cond' \(a, 0\) must be an aot.Input, not ndarray"),
        ([aot.Dim("n", min=1, max=2), 3], r"input 'cond' \(0\) must be an aot.Input, not Dim"),
        (Cond, r"must be an aot.Input, not type"),
        ({(1, 2): ONE}, r"'cond' has the key \(1, 2\); keys are text"),
    ],
)
def test_anything_else_is_refused_with_its_place(value: Any, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        spec({"x": ONE, "cond": value})


class TestBatches:
    """Calibration batches and a metric's inputs, nested or flat."""

    SPEC = spec({"x": aot.Input([2]), "cond": Cond(ONE, [ONE, {"low": ONE, "q": 0.5}]), "mask": None})

    def value(self, number: float) -> np.ndarray[Any, Any]:
        return np.full(1, number, np.float32)

    def checked(self, **batch: Any) -> list[float]:
        found = batches.checked({"x": np.zeros(2, np.float32), **batch}, self.SPEC, "batch 0")
        assert list(found) == ["x", "cond_gain", "cond_scales_0", "cond_scales_1_low"]
        return [float(found[name][0]) for name in found]

    def test_as_forward_takes_them(self) -> None:
        one, two, three = map(self.value, (1, 2, 3))
        assert self.checked(cond=Cond(one, [two, {"low": three}])) == [0, 1, 2, 3]
        assert self.checked(cond={"gain": one, "scales": (two, {"low": three, "q": 0.5})}, mask=None) == [0, 1, 2, 3]

    def test_by_flat_name(self) -> None:
        one, two, three = map(self.value, (1, 2, 3))
        assert self.checked(cond_scales_1_low=three, cond_gain=one, cond_scales_0=two) == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        ("cond", "said"),
        [
            ({"gain": 1}, r"cond.scales is missing"),
            ({"gain": 1, "scales": [2]}, r"cond.scales holds 2 values in the declaration, and here 1"),
            ({"gain": 1, "scales": 2}, r"cond.scales holds 2 values in the declaration, and here a int"),
            ({"gain": 1, "scales": [2, {"lo": 3}]}, r"cond.scales\[1\] has the unknown key 'lo'"),
            ({"gain": 1, "scales": [2, {"low": 3, "q": 1.0}]}, r"\['q'\] is 1.0, and the declaration fixes 0.5"),
        ],
    )
    def test_of_another_form(self, cond: Any, said: str) -> None:
        with pytest.raises(CalibrationError, match=said) as caught:
            self.checked(cond=cond)
        assert "yield {'x': ..., 'cond': Cond(gain=..., scales=[..., {'low': ..., 'q': 0.5}]" in str(caught.value)
