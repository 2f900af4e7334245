"""What an engine can be built for, and what the hardware lacks."""

from __future__ import annotations

from aot.config import QUANTIZED, Precision
from aot.errors import TargetError

CPU = "cpu"
AUTO = "auto"
_SM = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
TARGETS = (*(f"sm{number}" for number in _SM), CPU)

# The first compute capability that has the dtype.
_FIRST: dict[str, int] = {"bf16": 80, "int4": 80, "fp8": 89}


def check_precision(precision: Precision, target: str) -> None:
    """Raise TargetError where the hardware of `target` lacks the dtype: BF16 and INT4 begin with sm80, FP8 with
    sm89."""
    least = _FIRST.get(precision, 0)
    if target.removeprefix("sm").isdigit() and int(target[2:]) < least:
        other = "int8 or fp16" if precision in QUANTIZED else "fp16"
        raise TargetError(
            f"{target} has no {precision.upper()}: it begins with sm{least}",
            where=f"--precision {precision} --target {target}",
            fix=f"--precision {other}, or a target from sm{least} on",
        )
