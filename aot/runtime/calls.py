"""From what a user gives to a call that is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aot.errors import InputError
from aot.runtime.executor import Call
from aot.runtime.interchange import NUMPY, Given, kind_of
from aot.runtime.manifest import Manifest
from aot.runtime.signature import Shape, Signature, wrong_names

Sizes = dict[str, int]
REMEMBERED = 1024
"""Shapes that are known to fit; all are forgotten when there are more."""


class Reader:
    """Reads the inputs of a model. Thread-safe."""

    def __init__(self, manifest: Manifest) -> None:
        self.signature = Signature(manifest)
        self.states = tuple(manifest.states)
        self._inputs = manifest.inputs
        self._wanted = [(name, tensor.dtype) for name, tensor in manifest.inputs.items()]
        self._free = [(name, dtype) for name, dtype in self._wanted if name not in manifest.states]
        self._known: dict[Any, tuple[int, Sizes]] = {}

    def leaves_out(self, inputs: Mapping[str, Any]) -> bool:
        """Whether the states are left out, to be kept. Raises InputError where some of them are given and some not."""
        given = [name for name in self.states if name in inputs]
        if given and len(given) < len(self.states):
            missing = next(name for name in self.states if name not in inputs)
            raise InputError(
                f"the state '{given[0]}' is given and '{missing}' is not",
                fix="give all states to keep them yourself, or none for the session to keep them",
            )
        return bool(self.states) and not given

    def read(self, inputs: Mapping[str, Any], kept: Mapping[str, Shape] | None = None) -> tuple[Call, Sizes]:
        """The call, and the size of every Dim that it shows. kept: the shapes of states that need not be given.

        Raises InputError for a name, dtype or shape that the model does not take.
        """
        wanted = self._wanted if kept is None else self._free
        given: dict[str, Given] = {}
        like, mixed = None, False
        for name, dtype in wanted:
            if name not in inputs:
                break
            value = inputs[name]
            try:
                seen = kind_of(value).look(value)
            except InputError as error:
                raise InputError(f"input '{name}': {error.what}", where=error.where, fix=error.fix) from error
            if seen.dtype != dtype:
                raise self._wrong_dtype(name, seen, dtype)
            given[name] = seen
            if like is None:
                like = seen
            elif seen.kind is not like.kind or seen.device != like.device:
                mixed = True
        if len(given) != len(inputs) or len(given) != len(wanted):
            wrong = wrong_names(inputs, self._inputs, self.states if kept is not None else ())
            if wrong is not None:
                raise wrong
        shapes = tuple([seen.shape for seen in given.values()])
        key = (shapes, *kept.values()) if kept else shapes
        profile, sizes = self._known.get(key) or self._fitted(key, given, kept or {})
        return Call(profile, shapes, given, like or NUMPY.look(0), mixed), sizes

    def _fitted(self, key: Any, given: Mapping[str, Given], kept: Mapping[str, Shape]) -> tuple[int, Sizes]:
        found = self.signature.fit({**{name: tuple(seen.shape) for name, seen in given.items()}, **kept})
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[key] = found
        return found

    def _wrong_dtype(self, name: str, seen: Given, dtype: str) -> InputError:
        return InputError(
            f"input '{name}' is {seen.dtype}, and the model takes {dtype}",
            where=f"input '{name}' {list(seen.shape)}",
            fix=f"convert it: {name}.astype('{dtype}'), or {name}.to(torch.{dtype})",
        )


def named(inputs: Mapping[str, Any] | None, more: Mapping[str, Any]) -> Mapping[str, Any]:
    """Inputs that came as one mapping, as keywords, or as both. Raises InputError for what is no mapping."""
    if inputs is None:
        return more
    if not isinstance(inputs, Mapping):
        raise InputError(
            f"inputs come by name, not as a {type(inputs).__name__}", fix='session({"x": x}), or session(x=x)'
        )
    return {**inputs, **more} if more else inputs
