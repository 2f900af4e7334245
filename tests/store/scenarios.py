"""What is done to a store, an artifact or a timing cache while something goes wrong, and what must hold then.

A scenario begins with a folder that `prepare` fills, and `act` works in it. `wrong` says what must never be seen,
whenever `act` was stopped; `unfinished` what is missing where it was not.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from aot import artifact, folders
from aot.errors import ArtifactError
from aot.progress import Silent
from aot.stages.package import package
from aot.store import FACTS, TMP, Store, digest
from aot.store_admin import collect_garbage, damage, entries
from aot.timing_cache import TimingCaches
from aot.toolchain import own_digest
from tests.backends.fake_tensorrt import Cache, Config
from tests.e2e.harness import write_mlp_onnx
from tests.e2e.killing import PRELOADED, artifact_state, build_once
from tests.tiny import PLAN, WEIGHT, Workshop

GPU = "tensorrt 10.6.0 NVIDIA H200 580"
OLD, NEW = digest("old"), digest("new")
KEPT = digest("kept")


@dataclass(frozen=True)
class Scenario:
    name: str
    prepare: Callable[[Path], None]
    act: Callable[[Path], None]
    wrong: Callable[[Path], list[str]]
    unfinished: Callable[[Path], list[str]]
    preload: Callable[[], None] = lambda: None


def store_in(folder: Path) -> Store:
    return Store(folder / "store")


def making(word: bytes) -> Callable[[Path], Mapping[str, Any]]:
    def make(folder: Path) -> Mapping[str, Any]:
        (folder / "weights").mkdir()
        (folder / "weights" / "data").write_bytes(word * 2000)
        (folder / "graph").write_bytes(word)
        return {"word": word.decode()}

    return make


def untrue(folder: Path) -> list[str]:
    """Entries that are taken for whole and are not; the content of every one says what its facts say."""
    found = []
    store = store_in(folder)
    for item in entries(store):
        entry = store.look(item.stage, item.key)
        if entry is not None and item.stage == "stage":
            word = entry.facts["word"].encode()
            if (entry.path / "graph").read_bytes() != word or (entry.path / "weights/data").read_bytes() != word * 2000:
                found.append(f"{item.key} is half-made")
        elif entry is not None and not Store(store.root).sound(entry):
            found.append(f"{item.key} is damaged")
    return found


def kept(folder: Path) -> list[str]:
    """What nobody asked to remove."""
    return [] if store_in(folder).look("stage", KEPT) else ["an entry was lost"]


def with_kept(folder: Path) -> None:
    store_in(folder).fetch("stage", KEPT, making(b"kept"))


def swept(folder: Path) -> list[str]:
    """Whatever a killed process left, a collection removes."""
    store = store_in(folder)
    collect_garbage(store)
    return [f"left: {path.name}" for path in (store.root / TMP).glob("*")]


def _fetch(folder: Path, key: str, word: bytes, *, fresh: bool = False) -> None:
    store = store_in(folder)
    with store.using():
        store.fetch("stage", key, making(word), fresh=fresh)


def _has(folder: Path, key: str, word: str) -> list[str]:
    entry = store_in(folder).look("stage", key)
    return [] if entry is not None and entry.facts["word"] == word else [f"no entry that says {word}"]


def _with_old(folder: Path) -> None:
    with_kept(folder)
    _fetch(folder, OLD, b"old")


def _damaged(folder: Path) -> None:
    _with_old(folder)
    (store_in(folder).home("stage", OLD) / "graph").write_bytes(b"cut short")


def _remember(folder: Path, word: str) -> None:
    store_in(folder).remember("sources", "model", {"word": word, "more": "x" * 3000})


def _recalled(folder: Path, *words: str) -> list[str]:
    found = store_in(folder).recall("sources", "model")
    return [] if found is not None and found["word"] in words else [f"the record says {found}"]


def _full_store(folder: Path) -> None:
    _damaged(folder)
    store = store_in(folder)
    for number in range(2):
        key = digest(number)
        store.fetch("stage", key, making(b"%d" % number))
        os.utime(store.home("stage", key) / FACTS, (1e9, 1e9))
    left = store.root / TMP / "0123456789abcdef"
    left.mkdir()
    (left / "data").write_bytes(b"left by a killed process")
    (store.root / TMP / "0123456789abcdef.lock").touch()


def _collect(folder: Path) -> None:
    collect_garbage(store_in(folder), older_than_days=30)


def _verify(folder: Path) -> None:
    damage(store_in(folder))


def _collected(folder: Path) -> list[str]:
    return [] if {item.key for item in entries(store_in(folder))} == {KEPT} else ["not all of it was removed"]


def _timed(folder: Path, line: bytes) -> None:
    config = Config()
    lease = TimingCaches(store_in(folder)).attach(config, GPU, Silent())
    assert config.cache is not None
    config.cache.lines.add(line)
    lease.save()


def _timings(folder: Path, *lines: bytes) -> list[str]:
    config = Config()
    progress = Silent()
    TimingCaches(store_in(folder)).attach(config, GPU, progress)
    assert isinstance(config.cache, Cache)
    return [*progress.warnings, *(f"{line!r} was lost" for line in lines if line not in config.cache.lines)]


def _package(folder: Path, output: str, factor: int) -> None:
    shop = Workshop(folder / "store")
    package(shop.run, shop.prepared(WEIGHT * factor), PLAN, [], [], folder / output)


def _packaged(folder: Path, output: str, *factors: int) -> list[str]:
    """Whether the artifact is there, whole, and one of those."""
    shop = Workshop(folder / "store")
    try:
        found = artifact.load(str(folder / output))
    except ArtifactError as error:
        return [str(error)]
    return [] if found.final.key in {shop.graph(WEIGHT * factor).key for factor in factors} else ["another artifact"]


def _beside(folder: Path) -> list[str]:
    return [f"left: {path.name}" for path in folder.iterdir() if path.name.startswith(".")]


def _prepare_package(output: str, folder: Path) -> None:
    with_kept(folder)
    shop = Workshop(folder / "store")
    shop.prepared(WEIGHT * 2)  # so that what follows only packages
    _package(folder, output, 1)


def _package_wrong(output: str, folder: Path) -> list[str]:
    """The old artifact or the new one."""
    return [*untrue(folder), *kept(folder), *_packaged(folder, output, 1, 2)]


def _package_unfinished(output: str, folder: Path) -> list[str]:
    return [*_packaged(folder, output, 2), *_beside(folder), *swept(folder)]


def _packaging(name: str, output: str) -> Scenario:
    return Scenario(
        name,
        partial(_prepare_package, output),
        partial(_package, output=output, factor=2),
        partial(_package_wrong, output),
        partial(_package_unfinished, output),
    )


def _prepare_build(folder: Path) -> None:
    with_kept(folder)
    write_mlp_onnx(folder / "mlp.onnx")
    (folder / "tmp").mkdir()


def _build(folder: Path) -> None:
    """A whole build in INT8 for onnxruntime, temporary files on the same disk."""
    tempfile.tempdir = str(folder / "tmp")
    with store_in(folder).using():
        build_once(str(folder / "mlp.onnx"), folder)


def _built(folder: Path) -> list[str]:
    state = artifact_state(folder)
    return [] if state == "whole" else [f"the artifact is {state}"]


def _preload() -> None:
    """Each build is a fork, and what it imports is imported once; torch is no part of it."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    for name in PRELOADED:
        import_module(name)
    own_digest()


