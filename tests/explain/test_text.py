"""The answer for people: what is in it, and that it fits the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aot.backend import Unsupported
from aot.breaks import Break
from aot.explain.findings import Explanation, Group, Memory, Ops, Precision, Ranges, Refusal, Remark, Target
from aot.explain.text import WIDTH, describe
from aot.origins import Origin

LONG = "a sentence that goes on and on " * 8
NODES = tuple(
    Unsupported(f"node_{n}", "Det", Origin("head", "model.py", 10 + n, "forward", f"x{n} = det(h)"), LONG, "other ops")
    for n in range(20)
)
TARGET = Target("sm89", "tensorrt_rtx", "1.7.1", "parser", None, Ops({"MatMul": 9}, {}, {"Einsum": 1}, {"Det": 20}),
                NODES, ("a note",))  # fmt: skip
FOUND = Explanation(
    model="model.py",
    breaks=(),
    refusals=(),
    targets=(TARGET,),
    precision=Precision(
        "fp8",
        "fp16",
        {"MatMul": 6},
        tuple(Group("Conv", "fp16", f"depthwise ({n} channels)", (f"c{n}",)) for n in range(5)),
        ("a warning",),
    ),
    memory=Memory(40 << 20, 32 << 20, 500 << 20, 300 << 20, 2),
    profiles=(Ranges({"batch": (1, 4, 16)}, {"x": ((1, 64), (4, 64), (16, 64))}),),
    remarks=(Remark("if_1", "If", "head", "model.py:3", "control flow"),),
    routes={"torch-tensorrt": "takes it"},
    nodes={"exported": 30, "final": 32},
    seconds=1.5,
)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def words(found: Explanation) -> str:
    return " ".join(describe(found).split())


def test_it_fits_the_page() -> None:
    lines = describe(FOUND).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize(("columns", "width"), [(72, 72), (200, WIDTH)])
def test_it_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = describe(FOUND).splitlines()
    assert width - 12 < max(map(len, lines)) <= width


def test_layers_that_stay_unquantized_are_no_exception_from_their_own_dtype() -> None:
    assert FOUND.precision is not None
    said = words(replace(FOUND, precision=replace(FOUND.precision, quantized={})))
    assert "fp8: no op is quantized; all compute in fp16, or as listed: 5 Conv fp16 depthwise" in said
    assert "except" not in said


def test_the_verdict_comes_first() -> None:
    assert describe(FOUND).splitlines()[0] == (
        "model.py, fp8: a build would fail: nothing can be built for sm89 (tensorrt_rtx)"
    )
    assert describe(replace(FOUND, targets=())).startswith("model.py, fp8: a build would fail")
    fine = replace(TARGET, unsupported=(), ops=Ops({"MatMul": 9}, {}, {}, {}))
    assert describe(replace(FOUND, targets=(fine,))).startswith(
        "model.py, fp8: a build would pass\nas far as the graph shows: only a build compares it with the model\n"
    )


def test_nodes_that_fail_alike_are_told_together() -> None:
    said = words(FOUND)
    assert said.count("a sentence that goes on") == LONG.count("a sentence that goes on")
    assert "node 'node_0' (Det), module 'head', model.py:10: x0 = det(h)" in said
    assert "and 12 more (--json lists them)" in said


def test_reasons_that_differ_in_numbers_only_are_one() -> None:
    assert "5 Conv fp16 depthwise (0 channels)" in words(FOUND)


def test_everything_else_is_there() -> None:
    said = words(FOUND)
    for part in (
        "sm89 tensorrt_rtx 1.7.1 9 0 1 20",
        "sm89 (tensorrt_rtx), rewriting 1 Einsum",
        "If 'if_1' (head, model.py:3): control flow",
        "fp8: 6 MatMul; the rest computes in fp16",
        "engine 40.0 MiB of which weights 32.0 MiB",
        "values of unknown size left out: 2",
        "0: batch=1..4..16 x 1 x 64 4 x 64 16 x 64",
        "--route torch-tensorrt: takes it",
    ):
        assert part in said


def test_a_break_shows_its_line_by_the_nearest_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.py").write_text("one\ntwo\nthree\nfour\nfive\nsix\n")
    monkeypatch.chdir(tmp_path)
    broken = Break("branch", "it branches", str(tmp_path / "model.py"), 3, "forward", "three", "torch.where")
    lines = describe(replace(FOUND, breaks=(broken,))).splitlines()
    at = lines.index("  model.py:3 in forward: it branches")
    assert lines[at + 1 : at + 7] == [
        "        1 | one",
        "        2 | two",
        "  >     3 | three",
        "        4 | four",
        "        5 | five",
        "  fix  torch.where",
    ]


def test_a_long_line_of_code_is_cut_at_the_edge_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(f"x = f({'one, ' * 30})\n")
    broken = Break("branch", "it branches", str(tmp_path / "model.py"), 1, "forward", "x = f(", None)
    (line,) = (line for line in describe(replace(FOUND, breaks=(broken,))).splitlines() if "one, " in line)
    assert line.startswith("  >     1 | x = f(one, one")
    assert line.endswith("…")
    assert len(line) == WIDTH


def test_a_refusal_says_what_where_and_what_to_do() -> None:
    said = words(replace(FOUND, refusals=(Refusal("weight 'w' holds NaN", "node 'n0'", "check the checkpoint"),)))
    assert "weight 'w' holds NaN at node 'n0' fix check the checkpoint" in said
