"""Optimization profiles: completed from the Dims, kept inside them, turned into shapes."""

from __future__ import annotations

import pytest

from aot.declaration import Dim, Input, ModelSpec
from aot.errors import ProfileError
from aot.profile import choose, resolve, shapes, values

batch = Dim("batch", min=1, opt=8, max=64)
seq = Dim("seq", min=2, opt=128, max=512)
spec = ModelSpec("m", {"ids": Input([batch, seq], "int64"), "image": Input([batch, 3, 8, 8])})


def test_dims_that_are_not_named_keep_their_bounds() -> None:
    assert resolve(spec, {"batch": (1, 2, 4)}, "here") == {"batch": (1, 2, 4), "seq": (2, 128, 512)}


def test_opt_above_max_names_tensor_axis_and_dim() -> None:
    """Case C34: rows between 1000 and 1200, an optimum of 1600."""
    model = ModelSpec("m", {"rows": Input([Dim("n", min=1000, max=1200), 4])})
    with pytest.raises(ProfileError) as caught:
        resolve(model, {"n": (1000, 1600, 1200)}, "wide.yaml: profile 1")
    text = str(caught.value)
    assert "opt is above max (min=1000 opt=1600 max=1200)" in text
    assert "wide.yaml: profile 1, Dim 'n' (input 'rows' axis 0)" in text


@pytest.mark.parametrize(
    ("triple", "says"),
    [
        ((8, 4, 16), "opt is below min"),
        ((16, 8, 4), "min is above max"),
        ((1, 8, 65), "leaves the range of Dim 'batch'"),
        ((0, 8, 64), "leaves the range of Dim 'batch'"),
    ],
)
def test_impossible_profiles_are_refused(triple: tuple[int, int, int], says: str) -> None:
    with pytest.raises(ProfileError, match=says) as caught:
        resolve(spec, {"batch": triple}, "here")
    assert "input 'ids' axis 0, input 'image' axis 0" in str(caught.value)


def test_an_unknown_dim_gets_the_nearest_name() -> None:
    with pytest.raises(ProfileError, match="unknown Dim 'bach'") as caught:
        resolve(spec, {"bach": (1, 2, 3)}, "here")
    assert "did you mean 'batch'?" in str(caught.value)


def test_shapes_take_fixed_axes_from_the_network() -> None:
    profile = {"batch": (1, 8, 64), "seq": (2, 128, 512)}
    assert shapes(spec.inputs["ids"], profile, (-1, -1)) == ((1, 2), (8, 128), (64, 512))
    assert shapes(spec.inputs["image"], profile, (-1, 3, 8, 8)) == ((1, 3, 8, 8), (8, 3, 8, 8), (64, 3, 8, 8))


def test_values_of_a_shape_input_come_from_low_and_high() -> None:
    """Case C35: an int64 input of two sizes, each from 2 to 64: high is excluded."""
    assert values("hw", Input([2], "int64", low=2, high=65), 2) == ((2, 2), (33, 33), (64, 64))


def test_a_shape_input_without_bounds_is_named() -> None:
    with pytest.raises(ProfileError, match="input 'hw' decide shapes") as caught:
        values("hw", Input([2], "int64"), 2)
    assert '"hw": aot.Input([2], "int64", low=1, high=65)' in str(caught.value)


def test_the_profile_tuned_closest_is_chosen() -> None:
    profiles = ({"batch": (1, 1, 8), "seq": (2, 128, 512)}, {"batch": (8, 64, 64), "seq": (2, 128, 512)})
    at = lambda n: choose(spec, profiles, {"ids": (n, 128), "image": (n, 3, 8, 8)})  # noqa: E731
    assert [at(1), at(8), at(9), at(64)] == [0, 0, 1, 1]
    assert at(65) is None
