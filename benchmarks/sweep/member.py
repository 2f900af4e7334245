"""One model of a sweep, as data, and the `model.py` that a user of `aot` would write for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aot import Dim, Input
from aot.declaration import ModelSpec


@dataclass(frozen=True)
class Member:
    """A model that stands for its family.

    make: the expression that builds the module. inputs: forward's parameters. setup: lines before the declaration,
    such as imports, or a module around one whose forward takes or returns something else than tensors.
    padding: the input whose zeros mark padding. settle: the weights are random, and become what `sweep.settle` says.
    """

    name: str
    family: str
    make: str
    inputs: Mapping[str, Input]
    setup: str = ""
    padding: str | None = None
    settle: bool = True

    @property
    def dims(self) -> dict[str, Dim]:
        """The Dims, by name."""
        return ModelSpec(self.name, self.inputs).dims

    def declaration(self) -> str:
        """The text of `model.py`."""
        function = "".join(c if c.isalnum() else "_" for c in self.name)
        dims = [f"{n} = aot.Dim({n!r}, min={d.min}, opt={d.opt}, max={d.max})" for n, d in self.dims.items()]
        inputs = [f"    {name!r}: {_written(tensor)}," for name, tensor in self.inputs.items()]
        setup = self.setup.strip().splitlines()
        padding = f", padding={self.padding!r}" if self.padding else ""
        settle = ["from sweep.settle import settled"] if self.settle else []
        made = f"settled({self.make}, INPUTS{padding})" if self.settle else self.make
        lines = ["import aot", "import torch", *setup, *settle, "", *dims, "INPUTS = {", *inputs, "}", ""]
        lines += [f"@aot.model(inputs=INPUTS{padding})", f"def {function}():"]
        return "\n".join([*lines, "    torch.manual_seed(0)", f"    return {made}", ""])


@dataclass(frozen=True)
class Library:
    """The members that one library gives. imports: what a worker's parent imports once for all of them."""

    name: str
    members: Sequence[Member]
    imports: tuple[str, ...] = ()


def _written(tensor: Input) -> str:
    shape = ", ".join(d.name if isinstance(d, Dim) else str(d) for d in tensor.shape)
    bounds = "".join(f", {n}={v}" for n, v in (("low", tensor.low), ("high", tensor.high)) if v is not None)
    return f"aot.Input([{shape}], {tensor.dtype!r}{bounds})"
