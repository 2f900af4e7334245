"""Ops of plugins in the place of what a model writes out: where a pattern is found, where not, and the numbers."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from aot.batches import generated
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import PluginError
from aot.frontend.eager import Eager
from aot.frontend.export import write_module
from aot.plugins import cases
from aot.plugins.loading import load
from aot.plugins.replacing import Replacing
from tests.plugins.projects import line_of, write

ROOT = Path(__file__).parent.parent.parent
BATCH = Dim("batch", min=1, opt=4, max=8)
SEQ = Dim("seq", min=2, opt=6, max=16)


def exported(
    module: nn.Module, inputs: dict[str, Input], folder: Path, *plugins: str, tolerance: float = 1e-5
) -> tuple[list[dict[str, Any]], onnx.ModelProto]:
    """(the places, the graph) of an export, compared with eager at sizes that it was not made at."""
    spec = ModelSpec("model", inputs)
    module.eval()
    facts = write_module(module, spec, folder, folder, Replacing(asked=plugins))
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    eager = Eager(module, spec)
    for sizes in ({"batch": 3, "seq": 11}, {"batch": 1, "seq": 2}):
        given = generated(spec, {name: size for name, size in sizes.items() if name in spec.dims}, seed=1)
        wanted = eager(given)
        for name, got in zip(wanted, session.run(None, dict(given)), strict=True):
            np.testing.assert_allclose(got, wanted[name], rtol=tolerance, atol=tolerance)
    return facts["replaced"], onnx.load(folder / "model.onnx", load_external_data=False)


def replaced(places: list[dict[str, Any]]) -> dict[str, int]:
    """plugin -> in how many places its op was put."""
    return dict(Counter(place["plugin"] for place in places if place["replaced"]))


def ops(graph: onnx.ModelProto) -> dict[str, int]:
    """Ops of plugins -> how many."""
    return dict(Counter(node.op_type for node in graph.graph.node if node.domain == "aot"))


class Decoder(nn.Module):
    """Decoder layers of transformers, with its rotary embedding and last norm."""

    def __init__(self, family: str, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        if family == "llama":
            from transformers.models.llama import modeling_llama as code
            from transformers.models.llama.configuration_llama import LlamaConfig as Config

            names = ("LlamaDecoderLayer", "LlamaRotaryEmbedding", "LlamaRMSNorm")
        else:
            from transformers.models.qwen2 import modeling_qwen2 as code  # type: ignore[no-redef]
            from transformers.models.qwen2.configuration_qwen2 import Qwen2Config as Config  # type: ignore[assignment]

            names = ("Qwen2DecoderLayer", "Qwen2RotaryEmbedding", "Qwen2RMSNorm")
        layer, rotary, norm = (getattr(code, name) for name in names)
        config = Config(
            hidden_size=32,
            intermediate_size=48,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_hidden_layers=layers,
            rms_norm_eps=3e-6,
        )
        config._attn_implementation = "sdpa"
        self.layers = nn.ModuleList(layer(config, index) for index in range(layers))
        self.rotary, self.norm = rotary(config), norm(32, 3e-6)
        for one in self.modules():
            if type(one) is norm:
                nn.init.uniform_(one.weight, 0.5, 1.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1])[None]
        embeddings = self.rotary(x, positions)
        for layer in self.layers:
            made = layer(x, attention_mask=None, position_ids=positions, position_embeddings=embeddings)
            x = made[0] if isinstance(made, tuple) else made
        return self.norm(x)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_decoders_of_transformers(family: str, tmp_path: Path) -> None:
    """Two layers: all norms but the first follow a sum; queries and keys are turned in each layer."""
    places, graph = exported(
        Decoder(family, 2), {"x": Input([BATCH, SEQ, 32])}, tmp_path, "add_rms_norm", "rotary", tolerance=1e-4
    )
    assert replaced(places) == ops(graph) == {"add_rms_norm": 4, "rotary": 4}
    assert not [place for place in places if not place["replaced"]]
    norms = [node for node in graph.graph.node if node.op_type == "add_rms_norm"]
    assert {round(attribute.f, 9) for node in norms for attribute in node.attribute} == {3e-6}
    modules = [place["module"] for place in places if place["plugin"] == "add_rms_norm"]
    assert modules == [
        "layers.0.post_attention_layernorm",
        "layers.1.input_layernorm",
        "layers.1.post_attention_layernorm",
        "norm",
    ]
    assert {place["why"] for place in places} == {"asked for"}


def test_a_decoder_in_fp16(tmp_path: Path) -> None:
    """The norm is computed in FP32 there and rounded on the way, which the pattern says with casts."""
    places, graph = exported(
        Decoder("llama", 1).half(),
        {"x": Input([BATCH, SEQ, 32], dtype="float16")},
        tmp_path,
        "add_rms_norm",
        "rotary",
        tolerance=1e-2,
    )
    assert replaced(places) == ops(graph) == {"add_rms_norm": 2, "rotary": 2}


def test_an_encoder_layer_of_transformers(tmp_path: Path) -> None:
    from transformers.models.bert.configuration_bert import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    torch.manual_seed(0)
    config = BertConfig(hidden_size=32, intermediate_size=48, num_attention_heads=4, layer_norm_eps=1e-7)
    config._attn_implementation = "sdpa"

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = BertLayer(config)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = self.layer(x)
            return made[0] if isinstance(made, tuple) else made

    places, graph = exported(Encoder(), {"x": Input([BATCH, SEQ, 32])}, tmp_path, "add_layer_norm", "add_rms_norm")
    assert replaced(places) == ops(graph) == {"add_layer_norm": 2}
    assert [place["module"] for place in places] == ["layer.attention.output.LayerNorm", "layer.output.LayerNorm"]


class Norm(nn.Module):
    """RMSNorm after a sum, one line of it as given."""

    def __init__(self, compute: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.compute = compute

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> Any:
        return self.compute(x, r, self.weight)


def scaled(total: torch.Tensor, eps: float = 1e-5, power: float = 2, axis: int = -1) -> torch.Tensor:
    return total * torch.rsqrt(total.pow(power).mean(axis, keepdim=True) + eps)


SQUARE = {"x": Input([BATCH, 8, 8]), "r": Input([BATCH, 8, 8])}


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, r, w: w * scaled(x + r),
        lambda x, r, w: scaled(r + x) * w,
        lambda x, r, w: torch.nn.functional.rms_norm(x + r, (8,), w, 1e-5),
        lambda x, r, w: w * scaled((x + r).clone().float()).contiguous().to(torch.float32),
        lambda x, r, w: (w * scaled(x + r), x + r),
        lambda x, r, w: (lambda total: (w * scaled(total), torch.tanh(total)))(x + r),
    ],
    ids=[
        "as written",
        "the other way round",
        "of torch",
        "copies and casts",
        "twice the sum",
        "the sum read elsewhere",
    ],
)
def test_found_however_it_is_written(
    compute: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any], tmp_path: Path
) -> None:
    places, graph = exported(Norm(compute), SQUARE, tmp_path, "add_rms_norm")
    assert replaced(places) == ops(graph) == {"add_rms_norm": 1}
    assert [round(one.f, 9) for node in graph.graph.node for one in node.attribute if one.name == "eps"] == [1e-5]


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, r, w: w * scaled(x + r, power=3),
        lambda x, r, w: w * scaled(x + r, axis=-2),
        lambda x, r, w: w * scaled(x - r),
        lambda x, r, w: w * scaled(torch.add(x, r, alpha=2)),
        lambda x, r, w: w * ((x + r) * torch.rsqrt((x * r).pow(2).mean(-1, keepdim=True) + 1e-5)),
    ],
    ids=["another power", "another axis", "a difference", "a weighted sum", "of another value"],
)
def test_not_found_where_it_computes_something_else(
    compute: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any], tmp_path: Path
) -> None:
    places, graph = exported(Norm(compute), SQUARE, tmp_path, "add_rms_norm")
    assert places == []
    assert ops(graph) == {}


def test_left_where_something_else_reads_a_value_within(tmp_path: Path) -> None:
    def compute(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
        normed = scaled(x + r)
        return w * normed, normed.tanh()

    places, graph = exported(Norm(compute), SQUARE, tmp_path, "add_rms_norm")
    assert ops(graph) == {}
    assert [place["why"] for place in places] == ["'tanh' reads 'mul', a value within it"]


def test_left_where_the_kernel_wants_a_size_fixed(tmp_path: Path) -> None:
    class Given(nn.Module):
        def forward(self, x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return w * scaled(x + r)

    inputs = {"x": Input([BATCH, SEQ]), "r": Input([BATCH, SEQ]), "w": Input([SEQ])}
    places, graph = exported(Given(), inputs, tmp_path, "add_rms_norm")
    assert ops(graph) == {}
    assert "the normalized width must be fixed, and x[1] varies" in places[0]["why"]


def test_left_where_a_result_is_read_before_an_input_is_there(tmp_path: Path) -> None:
    """The weight is computed from the sum, which the op would give."""

    def compute(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
        total = x + r
        return scaled(total) * (w + total.mean())

    places, graph = exported(Norm(compute), SQUARE, tmp_path, "add_rms_norm")
    assert ops(graph) == {}
    assert not any(place["replaced"] for place in places)


def turned(x: torch.Tensor) -> torch.Tensor:
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)


def swapped(x: torch.Tensor) -> torch.Tensor:
    return torch.stack((-x[:, :, :, 1::2], x[:, :, :, ::2]), -1).flatten(-2)


class Turn(nn.Module):
    def __init__(self, turn: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.turn = turn

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return (x * cos) + (self.turn(x) * sin)


@pytest.mark.parametrize(("turn", "interleaved"), [(turned, 0), (swapped, 1)])
def test_an_attribute_that_a_pattern_settles(
    turn: Callable[[torch.Tensor], torch.Tensor], interleaved: int, tmp_path: Path
) -> None:
    """cos and sin have axes of size 1 in front, which SHAPES does not know."""
    angle = Input([1, SEQ, 8])
    inputs = {"x": Input([BATCH, 2, SEQ, 8]), "cos": angle, "sin": angle}
    places, graph = exported(Turn(turn), inputs, tmp_path, "rotary")
    assert replaced(places) == ops(graph) == {"rotary": 1}
    (node,) = [node for node in graph.graph.node if node.op_type == "rotary"]
    assert [one.i for one in node.attribute if one.name == "interleaved"] == [interleaved]


def test_left_where_the_op_does_not_take_the_shapes(tmp_path: Path) -> None:
    """Angles of each sample are not what `rotary` takes."""
    angle = Input([BATCH, SEQ, 8])
    inputs = {"x": Input([BATCH, 2, SEQ, 8]), "cos": angle, "sin": angle}
    places, graph = exported(Turn(turned), inputs, tmp_path, "rotary")
    assert ops(graph) == {}
    assert "SHAPES says [positions head]" in places[0]["why"]


@pytest.mark.parametrize("name", ["add_layer_norm", "add_rms_norm", "rotary"])
def test_a_pattern_computes_what_the_reference_does(name: str) -> None:
    plugin = load(ROOT / "plugins" / f"{name}.py")
    compared = 0
    for function in plugin.patterns:
        taken = inspect.signature(function).parameters
        settled = {key: one.default for key, one in taken.items() if one.default is not inspect.Parameter.empty}
        for shapes, attributes in cases.occurring(plugin):
            if name == "rotary" and shapes["x"][-1] != shapes["cos"][-1]:
                continue  # heads side by side, which no model writes out
            values = {**attributes, **settled}
            random = torch.Generator().manual_seed(0)
            given = {key: torch.randn(shape, generator=random) for key, shape in shapes.items()}
            made = function(**given, **{key: value for key, value in values.items() if key in taken})
            torch.testing.assert_close(made, plugin.reference(*given.values(), *values.values()))
            compared += 1
    assert compared >= 5 * len(plugin.patterns)


PATTERN = """

