"""Which requests are computed together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.errors import EngineError
from aot.runtime import manifest
from aot.serving.joining import Joining, batch_dim, group_of, joined, split
from tests.runtime import artifacts
from tests.serving import models

F = "float32"


def written(folder: Path, inputs: dict[str, list[Any]], outputs: dict[str, list[Any]], **dims: list[int]) -> Any:
    path = artifacts.write(
        folder / "m.aot",
        None,
        inputs={name: (F, shape) for name, shape in inputs.items()},
        outputs={name: (F, shape) for name, shape in outputs.items()},
        profiles=[dims],
    )
    return manifest.read(str(path))


def test_the_batch_is_the_dim_of_axis_0_of_everything(tmp_path: Path) -> None:
    found = written(tmp_path, {"a": ["b", 3], "l": ["b"]}, {"y": ["b", "n"]}, b=[1, 2, 8], n=[1, 2, 5])
    assert batch_dim(found) == ("b", "requests are joined along the Dim 'b'")


def test_sizes_that_follow_from_other_dims_are_no_hindrance(tmp_path: Path) -> None:
    dims = {"b": [1, 2, 8], "n": [1, 2, 5]}
    found = written(tmp_path / "one", {"x": ["b", "n"]}, {"y": ["b", "((n - 1)//2) + 1"]}, **dims)
    assert batch_dim(found)[0] == "b"
    found = written(tmp_path / "other", {"x": ["b", "n"]}, {"y": ["b", "2*b + n"]}, **dims)
    assert batch_dim(found)[0] is None


@pytest.mark.parametrize(
    ("inputs", "outputs", "why"),
    [
        ({"x": [4, 3]}, {"y": ["b", 3]}, "axis 0 of 'x' is no Dim"),
        ({"x": ["b", 3], "scale": []}, {"y": ["b", 3]}, "axis 0 of 'scale' is not the Dim 'b'"),
        ({"x": ["b", 3], "to": ["n", 3]}, {"y": ["b", 3]}, "axis 0 of 'to' is not the Dim 'b'"),
        ({"x": ["b", 3]}, {"y": ["?", 3]}, "axis 0 of 'y' is not the Dim 'b'"),
        ({"x": ["b", 3]}, {"gram": ["b", "b"]}, "'gram' ['b', 'b'] has an axis whose size may depend on other rows"),
        ({"x": ["b", 3]}, {"found": ["b", "?"]}, "'found' ['b', '?'] has an axis whose size may depend on other rows"),
    ],
)
def test_a_model_whose_rows_may_look_at_each_other_has_none(
    inputs: dict[str, list[Any]], outputs: dict[str, list[Any]], why: str, tmp_path: Path
) -> None:
    found = written(tmp_path, inputs, outputs, b=[1, 2, 8], n=[1, 2, 5])
    assert batch_dim(found) == (None, why)
    assert Joining.of(found, None).most == 1


def test_a_model_with_states_has_none(tmp_path: Path) -> None:
    found = manifest.read(str(artifacts.counter(tmp_path / "c.aot")))
    assert batch_dim(found) == (None, "the model has states (state_sum)")


def test_the_rows_of_a_batch_are_those_of_the_profiles_that_hold_the_other_sizes(tmp_path: Path) -> None:
    path = models.lookup(tmp_path / "l.aot")
    profiles = ({"batch": (1, 1, 4), "n": (1, 8, 16)}, {"batch": (2, 8, 32), "n": (1, 2, 4)})
    made = Joining.of(manifest.read(str(path)), None)
    both = Joining(made.dim, made.why, profiles, 32)
    assert both.limits({"batch": 1, "n": 3}) == ((1, 4), (2, 32))
    assert both.limits({"batch": 1, "n": 9}) == ((1, 4),)
    assert Joining(made.dim, made.why, profiles, 8).limits({"batch": 1, "n": 3}) == ((1, 4), (2, 8))
    assert Joining(made.dim, made.why, profiles, 1).limits({"batch": 1, "n": 3}) == ()


def test_max_batch_narrows_what_the_profiles_take(tmp_path: Path) -> None:
    found = manifest.read(str(artifacts.linear(tmp_path / "l.aot")))
    assert [Joining.of(found, most).most for most in (None, 3, 100, 1)] == [4, 3, 4, 1]
    assert Joining.of(found, 1).why == "requests are computed alone: a batch has 1 row at the most"


def test_joined_and_split_again_every_request_has_its_own_rows() -> None:
    requests = [{"x": np.full((rows, 2), rows), "y": np.arange(rows)} for rows in (2, 1, 3)]
    assert len({group_of(one) for one in requests}) == 1
    whole = joined(requests)
    assert whole["x"].tolist() == [[2, 2], [2, 2], [1, 1], [3, 3], [3, 3], [3, 3]]
    for one, part in zip(requests, split(whole, [2, 1, 3]), strict=True):
        assert part["x"].tolist() == one["x"].tolist()
        assert part["y"].tolist() == one["y"].tolist()


def test_outputs_that_have_not_the_rows_of_the_batch_are_not_split() -> None:
    with pytest.raises(EngineError, match=r"output 'y' is \[1, 2\] for a batch of 3 rows"):
        split({"y": np.zeros((1, 2))}, [2, 1])
