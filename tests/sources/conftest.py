from __future__ import annotations

from pathlib import Path

import pytest

from tests.sources.projects import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Opens sources, with a store of the test's own."""
    return Bench(tmp_path / "store")
