"""The ways from a model to an engine: through ONNX, or as an exported program through Torch-TensorRT.

`onnx` is the default: the graph is rewritten, calibrated, quantized, and built by any backend. `torch-tensorrt` hands
the exported program to Torch-TensorRT's ahead-of-time conversion, whose result is a TensorRT engine like any other.
It takes ops that have no translation to ONNX, and neither quantizes nor keeps FP32 islands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from aot import toolchain
from aot.breaks import Break
from aot.config import Precision
from aot.errors import TargetError
from aot.toolchain import Machine

ONNX = "onnx"
TORCH_TENSORRT = "torch-tensorrt"

# The first whose conversion lets the caller name inputs and outputs, and takes more than one optimization profile.
OLDEST = (2, 14)
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16")
# The kinds of break that leave a program behind.
_TRANSLATION = ("op without translation", "translation")
_WHERE = f"--route {TORCH_TENSORRT}"


def check_model(model: str, precision: Precision) -> None:
    """Raise TargetError for a model or a precision that the second route does not take, wherever it is built."""
    if model.endswith(".onnx"):
        raise TargetError(
            "Torch-TensorRT takes an exported program, and an ONNX file is none",
            where=_WHERE,
            fix="leave --route away, or give the model.py or .pt2 that the file was exported from",
        )
    if precision not in PRECISIONS:
        raise TargetError(
            f"the route neither calibrates nor quantizes, so it has no {precision.upper()}",
            where=f"{_WHERE} --precision {precision}",
            fix=f"--precision {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}, or leave --route away",
        )
    if model.endswith(".pt2") and precision != "fp32":
        raise TargetError(
            f"a saved program has its dtypes already and cannot be turned into {precision.upper()}",
            where=f"{_WHERE} --precision {precision}",
            fix="--precision fp32 builds it as it is; or declare the model in a model.py",
        )


def check_patterns(plugins: tuple[str, ...]) -> None:
    """Raise TargetError where plugins are asked for: the route launches no kernels of theirs."""
    if plugins:
        raise TargetError(
            "the route torch-tensorrt launches no kernels of plugins",
            where=f"--plugin {plugins[0]}",
            fix="leave --plugin away, or --route",
        )


def check_here(backend: str | None, targets: tuple[str, ...], machine: Machine) -> None:
    """Raise TargetError for what this machine lacks to build an engine by the second route."""
    elsewhere = "--until graph here, and aot build on the prepared artifact on a machine with a GPU and torch-tensorrt"
    if backend not in (None, "tensorrt"):
        raise TargetError(
            f"Torch-TensorRT builds TensorRT engines, not those of {backend}",
            where=f"{_WHERE} --backend {backend}",
            fix="leave --backend away, or --route",
        )
    if machine.gpu is None:
        raise TargetError(
            "Torch-TensorRT builds on the GPU it builds for, and here is none",
            where=" ".join([_WHERE, *(f"--target {target}" for target in targets)]),
            fix=elsewhere,
        )
    lacking = missing()
    if lacking is not None:
        raise lacking


def missing() -> TargetError | None:
    """What keeps the installed packages from building by the second route; None where nothing does."""
    torch, own = toolchain.version("torch"), toolchain.version(TORCH_TENSORRT)
    oldest = ".".join(map(str, OLDEST))
    install = "pip install -U 'aot-engine[torch-tensorrt]', which brings the torch that it goes with"
    if torch is None or own is None:
        lacks = " and ".join(name for name, found in (("torch", torch), (TORCH_TENSORRT, own)) if found is None)
        return TargetError(f"the route needs {lacks}, not installed here", where=_WHERE, fix=install)
    if _minor(own) < OLDEST:
        return TargetError(
            f"torch-tensorrt {own} cannot name an engine's inputs and outputs, which {oldest} and later can",
            where=_WHERE,
            fix=install,
        )
    if _minor(own) != _minor(torch):
        return TargetError(f"torch-tensorrt {own} does not go with torch {torch}", where=_WHERE, fix=install)
    return None


def helps(breaks: Sequence[Break], precision: Precision) -> str | None:
    """Why the second route would help where an export through ONNX breaks; None where it would not.

    It does where torch.export made the program and only its translation failed: every break is of one of _TRANSLATION.
    """
    if not breaks or any(one.kind not in _TRANSLATION for one in breaks) or precision not in PRECISIONS:
        return None
    lacking = missing()
    here = "" if lacking is None else f"; {lacking.what}: {lacking.fix}"
    return f"takes the exported program without ONNX, as far as Torch-TensorRT has the ops; it needs a GPU{here}"


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
