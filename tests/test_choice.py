"""Which precision is taken of those that were timed, and what is said about it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aot.choice import Candidate, Choice, pick
from aot.report.choice import paragraph, verdict

AT = ({"batch": 1}, {"batch": 64})


def candidates(**ms: tuple[float, ...] | str) -> list[Candidate]:
    """Precisions with their times, or with why they are out."""
    error = {"fp16": 1e-4, "int8": 2e-2, "fp8": 1e-2}
    return [
        Candidate(name, said, 0.9, error[name])  # type: ignore[arg-type]
        if isinstance(said, str)
        else Candidate(name, None, 0.9, error[name], said)  # type: ignore[arg-type]
        for name, said in ms.items()
    ]


@pytest.mark.parametrize(
    ("ms", "expected"),
    [
        ({"fp16": (3.0,), "int8": (2.0,), "fp8": (2.5,)}, "int8"),
        ({"fp16": (3.0,), "int8": (3.5,), "fp8": (4.0,)}, "fp16"),
        # 2.91 is 3 % less than 3: not more
        ({"fp16": (3.0,), "int8": (2.911,)}, "fp16"),
        ({"fp16": (3.0,), "int8": (2.909,)}, "int8"),
        # between the narrow ones the more exact, unless the other is faster by more than 3 %
        ({"fp16": (3.0,), "int8": (2.0,), "fp8": (2.05,)}, "fp8"),
        ({"fp16": (3.0,), "int8": (2.0,), "fp8": (2.07,)}, "int8"),
        # a share of time counts the same in every profile: 2 / 1 against 90 / 100
        ({"fp16": (2.0, 90.0), "int8": (1.0, 100.0)}, "int8"),
        ({"fp16": (2.0, 90.0), "int8": (1.9, 100.0)}, "fp16"),
        ({"fp16": "the graph misses the budget", "int8": (9.0,), "fp8": (8.0,)}, "fp8"),
    ],
)
def test_the_fastest_is_taken_and_a_narrower_one_only_where_it_saves_more_than_three_percent(
    ms: dict[str, Any], expected: str
) -> None:
    assert pick(candidates(**ms), "a GPU").precision == expected


def test_where_fp16_is_faster_the_figures_of_the_others_say_so() -> None:
    choice = pick(candidates(fp16=(1.0,), int8=(1.25,), fp8=(0.99,)), "NVIDIA H200")

    assert choice.reason == (
        "int8 runs 0.80 times as fast and fp8 runs 1.01 times as fast, "
        "and a narrower precision is taken from 1.03 times on"
    )
    assert verdict(choice.to_json()) == f"precision auto took fp16 on NVIDIA H200: {choice.reason}"


def test_what_is_taken_is_compared_with_the_widest_and_what_is_out_has_its_reason() -> None:
    choice = pick(candidates(fp16=(3.0,), int8=(2.4,), fp8=(2.0,)))
    assert choice.reason == "1.50 times as fast as fp16; int8 1.25 times"

    choice = pick(candidates(fp16=(3.0,), int8=(2.0,), fp8="sm80 has no FP8"))
    assert choice.reason == "1.50 times as fast as fp16; fp8 is out: sm80 has no FP8"


def test_what_is_left_alone_is_taken_without_a_time() -> None:
    choice = pick([Candidate("fp16"), Candidate("int8", "no engine comes of it: no kernel")])

    assert choice.precision == "fp16"
    assert choice.reason == "nothing else can be taken; int8 is out: no engine comes of it: no kernel"


def test_a_choice_survives_its_json() -> None:
    choice = pick(candidates(fp16=(3.0, 30.0), int8=(2.0, 20.0), fp8="no"), "a GPU", AT)

    assert Choice.from_json(json.loads(json.dumps(choice.to_json()))) == choice


@pytest.mark.parametrize("damage", [{"precision": "fp9"}, {"candidates": [{}]}, {"sizes": [3]}, {"reason": None}])
def test_what_is_no_choice_is_refused(damage: dict[str, Any]) -> None:
    data = pick(candidates(fp16=(3.0,), int8=(2.0,)), "a GPU", AT).to_json()
    data.pop("reason" if "reason" in damage else "margin")

    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        Choice.from_json(data | {name: value for name, value in damage.items() if value is not None})


def test_people_see_one_line_a_precision() -> None:
    choice = pick(candidates(fp16=(3.0, 30.0), int8=(2.0, 20.0), fp8="sm80 has no FP8"), "a GPU", AT)

    head, *rows = paragraph(choice.to_json())[1].splitlines()
    assert head.split() == ["precision", "ms", "at", "batch=1", "ms", "at", "batch=64", "cosine", "relative", "L2"]
    assert [row.split()[:3] for row in rows] == [["fp16", "3", "30"], ["int8", "2", "20"], ["fp8", "-", "-"]]
    assert rows[1].endswith("chosen")
    assert rows[2].endswith("out: sm80 has no FP8")
