"""What torch.export cannot capture: one sentence, the user's line, and a fix that is right for the kind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from aot.breaks import Break
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import ExportError
from aot.frontend.breaks import breaks
from aot.frontend.capture import check_program
from aot.frontend.eager import Eager
from aot.frontend.failures import explained
from aot.frontend.tracing import captured

SPEC = ModelSpec("model", {"x": Input([Dim("batch", min=1, opt=4, max=8), 6])})


@torch.library.custom_op("aottest::fakeless", mutates_args=())
def fakeless(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Made(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def branch(x: torch.Tensor) -> torch.Tensor:
    if x.mean() > 0:
        return x * 2
    return x


def loop(x: torch.Tensor) -> torch.Tensor:
    while x.sum() < 10:
        x = x + 1
    return x


def count(x: torch.Tensor) -> torch.Tensor:
    rows = int(x[0, 0])
    return x[:rows] if rows > 2 else x


def none_left(x: torch.Tensor) -> torch.Tensor:
    rows = x[x[:, 0] > 0]
    if rows.numel() == 0:
        return x
    return rows * 2


def chosen(x: torch.Tensor) -> torch.Tensor:
    rows = x[x[:, 0] > 0]
    return rows.unbind(0)[0]


def with_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.sin(x.numpy()))


def from_file(x: torch.Tensor) -> torch.Tensor:
    return x * float(Path("/nowhere/scale.txt").open().read())


def sparse(x: torch.Tensor) -> torch.Tensor:
    return torch.sparse.mm(x.to_sparse(), torch.ones(6, 2))


def quantized(x: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize()


def two_devices(x: torch.Tensor) -> torch.Tensor:
    return x + torch.zeros(6, device="meta")


def packed(x: torch.Tensor) -> torch.Tensor:
    return pack_padded_sequence(x[None], torch.tensor([3]), batch_first=True).data


def custom(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aottest.fakeless(x)  # type: ignore[no-any-return]


def wrong_shape(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.ones(7, 2)


def asserts(x: torch.Tensor) -> torch.Tensor:
    assert x.min() > -100
    return x * 2


def ends(x: torch.Tensor) -> torch.Tensor:
    sys.exit(3)


def reason(function: Callable[..., Any]) -> Break:
    with pytest.raises(ExportError) as caught:
        check_program(captured(Made(function).eval(), SPEC), SPEC)
    return caught.value.breaks[0]


@pytest.mark.parametrize(
    ("function", "kind", "code", "fix"),
    [
        (branch, "branch on values", "if x.mean() > 0:", "torch.where"),
        (loop, "loop on values", "while x.sum() < 10:", "fixed number of rounds"),
        (count, "number from a tensor", "rows = int(x[0, 0])", "torch._check"),
        (chosen, "size from values", "rows.unbind(", "top-k"),
        (none_left, "size from values", "if rows.numel() == 0:", "top-k"),
        (with_numpy, "numpy", "np.sin", "torch function"),
        (from_file, "file", "open()", "__init__"),
        (sparse, "sparse tensor", "to_sparse", "dense"),
        (quantized, "quantized tensor", "quantize_per_tensor", "--precision"),
        (two_devices, "device", 'device="meta"', "device=x.device"),
        (packed, "packed sequence", "pack_padded_sequence(", "gather"),
        (custom, "op without fake", "aottest.fakeless", 'register_fake("aottest::fakeless")'),
        (wrong_shape, "other", "x @ torch.ones(7, 2)", "shapes and dtypes in inputs="),
        (asserts, "assert on values", "assert x.min() > -100", "outside of forward"),
        (ends, "other", "sys.exit(3)", "call the model"),
    ],
)
def test_each_kind_has_its_line_and_its_fix(function: Callable[..., Any], kind: str, code: str, fix: str) -> None:
    found = reason(function)
    assert found.kind == kind
    assert code in str(found.code)
    assert fix in str(found.fix)
    assert found.function == function.__name__
    assert f"{Path(__file__)}:{found.line} in {function.__name__}" in str(found.where)


def test_sizes_in_a_message_are_called_by_their_dims() -> None:
    def only_in_the_export(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(7, 2) if torch.compiler.is_exporting() else x

    assert "got [batch, 6] X [7, 2]" in reason(only_in_the_export).what


def test_a_model_that_raises_by_itself_is_told_so() -> None:
    said = reason(wrong_shape).what
    assert "own code raises on x [4, 6], without any export: RuntimeError" in said.replace("x [5, 6]", "x [4, 6]")
    assert "SystemExit: 3" in reason(ends).what


def test_a_cache_among_the_outputs_is_turned_off() -> None:
    said = "Found <class 'transformers.cache_utils.EncoderDecoderCache'> in output, which is not a known type."
    found = explained(RuntimeError(said), SPEC)
    assert found.kind == "output that is no tensor"
    assert '"use_cache": False in inputs=' in str(found.fix)


def test_no_exit_of_the_model_ends_the_program_that_runs_it() -> None:
    with pytest.raises(ExportError, match="SystemExit") as caught:
        Eager(Made(ends), SPEC)({"x": np.zeros((2, 6), np.float32)})
    assert "sys.exit(3)" in str(caught.value.where)


def test_the_fixed_form_of_a_branch_takes_both_ways() -> None:
    def chosen(x: torch.Tensor) -> Any:
        return torch.cond(x.mean() > 0, lambda x: x * 2, lambda x: x - 1, (x,))

    run = captured(Made(chosen).eval(), SPEC).module()
    for x in (torch.ones(3, 6), -torch.ones(5, 6)):
        torch.testing.assert_close(run(x=x), x * 2 if x.mean() > 0 else x - 1)


def test_a_move_to_a_gpu() -> None:
    class Moved(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to("cuda") * 2

    with pytest.raises(ExportError, match="moves a tensor to a GPU") as caught:
        check_program(captured(Moved(), SPEC), SPEC)
    assert 'x.to("cuda")' in str(caught.value.where)


def test_printing_is_no_failure() -> None:
    def talks(x: torch.Tensor) -> torch.Tensor:
        print("shape", x.shape)
        return x * 2

    captured(Made(talks).eval(), SPEC)


class TestAll:
    """Not the first reason alone."""

    def test_reasons_are_found_behind_the_first(self) -> None:
        def many(x: torch.Tensor) -> torch.Tensor:
            if x.mean() > 0:
                x = x + 1
            x = torch.ops.aottest.fakeless(x)
            while x.sum() < 1:
                x = x + 1
            return x + torch.randn(6)

        found = breaks(Made(many).eval(), SPEC)
        assert [one.kind for one in found] == [
            "branch on values",
            "op without fake",
            "loop on values",
            "random numbers",
        ]
        assert [one.code for one in found if one.line][:2] == ["if x.mean() > 0:", "while x.sum() < 1:"]

    def test_inputs_that_forward_does_not_take_are_no_reason_of_a_trace(self) -> None:
        assert breaks(Made(lambda x: x), replace(SPEC, inputs={"y": SPEC.inputs["x"]})) == []

    def test_a_model_without_any(self) -> None:
        assert breaks(Made(lambda x: x * 2).eval(), SPEC) == []


class TestRandomNumbers:
    @pytest.mark.parametrize(
        "function",
        [
            lambda x: x + torch.randn_like(x),
            lambda x: torch.bernoulli(x.sigmoid()),
            lambda x: torch.multinomial(x.softmax(-1), 2),
            lambda x: x + torch.empty_like(x).normal_(),
        ],
    )
    def test_are_refused(self, function: Callable[..., Any]) -> None:
        found = reason(function)
        assert found.kind == "random numbers"
        assert "input of forward" in str(found.fix)

    def test_active_dropout_is_called_so(self) -> None:
        found = reason(lambda x: nn.functional.dropout(x, 0.5, training=True))
        assert "dropout stays active" in found.what
        assert "training=self.training" in str(found.fix)
        attention = reason(lambda x: nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.25))
        assert "attention drops 25% of its weights" in attention.what

    def test_that_no_output_needs_are_let_be(self) -> None:
        def unused(x: torch.Tensor) -> torch.Tensor:
            torch.randn_like(x)
            return nn.functional.dropout(x, 0.5, training=False) + nn.functional.rrelu(x)

        check_program(captured(Made(unused).eval(), SPEC), SPEC)
