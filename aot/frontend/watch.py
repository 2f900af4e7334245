"""What forward leaves behind in a module: found by calling it, told with the line that does it, and undone.

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator, Mapping, MutableSequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from aot import batches
from aot.declaration import ModelSpec
from aot.errors import ExportError
from aot.frontend.eager import Eager
from aot.frontend.failures import at_line
from aot.frontend.lines import Line, of_frame
from aot.frontend.paths import first_seen
from aot.frontend.quiet import silenced
from aot.frontend.state import advice

if TYPE_CHECKING:
    from aot.arrays import Arrays

_OWN = frozenset(vars(torch.nn.Module()))
"""Attributes that every module has."""
_ABSENT = object()
_DEPTH = 4
"""How deep lists, dicts and plain objects among the attributes are looked into."""


@dataclass(frozen=True)
class Change:
    """An attribute that is not what it was. put: sets it, to `before` or to `after`."""

    path: str
    before: Any
    after: Any
    put: Callable[[Any], None]


class Snapshot:
    """A module's buffers and attributes as they are now, to tell what changed and to bring it back.

    Weights are not copied; a change of one in place is told and cannot be undone.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._holders: list[tuple[str, Any, Any]] = []
        self._tensors: list[tuple[str, torch.Tensor, int, torch.Tensor | None]] = []
        self._seen: set[int] = set()
        for name, part in module.named_modules():
            own = {key: value for key, value in vars(part).items() if key not in _OWN}
            self._holders += [(name, vars(part), own), (name, part._buffers, dict(part._buffers))]
            for key, value in (*own.items(), *part._buffers.items(), *part._parameters.items()):
                self._look(f"{name}.{key}" if name else key, value, _DEPTH)

    def _look(self, path: str, value: Any, depth: int) -> None:
        plain = value is None or isinstance(value, bool | int | float | str | bytes)
        if plain or depth == 0 or id(value) in self._seen:
            return
        self._seen.add(id(value))
        inner: dict[Any, Any] = {}
        if isinstance(value, torch.Tensor):
            kept = None if isinstance(value, torch.nn.Parameter) else value.detach().clone()
            self._tensors.append((path, value, value._version, kept))
        elif isinstance(value, dict):
            inner = dict(value)
            self._holders.append((path, value, inner))
        elif isinstance(value, MutableSequence):
            inner = dict(enumerate(value))
            self._holders.append((path, value, list(value)))
        elif isinstance(value, tuple):
            inner = dict(enumerate(value))
        elif not isinstance(value, type | ModuleType | FunctionType | MethodType | torch.nn.Module):
            inner = dict(getattr(value, "__dict__", {}))
            if inner:
                self._holders.append((path, vars(value), inner))
        for key, part in inner.items():
            self._look(f"{path}.{key}", part, depth - 1)

    def changes(self) -> list[Change]:
        """What is not as it was, by path."""
        found: list[Change] = []
        for path, holder, before in self._holders:
            if isinstance(before, list):
                if not _same(before, list(holder)):
                    found.append(Change(path, before, list(holder), partial(_refill, holder)))
                continue
            for key in {**before, **holder}:
                old, new = before.get(key, _ABSENT), holder.get(key, _ABSENT)
                if not _same(old, new) and not (old is _ABSENT and key in _OWN):
                    found.append(Change(f"{path}.{key}" if path else str(key), old, new, partial(_set, holder, key)))
        for path, held, version, kept in self._tensors:
            if held._version == version or (kept is not None and _same(kept, held)):
                continue
            now = held.detach().clone()
            found.append(Change(path, now if kept is None else kept, now, partial(_overwrite, held)))
        return found

    def of(self, paths: set[str]) -> Snapshot:
        """This snapshot, but of the attributes and containers at these paths alone, which are quickly compared."""
        made = copy.copy(self)
        holders = paths | {path.rpartition(".")[0] for path in paths}
        made._holders = [held for held in self._holders if held[0] in holders]
        made._tensors = []
        return made

    def restore(self) -> None:
        """Bring back what changed."""
        for change in self.changes():
            change.put(change.before)


def _same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, torch.Tensor):
        return old.shape == new.shape and old.dtype == new.dtype and bool(torch.equal(old, new))
    if isinstance(old, list | tuple):
        return len(old) == len(new) and all(map(_same, old, new))
    return isinstance(old, bool | int | float | str | bytes) and old == new


def _set(holder: dict[Any, Any], key: Any, value: Any) -> None:
    if value is _ABSENT:
        holder.pop(key, None)
    else:
        holder[key] = value


def _refill(holder: MutableSequence[Any], values: list[Any]) -> None:
    holder.clear()
    holder.extend(values)


def _overwrite(held: torch.Tensor, value: torch.Tensor) -> None:
    with torch.no_grad():
        held.copy_(value)


