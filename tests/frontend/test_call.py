"""What forward takes besides tensors by name: nested, by position, by keyword, constants; and what a capture sees."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import aot
from aot import batches
from aot.declaration import ModelSpec
from aot.errors import ExportError
from aot.frontend import call
from aot.frontend.eager import Eager
from aot.frontend.export import write_module

BATCH = aot.Dim("batch", min=1, opt=4, max=8)
X = aot.Input([BATCH, 4])


def spec(inputs: Mapping[str, Any]) -> ModelSpec:
    @aot.model(inputs=inputs)
    def net() -> Any: ...

    return net.spec()


def agree(module: nn.Module, declared: ModelSpec, folder: Path, *, rtol: float = 1e-5) -> dict[str, list[str | int]]:
    """Check the exported graph against eager at three batch sizes; its inputs with their shapes."""
    write_module(module, declared, folder)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    for size in (1, 3, 8) if declared.dims else (1,):
        given = batches.generated(declared, dict.fromkeys(declared.dims, size), seed=size)
        want = Eager(module, declared)(given)
        for name, got in zip(want, session.run(list(want), given), strict=True):
            assert got.dtype == want[name].dtype
            np.testing.assert_allclose(got, want[name], rtol=rtol, atol=rtol)
    return {value.name: value.shape for value in session.get_inputs()}


class Modulated(nn.Module):
    """A linear layer, scaled and shifted by what comes in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, cond: dict[str, torch.Tensor]) -> torch.Tensor:
        y: torch.Tensor = self.line(x) * cond["gain"] + cond["shift"]
        return y


def test_a_dict_as_the_last_parameter(tmp_path: Path) -> None:
    module = Modulated()
    declared = spec({"x": X, "cond": {"gain": aot.Input([4]), "shift": aot.Input([BATCH, 4])}})
    inputs = agree(module, declared, tmp_path)
    assert inputs == {"x": ["batch", 4], "cond_gain": [4], "cond_shift": ["batch", 4]}
    weights = {weight.name for weight in onnx.load(tmp_path / "model.onnx").graph.initializer}
    assert {"line.weight", "line.bias"} <= weights
    # and the module called the ordinary way, by hand
    given = batches.generated(declared, {"batch": 2}, seed=1)
    x, gain, shift = (torch.from_numpy(values) for values in given.values())
    want = module(x, {"gain": gain, "shift": shift}).detach().numpy()
    np.testing.assert_array_equal(Eager(module, declared)(given)["output_0"], want)


@dataclasses.dataclass
class Cond:
    """A parameter that torch was never told of."""

    gain: Any
    shift: Any = None