def tripled(x, shift):
    return x * 3.0 + shift


PATTERNS = [tripled]
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("def tripled(x, shift)", "def tripled(y, shift)", "def tripled", "takes y, shift"),
        ("x * 3.0 + shift", "x * 3.0", "def tripled", "'shift' stands nowhere in it"),
        ("x * 3.0 + shift", "(x * 3.0 + shift, x)", "def tripled", "it returns 2 values, and SCHEMA 1"),
        ("x * 3.0 + shift", "x.nothing() + shift", "x.nothing()", "no attribute 'nothing'"),
        ("x * 3.0 + shift", "torch.ones(3) * shift", "def tripled", "its first output does not depend on 'x'"),
        ("[tripled]", "['tripled']", "PATTERNS =", "PATTERNS is not a list of functions"),
    ],
)
def test_a_broken_pattern_is_refused_with_its_line(tmp_path: Path, old: str, new: str, line: str, what: str) -> None:
    file = write(tmp_path)
    assert old in PATTERN
    file.write_text(file.read_text() + PATTERN.replace(old, new))
    with pytest.raises(PluginError, match=what.replace("(", r"\(")) as refused:
        exported(nn.ReLU(), {"input": Input([BATCH, 8])}, tmp_path, "triple")
    assert refused.value.where is not None
    assert refused.value.where.startswith(line_of(file, line))


def test_a_plugin_of_the_project_and_a_number_that_the_model_says(tmp_path: Path) -> None:
    class Shifted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(torch.relu(x * 3.0 + 0.25) * 3.0 + 4) * 2.0 + 1

    file = write(tmp_path)
    file.write_text(file.read_text() + PATTERN)
    places, graph = exported(Shifted(), {"x": Input([BATCH, 8])}, tmp_path, "triple")
    assert replaced(places) == {"triple": 2}
    nodes = [node for node in graph.graph.node if node.domain == "mine"]
    assert [one.f for node in nodes for one in node.attribute] == [0.25, 4.0]
