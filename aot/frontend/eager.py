"""The reference: the module itself, run by torch on the CPU. Imports torch; import it only where torch is needed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from aot import batches
from aot.declaration import ModelSpec
from aot.errors import AotError, DeclarationError, ExportError
from aot.frontend.call import arguments, called
from aot.frontend.failures import PLUGIN_FIX, told
from aot.frontend.paths import parting
from aot.frontend.quiet import RAISED
from aot.sources.loading import deepest

if TYPE_CHECKING:
    from aot.arrays import Arrays


class Eager:
    """`run(inputs) -> outputs`, numpy in and out, without gradients; outputs are named as the export names them."""

    def __init__(self, module: torch.nn.Module, spec: ModelSpec) -> None:
        self._module = module
        self._spec = spec
        self.owner = type(module).__name__

    @property
    def module(self) -> torch.nn.Module:
        """What is run."""
        return self._module

    @property
    def spec(self) -> ModelSpec:
        """What it was declared as."""
        return self._spec

    def arguments(self, given: Mapping[str, torch.Tensor]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """What the module takes for tensors by flat name: by position, and by keyword; lifted states are not in it."""
        return arguments(self._module.forward, self._spec, given)

    def __call__(self, inputs: Mapping[str, Any]) -> Arrays:
        """Raises ExportError where the model cannot run on such inputs, at the user's line."""
        found = named_outputs(self.forward(inputs), self._spec, self.owner)
        return {name: batches.array(value) for name, value in found.items()}

    def flops(self, inputs: Mapping[str, Any]) -> float:
        """Floating-point operations of one forward pass, as torch counts them (matrix products and convolutions)."""
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            self.forward(inputs)
        return float(counter.get_total_flops())

    def parting(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
        """The line at which forward goes another way for one batch than for the other; None where it does not."""
        line = parting(lambda: self(one), lambda: self(other))
        return None if line is None else str(line)

    def forward(self, inputs: Mapping[str, Any]) -> Any:
        """What the module returns, as `called` does. Raises ExportError where it fails."""
        given = {name: tensor(inputs[name]) for name in self._spec.inputs}
        try:
            with torch.no_grad():
                return self._call(given)
        except RAISED as error:
            shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in given.items())
            if isinstance(error, AotError):  # of a plugin that it calls
                raise ExportError(
                    f"the model fails on {shapes}: {told(error)}", where=deepest(error), fix=error.fix or PLUGIN_FIX
                ) from error
            said = " ".join(str(error).split())
            raise ExportError(
                f"the model fails on {shapes}: {type(error).__name__}: {said}",
                where=deepest(error),
                fix=dtype_advice(said, self._module, self._spec)
                or "declare a range of sizes and values that the model accepts",
            ) from error

    def _call(self, given: Mapping[str, torch.Tensor]) -> Any:
        return called(self._module, self._spec, given)


