"""Every node of a graph says which module and which line it comes from, from the export to the engine's graph."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.parser
import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.nn import functional

from aot import origins
from aot.config import Recipe, load
from aot.declaration import Dim, Input, ModelSpec
from aot.frontend import origins as written
from aot.frontend.export import write_module
from aot.origins import Origin
from aot.precision import apply
from aot.stages.surgery import rewrite

HERE = Path(__file__)
LINES = HERE.read_text().splitlines()
BATCH, SEQ = Dim("batch", min=1, opt=2, max=8), Dim("seq", min=2, opt=6, max=16)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mixed = self.qkv(x)  # the projection
        heads = mixed.view(x.shape[0], x.shape[1], 3, 2, 16).permute(2, 0, 3, 1, 4)
        seen = mask[:, None, None, :] != 0
        found = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], seen)  # the attention
        return self.out(found.transpose(1, 2).flatten(2))  # the way out


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.attention = nn.ModuleList(Attention() for _ in range(2))
        self.norm = nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for layer in self.attention:
            x = self.norm(x + layer(x, mask))
        x = x + self.down(functional.gelu(self.up(x)))  # the feed-forward layer
        weight = mask[..., None].to(x.dtype)
        return (x * weight).sum(1) / weight.sum(1).clamp(min=1e-9)  # the mean


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU6())
        self.block = nn.Conv2d(32, 32, 3, padding=1)
        self.head = nn.Linear(32, 16)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.stem(image)  # the stem
        x = torch.relu(x + self.block(x))  # the residual
        return self.head(x.mean((2, 3)))  # the head


MODELS: dict[str, tuple[type[nn.Module], dict[str, Input]]] = {
    "encoder": (
        Encoder,
        {
            "ids": Input([BATCH, SEQ], dtype="int64", low=0, high=50),
            "mask": Input([BATCH, SEQ], dtype="int64", low=0, high=2),
        },
    ),
    "convnet": (ConvNet, {"image": Input([BATCH, 16, 12, 12])}),
}


@dataclass
class Made:
    """A model's graph after surgery, for FP32 and for narrower types."""

    folder: Path

    def final(self, precision: str) -> ir.Model:
        model = ir.load(self.folder / ("wide" if precision == "fp32" else "narrow") / "model.onnx")
        recipe = load(Recipe, HERE.parent.parent / "calib" / f"{precision}.yaml")
        apply(model, recipe, {str(v.name): 4.0 for n in model.graph for v in (*n.inputs, *n.outputs) if v is not None})
        return model


@pytest.fixture(scope="module", params=MODELS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Made]:
    kind, inputs = MODELS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    write_module(kind().eval(), ModelSpec(request.param, inputs), folder, HERE.parent)
    for name in ("wide", "narrow"):
        (folder / name).mkdir()
        rewrite(folder / "model.onnx", folder / name, narrow=name == "narrow")
    return request.param, Made(folder)


def line(comment: str) -> int:
    """The number of the line of this file that ends with the comment."""
    [number] = [n for n, text in enumerate(LINES, 1) if text.endswith(f"# {comment}")]
    return number


def places(model: ir.Model, *ops: str) -> set[tuple[str, int]]:
    found = [origins.of(node) for node in model.graph.all_nodes() if node.op_type in ops]
    return {(origin.module, origin.line) for origin in found if origin is not None}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8", "fp8"])
def test_every_node_of_the_final_graph_knows_its_line(made: tuple[str, Made], precision: str) -> None:
    model = made[1].final(precision)
    found = {str(node.name): origins.of(node) for node in model.graph.all_nodes()}
    assert [name for name, origin in found.items() if origin is None] == []
    assert {origin.file for origin in found.values() if origin} == {HERE.name}
    assert [origin for origin in found.values() if origin and origin.code != LINES[origin.line - 1].strip()] == []


def test_layers_are_told_by_module_and_line(made: tuple[str, Made]) -> None:
    name, graphs = made
    model = graphs.final("int8")
    if name == "convnet":
        # The convolution that swallowed its batch norm is the norm's; what is inside torch.nn is told by its caller.
        assert places(model, "Conv") == {("stem.1", line("the stem")), ("block", line("the residual"))}
        assert ("head", line("the head")) in places(model, "Gemm", "MatMul")
        assert ("block", line("the residual")) in places(model, "DequantizeLinear")
        return
    sdpa, out = line("the attention"), line("the way out")
    assert places(model, "Softmax") == {("attention.0", sdpa), ("attention.1", sdpa)}
    assert places(model, "Gelu") == {("", line("the feed-forward layer"))}
    layers = {(f"attention.{i}.qkv", line("the projection")) for i in range(2)}
    layers |= {(f"attention.{i}.out", out) for i in range(2)}
    layers |= {("up", line("the feed-forward layer")), ("down", line("the feed-forward layer"))}
    assert places(model, "QuantizeLinear", "DequantizeLinear") == layers
    assert layers <= places(model, "MatMul", "Gemm")


def test_casts_are_those_of_the_layer_they_serve(made: tuple[str, Made]) -> None:
    name, graphs = made
    casts = places(graphs.final("fp16"), "Cast")
    expected = {("stem.1", line("the stem")), ("head", line("the head"))}
    assert casts == expected if name == "convnet" else ("", line("the mean")) in casts


def test_the_exporters_own_metadata_are_gone(made: tuple[str, Made]) -> None:
    model = onnx.load(made[1].folder / "model.onnx", load_external_data=False)
    held = [
        model,
        model.graph,
        *model.graph.node,
        *model.graph.value_info,
        *model.graph.input,
        *model.graph.initializer,
    ]
    keys = {item.key for part in held for item in part.metadata_props}
    assert not [key for key in keys if key.startswith("pkg.torch") or key == "namespace"]


