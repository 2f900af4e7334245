"""Loading an artifact: which of its engines runs here, whether it is whole, and what runs where none does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from aot.errors import TargetError, unknown
from aot.runtime import manifest, onnxruntime
from aot.runtime.manifest import Engine, Manifest
from aot.runtime.session import Session

if TYPE_CHECKING:
    from aot.runtime.executor import Executor

CPU = "cpu"


def load(path: str, *, engine: str | None = None, device: int = 0, contexts: int = 8, verify: bool = True) -> Session:
    """Load an artifact, a folder or a `.tar`, to be called.

    An engine for the GPU `device` (as CUDA numbers them) and the TensorRT that is installed is taken first; without
    one, the final graph on onnxruntime, and the session's label says so. engine: `sm90`, ..., or `cpu` for onnxruntime,
    and nothing else. contexts: how many calls may run at once on a GPU; more wait. verify: hold the files that are
    loaded against their digests, which takes a second for every one to two gigabytes.

    Raises UsageError for a path or engine that is not there, ArtifactError for a file that is missing or damaged,
    TargetError where nothing runs here, EngineError where what should run does not load.
    """
    found = manifest.read(str(path))
    return _opened(found, engine, device, contexts, verify)


def _opened(found: Manifest, engine: str | None, device: int, contexts: int, verify: bool) -> Session:
    held = [one.target for one in found.engines]
    if engine is not None and engine not in {*held, CPU}:
        raise unknown("engine", engine, dict.fromkeys([*held, CPU]))
    reasons = []
    for one in found.engines:
        if engine not in (None, one.target):
            continue
        reason = _misfit(one, device)
        if reason is None:
            if verify:
                found.check(_files(found, one))
            return Session(found, _executor(found, one, device, contexts), f"engine {one.target} ({_told(one)})")
        reasons.append(f"{one.target} ({_told(one)}): {reason}")
    if engine not in (None, CPU):
        raise TargetError(
            f"the engine for {engine} does not run here: {reasons[0].partition(': ')[2]}",
            where=found.shown,
            fix=_way_out(found, engine),
        )
    if found.graph is None or onnxruntime.version() is None:
        reasons.append(
            f"{CPU}: it holds no ONNX graph" if found.graph is None else f"{CPU}: onnxruntime is not installed"
        )
        raise TargetError("nothing in the artifact runs here", where="; ".join(reasons), fix=_way_out(found, None))
    if verify:
        found.check(found.under("graph"))
    executor = onnxruntime.OnnxRuntime(found.path(found.graph), found)
    return Session(found, executor, f"final graph, {found.precision} ({executor.tells})")


def _told(engine: Engine) -> str:
    return f"{engine.backend} {engine.version}"


def _misfit(engine: Engine, device: int) -> str | None:
    """Why an engine does not run here, one clause; None where it does."""
    if engine.backend == onnxruntime.NAME:
        return None if onnxruntime.version() else "onnxruntime is not installed"
    return "no GPU"


def _executor(found: Manifest, engine: Engine, device: int, contexts: int) -> Executor:
    return onnxruntime.OnnxRuntime(found.path(engine.file), found)


def _files(found: Manifest, engine: Engine) -> Iterator[str]:
    """What loading an engine reads."""
    yield engine.file


def _way_out(found: Manifest, engine: str | None) -> str:
    built = " and ".join(one.target for one in found.engines) or "no engine"
    if found.graph is not None and engine is not None:
        return f"the artifact holds {built}; engine='{CPU}' runs its final graph on onnxruntime"
    if found.graph is not None:
        return f"the artifact holds {built}: pip install onnxruntime, or `aot build {found.shown}` on this GPU"
    return f"the artifact holds {built}: run it where that GPU is, or build it for this one"
