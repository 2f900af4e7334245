"""State that a module keeps between calls: refused with its name and line, or lifted and threaded."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import aot
from aot import batches
from aot.declaration import Input, ModelSpec
from aot.errors import DeclarationError, ExportError
from aot.frontend import state
from aot.frontend.eager import Eager
from aot.frontend.export import write_module
from aot.frontend.watch import Snapshot, refuse_state

BATCH = aot.Dim("batch", min=1, opt=3, max=8)
X = aot.Input([BATCH, 4])


def spec(x: Input = X) -> ModelSpec:
    return ModelSpec("model", {"x": x})


class Meter(nn.Module):
    """A peak that falls slowly, in a buffer that is changed in place."""

    peak: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("peak", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.peak.copy_(torch.maximum(self.peak * 0.9, x.abs().amax(0)))
        return x / (self.peak + 1e-3)


class Reassigned(Meter):
    """The same, the buffer replaced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.peak = torch.maximum(self.peak * 0.9, x.abs().amax(0))
        return x / (self.peak + 1e-3)


class Stream(nn.Module):
    """An LSTM whose hidden and cell state are plain attributes, of a submodule."""

    class Memory(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(4, 5)
            self.h, self.c = torch.zeros(1, 5), torch.zeros(1, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.h, self.c = self.cell(x, (self.h, self.c))
            return self.h

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.memory = self.Memory()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.memory(x) * 2
        return y


class Average(nn.Module):
    """A running mean with the count of calls, as BatchNorm keeps them, in buffers of two dtypes."""

    mean: torch.Tensor
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((4,), 0.5))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean.lerp_(x.mean(0), 1 / self.calls)
        return x - self.mean


class Counting(nn.Module):
    """A Python number that grows with every call and scales the output."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


class Late(nn.Module):
    """A state that is not there before the first call, and a list of earlier inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.last: torch.Tensor | None = None
        self.past: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.mean() if self.last is None else x.mean() + self.last
        self.last = x.mean()
        return y


class Filing(nn.Module):
    """Earlier means in a list, and their number in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.past: list[torch.Tensor] = []
        self.counts = {"calls": 0}

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.past.append(self.mean(x))
        self.counts["calls"] += 1
        return x + sum(self.past) * self.counts["calls"]


class Harmless(nn.Module):
    """A counter, a table made at the first call and made anew for longer inputs, and an attribute set anew."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.shape: tuple[int, ...] = ()
        self.table: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.shape = tuple(x.shape)
        if self.table is None or self.table.shape[0] < x.shape[0]:
            self.table = torch.arange(float(x.shape[0]))
        return x + self.table[: x.shape[0], None] + torch.rand(1)


def refusal(module: nn.Module) -> str:
    with pytest.raises(ExportError) as caught:
        refuse_state(module.eval(), spec())
    return str(caught.value)


class TestRefused:
    """What is said of a state that nobody asked to lift."""

    def test_what_lies_in_a_list_or_a_dict(self) -> None:
        where = refusal(Filing()).split("fix:")[0]
        assert "in forward: self.past.append(self.mean(x))" in where
        assert 'in forward: self.counts["calls"] += 1' in where

    @pytest.mark.parametrize(
        ("module", "path", "line"),
        [
            (Meter(), "peak", "self.peak.copy_(torch.maximum("),
            (Reassigned(), "peak", "self.peak = torch.maximum("),
        ],
    )
    def test_a_buffer(self, module: nn.Module, path: str, line: str) -> None:
        said = refusal(module)
        assert f"forward keeps state between calls in '{path}'" in said
        assert f"in forward: {line}" in said
        assert f"at:  '{path}' at {__file__}:" in said
        assert 'add states=["peak"] to @aot.model' in said
        assert "takes state_peak and returns state_peak_out" in said

    def test_tensors_that_are_no_buffers(self) -> None:
        said = refusal(Stream())
        assert "in 'memory.h' and 'memory.c'" in said
        assert 'states=["memory.h", "memory.c"]' in said
        assert said.count("self.h, self.c = self.cell(x") == 2

    def test_each_is_a_break_of_its_own(self) -> None:
        with pytest.raises(ExportError) as caught:
            refuse_state(Stream(), spec())
        assert [(one.kind, one.file, one.code) for one in caught.value.breaks] == [
            ("state", __file__, "self.h, self.c = self.cell(x, (self.h, self.c))")
        ] * 2

    def test_a_number(self) -> None:
        said = refusal(Counting())
        assert "in 'calls'" in said
        assert "self.calls += 1" in said
        assert 'self.register_buffer("calls", torch.tensor(0))' in said

    def test_what_starts_as_none(self) -> None:
        said = refusal(Late())
        assert "in 'last'" in said
        assert "past" not in said
        assert "start it as a tensor" in said

    def test_a_pair_that_is_made_anew_for_every_size(self) -> None:
        class Cell(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.cell = nn.LSTMCell(4, 4)
                self.pair: tuple[torch.Tensor, torch.Tensor] | None = None

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if self.pair is None or len(self.pair[0]) != len(x):
                    self.pair = (torch.zeros_like(x), torch.zeros_like(x))
                self.pair = self.cell(x, self.pair)
                return self.pair[0]

        said = refusal(Cell())
        assert "in 'pair'" in said
        assert "in forward: self.pair = (torch.zeros_like(x), torch.zeros_like(x))" in said
        assert "start it as 2 tensors, in a buffer each" in said

    def test_one_that_keeps_the_size_of_a_call(self) -> None:
        class Last(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.last: torch.Tensor | None = None

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = x if self.last is None or len(x) > len(self.last) else torch.stack([x, self.last]).mean(0)
                self.last = x
                return y

        assert "in 'last'" in refusal(Last())

    def test_all_of_several_and_only_those_that_count(self) -> None:
        class Both(Harmless):
            def __init__(self) -> None:
                super().__init__()
                self.gain = 1.0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.gain += float(x.mean())
                return super().forward(x) * self.gain

        assert "state between calls in 'gain'," in refusal(Both())

    def test_what_changes_no_answer_is_none(self) -> None:
        refuse_state(Harmless(), spec())

    @pytest.mark.parametrize("module", [Meter(), Reassigned(), Stream(), Average(), Counting(), Late(), Harmless()])
    def test_the_module_is_left_as_it_was(self, module: nn.Module) -> None:
        before = Snapshot(module)
        with contextlib.suppress(ExportError):
            refuse_state(module, spec())
        assert [change.path for change in before.changes()] == []

    def test_the_program_around_draws_the_same_random_numbers(self) -> None:
        torch.manual_seed(3)
        want = torch.rand(2)
        torch.manual_seed(3)
        refuse_state(Harmless(), spec())
        assert torch.equal(torch.rand(2), want)


class TestLifted:
    """A sequence of calls with the state handed on is what the module itself answers, call by call."""

    STEPS: ClassVar = [(3, 8.0), (1, 1.0), (5, 0.5)]

    def thread(self, module: nn.Module, declared: ModelSpec, fresh: nn.Module, folder: Path, sizes: Any = None) -> None:
        write_module(module, declared, folder)
        session = onnxruntime.InferenceSession(folder / "model.onnx")
        eager = Eager(module, declared)
        now = batches.initial(declared, {"batch": sizes or 1})
        random = np.random.default_rng(0)
        for size, scale in self.STEPS:
            x = (random.standard_normal((sizes or size, 4)) * scale).astype(np.float32)
            names = [value.name for value in session.get_outputs()]
            got = dict(zip(names, session.run(None, {"x": x, **now}), strict=True))
            for name, values in eager({"x": x, **now}).items():
                np.testing.assert_allclose(got[name], values, rtol=1e-5, atol=1e-6)
            with torch.no_grad():
                want = fresh(torch.from_numpy(x)).numpy()
            np.testing.assert_allclose(got["output_0"], want, rtol=1e-5, atol=1e-6)
            now = {name: got[output] for name, output in declared.states.items()}

    @pytest.mark.parametrize("kind", [Meter, Reassigned])
    def test_a_peak_meter(self, kind: type[Meter], tmp_path: Path) -> None:
        module = kind().eval()
        declared = state.completed(spec(), module, {"peak": None})
        assert declared.states == {"state_peak": "state_peak_out"}
        assert declared.inputs["state_peak"].shape == (4,)
        self.thread(module, declared, kind(), tmp_path)
        assert torch.equal(module.peak, torch.zeros(4))

    def test_an_lstm_that_keeps_h_and_c_in_attributes(self, tmp_path: Path) -> None:
        declared = state.completed(
            spec(), Stream(), {"memory.h": aot.Input([BATCH, 5]), "memory.c": aot.Input([BATCH, 5])}
        )
        assert list(declared.inputs) == ["x", "state_memory_h", "state_memory_c"]
        self.thread(Stream().eval(), declared, self.spread(), tmp_path, sizes=3)

    def spread(self) -> nn.Module:
        module = Stream()
        module.memory.h = module.memory.c = torch.zeros(3, 5)
        return module

    def test_a_mean_with_its_count(self, tmp_path: Path) -> None:
        declared = state.completed(spec(), Average(), {"mean": None, "calls": None})
        assert declared.inputs["state_calls"].dtype == "int64"
        assert declared.inputs["state_calls"].shape == ()
        self.thread(Average(), declared, Average(), tmp_path)

    def test_one_of_two_leaves_the_other_refused(self) -> None:
        declared = state.completed(spec(), Average(), {"mean": None})
        with pytest.raises(ExportError, match="in 'calls', and an engine"):
            refuse_state(Average(), declared)


class TestData:
    """What stands in for a state where data are made or a batch does not hold it."""

    SPEC = state.completed(spec(), Average(), {"mean": None, "calls": None})

    def test_the_value_before_the_first_call_is_the_default(self) -> None:
        found = batches.checked({"x": np.zeros((2, 4), np.float32)}, self.SPEC, "batch 0")
        np.testing.assert_array_equal(found["state_mean"], np.full(4, 0.5, np.float32))
        assert found["state_calls"] == 0

    def test_a_batch_may_hold_it(self) -> None:
        given = {"x": np.zeros((2, 4), np.float32), "state_mean": np.ones(4, np.float32)}
        np.testing.assert_array_equal(batches.checked(given, self.SPEC, "batch 0")["state_mean"], np.ones(4))

    def test_it_is_generated_once_as_it_starts_and_then_as_calls_leave_it(self) -> None:
        first, later = (batches.generated(self.SPEC, {"batch": 2}, seed) for seed in (0, 1))
        assert float(first["state_mean"][0]) == 0.5
        assert len(set(later["state_mean"])) == 4
        assert 0 <= later["state_calls"] <= 3
        resized = batches.resized(first, self.SPEC, {"batch": 3}, seed=1)
        assert resized["x"].shape == (3, 4)
        assert not np.array_equal(resized["state_mean"], first["state_mean"])

    def test_values_that_differ_travel_in_the_declaration(self) -> None:
        module = Meter()
        module.peak = torch.tensor([1.0, float("-inf"), 3.0, 4.0])
        kept = ModelSpec.from_json(state.completed(spec(), module, {"peak": None}).to_json())
        np.testing.assert_array_equal(batches.initial(kept, {})["state_peak"], module.peak)


class TestAskedForWrongly:
    """What states= may not name."""

    @pytest.mark.parametrize(
        ("module", "asked", "said"),
        [
            (Meter(), {"peek": None}, r"the module has no 'peek'(.|\n)*did you mean 'peak'"),
            (Counting(), {"calls": None}, r"'calls' is 0, not a tensor(.|\n)*register_buffer"),
            (Late(), {"last": None}, r"'last' is None, not a tensor(.|\n)*start it as a tensor"),
            (nn.Linear(4, 4), {"weight": None}, r"'weight' is a weight"),
            (Meter(), {"peak": aot.Input([4], "int64")}, "'peak' is of float32, and states= declares it as int64"),
        ],
    )
    def test_it_is_said(self, module: nn.Module, asked: dict[str, Input | None], said: str) -> None:
        with pytest.raises(DeclarationError, match=said):
            state.completed(spec(), module, asked)

    def test_a_shape_that_a_call_changes(self) -> None:
        class Growing(Meter):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.peak = torch.cat([self.peak, x[:, 0]])
                return x

        with pytest.raises(DeclarationError, match=r"shape \[4\] before a call and \[5\] after it"):
            state.completed(spec(), Growing(), {"peak": None})

    def test_a_state_that_a_call_takes_away(self) -> None:
        class Once(Meter):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = x + self.peak
                self.peak = None  # type: ignore[assignment]
                return y

        with pytest.raises(ExportError, match="'peak' is None after a call"):
            state.completed(spec(), Once(), {"peak": None})
