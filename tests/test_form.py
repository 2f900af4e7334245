"""Attention as one operator or decomposed: who gets which, and that both say what the model says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from aot import origins
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import GraphError
from aot.form import ATTENTION_TARGETS, Form, form_for, formed
from aot.frontend.eager import Eager
from aot.frontend.export import write_module
from aot.graph import Skip
from aot.passes.attention_operator import attention_operator
from aot.precision import apply
from aot.stages.surgery import rewrite
from tests.precision.graphs import ops, recipe

OPERATOR, DECOMPOSED = Form("operator"), Form("decomposed")
BATCH, SEQ = Dim("batch", min=1, opt=3, max=8), Dim("seq", min=2, opt=7, max=32)
KINDS = ("none", "padding", "causal", "grouped", "left", "first", "small")


@pytest.mark.parametrize(
    ("backend", "version", "target", "precision", "form"),
    [
        ("tensorrt_rtx", "1.7.1.63", "sm89", "fp16", OPERATOR),
        ("tensorrt_rtx", "1.7.0", "sm120", "bf16", OPERATOR),
        ("tensorrt_rtx", "1.10.0", "sm75", "fp16", OPERATOR),
        ("tensorrt_rtx", "2.0", "sm86", "fp16", OPERATOR),
        ("tensorrt_rtx", "1.6.9", "sm89", "fp16", DECOMPOSED),
        ("tensorrt_rtx", None, "sm89", "fp16", DECOMPOSED),
        ("tensorrt_rtx", "1.7.1", "sm90", "fp16", DECOMPOSED),
        ("tensorrt_rtx", "1.7.1", "sm89", "fp32", DECOMPOSED),
        ("tensorrt_rtx", "1.7.1", "sm89", "int8", DECOMPOSED),
        ("tensorrt_rtx", "1.7.1", "sm89", "fp8", DECOMPOSED),
        ("tensorrt", "10.6.0", "sm90", "fp16", DECOMPOSED),
        ("tensorrt", "11.0.0", "sm89", "bf16", DECOMPOSED),
        ("onnxruntime", "1.32.0", "cpu", "fp16", DECOMPOSED),
    ],
)
def test_backend_version_target_and_precision_decide(
    backend: str, version: str | None, target: str, precision: Any, form: Form
) -> None:
    assert form_for(backend, version, target, precision) == form


def test_the_targets_are_those_that_tensorrt_rtx_builds_for() -> None:
    from aot.backends.tensorrt_rtx import TARGETS

    assert set(ATTENTION_TARGETS) <= set(TARGETS)


class Net(nn.Module):
    """One attention of each kind, each an output of its own, and of its own scale so that they share no scores."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        padding = mask[:, None, None, :]
        before = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
        return [
            scaled_dot_product_attention(q, k, v),
            scaled_dot_product_attention(q, k, v, attn_mask=padding, scale=0.25),
            scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
            scaled_dot_product_attention(q, k[:, :2], v[:, :2], attn_mask=padding, scale=0.35, enable_gqa=True),
            scaled_dot_product_attention(q, k, v, attn_mask=padding & before, scale=0.4),
            scaled_dot_product_attention(q[:, :, :1], k, v, is_causal=True, scale=0.45),
            scaled_dot_product_attention(q[..., :8], k[..., :8], v[..., :8]),
        ]


