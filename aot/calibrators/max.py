"""The largest absolute value: nothing is ever clipped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from aot.calibrator import Calibrator

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


class Max(Calibrator):
    """amax = max |x| over everything observed."""

    name = "max"

    def __init__(self) -> None:
        self._amax: dict[str, float] = {}

    def take(self, name: str, array: Array, low: float, high: float) -> None:
        """Needs nothing but the extremes."""
        self._amax[name] = max(self._amax.get(name, 0.0), -low, high)

    def merge(self, other: Self) -> None:
        """The larger of the two, tensor by tensor."""
        for name, amax in other._amax.items():
            self._amax[name] = max(self._amax.get(name, 0.0), amax)

    def ranges(self) -> dict[str, float]:
        """max |x| of every tensor."""
        return dict(self._amax)

    def state(self) -> dict[str, Array]:
        """Names and values, in the order of the names."""
        import numpy as np

        ordered = sorted(self._amax.items())
        return {
            "names": np.array([name for name, _ in ordered], dtype=str),
            "amax": np.array([amax for _, amax in ordered], dtype=np.float64),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`."""
        self._amax = {str(name): float(amax) for name, amax in zip(state["names"], state["amax"], strict=True)}


CALIBRATOR = Max
