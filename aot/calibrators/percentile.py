"""A percentile of the magnitudes: the few values beyond it are clipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from aot.calibrator import Calibrator
from aot.statistics import Level, Tensor

if TYPE_CHECKING:
    from aot.config import Recipe
    from aot.precision.formats import Quantized


class Percentile(Calibrator):
    """amax = the magnitude that `percentile` percent of all values, zeros among them, do not exceed."""

    name = "percentile"
    needs = Level.HISTOGRAM

    def __init__(self, form: str = "int8", percentile: float = 99.99) -> None:
        super().__init__(form)
        self.percentile = percentile

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        """With the recipe's percentile."""
        return cls(recipe.precision, recipe.percentile)

    def amax(self, tensor: Tensor, form: Quantized) -> float:
        """The bin in which that share of the counts is reached, interpolated inside it."""
        import numpy as np

        from aot.histogram import edges

        if tensor.histogram is None or not (total := tensor.histogram.total):
            return tensor.amax
        first, last = tensor.histogram.window
        below = np.cumsum(tensor.histogram.counts[first:last])
        wanted = self.percentile / 100 * total
        index = int(np.searchsorted(below, wanted))
        low, high = edges()[first + index : first + index + 2]
        inside = tensor.histogram.counts[first + index]
        reached = float(low + (high - low) * (1 - (below[index] - wanted) / inside))
        return min(reached, tensor.amax) if first + index else 0.0

    def settings(self) -> dict[str, Any]:
        """The same for every format."""
        return {"calibrator": self.name, "percentile": self.percentile}


CALIBRATOR = Percentile
