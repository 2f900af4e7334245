"""State that a module keeps between calls: found and refused, or lifted to an input and an output.

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

import base64
import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from aot import batches
from aot.declaration import DTYPES, Input, ModelSpec, State
from aot.errors import DeclarationError
from aot.structure import free

LIMIT = 2**20
"""Bytes of a state that is not one value repeated: they travel in the manifest."""


@contextmanager
def placed(module: torch.nn.Module, kept: Mapping[str, State], given: Mapping[str, Any]) -> Iterator[list[Any]]:
    """The states put where the module keeps them, for one call.

    Yields a list that holds the new ones, in order, once the block is left; the module is as it was then.
    """
    after: list[Any] = []
    with ExitStack() as undo:
        homes = [_home(module, state.path) for state in kept.values()]
        for home, name in zip(homes, kept, strict=True):
            undo.callback(_vacated(*home))
            _put(*home, given[name].clone())  # so that a change in place is not one of the input
        yield after
        after += [held.clone() if isinstance(held := _get(*home), torch.Tensor) else held for home in homes]


def _vacated(owner: Any, name: str) -> Callable[[], None]:
    """Take a tensor from its place; returns what brings it back.

    A buffer is no buffer meanwhile: torch.export takes what is assigned to one for a change of the module.
    """
    if not isinstance(owner, torch.nn.Module) or name not in owner._buffers:
        return partial(_put, owner, name, _get(owner, name))
    buffers = dict(owner._buffers)
    del owner._buffers[name]

    def back() -> None:
        vars(owner).pop(name, None)
        owner._buffers.clear()  # the order is kept
        owner._buffers.update(buffers)

    return back


def _home(module: torch.nn.Module, path: str) -> tuple[Any, str]:
    """What holds the last name of a path, and that name."""
    *way, last = path.split(".")
    owner: Any = module
    for name in way:
        owner = _get(owner, name)
    return owner, last


def _get(owner: Any, name: str) -> Any:
    if isinstance(owner, list):
        return owner[int(name)]
    return owner[name] if isinstance(owner, dict) else getattr(owner, name)


def _put(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, list):
        owner[int(name)] = value
    elif isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, value)


def completed(spec: ModelSpec, module: torch.nn.Module, asked: Mapping[str, Input | None]) -> ModelSpec:
    """The spec with an input and an output for every state that was asked for, by attribute.

    Generated states are drawn from the range that a few calls were seen to take. Raises DeclarationError for an
    attribute that is not there or holds no tensor, an Input that does not fit it, and a state whose shape or dtype
    a call changes.
    """
    taken = {*spec.inputs, *spec.outputs}
    inputs, kept = dict(spec.inputs), dict(spec.kept)
    for path, wanted in asked.items():
        value = _tensor(module, path)
        name = free(f"state_{path}", taken)
        output = free(f"{name}_out", {*taken, name})
        taken |= {name, output}
        inputs[name] = _input(path, value, wanted)
        kept[name] = State(path, output, _encoded(path, value, inputs[name]))
    spec = replace(spec, inputs=inputs, kept=kept)
    return replace(spec, inputs=_ranged(spec, module)) if kept else spec


def _tensor(module: torch.nn.Module, path: str) -> torch.Tensor:
    where = f"states= of @aot.model, {type(module).__name__}"
    try:
        value = _get(*_home(module, path))
    except (AttributeError, KeyError, IndexError, ValueError):
        known = [name for name, _ in module.named_buffers()]
        known += [
            f"{at}.{name}" if at else name
            for at, part in module.named_modules()
            for name, held in vars(part).items()
            if isinstance(held, torch.Tensor)
        ]
        near = difflib.get_close_matches(path, known, n=1)
        raise DeclarationError(
            f"the module has no '{path}'",
            where=where,
            fix=f"did you mean '{near[0]}'?" if near else f"its tensors are {', '.join(known[:20]) or 'all weights'}",
        ) from None
    if isinstance(value, torch.nn.Parameter) or not isinstance(value, torch.Tensor):
        said = "is a weight" if isinstance(value, torch.Tensor) else f"is {value!r:.40}, not a tensor,"
        raise DeclarationError(f"'{path}' {said} before the first call", where=where, fix=advice(path, value))
    if _dtype(value) not in DTYPES:
        raise DeclarationError(
            f"'{path}' is of dtype {_dtype(value)}", where=where, fix=f"keep it as one of: {', '.join(DTYPES)}"
        )
    return value


def advice(path: str, value: object, later: object = None) -> str:
    """What to do to have a state lifted, from what its attribute holds before the first call and after it."""
    name = path.rpartition(".")[2]
    if isinstance(value, torch.nn.Parameter):
        return f"keep what changes in a buffer beside it, and name that in states=, not '{path}'"
    if isinstance(value, torch.Tensor):
        flat = re.sub(r"\W", "_", f"state_{path}")
        return (
            f'add states=["{path}"] to @aot.model: the engine then takes {flat} and returns {flat}_out, '
            "which the caller passes to the next call"
        )
    if isinstance(value, int | float):
        return (
            f'keep it in a tensor, self.register_buffer("{name}", torch.tensor({value})), '
            f'and add states=["{path}"] to @aot.model'
        )
    if isinstance(later, list | tuple) and len(later) > 1:
        return f"start it as {len(later)} tensors, in a buffer each, and add the buffers to states= of @aot.model"
    return f'start it as a tensor, in a buffer, and add states=["{path}"] to @aot.model'


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _input(path: str, value: torch.Tensor, wanted: Input | None) -> Input:
    if wanted is None:
        return Input(list(value.shape), _dtype(value))
    if wanted.dtype != _dtype(value):
        raise DeclarationError(
            f"'{path}' is of {_dtype(value)}, and states= declares it as {wanted.dtype}", where="states= of @aot.model"
        )
    return wanted


def _encoded(path: str, value: torch.Tensor, tensor: Input) -> str:
    """The bytes of the state before the first call; see `State.initial`."""
    elements = batches.array(value)
    first = elements.reshape(-1)[:1]
    alike = bool((elements == first).all()) if elements.size else True
    if elements.size and not alike and tuple(elements.shape) != tensor.shape:
        raise DeclarationError(
            f"'{path}' starts as {list(elements.shape)} values that differ, which do not fill {list(tensor.shape)!r}",
            where="states= of @aot.model",
            fix="start it with one value everywhere, or take it as an input of forward",
        )
    if not alike and elements.nbytes > LIMIT:
        raise DeclarationError(
            f"'{path}' starts as {elements.nbytes:,} bytes that differ; aot keeps up to {LIMIT:,}",
            where="states= of @aot.model",
            fix="start it with one value everywhere, or take it as an input of forward",
        )
    return base64.b64encode((first if alike else elements).tobytes()).decode()


def _ranged(spec: ModelSpec, module: torch.nn.Module) -> dict[str, Input]:
    """The inputs, those of states with the range of values that three calls in a row were seen to leave."""
    from aot.frontend.eager import Eager
    from aot.frontend.watch import Snapshot

    sizes = {name: next(size for size in dim.sizes if size) for name, dim in spec.dims.items()}
    now = batches.initial(spec, sizes)
    seen = {name: [value] for name, value in now.items()}
    eager, snapshot = Eager(module, spec), Snapshot(module)
    try:
        for seed in range(3):
            outputs = eager({**batches.generated(spec, sizes, seed), **now})
            now = {name: outputs[output] for name, output in spec.states.items()}
            for name, value in now.items():
                _refuse_another(spec.kept[name].path, seen[name][0], value)
                seen[name].append(value)
    finally:
        snapshot.restore()
    return {name: _bounded(t, seen[name]) if name in seen else t for name, t in spec.inputs.items()}


def _refuse_another(path: str, before: Any, after: Any) -> None:
    for what, one, two in (("shape", before.shape, after.shape), ("dtype", before.dtype, after.dtype)):
        if one != two:
            said = (list(one), list(two)) if what == "shape" else (one, two)
            raise DeclarationError(
                f"'{path}' has {what} {said[0]} before a call and {said[1]} after it",
                where="states= of @aot.model",
                fix=f'declare the shape that it has from then on: states={{"{path}": aot.Input([batch, ...])}}'
                if what == "shape"
                else f"keep it in {two} from the start",
            )


def _bounded(tensor: Input, values: list[Any]) -> Input:
    """The input with the least and the greatest finite value seen, where the declaration gives no bound."""
    import numpy as np

    if tensor.low is not None or tensor.high is not None or tensor.dtype == "bool":
        return tensor
    every = np.concatenate([value.reshape(-1).astype(np.float64) for value in values])
    every = every[np.isfinite(every)]
    if not every.size or every.min() == every.max():
        return tensor
    more = 0 if "float" in tensor.dtype else 1
    return replace(tensor, low=float(every.min()), high=float(every.max()) + more)
