"""`max_batch_size` is the number of rows up to which everything that Triton may put together has a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.packing.triton_batch import batch_of
from aot.runtime.manifest import Manifest, State, Tensor

Shapes = Mapping[str, Sequence[int | str]]
Triple = tuple[int, int, int]


def manifest(inputs: Shapes, outputs: Shapes, *profiles: Mapping[str, Triple], **changed: Any) -> Manifest:
    """A manifest with these shapes; the Dims are those of the profiles."""
    dims = dict(profiles[0]) if profiles else {}
    fields: dict[str, Any] = {
        "folder": Path(), "shown": "m.aot", "name": "m", "precision": "fp16", "dims": dims, "multiples": {},
        "lows": {}, "states": {}, "engines": (), "graph": None, "files": {},
        "inputs": {name: Tensor("float32", tuple(shape)) for name, shape in inputs.items()},
        "outputs": {name: Tensor("float32", tuple(shape)) for name, shape in outputs.items()},
        "profiles": tuple(profiles) or ({},),
    }  # fmt: skip
    return Manifest(**{**fields, **changed})


def test_inputs_of_different_rank_have_one_batch() -> None:
    found = batch_of(
        manifest({"audio": ["B", 8, "T"], "length": ["B"]}, {"pooled": ["B", 4], "twice": ["B"]},
                 {"B": (1, 4, 16), "T": (4, 100, 300)})
    )  # fmt: skip
    assert found.most == 16
    assert found.preferred == (4, 16)


def test_sizes_that_follow_from_other_dims_stay_dynamic() -> None:
    shapes = {"audio": ["B", 8, "T"]}, {"y": ["B", 4, "((T - 1)//2) + 1"]}
    assert batch_of(manifest(*shapes, {"B": (1, 4, 16), "T": (4, 100, 300)})).most == 16


@pytest.mark.parametrize(
    ("inputs", "outputs", "why"),
    [
        ({"x": [1, 8]}, {"y": [1, 2]}, "axis 0 of 'x' is no Dim"),
        ({"x": ["B", 8], "table": [8, 8]}, {"y": ["B", 2]}, "axis 0 of 'table'"),
        ({"x": ["B", 8]}, {"y": ["B", 2], "loss": []}, "axis 0 of 'loss'"),
        ({"x": ["B", 8], "z": ["T", 8]}, {"y": ["B", 2]}, "axis 0 of 'z'"),
        ({"x": ["B", 8]}, {"similarity": ["B", "B"]}, "'similarity'"),
        ({"x": ["B", 8]}, {"y": ["2*B", 2]}, "axis 0 of 'y'"),
        ({"x": ["B", 8]}, {"y": ["B", "B*T"]}, "'y'"),
        ({"x": [8, "B"]}, {"y": [8, "B"]}, "axis 0 of 'x' is no Dim"),
    ],
    ids=[
        "static",
        "an input that all rows share",
        "a scalar",
        "two Dims",
        "rows by rows",
        "two rows of one",
        "all rows in each",
        "axis 1",
    ],
)
def test_a_model_without_one_batch_is_not_batched(inputs: Shapes, outputs: Shapes, why: str) -> None:
    found = batch_of(manifest(inputs, outputs, {"B": (1, 4, 16), "T": (1, 2, 3)}))
    assert found.most == 0
    assert why in found.notes[0]


def test_states_that_have_the_batch_are_rows_of_their_sequences() -> None:
    shapes = {"x": ["B", 4], "state_h": ["B", 4]}, {"y": ["B", 4], "state_h_out": ["B", 4]}
    states = {"state_h": State("state_h_out", bytes(4))}
    assert batch_of(manifest(*shapes, {"B": (1, 2, 8)}, states=states)).most == 8
    shared = {"x": ["B", 4], "state_h": [4]}, {"y": ["B", 4], "state_h_out": [4]}
    assert batch_of(manifest(*shared, {"B": (1, 2, 8)}, states=states)).most == 0


@pytest.mark.parametrize(
    ("profiles", "most", "preferred"),
    [
        ([{"B": (1, 1, 8), "T": (1, 64, 512)}, {"B": (8, 64, 64), "T": (1, 64, 512)}], 64, (64,)),
        ([{"B": (1, 16, 64), "T": (1, 16, 32)}, {"B": (1, 4, 8), "T": (33, 128, 512)}], 8, (4, 8)),
        ([{"B": (1, 16, 64), "T": (1, 16, 32)}, {"B": (1, 4, 8), "T": (1, 128, 512)}], 8, (4, 8)),
        ([{"B": (1, 2, 4), "T": (1, 2, 3)}, {"B": (8, 8, 16), "T": (1, 2, 3)}], 4, (2, 4)),
        ([{"B": (4, 8, 16), "T": (1, 2, 3)}], 16, (8, 16)),
        ([{"B": (1, 1, 1), "T": (1, 2, 3)}], 1, (1,)),
        ([{"B": (1, 32767, 65535), "T": (65535, 65535, 65535)}], 65535, (32767, 65535)),
        ([{"B": (1, 2, 2**40), "T": (1, 1, 1)}], 2**31 - 1, (2, 2**31 - 1)),
    ],
    ids=["small and large batches", "short ones in large batches", "the same, long ones hold short", "a gap",
         "no small batches", "one row", "65535", "beyond an int32"],
)  # fmt: skip
def test_several_profiles(profiles: list[Mapping[str, Triple]], most: int, preferred: tuple[int, ...]) -> None:
    found = batch_of(manifest({"x": ["B", "T"]}, {"y": ["B", 2]}, *profiles))
    assert (found.most, found.preferred) == (most, preferred)


def test_rows_in_steps_have_no_gap_at_the_next_step() -> None:
    profiles = {"B": (4, 4, 8)}, {"B": (12, 16, 32)}
    assert batch_of(manifest({"x": ["B", 3]}, {"y": ["B"]}, *profiles, multiples={"B": 4})).most == 32
    assert batch_of(manifest({"x": ["B", 3]}, {"y": ["B"]}, *profiles)).most == 8


def test_what_a_request_has_to_bring_is_said() -> None:
    notes = batch_of(manifest({"x": ["B", 3]}, {"y": ["B"]}, {"B": (4, 8, 16)})).notes
    assert any("fewer than 4 rows" in note for note in notes)


def ranges(most: int) -> st.SearchStrategy[Triple]:
    return st.tuples(*[st.integers(1, most)] * 2).map(lambda ends: (min(ends), min(ends), max(ends)))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.fixed_dictionaries({"B": ranges(6), "T": ranges(4), "U": ranges(3)}), min_size=1, max_size=4))
def test_it_is_what_trying_every_size_finds(profiles: list[Mapping[str, Triple]]) -> None:
    def held(rows: int, t: int, u: int) -> bool:
        sizes = {"B": rows, "T": t, "U": u}
        return any(all(p[dim][0] <= size <= p[dim][2] for dim, size in sizes.items()) for p in profiles)

    ends = []
    for t, u in product(range(1, 5), range(1, 4)):
        rows = [count for count in range(1, 7) if held(count, t, u)]
        if rows:
            ends.append(max(count for count in rows if all(held(one, t, u) for one in range(rows[0], count))))
    assert batch_of(manifest({"x": ["B", "T", "U"]}, {"y": ["B", 2]}, *profiles)).most == min(ends)
