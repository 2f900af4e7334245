"""What a module must be before it is captured, and what an exported program must not do.

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

import torch

from aot.declaration import Dim, ModelSpec
from aot.errors import ExportError
from aot.frontend import lines, randomness
from aot.frontend.failures import GPU, at_line


def check_weights(module: torch.nn.Module) -> None:
    """Infinity is refused in parameters only: masks kept in buffers hold it rightly."""
    for name, values in module.named_parameters():
        if not _bounded(values):
            bad = int((~torch.isfinite(values)).sum())
            raise ExportError(
                f"{bad} of {values.numel()} values of parameter '{name}' are NaN or infinite",
                where=f"{type(module).__name__}.{name}",
                fix="the checkpoint is damaged or training diverged: load other weights",
            )
    for name, held in module.named_buffers():
        if not _bounded(held) and bool(torch.isnan(held).any()):
            raise ExportError(f"buffer '{name}' holds NaN", where=f"{type(module).__name__}.{name}")


def _bounded(values: torch.Tensor) -> bool:
    """Whether all values are finite. The extremes tell, without a copy of weights that may fill the memory."""
    if not values.is_floating_point() or not values.numel():
        return True
    wide = values.detach() if values.dtype.itemsize > 1 else values.detach().float()
    return all(bool(torch.isfinite(end)) for end in torch.aminmax(wide))


def check_program(program: torch.export.ExportedProgram, spec: ModelSpec) -> None:
    """Raise ExportError for a program that changes state, draws random numbers or fixed a Dim."""
    state = _changed_state(program)
    if state:
        name, node = state
        raise ExportError(
            f"forward changes '{name}' in place, and an engine keeps no state between calls",
            where=str(lines.of_node(node) or f"model '{spec.name}'"),
            fix=f'add states=["{name}"] to @aot.model, or leave that line out where no later call needs it; '
            "for a saved program, take the state as an input and return it",
        )
    moved = next((node for node in program.graph.nodes if _on_gpu(node)), None)
    if moved is not None:
        raise ExportError.of(at_line(*GPU, lines.of_node(moved)), f"model '{spec.name}'")
    drawn = randomness.drawn(program)
    if drawn:
        raise ExportError(drawn[0].what, where=drawn[0].where or f"model '{spec.name}'", fix=drawn[0].fix, breaks=drawn)
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


def _on_gpu(node: torch.fx.Node) -> bool:
    """Whether the node puts its result on a GPU."""
    device = node.kwargs.get("device")
    return isinstance(device, torch.device) and device.type not in ("cpu", "meta")


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