SPEC = ModelSpec(
    "net",
    {**{name: Input([BATCH, 4, SEQ, 32]) for name in "qkv"}, "mask": Input([BATCH, SEQ], "bool")},
    outputs=KINDS,
    padding="mask",
)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the FP32 graph, after surgery."""
    written, made = tmp_path_factory.mktemp("written"), tmp_path_factory.mktemp("surgery")
    write_module(Net(), SPEC, written)
    rewrite(written / "model.onnx", made, narrow=True)
    return made


def final(exported: Path, folder: Path, precision: str, amax: dict[str, float] | None = None) -> Path:
    model = ir.load(exported / "model.onnx")
    apply(model, recipe(precision), amax or {})
    ir.save(model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.fixture(scope="module")
def half(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return final(exported, tmp_path_factory.mktemp("half"), "fp16")


def inputs(batch: int, seq: int) -> dict[str, np.ndarray[Any, Any]]:
    """Padded on the left, so that some queries may look at nothing."""
    random = np.random.default_rng(seq)
    made: dict[str, np.ndarray[Any, Any]] = {n: random.standard_normal((batch, 4, seq, 32), np.float32) for n in "qkv"}
    made["mask"] = (np.arange(seq) < np.linspace(seq, 1, batch).round()[:, None])[:, ::-1].copy()
    return made


@pytest.mark.parametrize("form", [OPERATOR, DECOMPOSED], ids=lambda form: form.attention)
@pytest.mark.parametrize(("batch", "seq"), [(1, 2), (3, 7), (5, 31)])
def test_both_forms_match_eager_at_every_size(half: Path, tmp_path: Path, form: Form, batch: int, seq: int) -> None:
    case = inputs(batch, seq)
    want = Eager(Net(), SPEC)(case)
    with formed(half, form, tmp_path) as (path, _):
        onnx.checker.check_model(path, full_check=True)
        got = onnx.reference.ReferenceEvaluator(str(path)).run(None, case)
    for kind, array in zip(KINDS, got, strict=True):
        np.testing.assert_allclose(array, want[kind], rtol=0, atol=5e-3, err_msg=kind)


def test_what_the_operator_takes_becomes_one_node_and_the_rest_stays(half: Path, tmp_path: Path) -> None:
    with formed(half, OPERATOR, tmp_path) as (path, count):
        model = ir.load(path)
        assert path.is_relative_to(tmp_path)
    assert not path.exists()
    made = {str(node.outputs[0].name): node for node in model.graph if node.op_type == "Attention"}
    assert count == len(made) == 6
    assert ops(model).count("Softmax") == 1  # heads of 8
    assert model.opset_imports[""] == 23
    causal = [node for node in made.values() if "is_causal" in node.attributes]
    assert [len(node.inputs) for node in causal] == [3]  # never with a mask as well
    assert all(origins.of(node) is not None for node in made.values())


def test_an_operator_that_computes_something_else_is_an_error(
    half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sharper(model: ir.Model, skip: Skip) -> int:
        sites = attention_operator.rewrite(model, skip)
        for node in model.graph if sites else ():
            if node.op_type == "Attention":
                node.attributes.add(ir.AttrFloat32("scale", 2.0))
        return sites

    wrong = dataclasses.replace(attention_operator, rewrite=sharper)
    monkeypatch.setattr("aot.passes.attention_operator.attention_operator", wrong)
    with pytest.raises(GraphError, match="'attention_operator' changes what"), formed(half, OPERATOR, tmp_path):
        pass


def test_a_graph_without_attention_is_handed_on_as_it_is(half: Path, tmp_path: Path) -> None:
    with formed(half, DECOMPOSED, tmp_path) as (path, count):
        assert (path, count) == (half, 0)
    bare = tmp_path / "bare.onnx"
    text = '<ir_version: 10, opset_import: ["": 20]> g (float16[b, 4] x) => (float16[b, 4] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), str(bare))
    with formed(bare, OPERATOR, tmp_path) as (path, count):
        assert (path, count) == (bare, 0)


def test_attention_that_stays_in_fp32_stays_decomposed(exported: Path, tmp_path: Path) -> None:
    """Scores beyond the range of FP16 keep their nodes wide, and the operator has no FP32 kernel."""
    scores = {str(node.outputs[0].name) for node in ir.load(exported / "model.onnx").graph if node.op_type == "MatMul"}
    graph = final(exported, tmp_path, "fp16", dict.fromkeys(scores, 60000.0))
    with formed(graph, OPERATOR, tmp_path) as (path, count):
        assert (path, count) == (graph, 0)


def test_quantized_attention_keeps_its_two_matmuls(exported: Path, tmp_path: Path) -> None:
    model = ir.load(exported / "model.onnx")
    amax = {str(value.name): 4.0 for node in model.graph for value in node.outputs} | dict.fromkeys("qkv", 4.0)
    apply(model, recipe("int8", attention=True), amax)
    assert "QuantizeLinear" in ops(model)
    assert "Attention" not in ops(model)