class Everything(nn.Module):
    """Every kind of parameter that Python knows."""

    def forward(
        self,
        x: torch.Tensor,
        power: int = 1,
        /,
        cond: Cond | None = None,
        *images: torch.Tensor,
        mode: str,
        shift: tuple[torch.Tensor, list[torch.Tensor]] | None = None,
        **more: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        assert cond is not None
        assert cond.shift is None
        assert shift is not None
        assert mode == "sum"
        y = x**power * cond.gain + images[0] - 2 * images[1] + shift[0] * shift[1][0]
        return {"y": y + more["early"], "late": more["late"] / 2}


def test_parameters_of_every_kind(tmp_path: Path) -> None:
    one = aot.Input([4])
    declared = spec(
        {
            "x": X,
            "power": 3,
            "more": {"early": one, "late": X},
            "cond": Cond(one),
            "images": [X, one],
            "mode": "sum",
            "shift": (one, [one]),
        }
    )
    inputs = agree(Everything(), declared, tmp_path)
    assert list(inputs) == ["x", "cond_gain", "images_0", "images_1", "shift_0", "shift_1_0", "more_early", "more_late"]


def test_names_that_forward_takes_as_keywords(tmp_path: Path) -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
            return x * more["scale"] if "shift" not in more else x

    assert list(agree(Net(), spec({"scale": aot.Input([4]), "x": X}), tmp_path)) == ["x", "scale"]


def test_an_output_of_a_library_as_an_input(tmp_path: Path) -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")

    class Net(nn.Module):
        def forward(self, hidden: Any) -> Any:
            return outputs.BaseModelOutput(last_hidden_state=hidden.last_hidden_state * hidden["attentions"][1])

    declared = spec({"hidden": outputs.BaseModelOutput(last_hidden_state=X, attentions=(None, X))})
    inputs = agree(Net(), declared, tmp_path)
    assert list(inputs) == ["hidden_last_hidden_state", "hidden_attentions_1"]


class TestForwardThatTakesTheTensorsAlready:
    """Nothing stands between it and the capture."""

    @pytest.mark.parametrize("module", [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))])
    def test_it_is_itself(self, module: nn.Module) -> None:
        assert call.flat(module, spec({"input": X})) is module

    def test_so_is_one_that_was_made_to(self) -> None:
        declared = spec({"x": X, "cond": {"gain": aot.Input([4]), "shift": aot.Input([4])}})
        module = Modulated()
        made = call.flat(module, declared)
        assert made is not module
        assert call.flat(made, declared) is made
        assert made.line is module.line


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"x": X, "cond": Cond(X), "mode": "a", "cnod": X}, None),
        ({"x": X}, "forward needs mode, which inputs= does not declare"),
        ({"x": X, "mode": "sum", "images": X}, r"\*images takes any number of values"),
        ({"x": X, "mode": "sum", "more": X}, r"\*\*more takes values by name"),
    ],
)
def test_what_forward_does_not_take_so(inputs: dict[str, Any], said: str | None) -> None:
    if said is None:
        call.check(Everything(), spec(inputs))  # **more takes any name
    else:
        with pytest.raises(ExportError, match=said):
            call.check(Everything(), spec(inputs))


class Narrow(nn.Module):
    """Weights of a dtype, a mask of booleans and a scale without dimensions."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4, dtype=dtype)

    def forward(self, x: torch.Tensor, keep: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.where(keep, self.line(x) * scale, 0), ~keep


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_weights_booleans_and_numbers_without_dimensions(dtype: str, tmp_path: Path) -> None:
    declared = spec(
        {"x": aot.Input([BATCH, 4], dtype), "keep": aot.Input([BATCH, 4], "bool"), "scale": aot.Input([], dtype)}
    )
    module = Narrow(getattr(torch, dtype))
    if dtype == "float16":
        assert agree(module, declared, tmp_path, rtol=2e-2) == {"x": ["batch", 4], "keep": ["batch", 4], "scale": []}
        return
    write_module(module, declared, tmp_path)  # onnxruntime has no BF16 kernels on a CPU
    graph = onnx.load(tmp_path / "model.onnx").graph
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    wide, flag = onnx.TensorProto.BFLOAT16, onnx.TensorProto.BOOL
    assert kinds == {"x": wide, "keep": flag, "scale": wide, "output_0": wide, "output_1": flag}
    assert Eager(module, declared)(batches.generated(declared, {"batch": 3}, 0))["output_0"].dtype.name == dtype


class Tied(nn.Module):
    """An embedding whose matrix is the head's as well."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(2000, 64), nn.Linear(64, 2000, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(torch.relu(self.embed(ids)))
        return y


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    agree(Tied(), spec({"ids": aot.Input([BATCH, 5], "int64", high=2000)}), tmp_path)
    assert (tmp_path / "model.onnx.data").stat().st_size < 1.1 * 2000 * 64 * 4


def test_outputs_called_like_parameters_and_ops(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = nn.Parameter(torch.randn(4))

        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            p = torch.softmax(x - self.mean, -1)
            return {"mean": p.mean(1), "softmax": p * 2, "nothing": None, "parts": [{"x": x}, p]}

    torch.manual_seed(0)
    agree(Net(), spec({"x": X}), tmp_path)
    names = [value.name for value in onnx.load(tmp_path / "model.onnx").graph.output]
    assert names == ["mean", "softmax", "parts_0_x", "parts_1"]
