"""The kernels of the pack on Triton's interpreter: norms and SwiGLU."""

from __future__ import annotations

import pytest

from aot.plugins.checking import Checked
from tests.plugins.pack import NORMS, assert_right, checked_together


@pytest.fixture(scope="module")
def checked() -> dict[str, Checked]:
    return checked_together(NORMS)


@pytest.mark.parametrize("name", NORMS)
def test_a_built_in_kernel_computes_its_reference(name: str, checked: dict[str, Checked]) -> None:
    assert_right(checked[name])
