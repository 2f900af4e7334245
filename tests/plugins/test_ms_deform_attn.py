"""Multi-scale deformable attention, against torch's grid_sample of each level."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from torch.nn import functional as F

import aot
from aot.cli import _main as cli
from aot.declaration import Dim, Input, ModelSpec
from aot.frontend.export import write_module
from tests.plugins.engines import built
from tests.plugins.kernels import interpreted
from tests.plugins.models import deformable_encoder

MAPS = ((5, 7), (3, 2), (1, 1))
HEADS, WIDTH, POINTS = 2, 6, 3
POSITIONS = sum(rows * columns for rows, columns in MAPS)


def given(batch: int, queries: int, index: torch.dtype = torch.int64) -> list[torch.Tensor]:
    """value, shapes, starts, locations and weights; a third of the locations lie outside."""
    generator = torch.Generator().manual_seed(queries)
    shapes = torch.tensor(MAPS, dtype=index)
    sizes = shapes.prod(1).to(index)
    places = (batch, queries, HEADS, len(MAPS), POINTS)
    return [
        torch.randn(batch, POSITIONS, HEADS, WIDTH, generator=generator),
        shapes,
        (sizes.cumsum(0) - sizes).to(index),
        torch.rand(*places, 2, generator=generator) * 1.4 - 0.2,
        torch.rand(places, generator=generator),
    ]


def sampled(
    value: torch.Tensor, shapes: torch.Tensor, starts: torch.Tensor, locations: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Each level by itself through grid_sample, whose coordinates go from -1 to 1."""
    batch, queries = locations.shape[:2]
    total = torch.zeros(batch, HEADS, WIDTH, queries)
    for level, (rows, columns) in enumerate(shapes.tolist()):
        start = int(starts[level])
        part = value[:, start : start + rows * columns]
        image = part.permute(0, 2, 3, 1).reshape(batch * HEADS, WIDTH, rows, columns)
        grid = (2 * locations[:, :, :, level] - 1).transpose(1, 2).flatten(0, 1)
        read = F.grid_sample(image, grid, align_corners=False).reshape(batch, HEADS, WIDTH, queries, POINTS)
        total += (read * weights[:, :, :, level].transpose(1, 2)[:, :, None]).sum(-1)
    return total.permute(0, 3, 1, 2).flatten(2)


@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
def test_the_reference_is_grid_sample_of_each_level(index: torch.dtype) -> None:
    inputs = given(2, 9, index)
    torch.testing.assert_close(aot.ops.ms_deform_attn(*inputs), sampled(*inputs), rtol=1e-5, atol=1e-5)


def test_the_kernel_is_grid_sample_of_each_level() -> None:
    calls = [given(2, 9), given(1, 1, torch.int32)]
    for inputs, got in zip(calls, interpreted("ms_deform_attn", [(one, {}) for one in calls]), strict=True):
        torch.testing.assert_close(got, sampled(*inputs), rtol=1e-5, atol=1e-5)


class Attended(torch.nn.Module):
    def forward(self, value: torch.Tensor, locations: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        shapes = torch.tensor(MAPS)
        sizes = shapes.prod(1)
        y: torch.Tensor = aot.ops.ms_deform_attn(value, shapes, sizes.cumsum(0) - sizes, locations, weights)
        return y


BATCH, QUERIES = Dim("batch", min=1, opt=2, max=8), Dim("queries", min=1, opt=9, max=32)
SPEC = ModelSpec(
    "attended",
    {
        "value": Input([BATCH, POSITIONS, HEADS, WIDTH]),
        "locations": Input([BATCH, QUERIES, HEADS, len(MAPS), POINTS, 2]),
        "weights": Input([BATCH, QUERIES, HEADS, len(MAPS), POINTS]),
    },
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    write_module(Attended(), SPEC, folder)
    return folder / "model.onnx"


@pytest.mark.slow
def test_tensorrt_rtx_builds_the_function_in_its_place(exported: Path, tmp_path: Path) -> None:
    assert built(exported, SPEC, ["ms_deform_attn"], tmp_path)


def test_as_a_function_in_onnx_it_gives_the_same_at_any_size(exported: Path) -> None:
    session = onnxruntime.InferenceSession(exported)
    for sizes in ((1, 1), (3, 11)):
        inputs = given(*sizes)
        value, _, _, locations, weights = (one.numpy() for one in inputs)
        (got,) = session.run(None, {"value": value, "locations": locations, "weights": weights})
        torch.testing.assert_close(torch.from_numpy(got), sampled(*inputs), rtol=1e-5, atol=1e-5)


def test_an_encoder_of_deformable_detr_keeps_its_op_and_its_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The graph is compared with eager at the least, the optimal and the greatest batch, and at one more."""
    output = tmp_path / "encoder.aot"
    model = f"{deformable_encoder.__file__}:encoder"
    assert cli.call(["build", model, "--precision", "fp16", "--until", "graph", "-o", str(output), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["accepted"]
    assert found["verification"]["graph"]["cosine"] > 0.9999
    graph = onnx.load(next((output / "graph").glob("*.onnx")), load_external_data=False)
    (node,) = (node for node in graph.graph.node if node.op_type == "ms_deform_attn")
    types = {one.name: one.type.tensor_type.elem_type for one in graph.graph.value_info}
    kinds = [types.get(name) for name in node.input]
    assert kinds[3] == onnx.TensorProto.FLOAT  # locations
    assert types[node.output[0]] == kinds[0] == onnx.TensorProto.FLOAT16