ALL = {
    one.name: one
    for one in (
        Scenario(
            "fetch",
            with_kept,
            lambda f: _fetch(f, NEW, b"new"),
            lambda f: untrue(f) + kept(f),
            lambda f: _has(f, NEW, "new") + swept(f),
        ),
        Scenario(
            "fresh",
            _with_old,
            lambda f: _fetch(f, OLD, b"new", fresh=True),
            lambda f: untrue(f) + kept(f) + (_has(f, OLD, "old") and _has(f, OLD, "new")),
            lambda f: _has(f, OLD, "new") + swept(f),
        ),
        Scenario(
            "damaged",
            _damaged,
            lambda f: _fetch(f, OLD, b"old"),
            lambda f: untrue(f) + kept(f),
            lambda f: _has(f, OLD, "old") + swept(f),
        ),
        Scenario(
            "remember",
            lambda f: _remember(f, "old"),
            lambda f: _remember(f, "new"),
            lambda f: _recalled(f, "old", "new"),
            lambda f: _recalled(f, "new") + swept(f),
        ),
        Scenario(
            "collect",
            _full_store,
            _collect,
            lambda f: untrue(f) + kept(f),
            lambda f: _collected(f) + swept(f),
        ),
        Scenario(
            "verify",
            _with_old,
            _verify,
            lambda f: untrue(f) + kept(f),
            lambda f: _has(f, OLD, "old"),
        ),
        Scenario(
            "timing",
            lambda f: _timed(f, b"old"),
            lambda f: _timed(f, b"new"),
            lambda f: _timings(f, b"old"),
            lambda f: _timings(f, b"old", b"new") + swept(f),
        ),
        _packaging("package", "tiny.aot"),
        _packaging("pack", "tiny.tar"),
        Scenario(
            "build",
            _prepare_build,
            _build,
            lambda f: untrue(f) + kept(f) + (_built(f) if (f / "out.aot").exists() else []),
            lambda f: _built(f) + _beside(f) + swept(f),
            _preload,
        ),
    )
}


def audited_exchange() -> None:
    """Let the exchange of two names, which Python knows nothing of, be seen as the other operations are."""
    real = folders._exchanged

    def exchanged(one: Path, other: Path) -> bool:
        sys.audit("store.exchange", str(one), str(other))
        return real(one, other)

    folders._exchanged = exchanged
