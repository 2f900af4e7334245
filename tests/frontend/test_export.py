"""What an export keeps of a declaration, and what it refuses rather than freeze, drop or guess."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from aot.declaration import Dim, Input, ModelSpec
from aot.errors import AotError, DeclarationError, ExportError
from aot.frontend.eager import Eager, tensor
from aot.frontend.export import write_module
from aot.stages.surgery import rewrite

BATCH = Dim("batch", min=1, opt=4, max=8)
SEQ = Dim("seq", min=2, opt=6, max=16)


def spec(inputs: Mapping[str, Input], outputs: tuple[str, ...] = (), padding: str | None = None) -> ModelSpec:
    return ModelSpec("model", dict(inputs), outputs, padding)


def exported(module: nn.Module, declared: ModelSpec, folder: Path) -> onnx.ModelProto:
    facts = write_module(module.eval(), declared, folder)
    model = onnx.load(folder / "model.onnx")
    onnx.checker.check_model(str(folder / "model.onnx"), full_check=True)
    assert facts["nodes"] == len(model.graph.node)
    assert facts["opset"] == 20
    assert facts["outputs"] == [value.name for value in model.graph.output]
    return model


def check(module: nn.Module, declared: ModelSpec, folder: Path, *cases: dict[str, np.ndarray[Any, Any]]) -> None:
    """The graph gives what eager gives, under the same names."""
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    names = [value.name for value in session.get_outputs()]
    eager = Eager(module.eval(), declared)
    for case in cases:
        want = eager(case)
        assert list(want) == names
        for name, got in zip(names, session.run(None, case), strict=True):
            assert got.dtype == want[name].dtype
            np.testing.assert_allclose(got, want[name], rtol=1e-4, atol=1e-5)


def dims(value: onnx.ValueInfoProto) -> list[str | int]:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.line = nn.Embedding(11, 8), nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor, scale: torch.Tensor) -> dict[str, Any]:
        hidden = self.line(self.embed(ids)) * scale
        return {"hidden": hidden, "parts": (hidden.sum(1), None), "doubled": torch.cat([ids, ids], 1)}


def test_dims_and_outputs_are_named_as_declared(tmp_path: Path) -> None:
    declared = spec({"scale": Input([BATCH, 1, 1]), "ids": Input([BATCH, SEQ], "int64", high=11)})
    model = exported(Encoder(), declared, tmp_path)
    assert {v.name: dims(v) for v in model.graph.input} == {"ids": ["batch", "seq"], "scale": ["batch", 1, 1]}
    assert {v.name: dims(v) for v in model.graph.output} == {
        "hidden": ["batch", "seq", 4],
        "parts_0": ["batch", 4],
        "doubled": ["batch", "2*seq"],
    }
    ids = np.arange(15).reshape(3, 5) % 11
    module = Encoder()
    exported(module, declared, tmp_path)
    check(
        module, declared, tmp_path, {"ids": ids, "scale": floats(3, 1, 1)}, {"ids": ids[:1], "scale": floats(1, 1, 1)}
    )


def test_weights_lie_beside_the_graph(tmp_path: Path) -> None:
    module = nn.Linear(64, 64)
    exported(module, spec({"input": Input([BATCH, 64])}), tmp_path)
    assert (tmp_path / "model.onnx.data").stat().st_size >= 64 * 64 * 4


def test_batch_one_as_the_optimum_stays_dynamic(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
    declared = spec({"input": Input([Dim("batch", min=1, opt=1, max=8), 3, 8, 8])})
    assert dims(exported(module, declared, tmp_path).graph.input[0]) == ["batch", 3, 8, 8]
    check(module, declared, tmp_path, {"input": floats(1, 3, 8, 8)}, {"input": floats(5, 3, 8, 8)})


def test_an_output_may_have_the_name_of_an_internal_value(tmp_path: Path) -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x, -1).flip(0) * 3.0

    declared = spec({"x": Input([2, 5])}, ("softmax",))
    model = exported(Net(), declared, tmp_path)
    written = [name for node in model.graph.node for name in node.output]
    assert written.count("softmax") == 1
    check(Net(), declared, tmp_path, {"x": floats(2, 5)})


def test_an_output_may_be_an_input_a_weight_or_another_output(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.y = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            z = x + self.y
            return x, self.y, z, z

    declared = spec({"x": Input([BATCH, 3])}, ("a", "b", "z", "y"))
    exported(Net(), declared, tmp_path)
    check(Net(), declared, tmp_path, {"x": floats(3, 3)})


def test_values_of_an_input_may_decide_shapes(tmp_path: Path) -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor, hw: torch.Tensor) -> torch.Tensor:
            h, w = hw[0].item(), hw[1].item()
            for size in (h, w):
                torch._check(size >= 2)
                torch._check(size <= 64)
            return nn.functional.interpolate(x, size=(h, w), mode="bilinear", align_corners=False)

    declared = spec({"x": Input([1, 3, 8, 8]), "hw": Input([2], "int64", low=2, high=65)})
    exported(Net(), declared, tmp_path)
    check(Net(), declared, tmp_path, {"x": floats(1, 3, 8, 8), "hw": np.array([5, 33])})


def test_sizes_in_steps_are_named_by_their_dim(tmp_path: Path) -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(2, x.shape[1] // 8, 8).mean(-1)

    declared = spec({"x": Input([2, Dim("side", min=8, opt=32, max=64, multiple_of=8)])})
    model = exported(Net(), declared, tmp_path)
    assert dims(model.graph.input[0]) == [2, "side"]
    assert dims(model.graph.output[0]) == [2, "side//8"]
    check(Net(), declared, tmp_path, {"x": floats(2, 8)}, {"x": floats(2, 56)})


def test_a_dim_of_one_size_is_fixed(tmp_path: Path) -> None:
    declared = spec({"input": Input([Dim("batch", min=4, max=4), 3])})
    assert dims(exported(nn.Linear(3, 2), declared, tmp_path).graph.input[0]) == [4, 3]


def refused(module: nn.Module, declared: ModelSpec, folder: Path, kind: type[Exception] = ExportError) -> str:
    with pytest.raises(kind) as caught:
        write_module(module.eval(), declared, folder)
    assert not list(folder.iterdir())
    return str(caught.value)


class TestRefused:
    def test_an_input_that_forward_does_not_take(self, tmp_path: Path) -> None:
        said = refused(nn.Linear(3, 2), spec({"inputs": Input([2, 3])}), tmp_path)
        assert "forward takes no 'inputs'" in said
        assert "did you mean 'input'?" in said

    def test_an_input_that_is_not_declared(self, tmp_path: Path) -> None:
        said = refused(nn.Bilinear(3, 3, 2), spec({"input1": Input([2, 3])}), tmp_path)
        assert "forward needs input2, which inputs= does not declare" in said

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_weights_that_are_not_finite(self, tmp_path: Path, value: float) -> None:
        module = nn.Linear(3, 2)
        module.weight.data[1, 2] = value
        said = refused(module, spec({"input": Input([2, 3])}), tmp_path)
        assert "1 of 6 values of parameter 'weight'" in said

    def test_a_dim_that_a_branch_splits(self, tmp_path: Path) -> None:
        class Net(nn.Module):
            def forward(self, tok: torch.Tensor) -> torch.Tensor:
                return tok * 2 if tok.shape[1] > 4 else tok

        said = refused(Net(), spec({"tok": Input([2, Dim("seq", min=4, opt=9, max=64)])}), tmp_path)
        assert "seq > 4 holds for 5..64 only" in said
        assert f"{Path(__file__).name}:" in said
        assert "input 'tok', axis 1" in said
        assert "seq = aot.Dim('seq', min=5, max=64)" in said

    def test_two_dims_that_must_be_equal(self, tmp_path: Path) -> None:
        class Net(nn.Module):
            def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                return x + y

        other = Dim("rows", min=1, opt=4, max=8)
        said = refused(Net(), spec({"x": Input([BATCH, 3]), "y": Input([other, 3])}), tmp_path)
        assert "batch" in said
        assert "rows" in said

    def test_a_branch_on_values(self, tmp_path: Path) -> None:
        class Net(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if x.mean() > 0:
                    return x
                return -x

        said = refused(Net(), spec({"x": Input([2, 3])}), tmp_path)
        assert "branches on the value of a tensor" in said
        assert "if x.mean() > 0:" in said
        assert "torch.where" in said

    def test_outputs_that_do_not_fit(self, tmp_path: Path) -> None:
        said = refused(nn.Linear(3, 2), spec({"input": Input([2, 3])}, ("a", "b")), tmp_path, DeclarationError)
        assert "names 2 outputs, the model returns 1" in said

    def test_an_op_without_translation(self, tmp_path: Path) -> None:
        class Net(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.special.airy_ai(x)

        said = refused(Net(), spec({"x": Input([2, 3])}), tmp_path)
        assert "no ONNX translation of aten.special_airy_ai" in said
        assert f"{Path(__file__).name}:" in said

    def test_an_op_that_a_decomposition_made_and_that_has_no_translation(self, tmp_path: Path) -> None:
        class Net(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.linalg.svdvals(x)

        said = refused(Net(), spec({"x": Input([3, 3])}), tmp_path)
        assert "no ONNX translation of aten._linalg_svd" in said
        assert "return torch.linalg.svdvals(x)" in said


def test_bfloat16_passes_through_the_reference_unchanged() -> None:
    import ml_dtypes

    values = np.array([1.5, -2.25], ml_dtypes.bfloat16)
    made = Eager(nn.Identity(), spec({"input": Input([2], "bfloat16")}))({"input": values})
    assert made["output_0"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(made["output_0"], values)
    assert tensor(values).dtype == torch.bfloat16


class Returning(nn.Module):
    """Returns what a function makes of its input."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


