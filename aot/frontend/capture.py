"""From a module to an exported program: `torch.export` with the declared Dims, and what it silently does refused.

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

import difflib
import inspect
import warnings
from itertools import chain

import torch

from aot.batches import generated
from aot.declaration import Dim, ModelSpec
from aot.errors import ExportError
from aot.frontend import constraints
from aot.frontend.eager import dtype_advice, tensor


def captured(module: torch.nn.Module, spec: ModelSpec) -> torch.export.ExportedProgram:
    """The module as a program that holds for every declared size. Raises ExportError."""
    examples = _examples(module, spec)
    dims = {
        name: torch.export.Dim(name, min=dim.bounds[0], max=dim.bounds[2])
        for name, dim in spec.dims.items()
        if dim.bounds[0] < dim.bounds[2]
    }
    shapes = {
        name: {a: dims[d.name] for a, d in enumerate(spec.inputs[name].shape) if isinstance(d, Dim) and d.name in dims}
        for name in examples
    }

    def capture() -> torch.export.ExportedProgram:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(module.eval(), (), dict(examples), dynamic_shapes=shapes, strict=False)

    try:
        return constraints.silenced(capture)
    except Exception as error:  # torch.export raises as many types as the model's code can
        refusal = constraints.explained(error, spec, capture)
        refusal.fix = dtype_advice(refusal.what, module, spec) or refusal.fix
        raise refusal from error


def check_inputs(module: torch.nn.Module, spec: ModelSpec) -> None:
    """Raise ExportError unless the declared inputs are what forward takes."""
    parameters = inspect.signature(module.forward).parameters
    where = f"forward of {type(module).__name__}: ({', '.join(parameters)})"
    free = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    unknown = [name for name in spec.inputs if name not in named and not free]
    if unknown:
        near = difflib.get_close_matches(unknown[0], named, n=1)
        raise ExportError(
            f"forward takes no '{unknown[0]}'",
            where=where,
            fix=(f"did you mean '{near[0]}'? " if near else "") + "inputs= uses the names of forward's parameters",
        )
    lacking = [
        name
        for name, p in parameters.items()
        if name not in spec.inputs and p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if lacking:
        raise ExportError(
            f"forward needs {', '.join(lacking)}, which inputs= does not declare",
            where=where,
            fix="declare it as an aot.Input, or give the parameter a default; for a dict of tensors, "
            "wrap the module in one whose forward takes the tensors one by one",
        )


def check_weights(module: torch.nn.Module) -> None:
    """Infinity is refused in parameters only: masks kept in buffers hold it rightly."""
    for name, values in module.named_parameters():
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            bad = int((~torch.isfinite(values)).sum())
            raise ExportError(
                f"{bad} of {values.numel()} values of parameter '{name}' are NaN or infinite",
                where=f"{type(module).__name__}.{name}",
                fix="the checkpoint is damaged or training diverged: load other weights",
            )
    for name, held in module.named_buffers():
        if held.is_floating_point() and bool(torch.isnan(held).any()):
            raise ExportError(f"buffer '{name}' holds NaN", where=f"{type(module).__name__}.{name}")


def _examples(module: torch.nn.Module, spec: ModelSpec) -> dict[str, torch.Tensor]:
    """Inputs to trace with, in the order of forward's parameters.

    Sizes are near opt. 0 and 1 are avoided, for torch takes them for constants, and so are two Dims of
    one size, which it might take for the same.
    """
    sizes: dict[str, int] = {}
    for name, dim in spec.dims.items():
        low, opt, high = dim.bounds
        wanted = min(max(opt, 2), high)
        fresh = chain(range(wanted, high + 1), range(wanted - 1, max(low, 2) - 1, -1))
        sizes[name] = next((s for s in fresh if s not in sizes.values()), wanted)
    made = generated(spec, sizes, seed=0)
    order = [name for name in inspect.signature(module.forward).parameters if name in made]
    order += [name for name in made if name not in order]
    return {name: tensor(made[name]) for name in order}


def check_program(program: torch.export.ExportedProgram, spec: ModelSpec) -> None:
    """Raise ExportError for a program that changes state or fixed a Dim."""
    state = _changed_state(program)
    if state:
        name, node = state
        raise ExportError(
            f"forward changes '{name}' in place, and an engine keeps no state between calls",
            where=constraints.line_of(node) or f"model '{spec.name}'",
            fix="pass the state in as an input and return it as an output",
        )
    shapes = {
        node.name: node.meta["val"].shape
        for node in program.graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)
    }
    for name, declared in spec.inputs.items():
        if name not in shapes:
            raise ExportError(
                f"torch.export lost input '{name}'", where=f"model '{spec.name}'", fix="declare only what forward uses"
            )
        for axis, dim in enumerate(declared.shape):
            if isinstance(dim, Dim) and isinstance(shapes[name][axis], int):
                refuse_fixed(name, axis, dim, shapes[name][axis])


def _changed_state(program: torch.export.ExportedProgram) -> tuple[str, torch.fx.Node] | None:
    """A buffer or parameter that the program writes to, through views or directly, and the node that does."""
    signature = program.graph_signature
    states = {**signature.inputs_to_buffers, **signature.inputs_to_parameters}
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        for position, argument in enumerate(schema.arguments if schema is not None else ()):
            if argument.alias_info is None or not argument.alias_info.is_write or position >= len(node.args):
                continue
            base = node.args[position]
            while isinstance(base, torch.fx.Node) and _is_view(base):
                base = base.args[0]
            if isinstance(base, torch.fx.Node) and base.name in states:
                return states[base.name], node
    return None


def _is_view(node: torch.fx.Node) -> bool:
    """Whether the node's result shares memory with its first argument."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.returns) and schema.returns[0].alias_info is not None


def refuse_fixed(name: str, axis: int, dim: Dim, size: object) -> None:
    """Raise ExportError for a dynamic axis that came out fixed; a Dim with one size only may."""
    if dim.bounds[0] != dim.bounds[2]:
        raise ExportError(
            f"the export fixed Dim '{dim.name}' (input '{name}', axis {axis}) at {size}",
            where=f"input '{name}', axis {axis}",
            fix=f"write the model so that it does not depend on this size, or declare the axis as {size}",
        )
