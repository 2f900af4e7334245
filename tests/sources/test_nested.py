"""Declarations with nested inputs and lifted state, as sources: what is remembered, what data and metric may hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aot import batches
from aot.errors import DeclarationError
from tests.sources.projects import Bench, write

MODEL = """
    import aot, torch
    from dataclasses import dataclass

    batch = aot.Dim("batch", min=1, opt=4, max=8)

    @dataclass
    class Cond:
        gain: object
        shift: object = None

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("peak", torch.zeros(4))

        def forward(self, x, cond):
            self.peak = torch.maximum(self.peak * 0.9, x.abs().amax(0))
            return {"y": x * cond.gain + cond.shift["a"], "z": x / (self.peak + 1)}

    CHOSEN = Cond(aot.Input([4]), {"a": aot.Input([batch, 4]), "b": None})

    @aot.model(inputs={"x": aot.Input([batch, 4]), "cond": CHOSEN}, states=["peak"])
    def net():
        return Net()

    @net.calibration
    def data():
        for size in (1, 2):
            yield {"x": torch.ones(size, 4), "cond": Cond(torch.ones(4), {"a": torch.zeros(size, 4)})}

    @net.metric
    def score(run):
        x, a = torch.full((2, 4), 3.0), torch.zeros(2, 4)
        first = run(x=x, cond={"gain": torch.ones(4), "shift": {"a": a}})
        again = run(x=x / 3, cond_gain=torch.ones(4), cond_shift_a=a, state_peak=first["state_peak_out"])
        return float(again["state_peak_out"][0])
"""


def test_data_and_metric_may_be_nested_and_state_is_threaded(bench: Bench, tmp_path: Path) -> None:
    source = bench.open(write(tmp_path / "model.py", MODEL))
    assert list(source.spec.inputs) == ["x", "cond_gain", "cond_shift_a", "state_peak"]
    assert source.spec.states == {"state_peak": "state_peak_out"}
    stream = source.batches()
    assert stream is not None
    found = list(stream)
    assert [batch["cond_shift_a"].shape for batch in found] == [(1, 4), (2, 4)]
    np.testing.assert_array_equal(found[0]["state_peak"], np.zeros(4))
    assert source.score(source.eager()) == pytest.approx(2.7)


def test_a_record_holds_all_of_it(bench: Bench, tmp_path: Path) -> None:
    path = write(tmp_path / "model.py", MODEL)
    first = bench.open(path)
    again = bench.open(path)
    assert not bench.loaded
    assert again.spec == first.spec
    assert again.key == first.key
    given = batches.generated(again.spec, {"batch": 2}, seed=1)
    assert set(again.eager()(given)) == {"y", "z", "state_peak_out"}  # classes are known again once it is loaded


def test_a_state_that_is_not_there(bench: Bench, tmp_path: Path) -> None:
    path = write(tmp_path / "model.py", MODEL.replace('states=["peak"]', 'states=["peek"]'))
    with pytest.raises(DeclarationError, match=r"the module has no 'peek'(.|\n)*did you mean 'peak'"):
        bench.open(path)
