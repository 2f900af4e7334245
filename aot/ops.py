"""The ops of plugins, for use in a model: `aot.ops.add_rms_norm(x, residual, weight)`.

An op is made from `plugins/OP.py`, beside model.py or among the built-ins, when it is first asked for.
"""

from __future__ import annotations

from typing import Any

from aot.errors import UsageError


class UnknownOp(UsageError, AttributeError):
    """A name that no plugin has: an AttributeError too, for `hasattr` and torch.compile ask a module for any name."""


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    from aot.frontend.plugins import op

    try:
        return op(name)
    except UsageError as error:
        raise UnknownOp(error.what, where=error.where, fix=error.fix) from None
