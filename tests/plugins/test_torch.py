"""A plugin as an op of torch and as an ONNX node with a function, against plain numpy."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import aot
from aot.backends import _emulate
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import PluginError, UsageError
from aot.frontend import plugins
from aot.frontend.export import write_module
from aot.plugins.expanding import expanded
from aot.plugins.loading import load
from tests.plugins.projects import line_of, write

BATCH, SEQ = Dim("batch", min=1, opt=3, max=9), Dim("seq", min=1, opt=5, max=9)
SPEC = ModelSpec("normed", {"x": Input([BATCH, SEQ, 8]), "r": Input([BATCH, SEQ, 8])})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose plugins a model means."""
    monkeypatch.setattr(plugins, "current", lambda: tmp_path)
    return tmp_path


def rms(x: np.ndarray, r: np.ndarray, w: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray]:
    total = x.astype(np.float64) + r
    return total / np.sqrt((total**2).mean(-1, keepdims=True) + eps) * w, total


class Normed(nn.Module):
    """Two uses with one eps, and one with another: two functions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2.0, 8))

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, r = aot.ops.add_rms_norm(x, r, self.weight, 0.25)
        x, r = aot.ops.add_rms_norm(torch.tanh(x), r, self.weight, 0.25)
        y, total = aot.ops.add_rms_norm(torch.tanh(x), r, self.weight)
        return y, total


def truth(x: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    w = np.linspace(0.5, 2.0, 8)
    x, r = rms(x, r, w, 0.25)
    x, r = rms(np.tanh(x), r, w, 0.25)
    return rms(np.tanh(x), r, w, 1e-6)


def given(*shape: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(sum(shape))
    return {name: random.standard_normal((*shape, 8), np.float32) for name in ("x", "r")}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("normed")
    write_module(Normed(), SPEC, folder)
    return folder / "model.onnx"


def test_the_op_runs_its_reference_and_fills_in_defaults(project: Path) -> None:
    write(project, "triple", ("shift=0.0", "shift=0.5"))
    np.testing.assert_array_equal(aot.ops.triple(torch.arange(3.0)).numpy(), [0.5, 3.5, 6.5])
    np.testing.assert_array_equal(aot.ops.triple(torch.arange(3.0), 1.0).numpy(), [1.0, 4.0, 7.0])
    assert aot.ops.triple(torch.zeros(0, 4, dtype=torch.float16)).dtype == torch.float16


def test_a_projects_plugin_hides_a_built_in_one_and_a_changed_one_is_made_again(project: Path) -> None:
    x = torch.ones(2)
    write(project, "triple")
    assert aot.ops.triple(x)[0] == 3
    write(project, "triple", ("x.float() * 3.0", "x.float() * 4.0"))
    assert aot.ops.triple(x)[0] == 4


def test_an_unknown_op_is_told_with_the_nearest(project: Path) -> None:
    with pytest.raises(UsageError, match="unknown plugin 'add_rms_nrm'") as caught:
        _ = aot.ops.add_rms_nrm
    assert "add_rms_norm" in str(caught.value.fix)


def test_a_name_that_no_plugin_has_is_no_attribute(project: Path) -> None:
    assert hasattr(aot.ops, "add_rms_norm")
    assert not hasattr(aot.ops, "torch")


@pytest.mark.parametrize(
    "backend",
    [
        "eager",
        pytest.param("inductor", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")),
    ],
)
def test_torch_compile_takes_a_function_with_an_op(backend: str, project: Path) -> None:
    x, r, w = torch.linspace(-1, 2, 24).reshape(3, 8), torch.ones(3, 8), torch.ones(8)
    compiled = torch.compile(lambda x, r: aot.ops.add_rms_norm(x, r, w, 0.25), backend=backend, fullgraph=True)
    for got, right in zip(compiled(x, r), rms(x.numpy(), r.numpy(), w.numpy(), 0.25), strict=True):
        np.testing.assert_allclose(got.numpy(), right, rtol=1e-5)


@pytest.mark.parametrize(
    ("x", "r", "w", "says"),
    [
        ((2, 4), (2, 4), (5,), "'weight' has the shape [5], and SHAPES says [width]; 'width' is 4 before"),
        ((2, 4), (3, 4), (4,), "'residual' has the shape [3 4], and SHAPES says [... width]; '...' is [2] before"),
        ((2, 4), (2, 4), (1, 4), "'weight' has the shape [1 4]"),
        ((2, 0), (2, 0), (0,), "'width' may be 1 to 32768"),
    ],
)
def test_inputs_of_wrong_shapes_are_refused_before_a_kernel_would_read_them(
    x: tuple[int, ...], r: tuple[int, ...], w: tuple[int, ...], says: str
) -> None:
    with pytest.raises(PluginError) as caught:
        aot.ops.add_rms_norm(torch.ones(x), torch.ones(r), torch.ones(w))
    assert says in str(caught.value)


def test_inputs_of_wrong_dtypes_are_refused() -> None:
    with pytest.raises(PluginError, match="'x' is float32 and 'weight' float16: both are T"):
        aot.ops.add_rms_norm(torch.ones(2, 4), torch.ones(2, 4), torch.ones(4).half())
    with pytest.raises(PluginError, match="'x' is float64, and may be float32, float16, bfloat16"):
        aot.ops.add_rms_norm(torch.ones(2, 4).double(), torch.ones(2, 4), torch.ones(4))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("return (x.float() * 3.0 + shift).to(x.dtype)", "return x.sum(-1)", "gives 'y' as float32 [2]"),
        (".to(x.dtype)", ".to(torch.float16)", "gives 'y' as float16 [2, 3]"),
        (".to(x.dtype)", ".to(x.dtype), x", "reference returns 2 values, and SCHEMA 1 tensors: y"),
    ],
)
def test_a_reference_that_disagrees_with_outputs_is_told(old: str, new: str, says: str, project: Path) -> None:
    file = write(project, "triple", (old, new))
    with pytest.raises(PluginError) as caught:
        aot.ops.triple(torch.ones(2, 3))
    assert says in str(caught.value)
    assert caught.value.where == line_of(file, "def reference")


def test_what_a_reference_raises_is_told_with_its_line(project: Path) -> None:
    file = write(project, "triple", ("    return (x.float()", "    x.nothing()\n    return (x.float()"))
    with pytest.raises(PluginError, match="reference: AttributeError: 'Tensor' object has no attribute") as caught:
        aot.ops.triple(torch.ones(2, 3))
    assert str(caught.value.where).startswith(line_of(file, "x.nothing()"))


def test_a_name_that_torch_has_with_another_schema_is_a_clash(project: Path) -> None:
    @torch.library.custom_op("mine::clashing", mutates_args=())
    def clashing(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    file = write(project, "clashing")
    with pytest.raises(PluginError, match="torch has an op mine::clashing already, with another schema") as caught:
        _ = aot.ops.clashing
    assert caught.value.where == line_of(file, "NAME =")


def test_the_fake_gives_shapes_that_vary_and_an_exported_program_keeps_the_op() -> None:
    batch = torch.export.Dim("batch", min=1, max=9)
    inputs = (torch.ones(3, 5, 8), torch.ones(3, 5, 8))
    program = torch.export.export(Normed(), inputs, dynamic_shapes=({0: batch}, {0: batch}))
    kept = [node for node in program.graph.nodes if str(node.target) == "aot.add_rms_norm.default"]
    assert len(kept) == 3
    y, total = kept[0].meta["val"]
    assert not isinstance(y.shape[0], int)
    assert y.shape[1:] == total.shape[1:] == (5, 8)
    feed = given(7, 5)
    with torch.no_grad():
        got = program.module()(*(torch.from_numpy(value) for value in feed.values()))
    np.testing.assert_allclose(got[0], truth(**feed)[0], rtol=2e-5, atol=2e-6)


def test_the_graph_holds_a_node_a_use_and_a_function_for_each_set_of_attributes(exported: Path) -> None:
    model = onnx.load(exported)
    onnx.checker.check_model(model, full_check=True)
    nodes = [node for node in model.graph.node if node.domain == "aot"]
    assert [node.op_type for node in nodes] == ["add_rms_norm"] * 3
    assert nodes[0].overload == nodes[1].overload != nodes[2].overload
    assert [[a.name for a in node.attribute] for node in nodes] == [["eps"]] * 3
    assert {(f.domain, f.name, f.overload) for f in model.functions} == {
        ("aot", "add_rms_norm", nodes[0].overload),
        ("aot", "add_rms_norm", nodes[2].overload),
    }


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (9, 2)])
def test_onnxruntime_runs_the_functions_at_any_size(exported: Path, shape: tuple[int, int]) -> None:
    feed = given(*shape)
    for got, right in zip(onnxruntime.InferenceSession(exported).run(None, feed), truth(**feed), strict=True):
        np.testing.assert_allclose(got, right, rtol=2e-5, atol=2e-6)


def test_a_backend_without_kernels_gets_each_nodes_own_function_expanded(exported: Path, tmp_path: Path) -> None:
    feed = given(4, 3)
    with expanded(exported, ["add_rms_norm"], tmp_path) as path:
        model = onnx.load(path)
        assert {node.domain for node in model.graph.node} == {""}
        assert not model.functions
        assert [one.domain for one in model.opset_import] == [""]
        got = onnxruntime.InferenceSession(path).run(None, feed)
    for one, right in zip(got, truth(**feed), strict=True):
        np.testing.assert_allclose(one, right, rtol=2e-5, atol=2e-6)
    with expanded(exported, [], tmp_path) as path:
        assert path == exported


def test_one_function_serves_narrow_floats_computed_wide_and_rounded_once(exported: Path, tmp_path: Path) -> None:
    """Squares of 300 leave FP16: only a function that computes in FP32 gives anything."""
    import onnx_ir as ir

    from aot.precision import apply
    from tests.precision.graphs import recipe

    model = ir.load(exported)
    found = apply(model, recipe("fp16"), {})
    ir.save(getattr(found, "model", model), tmp_path / "half.onnx")
    half = onnx.load(tmp_path / "half.onnx")
    types = {value.name: value.type.tensor_type.elem_type for value in half.graph.value_info}
    first = next(node for node in half.graph.node if node.domain == "aot")
    assert types[first.output[0]] == onnx.TensorProto.FLOAT16
    feed = {name: 300 * value for name, value in given(2, 2).items()}
    emulated, _ = _emulate.emulated(tmp_path / "half.onnx")
    got = onnxruntime.InferenceSession(emulated.SerializeToString()).run(None, feed)
    np.testing.assert_allclose(got[0], truth(**feed)[0], rtol=5e-3, atol=5e-3)


def test_a_loop_over_a_size_that_varies_is_refused_with_its_plugin(project: Path) -> None:
    text = "y = x.float() * 0\n    for i in range(x.shape[0]):\n        y = y + x[i].float()\n    return y.to(x.dtype)"
    file = write(project, "triple", ("return (x.float() * 3.0 + shift).to(x.dtype)", text))

    class Looped(nn.Module):
        def forward(self, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = aot.ops.triple(x)
            return y + r

    with pytest.raises(PluginError, match="reference cannot be exported for any size") as caught:
        write_module(Looped(), SPEC, project)
    assert caught.value.where == line_of(file, "def reference")


def test_the_registry_holds_what_was_loaded_last(project: Path) -> None:
    file = write(project, "triple")
    assert plugins.registered(load(file)) is plugins.op("triple")


class Turned(nn.Module):
    """Both ways of pairing, on heads of any number of positions, and a LayerNorm."""

    def forward(self, x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        normed, _ = aot.ops.add_layer_norm(x, x, torch.ones(8) * 2, torch.ones(8) * 0.5, 0.125)
        return aot.ops.rotary(x, c, s), aot.ops.rotary(x, c, s, True), normed


def test_rotary_and_layer_norm_as_functions_say_what_their_formulas_say(tmp_path: Path) -> None:
    spec = ModelSpec("turned", {"x": Input([BATCH, 2, SEQ, 8]), "c": Input([SEQ, 8]), "s": Input([SEQ, 8])})
    write_module(Turned(), spec, tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for batch, seq in ((1, 1), (3, 7)):
        random = np.random.default_rng(batch)
        x, c, s = (random.standard_normal(shape, np.float32) for shape in ((batch, 2, seq, 8), (seq, 8), (seq, 8)))
        halves, pairs, normed = session.run(None, {"x": x, "c": c, "s": s})
        for i in range(4):
            a, b = x[..., i], x[..., i + 4]
            np.testing.assert_allclose(halves[..., i], a * c[:, i] - b * s[:, i], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(halves[..., i + 4], b * c[:, i + 4] + a * s[:, i + 4], rtol=1e-5, atol=1e-6)
            a, b = x[..., 2 * i], x[..., 2 * i + 1]
            np.testing.assert_allclose(pairs[..., 2 * i], a * c[:, 2 * i] - b * s[:, 2 * i], rtol=1e-5, atol=1e-6)
        total = 2 * x.astype(np.float64)
        right = (total - total.mean(-1, keepdims=True)) / np.sqrt(total.var(-1, keepdims=True) + 0.125) * 2 + 0.5
        np.testing.assert_allclose(normed, right, rtol=2e-5, atol=2e-6)


def test_a_saved_program_finds_the_plugins_that_it_names(project: Path) -> None:
    class Tripled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = aot.ops.thrice(x, 0.5)
            return y

    write(project, "thrice")
    torch.export.save(torch.export.export(Tripled(), (torch.ones(2),)), project / "saved.pt2")
    plugins._made.pop("mine::thrice")[1]._destroy()  # type: ignore[no-untyped-call]  # as in a new process
    assert plugins.existing("mine", "thrice") is None
    plugins.register_named_in(project / "saved.pt2", project)
    found = torch.export.load(project / "saved.pt2").module()(torch.ones(2))
    np.testing.assert_array_equal(found.numpy(), [3.5, 3.5])
