"""The sizes that results are compared at, and what eager made there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.declaration import Dim, Input, ModelSpec
from aot.errors import ExportError, UsageError
from aot.records import Case, References
from aot.stages.collect import collect
from aot.stages.reference import reference, sizes_to_compare
from tests.sources.projects import Bench, write
from tests.stages.test_collect import plan

MODEL = """
    import aot, torch

    batch = aot.Dim("batch", min=1, opt=4, max=8)
    seq = aot.Dim("seq", min=2, opt=6, max=16)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(3, 2)

        def forward(self, x, mask):
            return {"mean": (self.line(x) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)}

    @aot.model(
        inputs={"x": aot.Input([batch, seq, 3]), "mask": aot.Input([batch, seq], "int64", high=2)}, padding="mask"
    )
    def net():
        return Net()
"""

DATA = """
    @net.calibration
    def batches():
        for length in (3, 5, 7, 9):
            mask = torch.ones(2, length, dtype=torch.int64)
            mask[1, :-1] = 0
            yield {"x": torch.arange(2 * length * 3).reshape(2, length, 3) / 10, "mask": mask}
"""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "store")


def referenced(bench: Bench, tmp_path: Path, text: str, **verify: Any) -> References:
    source = bench.open(write(tmp_path / "model.py", text))
    data = collect(bench.run, source, plan())
    return reference(bench.run, source, data, plan(**verify))


def cases(references: References) -> dict[str, Case]:
    return {case.name: case for case in references.cases()}


def test_real_data_as_they_came_and_at_every_size(bench: Bench, tmp_path: Path) -> None:
    found = cases(referenced(bench, tmp_path, MODEL + DATA, sizes=[{"batch": 7}]))
    sizes = {name: (case.sizes["batch"], case.sizes["seq"]) for name, case in found.items()}
    assert sizes.pop("unseen") not in {(1, 2), (4, 6), (8, 16)}
    assert sizes == {"heldout-000": (2, 9), "min": (1, 2), "opt": (4, 6), "max": (8, 16), "asked-0": (7, 6)}
    assert {case.kind for name, case in found.items() if name != "heldout-000"} == {"resized"}
    assert found["heldout-000"].kind == "heldout"
    kept = found["heldout-000"].inputs["x"]
    rows, columns = np.arange(8) % 2, np.arange(16) % 9
    np.testing.assert_array_equal(found["max"].inputs["x"], kept[rows][:, columns])


def test_the_outputs_are_what_the_model_says(bench: Bench, tmp_path: Path) -> None:
    import torch

    found = cases(referenced(bench, tmp_path, MODEL + DATA))
    torch.manual_seed(0)
    line = torch.nn.Linear(3, 2)
    for case in found.values():
        x, mask = torch.from_numpy(case.inputs["x"]), torch.from_numpy(case.inputs["mask"])
        with torch.no_grad():
            want = (line(x) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        np.testing.assert_allclose(case.outputs["mean"], want.numpy(), rtol=1e-5)


def test_a_cut_never_leaves_a_row_of_padding_only(bench: Bench, tmp_path: Path) -> None:
    for case in referenced(bench, tmp_path, MODEL + DATA).cases():
        assert case.inputs["mask"].any(axis=1).all()
        assert np.isfinite(case.outputs["mean"]).all()


def test_generated_where_there_are_no_data(bench: Bench, tmp_path: Path) -> None:
    found = cases(referenced(bench, tmp_path, MODEL))
    assert {case.kind for case in found.values()} == {"generated"}
    assert {"min", "opt", "max", "unseen"} <= set(found)


def test_the_maximum_of_all_gives_way_to_one_at_a_time(bench: Bench, tmp_path: Path) -> None:
    references = referenced(bench, tmp_path, MODEL + DATA, flop_limit=100)
    found = cases(references)
    assert "max" not in found
    assert dict(found["max-batch"].sizes) == {"batch": 8, "seq": 2}
    assert dict(found["max-seq"].sizes) == {"batch": 1, "seq": 16}
    assert "batch=8, seq=16" in bench.warnings[0]
    assert "one maximum at a time" in references.facts["notes"][0]


def test_flops_are_those_of_the_model(bench: Bench, tmp_path: Path) -> None:
    """One Linear(3, 2) over batch x seq rows: 2 * 3 * 2 operations a row."""
    source = bench.open(write(tmp_path / "model.py", MODEL))
    inputs = {"x": np.ones((4, 6, 3), np.float32), "mask": np.ones((4, 6), np.int64)}
    assert source.eager().flops(inputs) == 4 * 6 * 2 * 3 * 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("body", ["x + torch.randn_like(x)", "x * self.calls()"], ids=["random", "state"])
def test_a_model_that_answers_differently_each_time(bench: Bench, tmp_path: Path, body: str) -> None:
    text = f"""
    import aot, torch

    class Net(torch.nn.Module):
        count = 0

        def calls(self):
            self.count += 1
            return self.count

        def forward(self, x):
            return {body}

    @aot.model(inputs={{"x": aot.Input([aot.Dim("batch", min=1, opt=4, max=8), 3])}})
    def net():
        return Net()
    """
    with pytest.raises(ExportError, match="two runs on the same inputs differ in output 'output_0'"):
        referenced(bench, tmp_path, text)


def test_an_output_that_is_rounding_noise_is_named(bench: Bench, tmp_path: Path) -> None:
    """Case C21: what LayerNorm has centred sums to rounding."""
    text = """
        import aot, torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = torch.nn.LayerNorm(8)

            def forward(self, x):
                y = self.norm(x)
                return {"sums": y.sum((2, 3)), "largest": y.amax(1)}

        @aot.model(inputs={"x": aot.Input([2, 4, 6, 8])})
        def net():
            return Net()
    """
    references = referenced(bench, tmp_path, text)
    assert references.noise == ("sums",)
    assert any(note.startswith("output 'sums' is not judged") for note in references.facts["notes"])


def test_a_size_that_the_model_cannot_take_names_it(bench: Bench, tmp_path: Path) -> None:
    text = MODEL.replace("return {", "assert x.shape[1] != 16, 'sixteen'\n            return {")
    with pytest.raises(ExportError, match=r"x \[8, 16, 3\].*sixteen"):
        referenced(bench, tmp_path, text)


def test_unchanged_references_are_not_made_again(bench: Bench, tmp_path: Path) -> None:
    referenced(bench, tmp_path, MODEL + DATA)
    assert referenced(bench, tmp_path, MODEL + DATA).entry.cached


class TestSizes:
    spec = ModelSpec("m", {"x": Input([Dim("n", min=1, opt=4, max=9)])})

    def sizes(self, taken: set[int], **verify: Any) -> tuple[dict[str, int], list[str]]:
        notes: list[str] = []
        made = sizes_to_compare(self.spec, plan(**verify), {"n": taken}, lambda _: (0.0, 0.0), notes)  # type: ignore[arg-type]
        return {wanted.name: wanted.sizes["n"] for wanted in made}, notes

    def test_the_unseen_one_is_odd_and_new(self) -> None:
        assert self.sizes({2})[0]["unseen"] == 3
        assert self.sizes({2, 3})[0]["unseen"] == 5
        assert self.sizes({2, 3, 5, 7})[0]["unseen"] == 6

    def test_none_is_left(self) -> None:
        found, notes = self.sizes({2, 3, 5, 6, 7, 8})
        assert "unseen" not in found
        assert "every size" in notes[0]

    def test_asked_sizes_must_lie_within(self) -> None:
        with pytest.raises(UsageError, match=r"n=10, outside 1\.\.9"):
            self.sizes(set(), sizes=[{"n": 10}])

    def test_a_size_that_no_memory_holds_is_left_out(self) -> None:
        huge = ModelSpec("m", {"x": Input([Dim("n", min=1, opt=4, max=10**12)])})
        notes: list[str] = []
        made = sizes_to_compare(huge, plan(), {"n": set()}, lambda _: (0.0, 0.0), notes)  # type: ignore[arg-type]
        assert [wanted.sizes["n"] for wanted in made] == [1, 4, 3]
        assert notes == ["not compared at n=1000000000000: its tensors would take 3,725 GiB"]
