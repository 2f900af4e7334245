"""The ops of plugins, for use in a model: `aot.ops.add_rms_norm(x, residual, weight)`.

An op is made from `plugins/OP.py`, beside model.py or among the built-ins, when it is first asked for.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    from aot.frontend.plugins import op

    return op(name)
