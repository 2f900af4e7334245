"""Surgery as a stage: the same numbers at every size, the same bytes every time, names that can be keyed on."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from aot.config import Budget, EngineOptions, Recipe, Verify
from aot.errors import GraphError
from aot.plan import Plan
from aot.progress import Silent
from aot.records import MODEL, Exported
from aot.run import Run
from aot.stages.surgery import rewrite, surgery
from aot.store import Entry, Store

torch = pytest.importorskip("torch")


class Attention(torch.nn.Module):  # type: ignore[misc, name-defined]
    """One encoder layer as transformers writes it: scaled_dot_product_attention over a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(3))
        self.out = torch.nn.Linear(16, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x: Any, mask: Any) -> Any:
        q, k, v = (layer(x).view(*x.shape[:2], 4, 4).transpose(1, 2) for layer in self.qkv)
        keep = mask.bool()[:, None, None, :]
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        x = self.norm(x + self.out(y.transpose(1, 2).reshape(*x.shape)))
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Convolution(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Convolution, batch normalization, ReLU6, a residual."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU6()
        )
        self.second = torch.nn.Sequential(
            torch.nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), torch.nn.BatchNorm2d(8)
        )
        for norm in (self.first[1], self.second[1]):
            torch.nn.init.uniform_(norm.running_mean, -1, 1)
            torch.nn.init.uniform_(norm.running_var, 0.5, 2)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        return (y + self.second(y)).mean((2, 3))


def write(module: Any, args: tuple[Any, ...], shapes: Any, path: Path) -> Path:
    program = torch.onnx.export(
        module.eval(), args, dynamo=True, dynamic_shapes=shapes, opset_version=20, verbose=False
    )
    program.save(path, external_data=True)
    return path


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Path:
    batch, seq = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("seq", min=2, max=64)
    args = (torch.randn(3, 7, 16), torch.ones(3, 7, dtype=torch.int64))
    path = tmp_path_factory.mktemp("attention") / MODEL
    return write(Attention(), args, ({0: batch, 1: seq}, {0: batch, 1: seq}), path)


@pytest.fixture(scope="module")
def convolution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    batch = torch.export.Dim("batch", min=1, max=64)
    return write(
        Convolution(), (torch.randn(2, 3, 9, 9),), ({0: batch},), tmp_path_factory.mktemp("convolution") / MODEL
    )


def execute(path: Path, inputs: dict[str, Any]) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, inputs)[0]


def ops(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]


def plan(precision: str) -> Plan:
    recipe = Recipe(precision=precision)  # type: ignore[arg-type]
    return Plan(recipe.precision, recipe, ({},), None, (), EngineOptions(), Budget(), Verify())


def relative(got: Any, expected: Any) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("narrow", [False, True])
def test_attention_keeps_its_numbers_at_sizes_never_exported(attention: Path, tmp_path: Path, narrow: bool) -> None:
    rewrite(attention, tmp_path, narrow=narrow)
    rng = np.random.default_rng(0)
    for batch, seq in ((1, 2), (3, 7), (5, 33), (17, 3)):
        mask = (np.arange(seq) < rng.integers(1, seq + 1, (batch, 1))).astype(np.int64)
        inputs = {"x": rng.normal(size=(batch, seq, 16)).astype(np.float32), "mask": mask}
        assert relative(execute(tmp_path / MODEL, inputs), execute(attention, inputs)) < 1e-5


def test_rows_masked_throughout_stay_as_they_are_in_fp32(attention: Path, tmp_path: Path) -> None:
    rewrite(attention, tmp_path, narrow=False)
    x = np.random.default_rng(0).normal(size=(2, 5, 16)).astype(np.float32)
    inputs = {"x": x, "mask": np.zeros((2, 5), np.int64)}
    assert relative(execute(tmp_path / MODEL, inputs), execute(attention, inputs)) < 1e-5


@pytest.mark.parametrize("quantized", [False, True])
def test_attention_takes_the_form_that_tensorrt_fuses(attention: Path, tmp_path: Path, quantized: bool) -> None:
    rewrite(attention, tmp_path, narrow=True, quantized=quantized)
    found = ops(tmp_path / MODEL)
    assert "IsNaN" not in found
    assert "Shape" not in found
    assert "Concat" not in found
    # INT8 and FP8 were seen to build with three projections and a scale of the queries.
    assert found.count("Mul") == (1 if quantized else 0)
    assert found.count("Split") == (0 if quantized else 1)
    assert found.count("MatMul") == (8 if quantized else 6)
    # q, k, v and the way back: the keys' two transposes are one; what is split already lies as the heads do.
    assert found.count("Transpose") == (4 if quantized else 3)


