"""How the plugins of norms are launched: a program a row or a few, or so many programs at most, which go over all."""

from __future__ import annotations

import math
from typing import Any

from aot.plugin import Launch, at_most, ceil_div, power_of_two


def launch(shapes: Any, attributes: Any, config: Any, **constants: Any) -> Launch:
    """Of x [..., width]. constants: of the kernel, beside those of every norm.

    Raises PluginError for a width that varies.
    """
    rows = math.prod(shapes.x[:-1])
    programs = ceil_div(rows, config["rows"])
    block = power_of_two(shapes.x[-1], "the normalized width")
    fits = block * config["rows"] * config.get("ahead", 1) <= 12288  # FP32 of both inputs, in 96 KiB
    return Launch(
        grid=(at_most(programs, config["programs"]) if "programs" in config else programs,),
        scalars={"rows": rows},
        constants={
            "WIDTH": shapes.x[-1],
            "EPS": attributes.eps,
            "ROWS": config["rows"],
            "AHEAD": config.get("ahead", 1) if fits else 1,
            "BLOCK": block,
            **constants,
        },
    )
