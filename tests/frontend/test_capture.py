"""Sizes: which declared ranges a capture keeps, and what is said where the code does not hold for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aot.breaks import Break
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import ExportError
from aot.frontend.tracing import captured, examples

BATCH = Dim("batch", min=1, opt=4, max=8)
SEQ = Dim("seq", min=4, opt=9, max=64)
HEIGHT, WIDTH = Dim("height", min=8, max=640), Dim("width", min=8, max=640)


class Made(nn.Module):
    """A module whose forward is a function, and which has a weight of 9 rows."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.line = nn.Linear(6, 9)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def kept(function: Callable[..., Any], *shape: Any) -> torch.export.ExportedProgram:
    return captured(Made(function).eval(), ModelSpec("model", {"x": Input(shape)}))


def refused(function: Callable[..., Any], *shape: Any) -> Break:
    with pytest.raises(ExportError) as caught:
        kept(function, *shape)
    (reason,) = caught.value.breaks
    assert caught.value.what == reason.what
    assert reason.file == str(Path(__file__))
    return reason


def same(function: Callable[..., Any], program: torch.export.ExportedProgram, *shape: int) -> None:
    x = torch.randn(*shape)
    torch.testing.assert_close(program.module()(x=x), function(x))


class TestABranchOnASize:
    @pytest.mark.parametrize("opt", [4, 9, 64])
    def test_is_reported_at_the_value_that_splits_whatever_the_example(self, opt: int) -> None:
        def more(x: torch.Tensor) -> torch.Tensor:
            if x.shape[1] > 4:
                return x * 2
            return x

        said = refused(more, 2, Dim("seq", min=4, opt=opt, max=64))
        assert said.code == "if x.shape[1] > 4:"
        assert said.function == "more"
        assert said.kind == "size split"
        assert "seq > 4 holds for 5..64 only (input 'x', axis 1)" in said.what
        assert said.fix == "declare seq = aot.Dim('seq', min=5, max=64), or 4 as a fixed size"

    def test_of_a_range_far_wider_than_what_is_tried(self) -> None:
        said = refused(lambda x: x * 2 if x.shape[0] > 12345 else x, Dim("rows", min=2, opt=50, max=10**6))
        assert "rows > 12345 holds for 12346..1000000 only" in said.what
        assert "min=2, max=12345" in str(said.fix)

    def test_of_a_least_value_is_offered_the_form_that_keeps_all_sizes(self) -> None:
        least = min  # torch.export knows the name
        said = refused(lambda x: x.topk(least(300, x.shape[0])).values, Dim("count", min=2, opt=400, max=4096))
        assert "count >= 300 holds for 300..4096 only" in said.what
        assert "min=2, max=299" in str(said.fix)

    def test_of_a_slice_is_offered_the_form_that_keeps_all_sizes(self) -> None:
        count = Dim("count", min=2, opt=400, max=4096)
        said = refused(lambda x: x[:, :300] * 2, 2, count)
        assert "count >= 300 holds for 300..4096 only" in said.what
        assert "x[:, torch.arange(torch.sym_min(n, x.shape[1]))] for x[:, :n]" in str(said.fix)

        def first(x: torch.Tensor) -> torch.Tensor:
            return x[:, torch.arange(torch.sym_min(300, x.shape[1]))] * 2

        program = kept(first, 2, count)
        for size in (2, 300, 900):
            same(lambda x: x[:, :300] * 2, program, 2, size)

    def test_between_two_dims(self) -> None:
        said = refused(lambda x: x * 2 if x.shape[0] > x.shape[1] else x, HEIGHT, WIDTH)
        assert "does not treat all sizes of Dims 'height' and 'width' alike" in said.what

    def test_that_torch_lets_pass(self) -> None:
        """torch.export notes h != w and goes on; a square image would then be computed like the others."""
        said = refused(lambda x: x if x.shape[0] == x.shape[1] else x * 2, HEIGHT, WIDTH)
        assert "which is false at height=8, width=8" in said.what


class TestANumberFromASize:
    @pytest.mark.parametrize(
        "function",
        [
            lambda x: x * math.sqrt(x.shape[0]),
            lambda x: x * float(x.shape[0] ** 0.5),
            lambda x: x * math.log(x.shape[0]),
            lambda x: x.reshape(int(x.shape[0]), 6),
        ],
    )
    def test_is_told_as_such_and_never_as_ranges(self, function: Callable[..., Any]) -> None:
        said = refused(function, BATCH, 6)
        assert said.kind == "number from a size"
        assert "a Python number is computed from the size of Dim 'batch'" in said.what
        assert str(said.code).startswith("lambda x: x")
        assert "aot.Dim" not in str(said.fix)

    @pytest.mark.parametrize(
        ("function", "form"),
        [
            (lambda x: x * math.sqrt(x.shape[0]), lambda x: x * torch.sym_sqrt(x.shape[0])),
            (lambda x: x * math.sqrt(x.shape[0]), lambda x: x * x.shape[0] ** 0.5),
            (lambda x: x * math.log(x.shape[0]), lambda x: x * torch.log(torch.scalar_tensor(x.shape[0]))),
        ],
    )
    def test_the_forms_offered_follow_the_size(self, function: Callable[..., Any], form: Callable[..., Any]) -> None:
        program = kept(form, BATCH, 6)
        for batch in (2, 7):
            same(function, program, batch, 6)


