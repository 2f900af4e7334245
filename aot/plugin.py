"""The plugin contract: an op that TensorRT lacks, in one file.

`plugins/OP.py`, beside model.py or among the built-ins, holds

    NAME       "domain::OP"
    SCHEMA     inputs, attributes and outputs: see `aot/plugins/schema.py`
    TYPES      the dtypes that a name in SCHEMA stands for; may be left out
    SHAPES     input -> its axes, by the names of their sizes: {"x": "... width", "weight": "width"}
    SIZES      name of a size -> (least, greatest[, multiple of]), None for no limit; may be left out
    ATTRIBUTES attribute -> values to check it with, beside its default; may be left out
    CASES      what to check with where sizes hang together, as a width does with the number of heads: a dict each of
               sizes and attributes, the first with the attributes' defaults; may be left out
    CONFIGS    ways to run the kernel, the best guess first: num_warps, num_stages, maxnreg, and what `launch` reads
    SPACE      name in a config -> values to try, where they are too many to list; `aot plugin tune` descends from
               CONFIGS, one name at a time; may be left out

    reference(*inputs, *attributes)         in torch, the truth: computes in FP32 and returns the outputs' dtypes
    outputs(shapes, attributes)             the outputs' shapes, in order
    launch(shapes, attributes, config)      a Launch
    kernel                                  in Triton; parameters: inputs, scalars, outputs, constants, in this order
    sample(inputs, attributes)              random inputs made into ones that occur; torch's generators are seeded
                                            for it; may be left out
    PATTERNS                                what the op replaces in a model that does not call it: functions in torch of
                                            its inputs, and of attributes that are numbers, where a model says them, or
                                            have a default here; each returns the outputs; may be left out

`shapes.x` and `attributes.eps` are what the names say. A size is an integer where it is known and else a `Size`, with
which + - * //, `ceil_div` and `at_most` can be computed. Tensors are contiguous; the kernel writes every element of its
outputs.

From it follow the torch op, which `aot.ops.OP` is in a model; the ONNX node, with a function made of the reference,
which runs wherever the kernel cannot; PTX for each GPU; and the check of the kernel against the reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aot.plugins.sizes import Size, at_most, ceil_div, fixed, power_of_two

__all__ = ["Launch", "Named", "Size", "at_most", "ceil_div", "fixed", "power_of_two"]


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched.

    grid: how many programs, one to three axes. constants: its `tl.constexpr` parameters. scalars: its int32 parameters,
    which may vary. Both are by parameter name.
    """

    grid: Sequence[int | Size]
    constants: Mapping[str, int | float | bool | str] = field(default_factory=dict)
    scalars: Mapping[str, int | Size] = field(default_factory=dict)


class Named:
    """Values by the names of inputs or attributes."""

    def __init__(self, kind: str, values: Mapping[str, Any]) -> None:
        self._kind = kind
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(key for key in self.__dict__ if key != "_kind")
        raise AttributeError(f"there is no {self._kind} '{name}', there are: {known or 'none'}")
