"""The contenders by name, and why one cannot run here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module

from aot.bench.contender import Contender, Job
from aot.errors import unknown

AOT = "aot"
EAGER = "eager"
REFERENCE = "reference"
"""Eager in FP32, which the others' answers are compared with; it is never timed."""
COMPILED = {
    "compile-default": "default",
    "compile-reduce-overhead": "reduce-overhead",
    "compile-max-autotune": "max-autotune",
}
"""The modes of torch.compile."""
PROVIDERS = {
    "onnxruntime-cpu": "CPUExecutionProvider",
    "onnxruntime-cuda": "CUDAExecutionProvider",
    "onnxruntime-tensorrt": "TensorrtExecutionProvider",
}
"""The execution providers of onnxruntime."""
TORCH_TENSORRT = "torch-tensorrt"
OF_TORCH = (EAGER, *COMPILED, TORCH_TENSORRT)
AGAINST = (EAGER, *COMPILED, *PROVIDERS, TORCH_TENSORRT)
"""What `--against` takes, in the order of the answer."""


@dataclass(frozen=True)
class Facts:
    """What decides which contenders can run. version: of a distribution, None where it is not installed."""

    model: bool
    onnx: bool
    gpu: bool
    version: Callable[[str], str | None] = field(repr=False)


def checked(names: list[str]) -> list[str]:
    """The names, each once. Raises UsageError with the nearest for one that is none."""
    for name in names:
        if name not in AGAINST:
            raise unknown("contender", name, AGAINST)
    return list(dict.fromkeys(names))


def why_not(tool: str, facts: Facts) -> str | None:
    """Why a contender of AGAINST cannot run; None where nothing speaks against it. A pure function of the facts."""
    if tool in OF_TORCH:
        if not facts.model:
            return "no model to run in PyTorch: an artifact holds none; give it with --model model.py"
        if facts.version("torch") is None:
            return "torch is not installed: pip install torch"
        if tool == TORCH_TENSORRT and facts.version("torch-tensorrt") is None:
            return "Torch-TensorRT is not installed: pip install 'aot-engine[torch-tensorrt]'"
        if tool == "compile-reduce-overhead" and not facts.gpu:
            return "no GPU: on a CPU this mode, which is for CUDA graphs, is compile-default"
        return "no GPU" if tool == TORCH_TENSORRT and not facts.gpu else None
    if not (facts.model or facts.onnx):
        return "no ONNX file to run: give one, x.onnx, or the model it is exported from with --model model.py"
    if tool == "onnxruntime-cpu":
        if facts.version("onnxruntime") is None and facts.version("onnxruntime-gpu") is None:
            return "onnxruntime is not installed: pip install onnxruntime"
        return None
    if not facts.gpu:
        return "no GPU"
    return (
        "onnxruntime-gpu is not installed: pip install onnxruntime-gpu"
        if facts.version("onnxruntime-gpu") is None
        else None
    )


def make(job: Job) -> Contender:
    """The contender of a job, its libraries imported. Raises TargetError where they say that it cannot run here."""
    if job.tool == AOT:
        module = "artifact"
    elif job.tool in PROVIDERS:
        module = "onnx_session"
    else:
        module = "torch_module"
    made = import_module(f"aot.bench.calls.{module}").make(job)
    assert isinstance(made, Contender)
    return made
