"""What is said of nodes of plugins: who launches their kernels, and what counts where nobody does."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from aot import toolchain
from aot.backend import get
from aot.explain.findings import Target
from aot.explain.ops import called, counted
from aot.explain.text import describe
from tests.backends import fake_tensorrt
from tests.explain.test_text import FOUND
from tests.plugins.graphs import final


@pytest.fixture
def model(tmp_path: Path) -> ir.Model:
    """Two nodes of `mine::triple`, whose function is Constant, CastLike and Mul."""
    return ir.load(final(tmp_path).model)


def test_tensorrt_launches_kernels(model: ir.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    for version, why in (
        ("10.6.0", "launched from Python, which the engine needs where it runs"),
        ("10.9.0", "launched by the engine itself"),
    ):
        fake_tensorrt.install(monkeypatch, version)
        found = called(model, get("tensorrt"), "sm90", ())
        assert [(one.node, one.op, one.source, one.does, one.why) for one in found] == [
            ("n0", "mine::triple", "model.py:1", "kernel", why),
            ("n1", "mine::triple", "model.py:2", "kernel", why),
        ]
        ops = counted(model, "tensorrt", (), (), found)
        assert (ops.plugin, ops.native) == ({"triple": 2}, {})


@pytest.mark.parametrize("backend", ["tensorrt_rtx", "onnxruntime"])
def test_for_others_the_functions_nodes_count(model: ir.Model, backend: str) -> None:
    found = called(model, get(backend), "sm89", ())
    assert {(one.does, one.why) for one in found} == {
        ("function", f"{get(backend).title} launches no kernels of plugins")
    }
    ops = counted(model, backend, (), (), found)
    assert (ops.plugin, ops.native) == ({}, {"CastLike": 2, "Constant": 2, "Mul": 2})


def test_a_target_without_kernels_and_a_machine_without_triton(
    model: ir.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = called(model, get("tensorrt"), "sm75", ())
    assert {(one.does, one.why.partition(",")[0]) for one in found} == {("function", "kernels are compiled for sm80")}
    monkeypatch.setattr(toolchain, "version", lambda name: None)
    found = called(model, get("tensorrt"), "sm90", ())
    assert {one.why for one in found} == {"triton, which compiles kernels, is not installed"}


def test_people_read_it_by_op(model: ir.Model) -> None:
    backend = get("tensorrt_rtx")
    plugins = called(model, backend, "sm89", ())
    ops = counted(model, backend.name, (), (), plugins)
    target = Target("sm89", backend.name, "1.7.1", "parser", None, ops, (), (), plugins)
    text = " ".join(describe(type(FOUND)(**{**FOUND.__dict__, "targets": (target,)})).split())
    assert "mine::triple (2 nodes): the ops of its reference; TensorRT-RTX launches no kernels of plugins" in text
