"""A GPU that is not there: stand-ins for the driver and TensorRT, and artifacts whose engines they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aot
from aot.runtime import Session
from tests.runtime import artifacts, fake_cuda, fake_engine
from tests.runtime.fake_cuda import Cuda

Loads = Callable[..., Session]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """The driver's stand-in, with TensorRT's on top."""
    cuda = fake_cuda.install(monkeypatch)
    fake_engine.install(monkeypatch, cuda)
    return cuda


def plan_of(model: str, profiles: Any = (artifacts.DIMS,), **more: Any) -> bytes:
    """The plan of a stand-in's model whose inputs all have `batch` rows of 3."""
    rows = [{name: [[size, 3] for size in p["batch"]] for name in fake_engine.MODELS[model].inputs} for p in profiles]
    for row in rows:
        if "n" in row:
            row["n"] = [shape[:1] for shape in row["n"]]
    return fake_engine.plan(model, *rows, **more)


@pytest.fixture
def linear(cuda: Cuda, tmp_path: Path) -> Iterator[Loads]:
    """Loads the engine of y = x W, of these profiles; the sessions are closed in the end."""
    yield from _loads(tmp_path, "linear", artifacts.linear)


@pytest.fixture
def counter(cuda: Cuda, tmp_path: Path) -> Iterator[Loads]:
    """Loads the engine of the model that keeps a sum."""
    yield from _loads(tmp_path, "counter", artifacts.counter)


def _loads(folder: Path, model: str, write: Callable[..., Path]) -> Iterator[Loads]:
    made: list[Session] = []

    def load(profiles: Any = None, **options: Any) -> Session:
        plan = plan_of(model, profiles or (artifacts.DIMS,), **options.pop("plan", {}))
        more = {} if profiles is None else {"profiles": profiles}
        where = write(folder / f"{len(made)}.aot", engines=[artifacts.ENGINE], plan=plan, **more)
        made.append(aot.load(where, **options))
        return made[-1]

    yield load
    for session in made:
        session.close()