class EagerProgram(Eager):
    """A saved program; its inputs are put back into the structure that it was exported with, constants included."""

    def __init__(self, program: torch.export.ExportedProgram, spec: ModelSpec) -> None:
        super().__init__(program.module(), spec)
        self.owner = "the saved program"
        self._structure = program.call_spec.in_spec
        self._leaves = [one.arg for one in program.graph_signature.input_specs if one.kind is InputKind.USER_INPUT]

    def arguments(self, given: Mapping[str, torch.Tensor]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """See Eager.arguments."""
        leaves = [leaf.value if isinstance(leaf, ConstantArgument) else given[leaf.name] for leaf in self._leaves]
        positional, named = pytree.tree_unflatten(leaves, self._structure)
        return positional, named

    def _call(self, given: Mapping[str, torch.Tensor]) -> Any:
        positional, named = self.arguments(given)
        return self._module(*positional, **named)


def tensor(values: Any) -> torch.Tensor:
    """A torch tensor that owns its memory, bfloat16 included."""
    if isinstance(values, torch.Tensor):
        return values
    if values.dtype.name == "bfloat16":
        return torch.from_numpy(np.array(values.view("int16"))).view(torch.bfloat16)
    return torch.from_numpy(np.array(values))


def dtype_advice(said: str, module: torch.nn.Module, spec: ModelSpec) -> str | None:
    """What to do where torch complained of dtypes and floating-point inputs are not of the weights' dtype."""
    weights = sorted({_dtype(values) for values in module.parameters() if values.is_floating_point()})
    other = {n: t.dtype for n, t in spec.inputs.items() if "float" in t.dtype and t.dtype not in weights}
    if not re.search(r"dtype|same type|scalar type|tensor type", said, re.IGNORECASE) or not weights or not other:
        return None
    inputs = ", ".join(f"'{name}' as {dtype}" for name, dtype in other.items())
    return (
        f"the weights are {' and '.join(weights)}, and inputs= declares {inputs}: "
        f"declare {weights[0]}, or convert the weights (aot lowers the precision itself, with --precision)"
    )


def _dtype(values: torch.Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def named_outputs(result: Any, spec: ModelSpec, owner: str = "the model") -> dict[str, torch.Tensor]:
    """The tensors of what `forward` returned, by name; None is left out. `owner` is the class, for messages.

    Raises ExportError where there is no tensor or a leaf is none, DeclarationError where outputs= does not fit.
    """
    return named_leaves(result, spec, owner, lambda leaf: leaf)


def named_leaves(result: Any, spec: ModelSpec, owner: str, value: Callable[[Any], object]) -> dict[str, Any]:
    """The leaves of what `called` returned, by name, lifted states last; `value` is what a leaf stands for."""
    result, states = result if spec.kept else (result, [])
    leaves = [(path, leaf) for path, leaf in pytree.tree_flatten_with_path(result)[0] if value(leaf) is not None]
    check_returned([value(leaf) for _, leaf in leaves], owner)
    names = output_names([path for path, _ in leaves], spec, by_position=isinstance(result, (tuple, list)))
    found = {name: leaf for name, (_, leaf) in zip(names, leaves, strict=True)}
    for state, leaf in zip(spec.kept.values(), states, strict=True):
        if not isinstance(value(leaf), torch.Tensor):
            raise ExportError(
                f"'{state.path}' is {value(leaf)!r:.40} after a call, not a tensor",
                where=f"forward of {owner}",
                fix="leave a tensor there, of the same shape and dtype at every call",
            )
        found[state.output] = leaf
    return found


def check_returned(leaves: Sequence[object], owner: str) -> None:
    """Raise ExportError unless forward of the class `owner` returned tensors, at least one, and none complex."""
    where = f"forward of {owner}"
    among = " among its outputs" if len(leaves) > 1 else ""
    for leaf in leaves or [None]:
        if not isinstance(leaf, torch.Tensor):
            said = "None" if leaf is None else f"a {type(leaf).__name__} ({leaf!r:.40})"
            raise ExportError(
                f"{where} returns {said}{among}, not a tensor",
                where=where,
                fix="return tensors only: alone, in a tuple or list, or in a dict",
            )
        if leaf.is_complex():
            raise ExportError(
                f"{where} returns a tensor of {_dtype(leaf)}{among}, which no engine has",
                where=where,
                fix="return torch.view_as_real of it, or real and imaginary part apart",
            )


def output_names(paths: Sequence[Any], spec: ModelSpec, *, by_position: bool = False) -> list[str]:
    """Names for output leaves, in the order of the leaves.

    Where nothing is declared, they are the keys that lead to the leaves, else `output_0`, ...; a name that two
    outputs would share, or that an input has, gets a number. Declared names that are those keys, in whatever
    order, go to the leaves of that key. Other names are given in order, but only where the outputs have one:
    alone, in a tuple or list (`by_position`).

    Raises DeclarationError for another number of outputs, or for names that are not the keys of a dict,
    dataclass or the like.
    """
    keys = _keys(paths, spec)
    if not spec.outputs or set(spec.outputs) == set(keys):
        return keys
    if any(paths) and not by_position:
        raise DeclarationError(
            f"outputs= names {', '.join(spec.outputs)}, and forward returns the keys {', '.join(keys)}",
            where=f"model '{spec.name}'",
            fix=f"outputs=[{', '.join(map(json.dumps, keys))}]" + (", in any order" if len(keys) > 1 else ""),
        )
    if len(spec.outputs) != len(paths):
        raise DeclarationError(
            f"outputs= names {len(spec.outputs)} outputs, the model returns {len(paths)}",
            where=f"model '{spec.name}'",
            fix=f"name all {len(paths)}, in order",
        )
    return list(spec.outputs)


def _keys(paths: Sequence[Any], spec: ModelSpec) -> list[str]:
    names: list[str] = []
    for index, path in enumerate(paths):
        keys = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path]
        name = "_".join(keys) if any(not key.isdigit() for key in keys) else f"output_{index}"
        while name in names or name in spec.inputs or name in spec.states.values():
            name = f"{name}_{index}"
        names.append(name)
    return names
