"""Where torch.onnx has no translation of an op, or a wrong one, or one into a form that TensorRT builds badly: our own,
one idea a file.

A file offers `TRANSLATION`, a table from the torch op to the function that writes it in ONNX, or `REWRITE`, a table
from the op to a function of torch that does the same: it takes the op's arguments, runs on tensors whose sizes are
symbolic, and returns NotImplemented where torch.onnx has it right.
"""

from __future__ import annotations

from typing import Any

from aot.frontend.bridge import (
    adaptive_pool,
    elementwise,
    experts,
    gamma,
    matrix_exp,
    recurrent,
    reductions,
    resize,
    running,
    scalars,
    scatter,
    sdpa,
    searching,
    small_matrices,
    sorting,
    special,
    splitting,
)

TRANSLATIONS: dict[Any, Any] = {**sdpa.TRANSLATION, **recurrent.TRANSLATION}

_PARTS = (
    adaptive_pool,
    elementwise,
    experts,
    gamma,
    matrix_exp,
    reductions,
    resize,
    running,
    scalars,
    scatter,
    searching,
    small_matrices,
    sorting,
    special,
    splitting,
)
REWRITES: dict[Any, Any] = {op: function for part in _PARTS for op, function in part.REWRITE.items()}
