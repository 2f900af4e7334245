"""What can be declared, and what is refused at the line that says it."""

from __future__ import annotations

from typing import Any

import pytest

import aot
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import DeclarationError


def test_the_optimum_is_the_midpoint_and_never_above_the_maximum() -> None:
    assert aot.Dim("rows", min=1000, max=1200).bounds == (1000, 1100, 1200)
    assert aot.Dim("one", min=1, max=1).bounds == (1, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"min": 1}, "has no max"),
        ({"max": 1}, "has no min"),
        ({"min": 1, "opt": 9, "max": 8}, "min <= opt <= max"),
        ({"min": -1, "max": 8}, "0 <= min"),
        ({"min": 1.0, "max": 8}, "must be an integer"),
        ({"min": True, "max": 8}, "must be an integer"),
        ({"min": 0, "max": 0}, "can only be 0"),
    ],
)
def test_a_dim_needs_bounds_in_order(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        aot.Dim("batch", **arguments)


def test_a_dim_needs_a_name() -> None:
    with pytest.raises(DeclarationError, match="identifier"):
        aot.Dim("batch size", min=1, max=2)


def test_an_input_is_checked() -> None:
    with pytest.raises(DeclarationError, match=r"integers and aot\.Dim"):
        aot.Input(["batch", 3])  # type: ignore[list-item]
    with pytest.raises(DeclarationError, match="unknown dtype 'float8'"):
        aot.Input([3], "float8")
    with pytest.raises(DeclarationError, match="axis 0 has size 0"):
        aot.Input([0, 16])
    with pytest.raises(DeclarationError, match="a shape is a list"):
        aot.Input("3, 16")
    with pytest.raises(DeclarationError, match="not below"):
        aot.Input([3], low=2, high=2)


def test_a_dtype_that_is_an_object_of_torch_or_numpy() -> None:
    import numpy as np
    import torch

    for dtype in (torch.float64, np.float64, np.dtype("float64")):
        with pytest.raises(DeclarationError, match=r'by name(.|\n)*write "float64"'):
            aot.Input([3], dtype)  # type: ignore[arg-type]


def declared(**arguments: Any) -> Any:
    @aot.model(**{"inputs": {"x": aot.Input([2])}, **arguments})
    def net() -> Any: ...

    return net


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"inputs": {}}, "at least one input"),
        ({"inputs": {"x": [2], "size": 3, "mask": None}}, "at least one input"),
        ({"inputs": {"x": [aot.Dim("n", min=1, max=2), 3]}}, r"input 'x' \(0\) must be an aot.Input, not Dim"),
        ({"outputs": ["y", "y"]}, "name of another output"),
        ({"outputs": ["x"]}, "name of an input"),
        ({"padding": "mask"}, "not an input"),
        ({"inputs": [aot.Input([2])]}, "inputs= is a mapping.*not a list"),
        ({"inputs": None}, "inputs= is a mapping.*not a NoneType"),
        ({"outputs": "y"}, r"outputs= is a list of names, not 'y'(.|\n)*fix: outputs=\[\"y\"\]"),
        ({"outputs": None}, "outputs= is a list of names, not None"),
        ({"outputs": [1]}, r"outputs= is a list of names, not \[1\]"),
        ({"files": "weights.bin"}, "files= is a list of names"),
    ],
)
def test_a_model_is_checked(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        declared(**arguments)


def test_two_dims_of_one_name_are_refused() -> None:
    one, two = aot.Dim("n", min=1, max=2), aot.Dim("n", min=1, max=3)
    net = declared(inputs={"x": aot.Input([one]), "y": aot.Input([two])})
    with pytest.raises(DeclarationError, match="two different Dims are called 'n'"):
        net.spec()


def test_a_spec_survives_json() -> None:
    batch = aot.Dim("batch", min=1, opt=2, max=4)
    inputs = {"ids": aot.Input([batch, 3], "int64", high=9), "x": aot.Input([batch])}
    net = declared(inputs=inputs, outputs=["y"], padding="ids")
    net.calibration(lambda: iter(()))
    spec = net.spec()
    assert spec.has_calibration
    assert not spec.has_metric
    assert ModelSpec.from_json(spec.to_json()) == spec


def test_a_declaration_still_builds_by_being_called() -> None:
    @aot.model(inputs={"x": aot.Input([2])})
    def net() -> Any:
        return "module"

    assert net() == "module"
    assert net.name == "net"


def test_sizes_in_steps() -> None:
    side = Dim("side", min=32, max=640, multiple_of=32)
    assert side.bounds == (32, 320, 640)
    assert 96 in side.sizes
    assert 100 not in side.sizes
    assert str(side) == "32..640 in steps of 32"
    spec = ModelSpec("m", {"x": Input([1, 3, side, side])})
    assert ModelSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(("bounds", "said"), [((30, 64), "min=30"), ((32, 70), "max=70")])
def test_bounds_that_are_no_multiples(bounds: tuple[int, int], said: str) -> None:
    with pytest.raises(DeclarationError, match=f"{said} is no multiple of 32"):
        Dim("side", min=bounds[0], max=bounds[1], multiple_of=32)
