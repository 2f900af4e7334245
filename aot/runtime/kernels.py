"""Kernels of plugins as they travel in an artifact: code, and how TensorRT launches it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aot.errors import PluginError
from aot.plugins.sizes import evaluate, is_expression
from aot.runtime.files import damaged, json_of

LAUNCHED = ".kernels"
"""Ends the name of what lies beside a plan: the kernels that it does not hold itself."""


@dataclass(frozen=True)
class Compiled:
    """A kernel as TensorRT launches it, and how: all plain data, to travel in an artifact.

    entry: its name in `code`, the PTX. threads: per program. shared: bytes of shared memory. registers: per thread.
    spilled: bytes a thread that did not fit into them. grid, scalars, outputs: expressions of the inputs' sizes (see
    sizes.py), three axes, by the order of the kernel's parameters, and a shape each. digest: SHA-256 of `code`; source:
    of the plugin's file.
    """

    plugin: str
    target: str
    entry: str
    code: str
    threads: int
    shared: int
    registers: int
    spilled: int
    inputs: tuple[str, ...]
    dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    grid: tuple[Any, ...]
    scalars: Mapping[str, Any]
    outputs: tuple[Any, ...]
    config: Mapping[str, Any]
    digest: str
    source: str

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Compiled:
        """The inverse of `to_json`. Raises PluginError where the code is not what the digest says, TypeError, KeyError
        or ValueError for data that describe no kernel."""
        lists = ("inputs", "dtypes", "output_dtypes", "grid", "outputs")
        made = cls(**{**data, **{name: tuple(data[name]) for name in lists}})
        made._check()
        if hashlib.sha256(made.code.encode()).hexdigest() != made.digest:
            raise PluginError(f"the kernel of {made.plugin} is not the one that was compiled", fix="build it again")
        return made

    def _check(self) -> None:
        texts = (self.plugin, self.target, self.entry, self.code, self.digest, self.source)
        numbers = (self.threads, self.shared, self.registers, self.spilled)
        names = (*self.inputs, *self.dtypes, *self.output_dtypes)
        if not all(isinstance(text, str) for text in (*texts, *names)):
            raise TypeError("a name or the code is no text")
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise TypeError("threads, shared, registers or spilled is no number of them")
        if len(self.grid) != 3 or len(self.outputs) != len(self.output_dtypes) or len(self.inputs) != len(self.dtypes):
            raise ValueError("the grid has not three axes, or there are not as many dtypes as inputs and outputs")
        trees = [*self.grid, *self.scalars.values(), *(size for shape in self.outputs for size in shape)]
        if not isinstance(self.config, Mapping) or not all(is_expression(tree, self.inputs) for tree in trees):
            raise ValueError("what is computed of sizes for a launch is no expression of them")

    def launched(self, shapes: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(grid, scalars) for inputs of these shapes. Raises PluginError where they cannot be computed."""
        sizes = dict(zip(self.inputs, shapes, strict=True))
        try:
            grid = tuple(evaluate(tree, sizes) for tree in self.grid)
            return grid, tuple(evaluate(tree, sizes) for tree in self.scalars.values())
        except (IndexError, ZeroDivisionError) as error:
            raise PluginError(
                f"the kernel of {self.plugin} cannot be launched: {error}", fix="build it again"
            ) from error


def read_kernels(path: Path) -> dict[str, tuple[Compiled, ...]]:
    """Node name -> its kernels, one for each way to run it, of a file such as `kernels.json`.

    Raises ArtifactError for a file that does not hold kernels, PluginError for damaged code.
    """
    try:
        made = [(group["nodes"], tuple(map(Compiled.from_json, group["kernels"]))) for group in json_of(path)]
        return {node: kernels for nodes, kernels in made for node in nodes}
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise damaged(path, f"it does not hold kernels: {error}") from error
