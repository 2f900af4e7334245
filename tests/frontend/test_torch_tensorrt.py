"""The second route up to the vendor's call: what is asked of Torch-TensorRT, and what its refusal becomes."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from aot import toolchain
from aot.backend import Job
from aot.config import EngineOptions
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import EngineError
from aot.frontend import program
from tests.backends.fake_tensorrt import H200
from tests.frontend import fake_torch_tensorrt

BATCH = Dim("batch", min=1, opt=4, max=8)
SPEC = ModelSpec(
    "m", {"scale": Input([4]), "x": Input([BATCH, 4], dtype="int32", low=0, high=9)}, outputs=("scaled", "total")
)
PROFILES = ({"batch": (1, 2, 4)}, {"batch": (4, 8, 8)})


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * scale, x.sum(1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "program.pt2"
    program.write_module(Scaled(), SPEC, path, "fp32")
    return path


def converting(monkeypatch: pytest.MonkeyPatch, vendor: ModuleType) -> Any:
    monkeypatch.setitem(sys.modules, "torch_tensorrt", vendor)
    monkeypatch.delitem(sys.modules, "aot.frontend.torch_tensorrt", raising=False)
    ours: Any = import_module("aot.frontend.torch_tensorrt")
    monkeypatch.setattr(ours, "move_to_device_pass", lambda exported, device: exported)  # no GPU to move it to
    monkeypatch.setattr(toolchain, "machine", lambda: H200)
    return ours.convert


def test_profiles_names_dtypes_and_options_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, saved: Path, tmp_path: Path
) -> None:
    vendor: Any = fake_torch_tensorrt.module()
    convert = converting(monkeypatch, vendor)
    options = EngineOptions(optimization_level=2, workspace_mib=64)
    facts = convert(Job(saved, SPEC, "fp32", PROFILES, "sm90", options), tmp_path / "sm90.plan")
    assert (tmp_path / "sm90.plan").read_bytes() == b"engine"
    asked = vendor.asked
    assert asked.names == ["scale", "x", "scaled", "total"]
    assert (asked.inputs["scale"].shape, asked.inputs["scale"].dtype) == ((4,), torch.float32)
    assert asked.inputs["x"].dtype == torch.int32
    assert asked.inputs["x"].profiles == [
        {"min_shape": (1, 4), "opt_shape": (2, 4), "max_shape": (4, 4)},
        {"min_shape": (4, 4), "opt_shape": (8, 4), "max_shape": (8, 4)},
    ]
    assert (asked.disable_tf32, asked.level, asked.workspace) == (True, 2, 64 << 20)
    assert not Path(asked.timing).parent.exists()
    assert facts["origin"] == {"gpu": "NVIDIA H200", "driver": "580.65.06"}
    assert facts["timing_cache"] == "does not apply"


def test_a_refusal_is_told_in_its_own_words(monkeypatch: pytest.MonkeyPatch, saved: Path, tmp_path: Path) -> None:
    convert = converting(monkeypatch, fake_torch_tensorrt.module(RuntimeError("no converter for aten.frobnicate")))
    with pytest.raises(EngineError, match=r"no converter for aten\.frobnicate") as caught:
        convert(Job(saved, SPEC, "fp32", PROFILES, "sm90", EngineOptions()), tmp_path / "sm90.plan")
    assert caught.value.where == "model 'm', --target sm90"
    assert "leave --route away" in str(caught.value.fix)
