"""The tools, each as its documentation has it: from a model in memory to the rewritten one in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Tool:
    """package: the distribution it comes in. prepare: imports all it needs, and returns the function that rewrites.

    intermediate: it takes a model of `onnx_ir`, whose weights stay on disk until something reads them; else a
    `ModelProto`, which holds them all.
    """

    package: str
    prepare: Callable[[], Callable[[Any], Any]]
    intermediate: bool

    def load(self, file: Path) -> Any:
        """The model as the tool takes it."""
        if self.intermediate:
            import onnx_ir

            return onnx_ir.load(file)
        import onnx

        return onnx.load(file)

    def save(self, model: Any, file: Path) -> None:
        """Write the model, weights beside it."""
        if self.intermediate:
            import onnx_ir

            onnx_ir.save(model, file, external_data=f"{file.name}.data")
        else:
            import onnx

            onnx.save(model, file, save_as_external_data=True, location=f"{file.name}.data")


def _onnxslim() -> Callable[[Any], Any]:
    import onnxslim

    return lambda model: onnxslim.slim(model)


def _onnxsim() -> Callable[[Any], Any]:
    import onnxsim

    return lambda model: onnxsim.simplify(model)[0]


def _onnxscript() -> Callable[[Any], Any]:
    from onnxscript import optimizer

    return lambda model: optimizer.optimize(model)


def _aot() -> Callable[[Any], Any]:
    from aot.optimize import optimize

    def rewrite(model: Any) -> Any:
        optimize(model)
        return model

    return rewrite


TOOLS = {
    "onnxslim": Tool("onnxslim", _onnxslim, intermediate=False),
    "onnxsim": Tool("onnxsim", _onnxsim, intermediate=False),
    "onnxscript": Tool("onnxscript", _onnxscript, intermediate=True),
    "aot": Tool("aot-engine", _aot, intermediate=True),
}
