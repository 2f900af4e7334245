"""`aot.lock`: everything that a build depends on, and what came of it, so that it can be made again or refused.

    options     the plan as it was decided before any work, and what the command line said besides
    versions    aot, its source, Python, and every tool that has a part in it; packages: what the model's code imported
    machine     GPU and driver
    sources     SHA-256 of every file that was read while the model was made
    digests     of the calibration data and of the final graph
    engines     a target each: version, plugins, the timing cache's SHA-256, and the tactic of every layer

A build with `--locked` compares what is known before any long work, then the final graph, then the tactics, and is
built with the locked timing cache alone. Whatever differs is named, old and new.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot import toolchain
from aot.artifact_write import check_outside
from aot.errors import LockError, UsageError
from aot.lock_changes import changes, differs, listed, tactic_changes
from aot.packing.output import check_place, replacing
from aot.records import TACTICS, TIMING, Engine, QuantizedGraph
from aot.store import sha256

if TYPE_CHECKING:
    from aot.config import Request
    from aot.plan import Plan
    from aot.source import Source

LOCK = "aot.lock"
KIND = "a lock"
FORM = 1
LARGEST, LARGEST_CACHE = 64 << 20, 1 << 30
"""In bytes: more than a lock of 100,000 layers has, and than a timing cache."""
TOOLS = (
    "torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "onnxruntime-gpu", "polygraphy", "numpy", "ml-dtypes",
    "torch-tensorrt", "triton", "tensorrt", "tensorrt-cu12-bindings", "tensorrt-cu13-bindings", "tensorrt-rtx-cu13",
)  # fmt: skip
"""The distributions whose versions are kept with what they made."""


@dataclass(frozen=True)
class Lock:
    """A lock that was read. caches: the timing caches by target, as bytes."""

    path: Path
    data: Mapping[str, Any]
    caches: Mapping[str, bytes] = field(default_factory=dict)

    def engine(self, target: str) -> Mapping[str, Any] | None:
        """What it says of the engine for a target."""
        return next((one for one in self.data["engines"] if one["target"] == target), None)

    def cache(self, target: str) -> bytes | None:
        """The timing cache that the engine was built with; None where it was built without.

        Raises UsageError where it is not there, LockError where it is another one.
        """
        locked = (self.engine(target) or {}).get("timing_cache")
        if locked is None:
            return None
        found = self.caches.get(target)
        if found is None:
            raise UsageError(
                f"the timing cache of the engine for {target} is not beside the lock",
                where=str(self.path),
                fix="copy it back: it is engines/TARGET.timing in the artifact, FILE.TARGET.timing beside --lock FILE",
            )
        self.refuse([differs(f"timing cache {target}", locked, hashlib.sha256(found).hexdigest())])
        return found

    def refuse(self, differences: Iterable[str | None]) -> None:
        """Raise LockError, naming them, where there are any."""
        found = [one for one in differences if one]
        if found:
            raise LockError(
                "\n    ".join(["the build is not the one that was locked:", *listed(found)]),
                where=str(self.path),
                fix="undo the change, or build without --locked, which writes a new lock",
            )


@dataclass
class Ledger:
    """What one build depends on, noted as it goes. locked: what it must come to. to: where its lock goes besides the
    artifact."""

    locked: Lock | None = None
    to: Path | None = None
    _begun: dict[str, dict[str, Any]] = field(default_factory=dict)
    _data: dict[str, Callable[[], str]] = field(default_factory=dict)

    def begin(self, request: Request, plan: Plan, source: Source | None) -> None:
        """Note what is known before any long work. source None: the build is of an artifact.

        Raises LockError where a lock says otherwise.
        """
        found = self._begun[plan.precision] = _known(plan, request, source)
        if source is not None:
            self._data[plan.precision] = source.data_key
        if self.locked is not None:
            self.locked.refuse(changes(self.locked.data, {**found, "digests": self._digests(plan)}))

    def _digests(self, plan: Plan) -> dict[str, str]:
        """Of the calibration data, which may have to be made for it."""
        return {"data": self._data[plan.precision]()} if plan.precision in self._data else {}

    def known(self, plan: Plan) -> Mapping[str, Any]:
        """What was noted; of a plan that was settled by itself, what there is to note."""
        return self._begun.get(plan.precision) or _known(plan, None, None)

    def graph(self, final: QuantizedGraph) -> None:
        """Hold the final graph against the lock. Raises LockError."""
        if self.locked is not None:
            locked = self.locked.data["digests"].get("graph")
            self.locked.refuse([differs("digest of the final graph", locked, graph_digest(final))])

    def cache(self, target: str) -> bytes | None:
        """The timing cache that the engine must be built with; None where it is free. Raises as Lock.cache does."""
        return None if self.locked is None else self.locked.cache(target)

    def tactics(self, engines: Iterable[Engine]) -> list[str]:
        """Where the engines have other layers or tactics than the lock says; empty where they do not."""
        if self.locked is None:
            return []
        found: list[str] = []
        for engine in engines:
            locked, now = (self.locked.engine(engine.target) or {}).get("tactics"), tactics_of(engine)
            if locked is not None and now is not None:
                found += [f"engine {engine.target}, {one}" for one in tactic_changes(locked, now)]
        return listed(found)

    def text(self, plan: Plan, name: str, final: QuantizedGraph, engines: Iterable[Engine]) -> str:
        """The lock of the build as text: the same for the same build, whenever and wherever it is made."""
        found = self.known(plan)
        data = {
            "lock": FORM,
            "name": name,
            **found,
            "digests": {**self._digests(plan), "graph": graph_digest(final)},
            "engines": [_engine(engine) for engine in engines],
        }
        return json.dumps(data, indent=1, sort_keys=True) + "\n"


def _known(plan: Plan, request: Request | None, source: Source | None) -> dict[str, Any]:
    made: dict[str, Any] = {"sources": None, "packages": None}
    if source is not None:
        read = source.read()
        made = {"sources": files(read, source.project), "packages": packages(read)}
    said: dict[str, Any] = {}
    if request is not None:
        patterns = request.patterns
        said = {"search": request.search, "plugins": list(patterns.plugins), "measured": patterns.measured}
    return {
        "options": plan.to_json() | said,
        "versions": versions(),
        "machine": _machine(),
        **made,
    }


def ledger(request: Request, artifacts: Iterable[Path]) -> Ledger:
    """That of a build. artifacts: what it writes, or is made from; in the first of them that is there lies the lock,
    where none is named.

    Raises UsageError where a build is to be locked and there is no lock, and where one cannot be written.
    """
    if not request.locked:
        if request.lock is not None:
            _check_to(request.lock)
        return Ledger(to=request.lock)
    if request.lock is not None:
        path = request.lock
        caches = {p.name.removeprefix(f"{path.name}.").removesuffix(TIMING): p for p in _caches_beside(path)}
    else:
        from aot.runtime.files import unpacked

        found = next((one for one in artifacts if one.exists()), None)
        if found is None:
            raise UsageError(
                "there is no lock to build by: the artifact is not there",
                where="--locked",
                fix="name the lock with --lock FILE, or build once without --locked",
            )
        path = unpacked(str(found)) / LOCK
        caches = {p.name.removesuffix(TIMING): p for p in (path.parent / "engines").glob(f"*{TIMING}")}
    return Ledger(read(path, caches))


def read(path: Path, caches: Mapping[str, Path]) -> Lock:
    """A lock and the timing caches that belong to it. Raises UsageError for a file that is none."""
    try:
        data = json.loads(_bytes(path, LARGEST))
        if not isinstance(data, dict) or data.get("lock") != FORM:
            raise ValueError(f"it has form {data.get('lock') if isinstance(data, dict) else None!r}")
        _check(data)
        return Lock(path, data, {target: _bytes(cache, LARGEST_CACHE) for target, cache in caches.items()})
    except OSError as error:
        raise UsageError(f"the lock cannot be read: {error.strerror}", where=str(path), fix="check the path") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise UsageError(
            f"not a lock of this aot: {said}", where=str(path), fix="build without --locked, which writes a new one"
        ) from error


def _bytes(path: Path, most: int) -> bytes:
    """What a file holds. Raises ValueError for one that is no plain file, or has more bytes than `most`."""
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path.name} is not a plain file")
    if found.st_size > most:
        raise ValueError(f"{path.name} has more than {most:,} bytes")
    return path.read_bytes()


def _check(data: Mapping[str, Any]) -> None:
    """Raise ValueError where a lock does not hold what `changes` and `Lock` look for in it."""
    for part in ("options", "versions", "machine", "digests"):
        if not isinstance(data.get(part), dict):
            raise ValueError(f"its {part} are no mapping")
    for part in ("sources", "packages"):
        if not isinstance(data.get(part), dict | None):
            raise ValueError(f"its {part} are no mapping")
    if not isinstance(data.get("engines"), list):
        raise ValueError("it lists no engines")
    for engine in data["engines"]:
        if not isinstance(engine, dict) or not isinstance(engine.get("target"), str):
            raise ValueError("an engine has no target")
        tactics = engine.get("tactics")
        texts = [
            one.get(key) if isinstance(one, dict) else None for one in tactics or () for key in ("layer", "tactic")
        ]
        if not isinstance(tactics, list | None) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"the tactics of the engine for {engine['target']} are no list of layers")


def write(path: Path, text: str, engines: Iterable[Engine]) -> None:
    """Write the lock, and beside it the timing cache of every engine, each whole or not at all.

    Raises UsageError where the disk refuses, or something else is in its place.
    """
    _check_to(path)
    for engine in engines:
        cache = engine.plan.with_suffix(TIMING)
        if cache.is_file():
            beside = path.with_name(f"{path.name}.{engine.target}{TIMING}")
            with replacing(beside, "a timing cache", Path.is_file, overwrite=True) as new:
                new.write_bytes(cache.read_bytes())
    with replacing(path, KIND, _is_lock, overwrite=True) as new:
        new.write_text(text)


def _check_to(path: Path) -> None:
    """Raise UsageError where a lock cannot be written, which is better known before a build than after it."""
    check_outside(path)
    check_place(path, KIND, _is_lock, overwrite=True)
    above = next(one for one in path.absolute().parents if os.path.lexists(one))
    if path.is_dir() or not above.is_dir() or not os.access(above, os.W_OK):
        raise UsageError(f"{KIND} cannot be written here", where=str(path), fix="give another place")


def _is_lock(path: Path) -> bool:
    """Whether a file is a lock of any form, or empty."""
    try:
        text = _bytes(path, LARGEST)
        data = json.loads(text) if text else {"lock": None}
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and "lock" in data


def _caches_beside(path: Path) -> list[Path]:
    return [one for one in path.parent.iterdir() if one.name.startswith(f"{path.name}.") and one.suffix == TIMING]


def versions() -> dict[str, str]:
    """Of aot, Python and every tool that is installed here."""
    import platform

    import aot

    found = {name: toolchain.version(name) for name in TOOLS}
    own = {"aot": aot.__version__, "aot's source": toolchain.own_digest(), "python": platform.python_version()}
    return own | {name: version for name, version in found.items() if version is not None}


def _machine() -> dict[str, str | None]:
    machine = toolchain.machine()
    return {"gpu": machine.gpu.name if machine.gpu else None, "driver": machine.driver}


def files(read: Mapping[str, Any], project: Path) -> dict[str, str]:
    """SHA-256 of what was read, by a name that another machine has too."""
    return {_place(Path(path), project.absolute()): known["sha256"] for path, known in read["files"].items()}


def packages(read: Mapping[str, Any]) -> dict[str, str]:
    """The versions of the packages that the model's code imported."""
    return {name: known["version"] for name, known in read["packages"].items()}


def _place(path: Path, project: Path) -> str:
    """Relative to the project; of a file elsewhere its name and its folder's."""
    if path.is_relative_to(project):
        return path.relative_to(project).as_posix()
    return f".../{path.parent.name}/{path.name}"


def graph_digest(final: QuantizedGraph) -> str:
    """SHA-256 over the final graph and its weights."""
    folder = final.model.parent
    found = [[path.name, sha256(path)] for path in sorted(folder.iterdir()) if path.name.startswith(final.model.name)]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def tactics_of(engine: Engine) -> list[dict[str, str]] | None:
    """[{layer, tactic}] of an engine; None where its vendor chooses when it is loaded, or it was not loaded here."""
    path = engine.plan.with_suffix(TACTICS)
    if not path.is_file():
        return None
    found: list[dict[str, str]] = json.loads(path.read_text())
    return found


def _engine(engine: Engine) -> dict[str, Any]:
    cache = engine.plan.with_suffix(TIMING)
    return {
        "target": engine.target,
        "backend": engine.facts["backend"],
        "version": engine.facts["version"],
        "plugins": engine.facts.get("plugins", {}),
        "timing_cache": sha256(cache) if cache.is_file() else None,
        "tactics": tactics_of(engine),
    }