def test_mask_is_finite_in_fp16(attention: Path, tmp_path: Path) -> None:
    rewrite(attention, tmp_path, narrow=True)
    for initializer in ir.load(tmp_path / MODEL).graph.initializers.values():
        assert initializer.const_value is not None
        if initializer.const_value.dtype == ir.DataType.FLOAT:
            assert np.isfinite(initializer.const_value.numpy().astype(np.float16)).all()


def test_bert_of_transformers_loses_the_construction_of_its_mask(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")

    class Bert(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            config = transformers.BertConfig(
                vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
            )
            self.bert = transformers.BertModel(config, add_pooling_layer=False)

        def forward(self, ids: Any, mask: Any, kinds: Any) -> Any:
            return self.bert(input_ids=ids, attention_mask=mask, token_type_ids=kinds).last_hidden_state

    torch.manual_seed(0)
    batch, seq = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("seq", min=2, max=64)
    ids = torch.randint(0, 50, (3, 7))
    dynamic = ({0: batch, 1: seq},) * 3
    path = write(Bert(), (ids, torch.ones_like(ids), torch.zeros_like(ids)), dynamic, tmp_path / "before.onnx")
    rewrite(path, tmp_path, narrow=True)

    found = ops(tmp_path / MODEL)
    assert not set(found) & {"GatherND", "Range", "And", "IsNaN", "GreaterOrEqual", "Concat", "Expand"}
    assert (found.count("Where"), found.count("Cast"), found.count("Unsqueeze")) == (1, 1, 1)
    rng = np.random.default_rng(0)
    for rows, length in ((1, 2), (5, 33), (17, 3)):
        mask = (np.arange(length) < rng.integers(1, length + 1, (rows, 1))).astype(np.int64)
        inputs = {"ids": rng.integers(0, 50, (rows, length)), "mask": mask, "kinds": rng.integers(0, 2, (rows, length))}
        assert relative(execute(tmp_path / MODEL, inputs), execute(path, inputs)) < 1e-5


def test_convolution_keeps_its_numbers_and_loses_its_norms(convolution: Path, tmp_path: Path) -> None:
    rewrite(convolution, tmp_path, narrow=True)
    assert "BatchNormalization" not in ops(tmp_path / MODEL)
    for batch in (1, 2, 5):
        inputs = {"x": np.random.default_rng(batch).normal(size=(batch, 3, 9, 9)).astype(np.float32)}
        assert relative(execute(tmp_path / MODEL, inputs), execute(convolution, inputs)) < 1e-5


def test_same_graph_gives_same_bytes(attention: Path, tmp_path: Path) -> None:
    digests = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        rewrite(attention, tmp_path / name, narrow=True)
        files = sorted((tmp_path / name).iterdir())
        digests.append([(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files])
    assert digests[0] == digests[1]


def test_nodes_have_unique_names_and_values_have_types_and_shapes(attention: Path, tmp_path: Path) -> None:
    rewrite(attention, tmp_path, narrow=True)
    graph = ir.load(tmp_path / MODEL).graph
    names = [node.name for node in graph]
    assert all(names)
    assert len(set(names)) == len(names)
    values = [value for node in graph for value in node.outputs]
    assert [value.name for value in values if value.dtype is None or value.shape is None] == []


def test_nan_weights_are_refused_by_name(tmp_path: Path) -> None:
    module = torch.nn.Linear(4, 4)
    module.weight.data[1, 2] = float("nan")
    path = write(module, (torch.randn(2, 4),), None, tmp_path / MODEL)
    with pytest.raises(GraphError, match=r"weight '.*weight.*' holds NaN"):
        rewrite(path, tmp_path, narrow=True)


def test_precisions_of_one_kind_share_one_result(attention: Path, tmp_path: Path) -> None:
    run = Run(Store(tmp_path), Silent())
    exported = Exported(Entry("export", "k" * 64, attention.parent, {"nodes": len(ops(attention))}))
    names = ("fp8", "int8", "fp16", "bf16", "fp32")
    fp8, int8, fp16, bf16, fp32 = (surgery(run, exported, plan(precision)) for precision in names)
    assert fp8.key == int8.key
    assert fp16.key == bf16.key
    assert len({fp8.key, fp16.key, fp32.key}) == 3
    assert fp8.nodes == len(ops(fp8.model)) < exported.nodes
    assert [time.cached for time in run.times] == [False, True, False, True, False]
    assert {"name", "sites", "seconds"} <= set(fp8.facts["passes"][0])
