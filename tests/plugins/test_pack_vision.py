"""The kernels of the pack on Triton's interpreter: what samples maps and volumes."""

from __future__ import annotations

import pytest

from aot.plugins.checking import Checked
from tests.plugins.pack import VISION, assert_right, checked_together


@pytest.fixture(scope="module")
def checked() -> dict[str, Checked]:
    return checked_together(VISION)


@pytest.mark.parametrize("name", VISION)
def test_a_built_in_kernel_computes_its_reference(name: str, checked: dict[str, Checked]) -> None:
    assert_right(checked[name])