class TestSizesInSteps:
    def test_are_found_where_code_cuts_into_pieces(self) -> None:
        def pieces(x: torch.Tensor) -> torch.Tensor:
            rows, columns = x.shape
            return x.reshape(rows // 8, 8, columns // 8, 8).mean((1, 3))

        said = refused(pieces, HEIGHT, WIDTH)
        assert said.what.startswith("Dims height and width must be multiples of 8")
        assert "height = aot.Dim('height', min=8, opt=320, max=640, multiple_of=8)" in str(said.fix)
        steps = [Dim(name, min=8, max=640, multiple_of=8) for name in ("height", "width")]
        same(pieces, kept(pieces, *steps), 24, 16)

    def test_are_found_for_some_of_the_dims(self) -> None:
        """A batch of up to 8 has no multiples of 32, and needs none."""

        def patches(x: torch.Tensor) -> torch.Tensor:
            batch, height, width = x.shape
            return x.reshape(batch, height // 32, 32, width // 32, 32).mean((2, 4))

        said = refused(patches, BATCH, HEIGHT, WIDTH)
        assert said.what.startswith("Dims height and width must be multiples of 32")
        assert "batch" not in str(said.fix)

    def test_are_not_those_that_only_happen_to_fit_in_the_range(self) -> None:
        """Frames of 80 samples: all multiples of 160 make an odd number, those of 159 up to 6400 only."""

        def halves(x: torch.Tensor) -> torch.Tensor:
            frames = 1 + ((x.shape[0] // 5 - 5) // 4 - 3) // 4
            return x * 2 if frames % 2 else x + 1

        said = refused(halves, Dim("time", min=1600, opt=3200, max=6400))
        assert said.what.startswith("Dim time must be a multiple of 160 ")

    def test_are_found_where_code_checks_them(self) -> None:
        def checked(x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] % 32:
                raise ValueError("not divisible by 32")
            return x * 2

        said = refused(checked, Dim("side", min=30, opt=200, max=650))
        assert said.what.startswith("Dim side must be a multiple of 32")
        assert "aot.Dim('side', min=32, opt=192, max=640, multiple_of=32)" in str(said.fix)
        same(checked, kept(checked, Dim("side", min=32, max=640, multiple_of=32)), 96)


class TestOneSize:
    def test_that_the_code_names(self) -> None:
        said = refused(lambda x: x.reshape(x.shape[0], 9 * 2), BATCH, SEQ, 2)
        assert said.what.startswith("Dim 'seq' (4..64) came out fixed at 9")
        assert "declare the axis as 9" in str(said.fix)

    def test_two_dims_that_must_be_equal(self) -> None:
        said = refused(lambda x: x[:, 0] + x[0], HEIGHT, WIDTH)
        assert said.what.startswith("Dims 'height' and 'width' must always be equal")

    def test_that_an_unrolled_loop_has(self) -> None:
        def total(x: torch.Tensor) -> torch.Tensor:
            made = x[0] * 0
            for row in x:
                made = made + row
            return made

        said = refused(total, BATCH, 3)
        assert said.kind == "loop over a Dim"
        assert said.code == "for row in x:"


class TestKept:
    def test_a_batch_of_one_as_the_optimum(self) -> None:
        one = Dim("batch", min=1, opt=1, max=8)
        double = kept(lambda x: x.flatten(1) * 2, one, 3, 2)
        same(lambda x: x.flatten(1) * 2, double, 1, 3, 2)
        same(lambda x: x.flatten(1) * 2, double, 5, 3, 2)

    def test_the_lesser_of_a_size_and_a_number(self) -> None:
        def best(x: torch.Tensor) -> torch.Tensor:
            return x.topk(torch.sym_min(300, x.shape[1]), 1).values

        program = kept(best, 2, Dim("count", min=2, opt=400, max=4096))
        for count in (120, 300, 900):
            same(best, program, 2, count)

    def test_a_view_that_torch_cannot_prove(self) -> None:
        """batch * seq * 6 is a multiple of batch * 2 whatever they are; torch's solver asks for an even seq."""

        def view(x: torch.Tensor) -> torch.Tensor:
            return x.view(x.shape[0] * 2, -1)

        same(view, kept(view, BATCH, SEQ, 6), 3, 7, 6)

    def test_a_cache_that_may_be_empty(self) -> None:
        def attend(x: torch.Tensor) -> torch.Tensor:
            keys = torch.cat([x, torch.ones(2, 1, 4)], 1)
            return torch.softmax(torch.ones(2, 1, 4) @ keys.transpose(1, 2), -1) @ keys

        program = kept(attend, 2, Dim("past", min=0, opt=4, max=64), 4)
        for past in (4, 9):
            same(attend, program, 2, past, 4)

    def test_rows_chosen_by_values(self) -> None:
        program = kept(lambda x: x[x[:, 0] > 0] * 2, 6, 3)
        x = torch.ones(6, 3)
        assert program.module()(x=-x).shape == (0, 3)
        assert program.module()(x=x).shape == (6, 3)


def test_examples_differ_from_each_other_and_from_the_weights() -> None:
    declared = ModelSpec("model", {"x": Input([SEQ, Dim("other", min=1, opt=9, max=64), 10])})
    first, second, *_ = examples(Made(lambda x: x), declared)
    assert first == {"seq": 11, "other": 12}
    assert second == {"seq": 9, "other": 9}


def test_examples_avoid_0_and_1_where_they_can() -> None:
    declared = ModelSpec("model", {"x": Input([Dim("a", min=0, opt=1, max=9), Dim("b", min=0, max=1)])})
    assert next(examples(nn.Identity(), declared)) == {"a": 2, "b": 1}
