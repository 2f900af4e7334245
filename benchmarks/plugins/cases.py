"""What `benchmarks/plugins.py` measures: each plugin's sizes, and what there is to measure it against.

To add a plugin, add an entry to CASES. A plugin without one is measured at sizes that follow from its SHAPES, against
its reference alone, and its rows say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional as F

Function = Callable[..., Any]
"""Takes the plugin's inputs and then its attributes, all in the order of SCHEMA."""


@dataclass(frozen=True)
class Op:
    """One plugin.

    sizes: three, small to large, by the names of SHAPES; "..." is a tuple of leading axes; attributes may stand among
    them. types: name of TYPES -> dtype, the first of TYPES where it is left out. eager: what one would write with
    torch, in the inputs' own dtype; the reference where it is None. It is what `torch.compile` compiles, too.
    peers: name -> a library's own function. flops: of the sizes, for a plugin that multiplies matrices; without it the
    bytes of inputs and outputs, each moved once, are held against a copy.
    """

    sizes: Sequence[Mapping[str, Any]]
    types: Mapping[str, str] = field(default_factory=dict)
    eager: Function | None = None
    peers: Mapping[str, Function] = field(default_factory=dict)
    flops: Callable[[Mapping[str, Any]], float] | None = None


def _turned(x: torch.Tensor, interleaved: bool) -> torch.Tensor:
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    one, two = x.chunk(2, -1)
    return torch.cat((-two, one), -1)


def _add_rms_norm(x: Any, residual: Any, weight: Any, eps: float) -> Any:
    total = x + residual
    return F.rms_norm(total, total.shape[-1:], weight, eps), total


def _add_layer_norm(x: Any, residual: Any, weight: Any, bias: Any, eps: float) -> Any:
    total = x + residual
    return F.layer_norm(total, total.shape[-1:], weight, bias, eps), total


CASES: dict[str, Op] = {
    "add_rms_norm": Op(
        sizes=[{"...": (rows,), "width": 4096} for rows in (128, 2048, 16384)],
        types={"T": "bfloat16"},
        peers={"F.rms_norm": _add_rms_norm},
    ),
    "add_layer_norm": Op(
        sizes=[{"...": (rows,), "width": 768} for rows in (512, 8192, 65536)],
        types={"T": "float16"},
        peers={"F.layer_norm": _add_layer_norm},
    ),
    "rotary": Op(
        sizes=[{"...": (batch, 32), "positions": 2048, "head": 128} for batch in (1, 4, 16)],
        types={"T": "bfloat16", "C": "float32"},
        peers={"rotate_half": lambda x, cos, sin, interleaved: (x * cos + _turned(x, interleaved) * sin).to(x.dtype)},
    ),
}
