"""Kernels of built-in plugins on Triton's interpreter: in one other process, for Triton decides when it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
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
        process = _process()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{op}\t{asked}\t{answered}\n")
        process.stdin.flush()
        said = process.stdout.readline()
        if not said:
            _process.cache_clear()
        assert said == f"{answered}\n", f"the interpreter said {said!r}; where it ended, its error stands above"
        found: list[Any] = torch.load(answered)
    return found


@cache
def _process() -> subprocess.Popen[str]:
    """The process, which ends when its input does, with this one."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.plugins.kernels"]
    return subprocess.Popen(
        command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


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
    for line in sys.stdin:
        name, question, answer = line.rstrip("\n").split("\t")
        torch.save([_called(name, *call) for call in torch.load(question)], answer)
        print(answer, flush=True)
