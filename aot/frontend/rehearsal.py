"""A captured program held against its module on a few small inputs: torch.export follows one way through the code.

It says nothing where the module goes another way at a size of 0 or 1, which it never takes for a size that varies; nor
where the model's own `try` swallows what torch raises at a branch on values.

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from aot import batches
from aot.breaks import at_small_sizes
from aot.declaration import ModelSpec
from aot.errors import ExportError
from aot.frontend import call
from aot.frontend.eager import Eager, tensor
from aot.frontend.failures import at_line, by_code
from aot.frontend.paths import parting
from aot.frontend.quiet import RAISED, silenced
from aot.frontend.tracing import captured

if TYPE_CHECKING:
    from aot.arrays import Arrays

APART = 1e-2
"""Relative L2 from which an output says something else. Both use the same kernels, and rounding is judged later."""
DEAR = 2e10
"""Floating-point operations of one forward pass from which one try has to do: about half a second of a core."""

Differs = Callable[[Mapping[str, Any]], bool]


def refuse_another_way(program: torch.export.ExportedProgram, module: torch.nn.Module, spec: ModelSpec) -> None:
    """Raise ExportError where the program gives something else than the module, and a branch is the reason.

    Both are run at the smallest sizes above 1, with inputs of either sign, and with the Dims at 1 and at 0 where they
    reach that; where a pass takes more than `DEAR`, with inputs of one sign alone. The branch is looked for only where
    results differ.
    """
    eager = Eager(module, spec)
    run = program.module(check_guards=False)
    run._forward_pre_hooks.clear()  # they hold sizes against the range that torch noted, which is not the declared one
    names = call.tensor_inputs(program)

    def differs(inputs: Mapping[str, Any]) -> bool:
        """Whether the results are apart; not where one of them cannot be had, which is said elsewhere."""
        try:
            with torch.no_grad():
                got = silenced(lambda: run(**{name: tensor(inputs[name]) for name in names}))
            want = silenced(lambda: eager.forward(inputs))
        except RAISED:
            return False
        return _apart(pytree.tree_leaves(got), pytree.tree_leaves(want))

    usual = {name: next((size for size in dim.sizes if size > 1), dim.bounds[2]) for name, dim in spec.dims.items()}
    dear = _refuse_values(differs, eager, spec, usual)
    for size in (1, 0) if not dear else ():
        small = [name for name, dim in spec.dims.items() if size in dim.sizes and usual[name] != size]
        if small:
            _refuse_size(differs, eager, spec, usual, small, size)


def _refuse_values(differs: Differs, eager: Eager, spec: ModelSpec, usual: Mapping[str, int]) -> bool:
    """For a branch on values. Returns whether a pass is dear."""
    tries = [_signed(batches.generated(spec, usual, seed), spec, sign) for seed, sign in enumerate((1, -1))]
    with FlopCounterMode(display=False) as counter:
        wrong = [differs(tries[0])]
    dear = bool(counter.get_total_flops() > 2 * DEAR)  # of both
    if any(wrong) or not dear:
        wrong.append(differs(tries[1]))
    if not any(wrong):
        return dear
    bad, other = tries if wrong[0] else reversed(tries)
    # Where the program is right for the others, the ways of the module part; else its way and that of the capture.
    way = partial(captured, eager.module, spec) if all(wrong) else partial(eager.forward, other)
    at = parting(partial(eager.forward, bad), way, around=all(wrong))
    if at is not None:
        raise ExportError.of(at_line(*by_code(at.code), at))
    return dear


def _refuse_size(
    differs: Differs, eager: Eager, spec: ModelSpec, usual: Mapping[str, int], small: list[str], size: int
) -> None:
    """For a branch on a size of 0 or 1 of one of the Dims `small`."""

    def at_sizes(names: list[str]) -> Arrays:
        return batches.generated(spec, {**usual, **dict.fromkeys(names, size)}, seed=0)

    if not differs(at_sizes(small)):
        return
    blamed = [name for name in small if len(small) == 1 or differs(at_sizes([name]))] or small
    at = parting(partial(eager.forward, at_sizes(blamed)), partial(eager.forward, at_sizes([])))
    if at is not None:
        said = at_small_sizes([(name, size) for name in blamed], spec.dims)
        raise ExportError.of(at_line("size of 0 or 1", *said, at))


def _signed(inputs: Arrays, spec: ModelSpec, sign: int) -> Arrays:
    """Free floats with one sign, so that of two tries what asks for the sign of a sum is answered both ways."""
    free = {name for name, t in spec.inputs.items() if "float" in t.dtype and t.low is None and t.high is None}
    return {name: sign * abs(values) if name in free else values for name, values in inputs.items()}


def _apart(got: list[Any], want: list[Any]) -> bool:
    tensors = [[leaf for leaf in leaves if isinstance(leaf, torch.Tensor)] for leaves in (got, want)]
    return len(tensors[0]) != len(tensors[1]) or any(map(_far, *tensors))


def _far(got: torch.Tensor, want: torch.Tensor) -> bool:
    if got.shape != want.shape:
        return True
    a, b = (torch.nan_to_num(values.double()) for values in (got, want))
    return bool(torch.linalg.vector_norm(a - b) > APART * torch.linalg.vector_norm(b) + 1e-6)
