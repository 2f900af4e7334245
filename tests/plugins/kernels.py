"""Kernels of built-in plugins on Triton's interpreter, in a process of their own, for Triton decides on import."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent.parent
BUILT_IN = ROOT / "plugins"
Call = tuple[Sequence[torch.Tensor], Mapping[str, Any]]
"""Inputs in the order of SCHEMA, and attributes beside the defaults; `config` among them is an index into CONFIGS."""


def interpreted(op: str, calls: Sequence[Call]) -> list[Any]:
    """What the kernel makes of each call: a tensor, or a tuple where the op has several outputs."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "asked", Path(folder) / "answered"
        torch.save([(list(inputs), dict(attributes)) for inputs, attributes in calls], asked)
        command = [sys.executable, "-m", "tests.plugins.kernels", op, str(asked), str(answered)]
        subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, cwd=ROOT, check=True)
        found: list[Any] = torch.load(answered)
    return found


def _called(op: str, inputs: Sequence[torch.Tensor], given: dict[str, Any]) -> Any:
    from aot.frontend.plugins import dtype_of
    from aot.plugins import cases
    from aot.plugins.loading import load

    plugin = load(BUILT_IN / f"{op}.py")
    config = plugin.configs[given.pop("config", 0)]
    attributes = {**cases.defaults(plugin), **given}
    inputs = [one.contiguous() for one in inputs]
    names = [one.name for one in plugin.schema.inputs]
    shapes = {name: tuple(tensor.shape) for name, tensor in zip(names, inputs, strict=True)}
    plugin.bind(shapes)
    dtypes = plugin.schema.dtypes(plugin.schema.outputs, plugin.schema.chosen([dtype_of(one) for one in inputs]))
    made = plugin.outputs(shapes, attributes)
    # What a kernel does not write stays 77.
    outputs = [torch.full(shape, 77, dtype=getattr(torch, dtype)) for shape, dtype in zip(made, dtypes, strict=True)]
    launch = plugin.launch(shapes, attributes, config)
    plugin.kernel[tuple(launch.grid)](*inputs, *launch.scalars.values(), *outputs, **launch.constants)
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


if __name__ == "__main__":
    torch.save([_called(sys.argv[1], *call) for call in torch.load(sys.argv[2])], sys.argv[3])
