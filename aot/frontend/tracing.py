"""One module, traced by torch.export at one set of sizes after another until a trace holds for all of them.

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

import inspect
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from aot.batches import generated
from aot.breaks import Break
from aot.declaration import Dim, ModelSpec
from aot.errors import ExportError
from aot.frontend import call, failures, guards, splits
from aot.frontend.bridge import recurrent
from aot.frontend.bridge.substitutes import Substitutes
from aot.frontend.eager import dtype_advice, tensor
from aot.frontend.quiet import RAISED, listening


@dataclass(frozen=True)
class Attempt:
    """One trace: the program, or why there is none.

    again: another example may give another answer.
    """

    program: torch.export.ExportedProgram | None
    reasons: tuple[Break, ...] = ()
    error: BaseException | None = None
    again: bool = False


def captured(module: torch.nn.Module, spec: ModelSpec) -> torch.export.ExportedProgram:
    """The module as a program that holds for every declared size. Raises ExportError.

    An example decides which way a branch goes, so where one fails others are tried. The first reason is
    reported, but one about sizes before one that only says that the model fails at a size.
    """
    module = call.flat(module, spec)
    failed: list[Attempt] = []
    for sizes in examples(module, spec):
        made = attempt(module, spec, sizes)
        if made.program is not None:
            return made.program
        failed.append(made)
        if not made.again:
            break
    worst = next((one for one in failed if one.reasons[0].kind != failures.OTHER), failed[0])
    refusal = ExportError.of(worst.reasons[0], f"model '{spec.name}'")
    refusal.fix = dtype_advice(refusal.what, module, spec) or refusal.fix
    raise refusal from worst.error


def attempt(module: torch.nn.Module, spec: ModelSpec, sizes: Mapping[str, int]) -> Attempt:
    """Trace at these sizes. What torch's solver cannot decide about sizes is decided by trying the declared ones."""
    program, error, found = _traced(module, spec, sizes, auto=False)
    missed = guards.refusable(found)
    if program is not None:
        own = [guard for guard in missed if guard.own]  # of the others torch made sure
        return Attempt(None, (splits.explained(own, spec),)) if own else Attempt(program)
    assert error is not None
    if "Constraints violated" not in str(error):
        reason = failures.explained(error, spec, sizes)
        if reason.kind == failures.OTHER:
            reason = _outside_of_torch(module, spec, sizes) or reason
        return Attempt(None, (reason,), error, again=reason.kind == failures.OTHER)
    if missed:
        again = not any(guard.own for guard in missed)
        return Attempt(None, (splits.explained(missed, spec),), error, again)
    program, later, found = _traced(module, spec, sizes, auto=True)
    missed = guards.refusable(found)
    if missed:
        return Attempt(None, (splits.explained(missed, spec),), error)
    if program is not None:
        return Attempt(program)
    return Attempt(None, (failures.explained(later or error, spec, sizes),), error, again=True)


def _outside_of_torch(module: torch.nn.Module, spec: ModelSpec, sizes: Mapping[str, int]) -> Break | None:
    """The reason where the model fails at these sizes by itself, when it is called; None where only its export does."""
    given, _ = arguments(module, spec, sizes)
    try:
        with listening(logging.NullHandler(), guards.Listener.LOGGER), torch.no_grad():
            module(**given)
    except RAISED as error:
        return failures.own(error, {name: list(values.shape) for name, values in given.items()})
    return None


def _traced(
    module: torch.nn.Module, spec: ModelSpec, sizes: Mapping[str, int], *, auto: bool
) -> tuple[torch.export.ExportedProgram | None, BaseException | None, list[guards.Guard]]:
    """(program, exception, guards) of one trace. `auto`: torch holds the conditions on sizes against no range."""
    given, shapes = arguments(module, spec, sizes)
    if auto:
        shapes = {name: dict.fromkeys(axes, torch.export.Dim.AUTO) for name, axes in shapes.items()}
    heard = guards.Listener()
    try:
        silent = listening(heard, heard.LOGGER)
        with silent, torch.no_grad(), recurrent.kept_whole(), Substitutes(), _agreed(module, spec):
            made = torch.export.export(module, (), given, dynamic_shapes=shapes, strict=False)
        return made, None, guards.found(guards.env_of_program(made), heard.asked, spec)
    except RAISED as error:  # torch.export raises as many types as the model's code can
        return None, error, guards.found(guards.env_of_error(error), heard.asked, spec)