def refuse_state(module: torch.nn.Module, spec: ModelSpec) -> None:
    """Raise ExportError where a call answers differently after another call, naming the attributes that cause it.

    The module is called at its smallest size; where that leaves something behind, with other and larger values at
    another size, and with the first inputs again. It is left as it was. (What a call leaves behind at other sizes only
    shows where the references are made, which ends with the inputs that it began with.)
    """
    sizes = {name: [size for size in dim.sizes[:3] if size][:2] for name, dim in spec.dims.items()}
    small = {name: few[0] for name, few in sizes.items()}
    inputs = batches.generated(spec, small, seed=0)
    others = [_louder(spec, at) for at in ({name: few[-1] for name, few in sizes.items()}, small)]
    eager = Eager(module, spec)

    def answer(given: Mapping[str, Any]) -> list[torch.Tensor]:
        with _seeded():
            result = silenced(partial(eager.forward, given))
        return [leaf.clone() for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]

    def differs() -> bool:
        try:
            return not _agree(first, answer(inputs))
        except ExportError:  # what was left behind is of another size
            return True

    snapshot = Snapshot(module)
    try:
        first = answer(inputs)
        if not snapshot.changes():
            return
        for given in others:  # a state that was left behind may fit one size only, or be made anew for each
            with suppress(ExportError):
                answer(given)
        changes = snapshot.changes()
        if not differs():
            return
        causes = []
        for change in changes:
            snapshot.restore()
            change.put(change.after)
            if differs():
                causes.append(change)
        snapshot.restore()
        causes = causes or changes
        paths = {change.path for change in causes}
        with _Watch(module, paths) as watch:
            answer(inputs)
        inside = paths - set(watch.lines)  # of a list, a dict or another object
        if inside:
            snapshot.restore()
            held = snapshot.of(inside)
            watch.lines |= first_seen(partial(answer, inputs), lambda: (one.path for one in held.changes()))
    except ExportError:  # a model that cannot run is reported where it is exported, with the inputs that it fails on
        return
    finally:
        snapshot.restore()
    places = [f"'{change.path}'" + (f" at {at}" if (at := watch.lines.get(change.path)) else "") for change in causes]
    raise ExportError(
        _said([change.path for change in causes]),
        where="; ".join(places),
        fix=_advice(causes),
        breaks=[at_line("state", _said([c.path]), _advice([c]), watch.lines.get(c.path)) for c in causes],
    )


def _louder(spec: ModelSpec, sizes: Mapping[str, int]) -> Arrays:
    """Other inputs than the first, and larger: a running maximum, say, would forget smaller ones."""
    made = batches.generated(spec, sizes, seed=1)
    for name, values in made.items():
        if values.dtype.kind not in "biu" and spec.inputs[name].low is None:
            made[name] = values * values.dtype.type(8)
    return made


def _said(paths: list[str]) -> str:
    *others, last = (f"'{path}'" for path in paths)
    listed = f"{', '.join(others)} and {last}" if others else last
    return (
        f"forward keeps state between calls in {listed}, and an engine keeps none: "
        "the same inputs give another answer after another call"
    )


def _advice(causes: list[Change]) -> str:
    tensors = [c.path for c in causes if isinstance(c.before, torch.Tensor)]
    if len(tensors) < 2 or len(tensors) < len(causes):
        return "; ".join(
            dict.fromkeys(advice(c.path, None if c.before is _ABSENT else c.before, c.after) for c in causes)
        )
    names = ", ".join(f'"{name}"' for name in tensors)
    return (
        f"add states=[{names}] to @aot.model: the engine then takes each as an input state_NAME and returns it as "
        "state_NAME_out, which the caller passes to the next call"
    )


def _agree(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return len(one) == len(two) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)
        for a, b in zip(one, two, strict=True)
    )


@contextmanager
def _seeded() -> Iterator[None]:
    """Every call draws the same random numbers, and the program around it draws what it would have."""
    held = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)
            yield
    finally:
        random.setstate(held[0])
        np.random.set_state(held[1])


class _Watch(TorchFunctionMode):
    """Notes the line of the user's code that sets an attribute, or changes its tensor in place, during a call."""

    def __init__(self, module: torch.nn.Module, paths: set[str]) -> None:
        super().__init__()
        self.lines: dict[str, Line] = {}
        self._names: dict[tuple[int, str], str] = {}
        self._tensors: list[tuple[str, torch.Tensor, int]] = []
        for at, part in module.named_modules():
            for name, value in (*vars(part).items(), *part._buffers.items(), *part._parameters.items()):
                path = f"{at}.{name}" if at else name
                if path in paths:
                    self._names[id(part), name] = path
                    if isinstance(value, torch.Tensor):
                        self._tensors.append((path, value, value._version))

    def __enter__(self) -> _Watch:
        self._set = torch.nn.Module.__setattr__
        watch = self

        def noted(part: torch.nn.Module, name: str, value: Any) -> None:
            if path := watch._names.get((id(part), name)):
                watch._note(path)
            watch._set(part, name, value)

        torch.nn.Module.__setattr__ = noted  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.nn.Module.__setattr__ = self._set  # type: ignore[method-assign]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for path, value, version in self._tensors:
            if path not in self.lines and value._version != version:
                self._note(path)
        return result

    def _note(self, path: str) -> None:
        at, _ = of_frame(sys._getframe(2))
        if at is not None:
            self.lines.setdefault(path, at)
