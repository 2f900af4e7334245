"""The kernels of the pack on Triton's interpreter: linear layers and attention."""

from __future__ import annotations

import pytest

from aot.plugins.checking import Checked
from tests.plugins.pack import PRODUCTS, assert_right, checked_together


@pytest.fixture(scope="module")
def checked() -> dict[str, Checked]:
    return checked_together(PRODUCTS)


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_built_in_kernel_computes_its_reference(name: str, checked: dict[str, Checked]) -> None:
    assert_right(checked[name])
