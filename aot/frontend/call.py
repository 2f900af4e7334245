"""From flat tensors to what forward takes, for running a module and for capturing it.

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch

from aot.declaration import ModelSpec
from aot.errors import ExportError
from aot.frontend import state
from aot.structure import Tree, grown, leaves


def check(module: torch.nn.Module, spec: ModelSpec) -> None:
    """Raise ExportError unless the declared inputs are what forward takes."""
    parameters = inspect.signature(module.forward).parameters
    where = f"forward of {type(module).__name__}: ({', '.join(map(str, parameters.values()))})"
    free = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [name for name in spec.parameters if name not in parameters and not free]
    if unknown:
        near = difflib.get_close_matches(unknown[0], parameters, n=1)
        raise ExportError(
            f"forward takes no '{unknown[0]}'",
            where=where,
            fix=(f"did you mean '{near[0]}'? " if near else "") + "inputs= uses the names of forward's parameters",
        )
    for name, parameter in parameters.items():
        tree = spec.parameters.get(name)
        if tree is not None and parameter.kind is parameter.VAR_POSITIONAL and not {"list", "tuple"} & set(tree):
            raise ExportError(
                f"*{name} takes any number of values, and inputs= declares one",
                where=where,
                fix=f'inputs={{"{name}": [aot.Input(...), ...]}}',
            )
        if tree is not None and parameter.kind is parameter.VAR_KEYWORD and "dict" not in tree:
            raise ExportError(
                f"**{name} takes values by name, and inputs= declares one",
                where=where,
                fix=f'inputs={{"{name}": {{"NAME": aot.Input(...)}}}}, or their names without {name}',
            )
    various = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [name for name, p in parameters.items() if p.default is p.empty and p.kind not in various]
    lacking = [name for name in needed if name not in spec.parameters]
    if lacking:
        raise ExportError(
            f"forward needs {', '.join(lacking)}, which inputs= does not declare",
            where=where,
            fix="declare it: as an aot.Input, None, a number or a text, or a dict, list, tuple or dataclass of these",
        )


def arguments(forward: Callable[..., Any], spec: ModelSpec, given: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """The positional and the keyword arguments of forward, from tensors by flat name."""
    values = {name: grown(tree, given) for name, tree in spec.parameters.items()}
    parameters = inspect.signature(forward).parameters
    spread = any(p.kind is p.VAR_POSITIONAL and name in values for name, p in parameters.items())
    positional: list[Any] = []
    more: dict[str, Any] = {}
    for name, p in parameters.items():
        if p.kind is p.POSITIONAL_ONLY or (spread and p.kind is p.POSITIONAL_OR_KEYWORD):
            positional.append(values.pop(name, p.default))
        elif p.kind is p.VAR_POSITIONAL:
            positional += values.pop(name, ())
        elif p.kind is p.VAR_KEYWORD:
            more = values.pop(name, {})
    return positional, {**values, **more}


def called(
    module: torch.nn.Module, spec: ModelSpec, given: Mapping[str, Any], forward: Callable[..., Any] | None = None
) -> Any:
    """What the module returns for tensors by flat name; where states are lifted, that and the list of the new states.

    forward: what to call in place of the module, hooks left out.
    """
    positional, named = arguments(forward or module.forward, spec, given)
    call = forward or module
    if not spec.kept:
        return call(*positional, **named)
    with state.placed(module, spec.kept, given) as taken:
        return call(*positional, **named), taken


def ordered(module: torch.nn.Module, spec: ModelSpec) -> list[str]:
    """The flat names in the order of forward's parameters, states last."""
    trees: dict[str, Tree] = dict(spec.parameters)
    first = [name for name in inspect.signature(module.forward).parameters if name in trees]
    names = [leaf for name in [*first, *(n for n in trees if n not in first)] for leaf in leaves(trees[name])]
    return [*names, *spec.kept]


def flat(module: torch.nn.Module, spec: ModelSpec) -> torch.nn.Module:
    """The module with a forward that takes the flat tensors by name, so that a captured program takes just these.

    The module itself where its forward does already; else a module of a subclass, with the same parameters,
    buffers and submodules under the same names, and the outputs of `called`.
    """
    parameters = inspect.signature(module.forward).parameters
    by_name = {name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    plain = not spec.structure and not spec.kept
    if by_name.issuperset(spec.inputs) and (plain or len(by_name) == len(spec.inputs)):
        return module
    kind = type(module)
    patched = vars(module).get("forward")  # put on the instance rather than the class, as some libraries do

    def forward(self: torch.nn.Module, **given: torch.Tensor) -> Any:
        return called(self, spec, given, patched or MethodType(kind.forward, self))

    names = ["self", *ordered(module, spec)]
    signature = inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names])
    forward.__signature__ = signature  # type: ignore[attr-defined]
    made: Any = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
    same: torch.nn.Module = made.__new__(made)
    same.__dict__.update({name: value for name, value in vars(module).items() if name != "forward"})
    return same


def tensor_inputs(program: torch.export.ExportedProgram) -> list[str]:
    """The names of a program's inputs that are tensors, in order; constants among its inputs have none."""
    return [
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind is torch.export.graph_signature.InputKind.USER_INPUT
        and isinstance(spec.arg, torch.export.graph_signature.TensorArgument)
    ]
