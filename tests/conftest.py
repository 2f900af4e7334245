"""What every test shares: a store of its own, and no more threads than the machine has cores."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from aot.onnx_input import vetting
from aot.sources import loading

os.environ.setdefault("OMP_NUM_THREADS", "2")
# What a shell runs in the background ignores SIGINT, and so would all that tests start there.
signal.signal(signal.SIGINT, signal.default_int_handler)
ROOT = Path(__file__).parent.parent
LONG = ("tests/test_examples.py", "tests/e2e/", "tests/plugins/", "tests/frontend/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests take seconds each come first: the last one would leave the other processes without work."""
    place = {item: [item.nodeid.startswith(start) for start in LONG] for item in items}
    items.sort(key=lambda item: place[item], reverse=True)


@pytest.fixture(autouse=True)
def _own_store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's own store."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def _no_model_loaded() -> Iterator[None]:
    """No test sees the model that the test before it loaded, nor the modules and plugins beside it."""
    yield
    loading.leave()


@pytest.fixture(autouse=True)
def _files_are_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ONNX file is examined in the test's own process; `tests/trust/` shows what the process of its own is for."""
    monkeypatch.setattr(vetting, "_apart", lambda path, what, limits: vetting.examine(path, what))


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT
