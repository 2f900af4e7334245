"""What the page says about precision."""

from __future__ import annotations

import pytest

from aot.report.sections.precision import kept_wide


@pytest.mark.parametrize(
    ("asked", "op", "precision", "wide"),
    [
        ("int8", "MatMul", "int8", False),
        ("int8", "MatMul", "fp16", True),
        ("int8", "Softmax", "fp16", False),  # the dtype of everything that is no layer
        ("fp8", "Softmax", "fp32", True),
        ("fp16", "MatMul", "fp16", False),
        ("bf16", "Pow", "fp32", True),
        ("fp32", "MatMul", "fp32", False),
        ("int8", "MatMul", "int64", False),
    ],
)
def test_what_is_wider_than_asked_is_kept_wide(asked: str, op: str, precision: str, wide: bool) -> None:
    assert kept_wide({"op": op, "precision": precision}, asked) is wide
