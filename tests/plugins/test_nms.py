"""Non-maximum suppression against torchvision's, and against the loop that defines it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import aot
from aot.declaration import Dim, Input, ModelSpec
from aot.frontend.export import write_module
from aot.plugins.compiling import compile_all, jobs
from aot.plugins.header import read
from tests.plugins.engines import built
from tests.plugins.kernels import BUILT_IN, interpreted

torchvision_ops = pytest.importorskip("torchvision.ops")


def given(*leading: int, candidates: int) -> dict[str, np.ndarray]:
    """Boxes of whole pixels that crowd, and scores of which many are equal."""
    random = np.random.default_rng(candidates)
    corner = random.integers(0, 40, (*leading, candidates, 2))
    size = random.integers(0, 24, (*leading, candidates, 2))  # some of no width
    scores = random.integers(-2, 12, (*leading, candidates)) / 12
    return {
        "boxes": np.concatenate((corner, corner + size), -1).astype(np.float32),
        "scores": scores.astype(np.float32),
    }


def tensors(inputs: dict[str, np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(one) for one in inputs.values()]


def truth(inputs: dict[str, np.ndarray], iou: float, score: float, most: int) -> tuple[np.ndarray, np.ndarray]:
    """torchvision's, item by item: of the candidates above the score, cut and filled up to `most`."""
    boxes, scores = (torch.from_numpy(inputs[name]).float() for name in ("boxes", "scores"))
    leading = scores.shape[:-1]
    rows, counts = [], []
    for box, value in zip(boxes.reshape(-1, *boxes.shape[-2:]), scores.reshape(-1, scores.shape[-1]), strict=True):
        above = (value > score).nonzero()[:, 0]
        kept = above[torchvision_ops.nms(box[above], value[above], iou)][:most]
        rows.append(nn.functional.pad(kept, (0, most - len(kept)), value=-1).numpy())
        counts.append(len(kept))
    return np.reshape(rows, (*leading, most)), np.reshape(counts, leading)


CASES = [
    (given(3, candidates=50), 0.5, 0.0, 20),
    (given(2, 2, candidates=33), 0.25, 0.4, 7),
    (given(candidates=1), 0.5, -1.0, 3),
    (given(1, candidates=130), 0.75, -9.0, 130),
    (given(0, candidates=5), 0.5, 0.0, 4),
    (given(2, candidates=9), 0.5, 2.0, 5),  # nothing is above the score
]


@pytest.mark.parametrize(("inputs", "iou", "score", "most"), CASES)
def test_the_op_keeps_what_torchvision_keeps_in_its_order(
    inputs: dict[str, np.ndarray], iou: float, score: float, most: int
) -> None:
    indices, count = aot.ops.nms(*tensors(inputs), iou, score, most)
    for got, right in zip((indices, count), truth(inputs, iou, score, most), strict=True):
        np.testing.assert_array_equal(got.numpy(), right)


NO_NUMBERS = {
    "boxes": np.array([[0, 0, 9, 9], [np.nan, 0, 9, 9], [0, 0, 9, 8], [5, 5, 1, 1]], np.float32),
    "scores": np.array([0.5, 0.9, np.nan, 0.4], np.float32),
}


@pytest.fixture(scope="module")
def kernels() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What the kernel makes of CASES, each config in turn, and of NO_NUMBERS."""
    calls = [
        (tensors(inputs), {"iou_threshold": iou, "score_threshold": score, "max_outputs": most, "config": place % 4})
        for place, (inputs, iou, score, most) in enumerate(CASES)
    ]
    return interpreted("nms", [*calls, (tensors(NO_NUMBERS), {"max_outputs": 4})])


def test_the_kernel_keeps_what_torchvision_keeps_in_its_order(kernels: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for found, case in zip(kernels, CASES, strict=False):
        for got, right in zip(found, truth(*case), strict=True):
            np.testing.assert_array_equal(got.numpy(), right)


def test_a_score_that_is_no_number_is_not_kept_and_a_box_that_is_none_is_in_nobodys_way(
    kernels: list[tuple[torch.Tensor, torch.Tensor]],
) -> None:
    for indices, count in (kernels[-1], aot.ops.nms(*tensors(NO_NUMBERS), 0.5, 0.0, 4)):
        assert indices.tolist() == [1, 0, 3, -1]  # a box of negative size overlaps none
        assert count == 3


class Detected(nn.Module):
    def forward(self, boxes: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return aot.ops.nms(boxes, scores, 0.5, 0.25, 12)


BATCH, CANDIDATES = Dim("batch", min=1, opt=2, max=4), Dim("candidates", min=1, opt=60, max=200)
SPEC = ModelSpec("detected", {"boxes": Input([BATCH, CANDIDATES, 4]), "scores": Input([BATCH, CANDIDATES])})


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("detected")
    write_module(Detected(), SPEC, folder)
    return folder / "model.onnx"


def test_as_a_function_in_onnx_it_is_a_loop_and_gives_the_same_at_any_size(exported: Path) -> None:
    (function,) = onnx.load(exported).functions
    assert [node.op_type for node in function.node].count("Scan") == 1
    session = onnxruntime.InferenceSession(exported)
    for inputs in (given(1, candidates=1), given(3, candidates=41), given(2, candidates=200)):
        for got, right in zip(session.run(None, inputs), truth(inputs, 0.5, 0.25, 12), strict=True):
            np.testing.assert_array_equal(got, right)


def test_it_compiles_and_a_number_of_candidates_that_varies_is_computed_as_the_largest() -> None:
    header = read(BUILT_IN / "nms.py")
    targets = ("sm80", "sm90", "sm100", "sm120")
    wanted = [next(iter(jobs(header, target, {"candidates": 1000}))) for target in targets]
    kernels = compile_all(header, [*wanted, next(iter(jobs(header, "sm90")))])
    assert [kernel.spilled for kernel in kernels[:-1]] == [0, 0, 0, 0]
    assert kernels[0].launched([(5, 1000, 4), (5, 1000)]) == ((5, 1, 1), (1000,))
    assert kernels[-1].launched([(5, 77, 4), (5, 77)]) == ((5, 1, 1), (77,))


def test_tensorrt_rtx_builds_its_function(exported: Path, tmp_path: Path) -> None:
    assert built(exported, SPEC, ["nms"], tmp_path)
