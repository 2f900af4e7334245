"""The kernels of the pack on Triton's interpreter: what goes along a sequence, a list of boxes or a graph."""

from __future__ import annotations

import pytest

from aot.plugins.checking import Checked
from tests.plugins.pack import SEQUENCES, assert_right, checked_together


@pytest.fixture(scope="module")
def checked() -> dict[str, Checked]:
    return checked_together(SEQUENCES)


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_built_in_kernel_computes_its_reference(name: str, checked: dict[str, Checked]) -> None:
    assert_right(checked[name])
