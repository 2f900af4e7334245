"""A bit of an artifact that turned over is seen, by `aot verify` and by whoever loads it, or changes nothing."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aot
from aot import artifact
from aot.packing import oci, tar
from aot.packing.verify import verify
from aot.store import default_root
from tests.fuzz.artifact import write
from tests.runtime.artifacts import rows

FORMS: dict[str, Callable[[Path, Path], object]] = {
    "folder": lambda folder, to: shutil.copytree(folder, to),
    "tar": lambda folder, to: tar.write(folder, to),
    "layout": lambda folder, to: oci.write(folder, to),
}


def flips(to: Path, count: int, number: int) -> Iterator[str]:
    """Turn over one bit at a time, the files of a folder in turns; the name of each is given while it is so."""
    files = [path for path in sorted(to.rglob("*")) if path.is_file()] if to.is_dir() else [to]
    chance = random.Random(number)
    for turn in range(count):
        path = files[turn % len(files)]
        whole = path.read_bytes()
        if not whole:
            continue
        changed = bytearray(whole)
        changed[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        try:
            yield path.relative_to(to).as_posix()
        finally:
            path.write_bytes(whole)


def outputs(name: Path) -> bytes:
    """What the engine for the CPU makes of two rows, loaded as a server does."""
    with aot.load(name, engine="cpu") as session:
        made: Any = session({"x": rows(2)})["y"]
        return bytes(made.tobytes())


def read(name: Path) -> Any:
    """All that a build takes from the artifact to go on with, as it is compared."""
    found = artifact.load(str(name))
    cases = [[case.name, {n: a.tobytes() for n, a in (case.inputs | case.outputs).items()}]
             for case in found.references.cases()]  # fmt: skip
    engines = [(engine.facts, engine.plan.read_bytes()) for engine, _ in found.engines]
    return found.spec, found.plan, found.final.model.read_bytes(), found.ranges.amax(), cases, engines


def told(use: Callable[[Path], Any], name: Path) -> Any:
    """What it gives; AotError where it refuses."""
    try:
        return use(name)
    except aot.AotError:
        return aot.AotError


def check(form: str, folder: Path, count: int, number: int) -> Counter[str]:
    """How many flips `verify` told, a load told, and changed nothing; any other one is an error."""
    whole, to = folder / "x.aot", folder / ("x.tar" if form == "tar" else f"x-{form}")
    write(whole, folder / "store")
    FORMS[form](whole, to)
    loads = () if form == "layout" else (outputs, read)
    right = {use: use(to) for use in loads}
    manifest = json.loads((whole / "manifest.json").read_text())
    assert not verify(str(to)).problems
    seen: Counter[str] = Counter()
    for place in flips(to, count, number):
        found = verify(str(to)).problems
        seen["told by verify" if found else "harmless"] += 1
        for use, answer in right.items():
            got = told(use, to)
            assert got in (aot.AotError, answer), f"{place} changed what is loaded"
            seen[f"told by {use.__name__}"] += got is aot.AotError
        if not found and form == "folder":
            assert place == "manifest.json"  # where a space or the case of a digit's escape does not matter
            assert json.loads((to / place).read_text()) == manifest
        shutil.rmtree(default_root(), ignore_errors=True)  # where tars are unpacked
    return seen


@pytest.mark.parametrize("form", FORMS)
def test_some_flips(form: str, tmp_path: Path) -> None:
    seen = check(form, tmp_path, 40, number=0)
    assert seen["told by verify"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_thousand_flips(form: str, tmp_path: Path) -> None:
    seen = check(form, tmp_path, 1000, number=1)
    assert seen["told by verify"] + seen["harmless"] == 1000
