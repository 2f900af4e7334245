"""Models that exporters are known to get wrong without a word, from eager to the final graph on onnxruntime: every
promised size and every side of a branch gives what eager gives. All of them are one module, exported once."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aot.declaration import Dim, Input, ModelSpec
from aot.frontend.export import write_module
from aot.stages.surgery import rewrite

PAST = Dim("past", min=0, opt=4, max=64)
ANCHORS = Dim("anchors", min=2, opt=400, max=1000)
HEIGHT, WIDTH = Dim("height", min=8, opt=16, max=64), Dim("width", min=8, opt=16, max=64)

Arrays = dict[str, np.ndarray[Any, Any]]
Graph = tuple[nn.Module, onnxruntime.InferenceSession]


class Rounded(torch.autograd.Function):
    """Rounds, with a gradient of its own, which an engine does without."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.round(x * 4) / 4


def attention_past_a_cache(past: torch.Tensor, step: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    keys = torch.cat([past, step], 1)
    return torch.softmax(step @ keys.transpose(1, 2), -1) @ keys, keys


def best_of_few(score: torch.Tensor, box: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """300 at most: k depends on a size."""
    value, place = score.topk(torch.sym_min(300, score.shape[1]), 1)
    return value, torch.take_along_dim(box, place[..., None], 1)


def best_of_padded(score: torch.Tensor, box: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with a constant k; an index in place of a slice, which torch.export would fix at one side of 300."""
    value, place = F.pad(score, (0, 300), value=float("-inf")).topk(300, 1)
    real = torch.arange(torch.sym_min(300, score.shape[1]))
    return value[:, real], torch.take_along_dim(box, place[:, real][..., None], 1)


class Promised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(
        self,
        past: torch.Tensor,
        step: torch.Tensor,
        score: torch.Tensor,
        box: torch.Tensor,
        rows: torch.Tensor,
        keep: torch.Tensor,
        image: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        attended, keys = attention_past_a_cache(past, step)
        few, their_boxes = best_of_few(score, box)
        padded, padded_boxes = best_of_padded(score, box)
        rounded = Rounded.apply(rows)
        return {
            "attended": attended,
            "keys": keys,
            "few": few,
            "their_boxes": their_boxes,
            "padded": padded,
            "padded_boxes": padded_boxes,
            "kept": rows[keep] * 2.0,
            "side": torch.cond(rows.mean() > 0, lambda x: self.one(x), lambda x: self.other(x).relu(), (rows,)),
            "rounded": rounded,
            "rounded_again": F.dropout(rounded, 0.5, training=self.training),
            "resized": F.interpolate(image, scale_factor=16 / image.shape[2], mode="bilinear", antialias=True),
        }


DECLARED = ModelSpec(
    "promised",
    {
        "past": Input([1, PAST, 4]),
        "step": Input([1, 1, 4]),
        "score": Input([2, ANCHORS]),
        "box": Input([2, ANCHORS, 4]),
        "rows": Input([6, 3]),
        "keep": Input([6], "bool"),
        "image": Input([1, 3, HEIGHT, WIDTH]),
    },
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    torch.manual_seed(0)
    module, folder = Promised().eval(), tmp_path_factory.mktemp("promised")
    write_module(module, DECLARED, folder)
    (folder / "graph").mkdir()
    rewrite(folder / "model.onnx", folder / "graph", narrow=False)
    return module, onnxruntime.InferenceSession(folder / "graph" / "model.onnx")


def case(
    past: int = 4, anchors: int = 40, keep: int = 3, sign: int = 1, height: int = 16, width: int = 16
) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(past + anchors + height)

    def floats(*shape: int) -> np.ndarray[Any, Any]:
        return random.standard_normal(shape, np.float32)

    return {
        "past": floats(1, past, 4),
        "step": floats(1, 1, 4),
        "score": floats(2, anchors),
        "box": floats(2, anchors, 4),
        "rows": np.abs(floats(6, 3)) * np.float32(sign),
        "keep": np.arange(6)[::-1] < keep,
        "image": floats(1, 3, height, width),
    }


def both(graph: Graph, given: Arrays) -> tuple[Arrays, Arrays]:
    """(the graph's outputs, eager's), after a comparison of all of them."""
    module, session = graph
    with torch.no_grad():
        made = module(**{name: torch.from_numpy(values) for name, values in given.items()})
    want = {name: value.numpy() for name, value in made.items()}
    got = dict(zip(want, session.run(list(want), given), strict=True))
    for name, values in want.items():
        assert got[name].shape == values.shape, name
        np.testing.assert_allclose(got[name], values, rtol=1e-4, atol=1e-5, err_msg=name)
    return got, want


@pytest.mark.parametrize("past", [0, 1, 9, 64])
def test_a_cache_may_be_empty(graph: Graph, past: int) -> None:
    got, _ = both(graph, given := case(past=past))
    assert got["keys"].shape == (1, past + 1, 4)
    if not past:  # nothing but the step itself to look at
        np.testing.assert_allclose(got["attended"], given["step"], rtol=1e-6)


@pytest.mark.parametrize("anchors", [2, 120, 299, 300, 301, 900])
def test_no_more_than_300_are_selected_and_no_more_than_there_are(graph: Graph, anchors: int) -> None:
    got, _ = both(graph, given := case(anchors=anchors))
    assert got["few"].shape == got["padded"].shape == (2, min(300, anchors))
    np.testing.assert_array_equal(got["few"], -np.sort(-given["score"])[:, :300])


@pytest.mark.parametrize("keep", range(7))
def test_a_mask_keeps_none_to_all_rows(graph: Graph, keep: int) -> None:
    got, _ = both(graph, given := case(keep=keep))
    np.testing.assert_array_equal(got["kept"], given["rows"][6 - keep :] * 2)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_condition_takes_either_side(graph: Graph, sign: int) -> None:
    both(graph, given := case(sign=sign))
    module = graph[0]
    rows = torch.from_numpy(given["rows"])
    with torch.no_grad():
        assert not torch.allclose(module.one(rows), module.other(rows).relu())  # the sides can be told apart


@pytest.mark.parametrize(("height", "width"), [(8, 8), (8, 64), (16, 16), (32, 32), (37, 50), (64, 9)])
def test_a_resize_by_a_factor_of_a_size_follows_the_size(graph: Graph, height: int, width: int) -> None:
    got, _ = both(graph, case(height=height, width=width))
    assert got["resized"].shape == (1, 3, 16, width * 16 // height)