@contextmanager
def _agreed(module: torch.nn.Module, spec: ModelSpec) -> Iterator[None]:
    """Within, the axes of one Dim have one size in a trace of the module from its first line on.

    torch gives every axis a size of its own and finds the equal ones when the trace is done, which is too late where
    the code adds them up: `torch.cat([a, b]).chunk(2)` asks about floor((a + b + 1) / 2), of which no range is known.
    """
    axes: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for name, declared in spec.inputs.items():
        for axis, dim in enumerate(declared.shape):
            if isinstance(dim, Dim):
                axes[dim.name].append((name, axis))

    def check(_: torch.nn.Module, args: tuple[Any, ...], given: Mapping[str, torch.Tensor]) -> None:
        for (first, at), *others in axes.values():
            for name, axis in others:
                torch._check(given[name].shape[axis] == given[first].shape[at])

    hook = module.register_forward_pre_hook(check, prepend=True, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def arguments(
    module: torch.nn.Module, spec: ModelSpec, sizes: Mapping[str, int]
) -> tuple[dict[str, torch.Tensor], dict[str, dict[int, Any]]]:
    """(inputs to trace with, their dynamic shapes), by name, in the order of forward's parameters."""
    made = generated(spec, sizes, seed=0)
    order = [name for name in inspect.signature(module.forward).parameters if name in made]
    names = [*order, *(name for name in made if name not in order)]
    dims = _dims(spec)
    axes = {name: enumerate(spec.inputs[name].shape) for name in names}
    shapes = {
        name: {axis: dims[dim.name] for axis, dim in axes[name] if isinstance(dim, Dim) and dim.name in dims}
        for name in names
    }
    return {name: tensor(made[name]) for name in names}, shapes


def _dims(spec: ModelSpec) -> dict[str, Any]:
    """The Dims as torch.export takes them, those of one size left out. A Dim in steps is a multiple of another."""
    made: dict[str, Any] = {}
    for name, dim in spec.dims.items():
        (low, _, high), step = dim.bounds, dim.multiple_of
        if low == high:
            continue
        if step == 1:
            made[name] = torch.export.Dim(name, min=low, max=high)
        else:
            made[name] = step * torch.export.Dim(f"_{name}", min=low // step, max=high // step)
    return made


def examples(module: torch.nn.Module, spec: ModelSpec) -> Iterator[dict[str, int]]:
    """Sizes to trace at, one set after another: near opt but unlike each other and the weights, then opt itself,
    then large ones, then multiples of 64, which most networks of stages can halve as often as they want.

    0 and 1 are avoided, for torch takes them for constants. So is a size that occurs twice or that weights have,
    for `==` then holds by coincidence.
    """
    common = {size for weight in module.parameters() for size in weight.shape}
    common |= {size for declared in spec.inputs.values() for size in declared.shape if isinstance(size, int)}
    optimum = {name: _least(dim, dim.bounds[1]) for name, dim in spec.dims.items()}
    large = {name: _least(dim, (optimum[name] + 3 * dim.bounds[2]) // 4) for name, dim in spec.dims.items()}
    even = {name: _least(dim, max(optimum[name] // 64, 1) * 64) for name, dim in spec.dims.items()}
    seen: list[dict[str, int]] = []
    for sizes in (_apart(spec, optimum, common), optimum, _apart(spec, large, common), even):
        if sizes not in seen:
            seen.append(sizes)
            yield sizes


def _least(dim: Dim, size: int) -> int:
    """The size, brought to one that the Dim may have, and to two steps at least where it can."""
    step = dim.multiple_of
    return max(min(max(size // step * step, 2 * step), dim.bounds[2]), dim.bounds[0])


def _apart(spec: ModelSpec, wanted: Mapping[str, int], common: set[int]) -> dict[str, int]:
    """Sizes near those wanted, none of them common and no two the same, where the Dims leave the choice."""
    sizes: dict[str, int] = {}
    for name, dim in spec.dims.items():
        at, step = wanted[name], dim.multiple_of
        above = range(at, min(dim.bounds[2], at + 32 * step) + 1, step)
        below = range(at - step, max(dim.bounds[0], 2 * step, at - 32 * step) - 1, -step)
        taken = set(sizes.values())
        near = [size for size in (*above, *below) if size not in taken]
        sizes[name] = next((size for size in near if size not in common), near[0] if near else at)
    return sizes