def test_nodes_of_subgraphs_know_their_line(tmp_path: Path) -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return torch.cond(x.sum() > 0, lambda x: (x.sin() * 2,), lambda x: (x.cos(),), (x,))  # the branches

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Branches()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)[0] + 1

    write_module(Holder().eval(), ModelSpec("m", {"x": Input([BATCH, 3])}), tmp_path, HERE.parent)
    model = ir.load(tmp_path / "model.onnx")
    assert places(model, "If", "Sin", "Mul", "Cos") == {("inner", line("the branches"))}


def graph(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text))


def test_a_new_node_inherits_from_what_it_replaced_then_from_its_readers() -> None:
    model = graph("""<ir_version: 10, opset_import: ["" : 20]>
        g (float[N] x) => (float[N] z) { s = Abs(x)  y = Relu(s)  y_part = Neg(y)  t = Exp(y_part)  z = Tanh(t) }""")
    abs_, relu, neg, exp, tanh = model.graph
    origins.set(tanh, Origin("reader", "m.py", 9))
    origins.inherit(model, {"y": Origin("replaced", "m.py", 5)})
    assert (origins.of(relu) or Origin()).module == "replaced"
    assert (origins.of(neg) or Origin()).module == "replaced"  # its value is called after the one replaced
    assert (origins.of(exp) or Origin()).module == "reader"
    assert (origins.of(abs_) or Origin()).module == "replaced"


def test_without_anything_to_inherit_a_node_belongs_to_the_model() -> None:
    model = graph('<ir_version: 10, opset_import: ["" : 20]> g (float[N] x) => (float[N] y) { y = Identity(x) }')
    origins.inherit(model, {})
    assert origins.of(model.graph[0]) == Origin()
    assert origins.describe(model.graph[0]) == f"node '{model.graph[0].name}' (Identity)"


@pytest.mark.parametrize(
    "origin",
    [
        Origin("encoder.layer.0", "models/bert.py", 213, "forward", "x = a[1:2] if x in y else {'k': 1}"),
        Origin("", "a b.py", 1, "<lambda>", ""),
        Origin("Conv_12", "x.onnx", 0, "Conv"),
        Origin("head"),
        Origin(),
    ],
)
def test_what_metadata_hold_is_read_back(origin: Origin) -> None:
    assert origins.read(origin.metadata()) == origin


def test_origins_are_told_in_one_line() -> None:
    line = Origin("encoder.0", "models/bert.py", 213, "forward", "scores = q @ k")
    assert str(line) == "encoder.0, models/bert.py:213: scores = q @ k"
    assert origins.where("mm", "MatMul", line) == (
        "node 'mm' (MatMul), module 'encoder.0', models/bert.py:213: scores = q @ k"
    )
    node = Origin("Conv_12", "x.onnx", 0, "Conv")
    assert str(node) == "node 'Conv_12' of x.onnx"
    assert origins.where("Conv_12", "Conv", node) == "node 'Conv_12' (Conv) of x.onnx"
    assert origins.where("cast", "Cast", node) == "node 'cast' (Cast), made from node 'Conv_12' of x.onnx"


def test_nodes_of_a_file_are_told_by_name_unless_its_exporter_knew_more() -> None:
    model = graph(
        """<ir_version: 10, opset_import: ["" : 20]> g (float[N] x) => (float[N] z) { y = Relu(x)  z = Abs(y) }"""
    )
    relu, abs_ = model.graph
    relu.name = "relu_1"
    abs_.metadata_props["pkg.torch.onnx.name_scopes"] = "['', 'net', 'net.act', 'abs']"
    abs_.metadata_props["pkg.torch.onnx.stack_trace"] = (
        'File "/usr/lib/python3/dist-packages/timm/models/net.py", line 12, in forward\n    x = self.act(x)\n'
        '  File "/usr/lib/python3/dist-packages/torch/nn/modules/act.py", line 3, in forward\n    return x.abs()'
    )
    written.write_from_file(model, Path("/data/x.onnx"), None)
    assert origins.of(relu) == Origin("relu_1", "x.onnx", 0, "Relu")
    assert origins.of(abs_) == Origin("net.act", "timm/models/net.py", 12, "forward", "x = self.act(x)")


def test_files_are_named_alike_on_every_machine(tmp_path: Path) -> None:
    package = tmp_path / "src" / "shapes" / "round"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    found = {
        str(package / "disc.py"): "shapes/round/disc.py",
        str(tmp_path / "project" / "parts" / "a.py"): "parts/a.py",
        str(tmp_path / "project" / ".venv/lib/python3.12/site-packages/timm/b.py"): "timm/b.py",
        "/gone/model.py": "model.py",
    }
    assert {file: written.portable(file, tmp_path / "project") for file in found} == found


NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
    def forward(self, x):
        return torch.relu(self.layer(x)) + x.mean(1, keepdim=True)
"""


def test_the_same_model_in_another_folder_exports_to_the_same_bytes(tmp_path: Path) -> None:
    made = []
    for name in ("here", "elsewhere/deeper"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "net.py").write_text(NET)
        spec = importlib.util.spec_from_file_location("net", folder / "net.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        torch.manual_seed(0)
        write_module(module.Net().eval(), ModelSpec("net", {"x": Input([BATCH, 4])}), folder, folder)
        made.append((folder / "model.onnx").read_bytes())
    assert b"net.py:8 in forward" in made[0]
    assert made[0] == made[1]
