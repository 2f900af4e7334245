"""The selective scan against the recurrence of the paper, step by step in FP64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import aot
from aot.declaration import Dim, Input, ModelSpec
from aot.frontend.export import write_module
from aot.plugins.compiling import compile_all, jobs
from aot.plugins.header import read
from tests.plugins.engines import built
from tests.plugins.kernels import BUILT_IN, interpreted
from tests.plugins.models import mamba

NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")
SIZES = [(2, 40, 5, 3), (1, 1, 33, 16), (2, 0, 4, 2), (0, 3, 4, 2), (1, 17, 1, 1)]


def given(batch: int, length: int, channels: int, states: int, dtype: type = np.float32) -> dict[str, np.ndarray]:
    """Inputs as a trained layer has them: states that fade, steps in time around 0.1."""
    random = np.random.default_rng(length)
    wide, narrow = (batch, length, channels), (batch, length, states)
    shapes = (wide, wide, (channels, states), narrow, narrow, (channels,), wide, (channels,))
    made = {name: random.standard_normal(shape) for name, shape in zip(NAMES, shapes, strict=True)}
    made["A"] = -np.exp(made["A"])
    made["delta_bias"] -= 2.0
    held = ("A", "D", "delta_bias")
    return {name: value.astype(np.float32 if name in held else dtype) for name, value in made.items()}


def tensors(inputs: dict[str, np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(value) for value in inputs.values()]


def truth(inputs: dict[str, np.ndarray], softplus: bool = True, gate: bool = True) -> np.ndarray:
    u, delta, a, b, c, d, z, bias = (inputs[name].astype(np.float64) for name in NAMES)
    dt = delta + bias
    dt = np.log1p(np.exp(dt)) if softplus else dt
    y = np.empty_like(u)
    h = np.zeros((u.shape[0], *a.shape))
    for t in range(u.shape[1]):
        h = np.exp(dt[:, t, :, None] * a) * h + (dt[:, t] * u[:, t])[..., None] * b[:, t, None, :]
        y[:, t] = (h * c[:, t, None, :]).sum(-1) + d * u[:, t]
    return y * z / (1 + np.exp(-z)) if gate else y


def close(got: np.ndarray, right: np.ndarray, of_largest: float) -> None:
    assert got.shape == right.shape
    np.testing.assert_allclose(got, right, rtol=0, atol=of_largest * max(np.abs(right).max(initial=0), 1e-30))


@pytest.mark.parametrize("sizes", SIZES)
def test_the_op_is_the_recurrence(sizes: tuple[int, int, int, int]) -> None:
    inputs = given(*sizes)
    got = aot.ops.selective_scan(*tensors(inputs))
    close(got.numpy(), truth(inputs), 2e-6)


@pytest.mark.parametrize(("softplus", "gate"), [(False, False), (False, True), (True, False)])
def test_softplus_and_gate_can_be_left_out(softplus: bool, gate: bool) -> None:
    inputs = given(2, 9, 4, 3)
    if not softplus:
        inputs["delta"], inputs["delta_bias"] = np.abs(inputs["delta"]) / 4, np.abs(inputs["delta_bias"]) / 8
    got = aot.ops.selective_scan(*tensors(inputs), softplus, gate)
    close(got.numpy(), truth(inputs, softplus, gate), 2e-6)


def test_a_state_that_hardly_fades_is_kept_over_thousands_of_steps() -> None:
    """A sum of 5000 inputs: in FP32 nothing may be lost of it, in whichever order it is taken."""
    inputs = given(1, 5000, 2, 1)
    inputs["A"][:] = -1e-6
    got = aot.ops.selective_scan(*tensors(inputs))
    close(got.numpy(), truth(inputs), 2e-5)


def test_the_kernel_is_the_recurrence() -> None:
    """Lengths within a tile, at its end and beyond it, more channels than a program takes, a z that is not read."""
    asked: list[tuple[dict[str, np.ndarray], dict[str, int]]]
    asked = [(given(*sizes), {}) for sizes in (*SIZES, (1, 16, 3, 5), (1, 32, 70, 2))]
    asked += [(given(1, 21, 18, 4), {"config": config}) for config in range(1, 7)]
    narrow, unread = given(2, 19, 5, 3, np.float16), given(1, 5, 3, 2)
    unread["z"][:] = np.nan
    calls = [*asked, (narrow, {}), (unread, {"gate": False})]
    found = interpreted("selective_scan", [(tensors(inputs), attributes) for inputs, attributes in calls])
    for y, (inputs, _) in zip(found, asked, strict=False):
        close(y.numpy(), truth(inputs), 5e-6)
    close(found[-2].numpy(), truth(narrow), 1e-3)
    close(found[-1].numpy(), truth(unread, gate=False), 5e-6)


def test_it_compiles_without_spilling_and_reads_whole_vectors() -> None:
    header = read(BUILT_IN / "selective_scan.py")
    wanted = [
        job
        for target in ("sm80", "sm90", "sm100", "sm120")
        for job in jobs(header, target, {"channels": 1536, "states": 16})
        if "bfloat16" in job.dtypes
    ]
    for kernel in compile_all(header, wanted):
        assert kernel.spilled == 0
        assert "ld.global.v2.b32" in kernel.code  # u, delta and z: 16 × 32 values of 16 bits by 128 threads
        assert kernel.launched([(3, 100, 1536)] * 8) == ((48, 3, 1), (100,))


def test_a_model_of_mamba_blocks_is_exported_for_any_length(tmp_path: Path) -> None:
    module = mamba.mamba()
    write_module(module, mamba.mamba.spec(), tmp_path)
    assert [one.name for one in onnx.load(tmp_path / "model.onnx").functions] == ["selective_scan"]
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for sizes in ((1, 1), (3, 17), (2, 96)):
        x = torch.randn(*sizes, 16, generator=torch.Generator().manual_seed(sizes[1]))
        with torch.no_grad():
            right = module(x)
        close(session.run(None, {"input": x.numpy()})[0], right.numpy(), 5e-6)


@pytest.mark.slow
def test_tensorrt_rtx_builds_its_function(tmp_path: Path) -> None:
    """For a fixed length, which takes few shifts: with 16 of them the builder takes more than a minute."""
    spec = ModelSpec("block", {"x": Input([Dim("batch", min=1, max=4), 24, 16])})
    write_module(mamba.Block(), spec, tmp_path)
    assert built(tmp_path / "model.onnx", spec, ["selective_scan"], tmp_path)
