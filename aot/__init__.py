"""Ahead-of-time builds of TensorRT engines from PyTorch models, verified.

A model is declared with `Dim`, `Input` and `model`; `aot build model.py` does the rest. `load` loads what came of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aot import ops
from aot.declaration import Dim, Input
from aot.decorator import Declaration, model
from aot.errors import AotError

if TYPE_CHECKING:
    from aot.runtime.loading import load

__version__ = "0.1.0"
__all__ = ["AotError", "Declaration", "Dim", "Input", "__version__", "load", "model", "ops"]


def __getattr__(name: str) -> Any:
    """`load`, imported when it is asked for: declaring a model needs no numpy."""
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from aot.runtime.loading import load

    return load
