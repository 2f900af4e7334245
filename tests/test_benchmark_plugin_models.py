"""The benchmark of whole models: its models are what it says, at sizes that engines take; and its table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

import plugin_models

from plugins import whole

MODELS = ("deformable_encoder", "graph_net", "llama", "mamba")


def test_there_are_four_models() -> None:
    assert tuple(whole.names()) == MODELS


@pytest.mark.parametrize("name", MODELS)
def test_a_models_sizes_are_in_its_profile_and_its_inputs_as_declared(name: str) -> None:
    model = whole.described(name)
    declared = getattr(model, name).spec().inputs
    assert len(model.SIZES) == 3
    for sizes in model.SIZES:
        assert all(low <= sizes[dim] <= high for dim, (low, _, high) in model.PROFILE.items())
        given = model.inputs(sizes)
        assert list(given) == list(declared)
        for key, tensor in given.items():
            shape = [sizes[size.name] if hasattr(size, "name") else size for size in declared[key].shape]
            assert (list(tensor.shape), str(tensor.dtype)) == (shape, f"torch.{declared[key].dtype}")
    assert all(low >= model.PROFILE[dim][0] for dim, (low, _, _) in model.SMALL.items())


@pytest.mark.parametrize("name", MODELS)
def test_what_torch_is_timed_with_computes_the_same(name: str) -> None:
    """The references as plain torch, or the module's `plain`; in FP32 here."""
    model = whole.described(name)
    module = getattr(model, name)()
    torch.manual_seed(0)
    given = model.inputs({dim: opt for dim, (_, opt, _) in model.SMALL.items()})
    with torch.no_grad():
        right = whole._outputs(module(**given))
        with whole.written():
            made = whole._outputs(getattr(module, "plain", module)(**given))
    found = whole._errors(made, right)
    assert found["relative_l2"] < 1e-5
    assert found["cosine"] > 0.999999


def test_a_model_that_fails_is_a_row_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(plugin_models, "write", lambda name, rows: written.append(list(rows)))
    monkeypatch.setattr(plugin_models, "kept", lambda: [{"model": "llama", "tool": "aot", "ms": 9.0}])

    class Fake:
        def __init__(self, gpu: int, daemon: bool) -> None: ...

        def call(self, function: Any, arguments: tuple[Any, ...], timeout: float) -> Any:
            name = arguments[0]
            if name == "mamba" and function is whole.measured:
                raise RuntimeError("the process ended: SIGSEGV")
            if function is whole.expanded:
                raise RuntimeError("not done after 10 s")
            if function is whole.launching:
                return {"cosine": 0.9999}
            sizes = {"sizes": {"batch": 1}}
            own = {**sizes, "tool": "aot", "ms": 0.5, "cosine": 0.9999, "relative_l2": 0.01}
            return [own, {**sizes, "tool": "compile", "ms": 0.75}]

        def close(self) -> None: ...

    assert not plugin_models.measure(tmp_path, ["llama", "mamba"], 10.0, Fake)
    assert [(row["model"], row["tool"], row.get("ms")) for row in written[-1]] == [
        ("llama", "aot", None),
        ("llama", "aot-expanded", None),
        ("llama", "aot", 0.5),
        ("llama", "compile", 0.75),
        ("mamba", "aot", None),
        ("mamba", "aot-expanded", None),
        ("mamba", "aot", None),
    ]
    table = plugin_models.text(written[-1])
    assert "| llama | batch 1 | 0.5000 | - | - | 0.7500 | - | 0.999900 |" in table
    assert "- mamba, aot: the process ended: SIGSEGV" in table
    assert "- llama, aot-expanded: not done after 10 s" in table
