"""The smallest squared error of the tensor itself: rounding inside the range against clipping outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aot.calibrator import Calibrator
from aot.statistics import Level, Tensor

if TYPE_CHECKING:
    from aot.precision.formats import Quantized


class Mse(Calibrator):
    """amax = argmin E (x - Q(x; amax))^2 over the histogram, for the format's own grid of numbers."""

    name = "mse"
    needs = Level.HISTOGRAM

    def amax(self, tensor: Tensor, form: Quantized) -> float:
        """Found by search, coarse and then fine."""
        from aot.calibrators._error import best

        return tensor.amax if tensor.histogram is None else best(tensor.histogram, tensor.amax, form)


CALIBRATOR = Mse
