"""A program saved by `torch.export.save`: `x.pt2`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.config import Precision
from aot.content import plugin_digest
from aot.errors import ExportError
from aot.plugins.replacing import NOTHING, Replacing
from aot.source import Runner
from aot.sources.declared import EXPORT_TOOLS
from aot.sources.dims import Found
from aot.sources.file import FileSource, Tensor

if TYPE_CHECKING:
    import torch


class SavedProgram(FileSource):
    """An exported program. Its Dims are the symbols it was saved with; opt is the size it was traced at."""

    tools = EXPORT_TOOLS
    _loaded: torch.export.ExportedProgram | None = None

    def _program(self) -> torch.export.ExportedProgram:
        if self._loaded is None:
            import torch

            from aot.frontend.plugins import register_named_in
            from aot.frontend.quiet import silenced

            register_named_in(self.path, self.project)
            try:
                self._loaded = silenced(lambda: torch.export.load(self.path))
            except Exception as error:  # torch raises whatever a damaged archive makes of its readers
                said = " ".join(str(error).split())[:300]
                raise ExportError(
                    f"not a program that torch can load: {type(error).__name__}: {said}",
                    where=str(self.path),
                    fix="save it again with torch.export.save, with the torch that is installed here or an older one",
                ) from error
        return self._loaded

    def plugins_key(self, ops: Sequence[str]) -> str:
        """The program names plugins, whose references are what it computes."""
        return plugin_digest(self.project)

    def describe(self) -> list[Tensor]:
        """Raises ExportError for an input that is neither a tensor nor a constant, or a size computed from others."""
        import torch
        from torch.export.graph_signature import ConstantArgument, InputKind
        from torch.utils import _pytree as pytree

        program = self._program()
        given = [one.arg for one in program.graph_signature.input_specs if one.kind is InputKind.USER_INPUT]
        examples = pytree.tree_leaves(program.example_inputs) if program.example_inputs is not None else []
        traced = dict(zip([argument.name for argument in given], examples, strict=False))
        values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
        ranges = {str(symbol): bounds for symbol, bounds in program.range_constraints.items()}
        tensors = []
        for name in (argument.name for argument in given if not isinstance(argument, ConstantArgument)):
            value = values.get(name)
            if not isinstance(value, torch.Tensor):
                raise ExportError(
                    f"input '{name}' is not a tensor",
                    where=str(self.path),
                    fix="export the program again with tensors and constants as its only inputs",
                )
            example = traced.get(name)
            shape: list[int | Found] = []
            for axis, size in enumerate(value.shape):
                opt = int(example.shape[axis]) if isinstance(example, torch.Tensor) else None
                shape.append(int(size) if isinstance(size, int) else self._axis(str(size), name, axis, ranges, opt))
            tensors.append(Tensor(name, str(value.dtype).removeprefix("torch."), shape))
        return tensors

    def _axis(self, symbol: str, name: str, axis: int, ranges: Mapping[str, Any], opt: int | None) -> Found:
        if not symbol.isidentifier():
            raise ExportError(
                f"axis {axis} of input '{name}' has the computed size {symbol}",
                where=str(self.path),
                fix="export the program again with a dimension of its own for this axis",
            )
        bounds = ranges.get(symbol)
        low = int(bounds.lower) if bounds is not None else 0
        # An open range ends at a symbolic infinity, or at the largest 64-bit integer.
        high = str(bounds.upper) if bounds is not None else ""
        return Found(symbol, name, axis, low, int(high) if high.isdigit() and int(high) < 2**31 else None, opt)

    def write_onnx(self, folder: Path, replacing: Replacing = NOTHING) -> Mapping[str, Any]:
        """Translate the program as it was saved."""
        from aot.frontend import export

        return export.write_program(self._program(), self.spec, folder, project=self.project, replacing=replacing)

    def write_program(self, path: Path, precision: Precision) -> Mapping[str, Any]:
        """Capture the program again, its inputs and outputs by name."""
        from aot.frontend import program
        from aot.frontend.eager import EagerProgram

        return program.write(EagerProgram(self._program(), self.spec), self.spec, path, precision)

    def eager(self) -> Runner:
        """The program's own module, run by torch on the CPU."""
        from aot.frontend.eager import EagerProgram

        return EagerProgram(self._program(), self.spec)
