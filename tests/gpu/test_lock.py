"""Two builds by one lock have the same tactics, layer by layer; a build that is another one is refused by name."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aot import toolchain
from tests.e2e.harness import DIM, Aot, Here, Outcome
from tests.gpu import models

COMMON = ("--backend", "tensorrt", "--precision", "fp16")


@pytest.fixture(scope="module")
def locked(aot: Here) -> Here:
    """A project with an artifact `wide.aot` and its lock, also as `wide.lock`."""
    models.wide(aot.folder / "wide.onnx")
    done = aot("build", "wide.onnx", *DIM, *COMMON, "--lock", "wide.lock", "--json")
    assert done.code == 0, done.err
    return aot


@pytest.fixture(scope="module")
def aot(aot: Aot) -> Here:
    """The same in this process, which loads TensorRT's builder once."""
    return Here(aot.folder, aot.store)


def build(aot: Aot, *options: str) -> Outcome:
    return aot("build", "wide.onnx", *DIM, *COMMON, "--locked", *options)


def tactics(artifact: Path) -> list[dict[str, str]]:
    gpu = toolchain.machine().gpu
    assert gpu is not None
    found: list[dict[str, str]] = json.loads((artifact / f"engines/{gpu.target}.tactics").read_text())
    return found


def lock(artifact: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((artifact / "aot.lock").read_text())
    return found


def test_the_lock_names_a_tactic_for_every_layer(locked: Aot) -> None:
    (engine,) = lock(locked.folder / "wide.aot")["engines"]
    assert engine["tactics"] == tactics(locked.folder / "wide.aot")
    assert len(engine["tactics"]) >= 2
    assert any(one["tactic"] for one in engine["tactics"])
    assert len(engine["timing_cache"]) == 64


def test_two_locked_builds_choose_the_same_tactics(locked: Aot, tmp_path: Path) -> None:
    """Each with a store of its own, so that the locked timing cache is all that they share."""
    made = []
    for number in (1, 2):
        other = replace(locked, store=tmp_path / f"store-{number}")
        done = other(
            *("build", "wide.onnx", *DIM, *COMMON, "--locked", "--lock", "wide.lock", "-o", f"again-{number}.aot")
        )
        assert done.code == 0, done.err
        made.append(locked.folder / f"again-{number}.aot")
    first = locked.folder / "wide.aot"
    assert tactics(made[0]) == tactics(made[1]) == tactics(first)
    assert lock(made[0]) == lock(made[1]) == lock(first)


def test_the_lock_in_the_artifact_serves_as_well(locked: Aot) -> None:
    done = build(locked)
    assert done.code == 0, done.err
    facts = json.loads((locked.folder / "wide.aot/manifest.json").read_text())["engines"][0]["engine"]["facts"]
    assert facts["timing_cache"] == {"used": True, "saved": False}


def test_a_changed_option_is_named_before_any_work(locked: Aot) -> None:
    (locked.folder / "deep.yaml").write_text("engine: {optimization_level: 1}\n")
    done = build(locked, "--profile", "./deep.yaml")
    assert done.code == 1
    assert "option engine.optimization_level: 3 -> 1" in done.err
    assert "build sm" not in done.err


def test_another_file_is_named(locked: Aot) -> None:
    kept = (locked.folder / "wide.onnx").read_bytes()
    models.wide(locked.folder / "wide.onnx", seed=1)
    done = build(locked)
    (locked.folder / "wide.onnx").write_bytes(kept)
    assert done.code == 1
    assert "file wide.onnx: " in done.err


def test_another_timing_cache_is_named(locked: Aot) -> None:
    (cache,) = locked.folder.glob("wide.lock.*.timing")
    kept = cache.read_bytes()
    cache.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    done = build(locked, "--lock", "wide.lock")
    cache.write_bytes(kept)
    assert done.code == 1
    assert "timing cache sm" in done.err


def test_a_cache_that_lacks_a_tactic_does_not_do(locked: Aot, tmp_path: Path) -> None:
    """The lock of one graph with the timing cache of another. What TensorRT 10.6 fuses itself it times all the same:
    then the build is not accepted, for its tactics are others."""
    models.convolutions(locked.folder / "conv.onnx")
    other = replace(locked, store=tmp_path / "store")
    assert other("build", "conv.onnx", *DIM, *COMMON, "--lock", "conv.lock").code == 0
    (cache,) = locked.folder.glob("conv.lock.*.timing")
    said = json.loads((locked.folder / "wide.lock").read_text())
    said["engines"][0]["timing_cache"] = hashlib.sha256(cache.read_bytes()).hexdigest()
    (locked.folder / "forged.lock").write_text(json.dumps(said))
    (locked.folder / cache.name.replace("conv", "forged")).write_bytes(cache.read_bytes())
    done = build(locked, "--lock", "forged.lock", "-o", "forged.aot")
    assert done.code == 1
    assert "cannot build with the locked tactics alone" in done.err or "not what was locked: engine sm" in done.out
