"""Which contenders there are, and why one cannot run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aot.bench.tools import AGAINST, Facts, checked, why_not
from aot.errors import UsageError

INSTALLED = {"torch": "2.11", "onnxruntime-gpu": "1.30", "torch-tensorrt": "2.14"}
EVERYTHING = Facts(model=True, onnx=True, gpu=True, version=INSTALLED.get)


def test_with_everything_all_can_run() -> None:
    assert {tool: why_not(tool, EVERYTHING) for tool in AGAINST} == dict.fromkeys(AGAINST)


@pytest.mark.parametrize("tool", [tool for tool in AGAINST if not tool.startswith("onnxruntime")])
def test_without_a_model_torch_has_nothing_to_run_and_the_way_out_is_named(tool: str) -> None:
    reason = why_not(tool, replace(EVERYTHING, model=False))
    assert reason is not None
    assert "--model model.py" in reason


def test_a_model_is_an_onnx_file_as_well() -> None:
    assert why_not("onnxruntime-cuda", replace(EVERYTHING, onnx=False)) is None
    reason = why_not("onnxruntime-cuda", replace(EVERYTHING, onnx=False, model=False))
    assert reason is not None
    assert "x.onnx" in reason


def test_on_a_cpu() -> None:
    cpu = replace(EVERYTHING, gpu=False)
    runs = [tool for tool in AGAINST if why_not(tool, cpu) is None]
    assert runs == ["eager", "compile-default", "compile-max-autotune", "onnxruntime-cpu"]
    assert "compile-default" in str(why_not("compile-reduce-overhead", cpu))


@pytest.mark.parametrize(
    ("tool", "lacks", "install"),
    [
        ("eager", "torch", "pip install torch"),
        ("torch-tensorrt", "torch-tensorrt", "aot-engine[torch-tensorrt]"),
        ("onnxruntime-tensorrt", "onnxruntime-gpu", "pip install onnxruntime-gpu"),
        ("onnxruntime-cpu", "onnxruntime-gpu", "pip install onnxruntime"),
    ],
)
def test_what_is_not_installed_is_named_with_the_command(tool: str, lacks: str, install: str) -> None:
    left = {name: version for name, version in INSTALLED.items() if name != lacks}
    assert install in str(why_not(tool, replace(EVERYTHING, version=left.get)))


def test_an_unknown_contender_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        checked(["eager", "compile-reduce-overheat"])
    assert "compile-reduce-overheat" in caught.value.what
    assert "did you mean 'compile-reduce-overhead'?" in str(caught.value.fix)


def test_a_contender_named_twice_runs_once() -> None:
    assert checked(["onnxruntime-cpu", "eager", "onnxruntime-cpu"]) == ["onnxruntime-cpu", "eager"]
