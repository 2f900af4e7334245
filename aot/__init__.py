"""Ahead-of-time builds of TensorRT engines from PyTorch models, verified.

A model is declared with `Dim`, `Input` and `model`; `aot build model.py` does the rest.
"""

from aot import ops
from aot.declaration import Dim, Input
from aot.decorator import Declaration, model
from aot.errors import AotError

__version__ = "0.1.0"
__all__ = ["AotError", "Declaration", "Dim", "Input", "__version__", "model", "ops"]
