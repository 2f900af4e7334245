"""onnxruntime's threads, which wait for work with or without sleep."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aot
from aot.runtime import sessions
from tests.runtime import artifacts


@pytest.mark.parametrize(("spin", "entry"), [(True, "1"), (False, "0")])
def test_the_option_reaches_onnxruntime_and_changes_no_result(spin: bool, entry: str, tmp_path: Path) -> None:
    options = sessions.options(spin=spin)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == entry
    x = artifacts.rows(3)
    with aot.load(artifacts.linear(tmp_path / "l.aot"), spin=spin) as session:
        np.testing.assert_allclose(session(x=x)["y"], x @ artifacts.WEIGHT, rtol=1e-6)
