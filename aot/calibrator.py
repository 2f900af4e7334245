"""The calibrator contract: a range observer that sees values as they stream by.

An implementation is one file of `calibrators/`, named after what `calibrator:` of a recipe says. Whatever it is,

- its memory does not grow with the number of samples,
- its answer does not depend on how samples are cut into batches, nor on their order,
- two of them that saw different samples can be merged into one that saw both, and
- its state can be saved and loaded.

So calibration can run over any amount of data, in pieces, on several machines.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from aot.errors import CalibrationError, unknown

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


class NotFinite(ValueError):
    """An observed tensor holds NaN or infinity."""

    def __init__(self, tensor: str) -> None:
        super().__init__(tensor)
        self.tensor = tensor


class Calibrator(ABC):
    """Observes tensors by name and says what range to quantize each with."""

    name: ClassVar[str]

    def observe(self, name: str, array: Array) -> None:
        """Take one batch of a tensor into account. Raises NotFinite where it holds NaN or infinity.

        `array` is of any shape and of a float dtype; an empty one tells nothing.
        """
        import math

        if not array.size:
            return
        # Minimum and maximum propagate NaN, so they tell whether all is finite without a copy of the tensor.
        low, high = float(array.min()), float(array.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise NotFinite(name)
        self.take(name, array, low, high)

    @abstractmethod
    def take(self, name: str, array: Array, low: float, high: float) -> None:
        """Take a batch into account that is not empty and is finite; `low` and `high` are its extremes."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Take into account what `other` has observed."""

    @abstractmethod
    def ranges(self) -> dict[str, float]:
        """amax of every tensor observed: the value that the largest quantized number stands for, >= 0."""

    @abstractmethod
    def state(self) -> dict[str, Array]:
        """Everything observed, as arrays."""

    @abstractmethod
    def restore(self, state: Mapping[str, Array]) -> None:
        """Become what `state()` described."""

    def save(self, path: Path) -> None:
        """Write the state to one `.npz` file."""
        import numpy as np

        with path.open("wb") as file:
            np.savez(file, __calibrator__=np.array(self.name), **self.state())  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote. Raises CalibrationError where another calibrator wrote it."""
        import numpy as np

        with np.load(path) as file:
            state = {key: file[key] for key in file.files}
        writer = str(state.pop("__calibrator__", "nothing that aot knows"))
        if writer != cls.name:
            raise CalibrationError(f"ranges of calibrator '{cls.name}' were written by '{writer}'", where=str(path))
        loaded = cls()
        loaded.restore(state)
        return loaded


def names() -> list[str]:
    """The calibrators there are: one a file of `calibrators/`."""
    from aot import calibrators

    return sorted(info.name for info in pkgutil.iter_modules(calibrators.__path__) if not info.name.startswith("_"))


def get(name: str) -> type[Calibrator]:
    """The calibrator of that name. Raises UsageError, with the nearest name, where there is none."""
    if name not in names():
        raise unknown("calibrator", name, names())
    module = importlib.import_module(f"aot.calibrators.{name}")
    found: type[Calibrator] = module.CALIBRATOR
    return found