class TestOutputs:
    """What forward may return, and which name goes to which output."""

    DECLARED: ClassVar = {"x": Input([BATCH, 3])}

    def values(self, function: Callable[[torch.Tensor], Any], names: tuple[str, ...], folder: Path) -> dict[str, Any]:
        """What onnxruntime gives for x = 1, after a comparison with eager."""
        declared = spec(self.DECLARED, names)
        exported(Returning(function), declared, folder)
        case = {"x": np.ones((2, 3), np.float32)}
        check(Returning(function), declared, folder, case)
        session = onnxruntime.InferenceSession(folder / "model.onnx")
        made = [value.name for value in session.get_outputs()]
        return {name: float(value.flat[0]) for name, value in zip(made, session.run(None, case), strict=True)}

    def refused(self, kind: type[AotError], function: Any, names: tuple[str, ...], folder: Path) -> str:
        with pytest.raises(kind) as caught:
            write_module(Returning(function), spec(self.DECLARED, names), folder)
        with pytest.raises(kind):
            Eager(Returning(function), spec(self.DECLARED, names))({"x": np.ones((2, 3), np.float32)})
        return str(caught.value)

    def test_keys_are_matched_by_name_whatever_their_order(self, tmp_path: Path) -> None:
        found = self.values(lambda x: {"score": x * 2, "hidden": x * 3}, ("hidden", "score"), tmp_path)
        assert found == {"score": 2.0, "hidden": 3.0}

    def test_fields_of_a_dataclass_are_matched_by_name(self, tmp_path: Path) -> None:
        found = self.values(lambda x: Pair(x * 2, x * 3), ("second", "first"), tmp_path)
        assert found == {"first": 2.0, "second": 3.0}

    @pytest.mark.parametrize("names", [("y",), ("y", "hidden"), ("hidden",)])
    def test_names_that_are_not_the_keys(self, names: tuple[str, ...], tmp_path: Path) -> None:
        said = self.refused(DeclarationError, lambda x: {"score": x * 2, "hidden": x * 3}, names, tmp_path)
        assert f"outputs= names {', '.join(names)}, and forward returns the keys score, hidden" in said

    def test_a_tuple_is_named_in_order(self, tmp_path: Path) -> None:
        assert self.values(lambda x: (x * 2, x * 3), ("b", "a"), tmp_path) == {"b": 2.0, "a": 3.0}

    def test_one_value_returned_twice(self, tmp_path: Path) -> None:
        def twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = x * 2
            return y, y

        assert self.values(twice, ("a", "b"), tmp_path) == {"a": 2.0, "b": 2.0}

    @pytest.mark.parametrize("narrow", [False, True])
    def test_an_input_and_a_constant_stay_outputs_through_surgery(self, narrow: bool, tmp_path: Path) -> None:
        exported(Returning(lambda x: (x, torch.ones(3), x)), spec(self.DECLARED, ("a", "b", "c")), tmp_path)
        (tmp_path / "graph").mkdir()
        rewrite(tmp_path / "model.onnx", tmp_path / "graph", narrow=narrow)
        session = onnxruntime.InferenceSession(tmp_path / "graph" / "model.onnx")
        given = floats(2, 3)
        a, b, c = session.run(["a", "b", "c"], {"x": given})
        np.testing.assert_array_equal(a, given)
        np.testing.assert_array_equal(b, np.ones(3))
        np.testing.assert_array_equal(c, given)

    def test_the_input_alone(self, tmp_path: Path) -> None:
        assert self.values(lambda x: x, ("y",), tmp_path) == {"y": 1.0}

    def test_a_constant_alone(self, tmp_path: Path) -> None:
        with pytest.raises(ExportError, match="does not depend on any input"):
            write_module(Returning(lambda x: torch.ones(3)), spec(self.DECLARED, ("y",)), tmp_path)

    @pytest.mark.parametrize(
        ("returned", "said"),
        [(3.0, "a float (3.0)"), (None, "None"), ("text", "a str ('text')"), ((torch.ones(2), 3), "a int (3)")],
    )
    def test_what_is_not_a_tensor(self, returned: Any, said: str, tmp_path: Path) -> None:
        message = self.refused(ExportError, lambda x: returned, ("y",), tmp_path)
        assert f"forward of Returning returns {said}" in message
        assert "return tensors only" in message

    def test_a_dim_of_any_width_is_traced_at_its_optimum(self, tmp_path: Path) -> None:
        wide = Dim("rows", min=1, opt=2, max=10**12)
        model = exported(nn.Linear(3, 2), spec({"input": Input([wide, 3])}), tmp_path)
        assert dims(model.graph.input[0]) == ["rows", 3]

    def test_an_object_that_torch_cannot_look_into(self, tmp_path: Path) -> None:
        said = self.refused(ExportError, lambda x: Noisy, ("y",), tmp_path)
        assert "forward returns an object of class type, not tensors" in said
        assert "register_dataclass" in said

    def test_fields_of_a_namedtuple_are_matched_by_name_or_named_in_order(self, tmp_path: Path) -> None:
        assert self.values(lambda x: Point(x * 2, x * 3), ("q", "p"), tmp_path) == {"p": 2.0, "q": 3.0}
        assert self.values(lambda x: Point(x * 2, x * 3), ("q", "r"), tmp_path) == {"q": 2.0, "r": 3.0}

    def test_complex_numbers(self, tmp_path: Path) -> None:
        assert "complex64" in self.refused(ExportError, torch.fft.fft, ("y",), tmp_path)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_an_input_of_another_dtype_than_the_weights(dtype: str) -> None:
    declared = spec({"input": Input([2, 3], dtype)})
    with pytest.raises(ExportError) as caught:
        Eager(nn.Linear(3, 2), declared)({"input": np.ones((2, 3), dtype)})
    assert f"the weights are float32, and inputs= declares 'input' as {dtype}: declare float32" in str(caught.value)


class Noisy(nn.Module):
    """Speaks on every channel while it is traced, and fails where torch dumps its graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("on stdout")
        print("on stderr", file=sys.stderr)
        logging.getLogger("torch.export").error("in a log")
        logging.getLogger("torch.onnx").error("in another log")
        warnings.warn("as a warning", stacklevel=1)
        return x if x.sum() > 0 else -x


def test_nothing_but_the_error_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ExportError, match="branches on the value of a tensor"):
        write_module(Noisy(), spec({"x": Input([2, 3])}), tmp_path)
    assert capfd.readouterr() == ("", "")


class Point(NamedTuple):
    """Two outputs with names and an order."""

    p: torch.Tensor
    q: torch.Tensor


@dataclass
class Pair:
    """Two outputs with names."""

    first: torch.Tensor
    second: torch.Tensor


torch.export.register_dataclass(Pair)
