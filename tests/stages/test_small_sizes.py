"""What is said of a graph that differs at sizes 0 and 1 only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aot.declaration import Dim, Input, ModelSpec
from aot.errors import ExportError
from aot.stages.small_sizes import refusal

BATCH, PAST = Dim("batch", min=1, opt=1, max=8), Dim("past", min=0, opt=16, max=64)
SPEC = ModelSpec("model", {"x": Input([BATCH, PAST, 4])})


def said(*cases: tuple[int, int, bool]) -> ExportError | None:
    """Of cases (batch, past, whether the graph is right); the source knows every branch."""
    rows = [
        {"name": str(at), "sizes": {"batch": batch, "past": past}, "accepted": right}
        for at, (batch, past, right) in enumerate(cases)
    ]
    references: Any = SimpleNamespace(
        cases=lambda: [SimpleNamespace(name=row["name"], inputs=row["name"]) for row in rows]
    )
    eager = SimpleNamespace(parting=lambda one, other: f"the branch between {one} and {other}")
    source: Any = SimpleNamespace(spec=SPEC, eager=lambda: eager)
    return refusal(rows, references, source)


def test_the_size_the_branch_and_the_range_without_it_are_named() -> None:
    error = said((1, 16, True), (1, 0, False), (8, 64, True))
    assert error is not None
    assert "at past=0 than at all other sizes" in error.what
    assert error.where == "the branch between 1 and 0"
    assert "past = aot.Dim('past', min=1, opt=16, max=64)" in str(error.fix)


def test_the_optimum_is_moved_out_of_the_way() -> None:
    error = said((1, 16, False), (3, 0, True), (8, 64, True))
    assert error is not None
    assert "batch=1" in error.what
    assert "batch = aot.Dim('batch', min=2, opt=2, max=8)" in str(error.fix)


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param([(3, 16, True), (3, 0, False), (8, 64, False)], id="larger sizes fail as well"),
        pytest.param([(3, 0, True), (3, 16, False)], id="the small size is right"),
        pytest.param([(1, 0, False)], id="nothing is right"),
    ],
)
def test_nothing_is_said_where_the_size_is_not_the_reason(cases: list[tuple[int, int, bool]]) -> None:
    assert said(*cases) is None
