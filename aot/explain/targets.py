"""What is asked about: pairs of backend and target, whether or not this machine can build for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aot import backend as backends
from aot import toolchain
from aot.backends import tensorrt_rtx
from aot.config import Precision, Request
from aot.errors import TargetError
from aot.explain.findings import Refusal
from aot.placing import target_of
from aot.plan import Choices
from aot.targets import CPU
from aot.toolchain import Machine


@dataclass(frozen=True)
class Wanted:
    """A backend and a target (None: any it builds for); why nothing is ever built for it, and what to know."""

    backend: str
    target: str | None
    refused: Refusal | None
    notes: tuple[str, ...]


def wanted(request: Request, read: Choices) -> tuple[Wanted, ...]:
    """Every target that the request or its profile file names, with the backend that a build would take for it.

    Where none is named: this machine's GPU, and without one both backends for GPUs. Raises UsageError for a name
    that does not exist, TargetError for `auto` without a GPU.
    """
    machine = toolchain.machine()
    named = request.backend or read.file.backend
    if named is not None:
        backends.get(named)
    targets = tuple(dict.fromkeys(target_of(name, machine) for name in request.targets or read.file.targets))
    pairs: list[tuple[str, str | None]] = [(named or _backend(target, machine), target) for target in targets]
    if not pairs and named == "onnxruntime":
        pairs = [(named, CPU)]
    elif not pairs and machine.gpu is not None:
        pairs = [(named or _backend(machine.gpu.target, machine), machine.gpu.target)]
    elif not pairs:
        pairs = [(name, None) for name in ((named,) if named else ("tensorrt", "tensorrt_rtx"))]
    return tuple(_judged(backend, target, read.precision, machine) for backend, target in pairs)


def settled(read: Choices, asked: tuple[Wanted, ...], request: Request) -> Choices:
    """The choices as a build makes them, as far as it would pass: what the store is asked for must be the same."""
    targets = tuple(one.target for one in asked if one.target is not None and one.refused is None)
    if not targets or (not request.targets and not read.file.targets and toolchain.machine().gpu is None):
        return read
    return replace(read, backend=next(one.backend for one in asked if one.target == targets[0]), targets=targets)


def _backend(target: str, machine: Machine) -> str:
    """The backend for a target where none is named, on this machine or on the one that has the GPU."""
    if target == CPU:
        return "onnxruntime"
    here = target in backends.get("tensorrt").targets(machine)
    return "tensorrt" if here or target not in tensorrt_rtx.TARGETS else "tensorrt_rtx"


def _judged(name: str, target: str | None, precision: Precision, machine: Machine) -> Wanted:
    backend = backends.get(name)
    notes: list[str] = []
    if target is not None:
        try:
            backend.suits(precision, target)
        except TargetError as error:
            return Wanted(name, target, Refusal(error.what, error.where, error.fix), ())
        try:
            backend.check(precision, target, machine)
        except TargetError as error:
            notes.append(f"not on this machine: {error.what}; {error.fix}")
    if backend.judge() == "table":
        notes.append(f"{backend.title}'s parser cannot be asked on this machine: judged by a table of its ops")
    return Wanted(name, target, None, tuple(notes))
