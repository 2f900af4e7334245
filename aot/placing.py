"""Where a build happens: its backend and its targets, from what is named and what this machine has."""

from __future__ import annotations

from aot import routes
from aot.config import Precision, Route
from aot.errors import TargetError, UsageError, unknown
from aot.targets import AUTO, CPU, TARGETS, check_precision
from aot.toolchain import Machine


def place(
    precision: Precision,
    backend: str | None,
    targets: tuple[str, ...],
    machine: Machine,
    *,
    build: bool,
    route: Route = "onnx",
) -> tuple[str | None, tuple[str, ...]]:
    """The backend and the targets of a build; (None, ()) where this machine stops at a prepared artifact.

    build False: the names are checked, and the precision against the targets, but nothing will be built.
    Raises UsageError for an unknown name, TargetError for what the backend refuses.
    """
    from aot import backend as backends

    chosen = None if backend is None else backends.get(backend)
    wanted = tuple(dict.fromkeys(target_of(name, machine) for name in targets))
    if not build:
        for target in wanted:
            check_precision(precision, target)
        return None, ()
    if route == routes.TORCH_TENSORRT:
        routes.check_here(backend, targets, machine)
        chosen = backends.get("tensorrt")
    if chosen is None:
        name = _backend_for(wanted, machine)
        if name is None:
            return None, ()
        chosen = backends.get(name)
    if not wanted:
        wanted = _own_target(chosen.name, machine)
    for target in wanted:
        chosen.check(precision, target, machine)
    return chosen.name, wanted


def meant(backend: str | None, named: tuple[str, ...], machine: Machine) -> tuple[str, ...] | None:
    """See Plan.meant: the targets named, else this machine's GPU."""
    from aot import backend as backends

    if backends.get(backend or "tensorrt").launches(None) is None:
        return None
    own = (machine.gpu.target,) if machine.gpu is not None else ()
    return tuple(dict.fromkeys(target_of(name, machine) for name in named if name != CPU)) or own


def target_of(name: str, machine: Machine) -> str:
    """A target by its name; `auto` is this machine's GPU. Raises UsageError, and TargetError without a GPU."""
    if name != AUTO:
        if name not in TARGETS:
            raise unknown("target", name, (AUTO, *TARGETS))
        return name
    if machine.gpu is None:
        raise TargetError(
            "--target auto means this machine's GPU, and there is none",
            where="--target auto",
            fix="name the GPU (--target sm89), or leave --target away for a prepared artifact to finish elsewhere",
        )
    return machine.gpu.target


def _backend_for(targets: tuple[str, ...], machine: Machine) -> str | None:
    """The backend where none is named: `tensorrt` for this machine's GPU, else `tensorrt_rtx`; None: no target."""
    from aot import backend as backends

    if CPU in targets:
        if len(targets) > 1:
            raise UsageError(
                "one build has one backend: cpu and a GPU are two",
                where="--target " + " --target ".join(targets),
                fix="build twice; what both share is done once",
            )
        return "onnxruntime"
    here = backends.get("tensorrt").targets(machine)
    if targets:
        return "tensorrt" if here and set(targets) <= set(here) else "tensorrt_rtx"
    if here:
        return "tensorrt"
    rtx = backends.get("tensorrt_rtx").targets(machine)
    return "tensorrt_rtx" if machine.gpu is not None and machine.gpu.target in rtx else None


def _own_target(backend: str, machine: Machine) -> tuple[str, ...]:
    """The target where none is named: the CPU for onnxruntime, this machine's GPU for the others."""
    if backend == "onnxruntime":
        return (CPU,)
    if machine.gpu is not None:
        return (machine.gpu.target,)
    if backend == "tensorrt":
        raise TargetError(
            "TensorRT builds on the GPU it builds for, and here is none",
            where="--backend tensorrt",
            fix="--until graph here and aot build on the prepared artifact there, or --backend tensorrt_rtx",
        )
    raise TargetError(
        "no GPU here, so what to build for must be said", where=f"--backend {backend}", fix="--target sm89, for example"
    )
