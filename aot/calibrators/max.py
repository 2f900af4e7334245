"""The largest absolute value: nothing is ever clipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aot.calibrator import Calibrator
from aot.statistics import Level, Tensor

if TYPE_CHECKING:
    from aot.precision.formats import Quantized


class Max(Calibrator):
    """amax = max |x| over everything observed."""

    name = "max"
    needs = Level.EXTREMES

    def amax(self, tensor: Tensor, form: Quantized) -> float:
        """The larger extreme."""
        return tensor.amax

    def settings(self) -> dict[str, Any]:
        """The same for every format."""
        return {"calibrator": self.name}


CALIBRATOR = Max
