"""Branches that torch.export passes by without a word are told with their line, before anything is translated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from aot.declaration import Dim, Input, ModelSpec
from aot.errors import ExportError
from aot.frontend import rehearsal
from aot.frontend.export import write_module

BATCH = Dim("batch", min=1, opt=3, max=8)
PAST = Dim("past", min=0, opt=4, max=9)
X, CACHE = Input([BATCH, 4]), Input([PAST, 4])


def refused(module: nn.Module, folder: Path, **inputs: Input) -> ExportError:
    with pytest.raises(ExportError) as caught:
        write_module(module, ModelSpec("model", inputs), folder)
    (reason,) = caught.value.breaks
    assert reason.file == __file__
    return caught.value


class Caught(nn.Module):
    """A branch on a sum; what the capture raises there is caught, and the other way taken."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            if x.sum() > 0:
                return x * 2
        except RuntimeError:
            pass
        return x


class CaughtNumber(nn.Module):
    """The same on a number, which is the same way for all inputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            if float(x.abs().sum()) >= 0:
                return x * 2
        except Exception:  # noqa: BLE001  as models do
            pass
        return x


class Numpy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            y = torch.from_numpy(x.numpy() * 2)
        except RuntimeError:
            return x
        return y


class WhileExported(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_exporting():
            return x
        return x * 2


@pytest.mark.parametrize(
    ("module", "code", "what"),
    [
        (Caught, "if x.sum() > 0:", "branches on the value of a tensor"),
        (CaughtNumber, "if float(x.abs().sum()) >= 0:", "branches on the value of a tensor"),
        (Numpy, "y = torch.from_numpy(x.numpy() * 2)", "computes with numpy"),
        (WhileExported, "if torch.compiler.is_exporting():", "something else here while it is exported"),
    ],
)
def test_a_way_that_the_capture_goes_alone(module: type[nn.Module], code: str, what: str, tmp_path: Path) -> None:
    error = refused(module(), tmp_path, x=X)
    assert str(error.where).endswith(f"in forward: {code}")
    assert what in error.what


class AloneOrNot(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:
            return x * 3
        return x - x.mean(0)


class Cached(nn.Module):
    def forward(self, x: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
        if past.shape[0] == 0:
            return x
        return x + past.sum(0) + 1


def test_a_branch_on_a_size_of_one(tmp_path: Path) -> None:
    error = refused(AloneOrNot(), tmp_path, x=X)
    assert "at batch=1 than at all other sizes" in error.what
    assert str(error.where).endswith("if x.shape[0] == 1:")
    assert "batch = aot.Dim('batch', min=2, opt=3, max=8)" in str(error.fix)


def test_of_a_dear_model_no_more_than_one_size_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The references of a build have the others, and a pass may take long."""

    class Product(AloneOrNot):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x @ torch.ones(4, 4))

    monkeypatch.setattr(rehearsal, "DEAR", 2 * 2 * 4 * 4)  # x is [2, 4]
    refused(Product(), tmp_path, x=X)
    monkeypatch.setattr(rehearsal, "DEAR", 2 * 2 * 4 * 4 - 1)
    write_module(Product(), ModelSpec("model", {"x": X}), tmp_path)


def test_a_branch_on_an_empty_cache_and_not_on_the_batch_beside_it(tmp_path: Path) -> None:
    error = refused(Cached(), tmp_path, x=X, past=CACHE)
    assert "at past=0 than" in error.what
    assert str(error.where).endswith("if past.shape[0] == 0:")
    assert "past = aot.Dim('past', min=1, opt=4, max=9)" in str(error.fix)


class Harmless(nn.Module):
    """Other ways to the same values: a shortcut for one row, one for empty caches, and one that the capture lacks."""

    def forward(self, x: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
        if past.shape[0] == 0:
            return x
        if x.shape[0] == 1:
            return x + past.sum(0, keepdim=True)
        if not torch.compiler.is_exporting():
            past = past.clone()
        return x + past.sum(0)


def test_a_branch_whose_ways_agree_is_no_reason(tmp_path: Path) -> None:
    assert write_module(Harmless(), ModelSpec("model", {"x": X, "past": CACHE}), tmp_path)["outputs"] == ["output_0"]
