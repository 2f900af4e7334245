"""A model as an exported program that needs nothing beside it: tensors by name in, tensors by name out.

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from aot import batches
from aot.config import Precision
from aot.declaration import Dim, ModelSpec
from aot.errors import ExportError
from aot.frontend import call, capture
from aot.frontend.eager import Eager, named_outputs, tensor
from aot.frontend.tracing import captured
from aot.frontend.watch import refuse_state

if TYPE_CHECKING:
    from aot.arrays import Arrays

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def write(model: Eager, spec: ModelSpec, path: Path, precision: Precision) -> Mapping[str, Any]:
    """Save the model to `path` as a program, its weights in `precision`; inputs and outputs keep the declared dtypes.

    Returns {nodes, outputs}: the number of ops; `{name, dtype, shape}` of every output, dynamic dims by name. Raises
    ExportError for whatever would not be the promised model.
    """
    program = captured(named(model, spec, precision), spec)
    capture.check_program(program, spec)
    torch.export.save(program, path)
    return {
        "nodes": sum(node.op == "call_function" for node in program.graph.nodes),
        "outputs": _outputs(program, spec),
    }


def write_module(module: torch.nn.Module, spec: ModelSpec, path: Path, precision: Precision) -> Mapping[str, Any]:
    """`write`, of a module, after the checks that an export through ONNX makes as well."""
    module = module.eval()
    call.check(module, spec)
    capture.check_weights(module)
    refuse_state(module, spec)
    return write(Eager(module, spec), spec, path, precision)


def named(model: Eager, spec: ModelSpec, precision: Precision) -> torch.nn.Module:
    """A module whose forward takes every input by name and returns a dict of the outputs by name.

    In FP16 or BF16 the weights are a converted copy; FP32 inputs are converted on the way in, and what comes out in
    that dtype becomes FP32 again.
    """
    dtype = _DTYPES.get(precision, torch.float32)
    inner = model if precision == "fp32" else Eager(copy.deepcopy(model.module).to(dtype), spec)

    def forward(self: torch.nn.Module, **given: torch.Tensor) -> dict[str, torch.Tensor]:
        narrow = {name: value.to(dtype) if value.dtype == torch.float32 else value for name, value in given.items()}
        found = named_outputs(inner.forward(narrow), spec, model.owner)
        return {name: value.float() if value.dtype == dtype else value for name, value in found.items()}

    names = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *spec.inputs)]
    forward.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
    module: torch.nn.Module = type("Named", (torch.nn.Module,), {"forward": forward})()
    module.model = inner.module
    for refused in ("train", "eval"):  # by a program's module, which is in eval mode for good
        vars(inner.module).pop(refused, None)
    return module.eval()


class Running(AbstractContextManager["Running"]):
    """A saved program, run by torch on the CPU: `running(inputs) -> outputs`, numpy in and out."""

    def __init__(self, path: Path) -> None:
        self._module = torch.export.load(path).module()

    def __call__(self, inputs: Mapping[str, Any]) -> Arrays:
        """Run once. Raises ExportError for an op that torch has no CPU kernel for in the program's precision."""
        try:
            with torch.no_grad():
                found = self._module(**{name: tensor(value) for name, value in inputs.items()})
        except NotImplementedError as error:
            raise ExportError(
                f"the program cannot be compared with the model: {' '.join(str(error).split())}",
                where="torch on the CPU",
                fix="--precision fp32, which every op of torch has",
            ) from error
        return {name: batches.array(value) for name, value in found.items()}

    def __exit__(self, *_: object) -> None:
        """Nothing to release."""


def _outputs(program: torch.export.ExportedProgram, spec: ModelSpec) -> list[dict[str, Any]]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    dims = {
        str(values[name].shape[axis]): dim.name
        for name, declared in spec.inputs.items()
        for axis, dim in enumerate(declared.shape)
        if isinstance(dim, Dim)
    }
    names = program.call_spec.out_spec.unflatten(range(program.call_spec.out_spec.num_leaves))
    made = [node.meta["val"] for node in program.graph.output_node().args[0]]
    return [
        {
            "name": name,
            "dtype": str(made[index].dtype).removeprefix("torch."),
            "shape": [d if isinstance(d, int) else _named(str(d), dims) for d in made[index].shape],
        }
        for name, index in names.items()
    ]


def _named(size: str, dims: Mapping[str, str]) -> str:
    """A computed size in the names of the Dims."""
    return re.sub(r"\w+", lambda word: dims.get(word[0], word[0]), size)
