"""The calibrator contract: how the range of a quantized tensor is chosen from what was seen of it.

An implementation is one file of `calibrators/`, named after what `calibrator:` of a recipe says. It holds no more than
the choice, `amax`; what is seen is kept in `Statistics`, alike for all. So whatever it is,

- its memory does not grow with the number of samples,
- its answer does not depend on how samples are cut into batches, nor on their order,
- two of them that saw different samples can be merged into one that saw both,
- its state can be saved and loaded, and
- another one can choose anew from the same statistics, without running the model.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from aot.errors import CalibrationError, unknown
from aot.statistics import Level, NotFinite, Reading, Statistics

if TYPE_CHECKING:
    import numpy as np

    from aot.config import Recipe
    from aot.precision.formats import Quantized
    from aot.statistics import Tensor

    Array = np.ndarray[Any, Any]

__all__ = ["Calibrator", "NotFinite", "get", "names"]


class Calibrator(ABC):
    """Chooses the range to quantize each tensor with. form: the name of the format, `int8` or `fp8`."""

    name: ClassVar[str]
    needs: ClassVar[Level]

    def __init__(self, form: str = "int8") -> None:
        self.form = form
        self.statistics = Statistics()

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        """As the recipe says, whose precision is quantized."""
        return cls(recipe.precision)

    @abstractmethod
    def amax(self, tensor: Tensor, form: Quantized) -> float:
        """The value that the largest quantized number stands for, >= 0 and never above the largest that was seen.

        The tensor was seen at level `needs`.
        """

    def settings(self) -> dict[str, Any]:
        """What the answer depends on beside the statistics, as plain data."""
        return {"calibrator": self.name, "form": self.form}

    def observe(self, name: str, array: Array, reading: Reading | None = None) -> None:
        """Take one batch of a tensor into account. Raises NotFinite where it holds NaN or infinity.

        `array` is of any shape and of a float dtype, samples along the first axis; an empty one tells nothing.
        `reading`: how layers read it, for those that want to know.
        """
        self.statistics.observe(name, array, self.needs, reading)

    def merge(self, other: Self) -> None:
        """Take into account what `other` has observed."""
        self.statistics.merge(other.statistics)

    def ranges(self) -> dict[str, float]:
        """amax of every tensor observed; of one seen at a lower level than this needs, the largest magnitude."""
        return choose(self, self.statistics)

    def state(self) -> dict[str, Array]:
        """Everything observed, as arrays."""
        return self.statistics.arrays()

    def restore(self, state: Mapping[str, Array]) -> None:
        """Become what `state()` described."""
        self.statistics = Statistics.of_arrays(state)

    def save(self, folder: Path) -> None:
        """Write what was observed to a folder, as `Statistics.save` does."""
        self.statistics.provenance |= {"level": self.needs.name.lower()}
        self.statistics.save(folder)

    @classmethod
    def load(cls, folder: Path, form: str = "int8") -> Self:
        """Read what `save` wrote, by this calibrator or one that needs at least as much. Raises CalibrationError."""
        statistics = Statistics.load(folder)
        level = Level[str(statistics.provenance.get("level", "extremes")).upper()]
        if level < cls.needs:
            raise CalibrationError(
                f"calibrator '{cls.name}' needs the level '{cls.needs.name.lower()}', "
                f"what was observed has '{level.name.lower()}'",
                where=str(folder),
                fix="calibrate again",
            )
        loaded = cls(form)
        loaded.statistics = statistics
        return loaded


def choose(calibrator: Calibrator, statistics: Statistics) -> dict[str, float]:
    """amax of every tensor: chosen for those seen at the level that the calibrator needs, max |x| of all others."""
    from aot.precision.formats import QUANTIZED

    form = QUANTIZED[calibrator.form]
    chosen = {
        name: calibrator.amax(tensor, form) if applies(calibrator, tensor) else tensor.amax
        for name, tensor in statistics.tensors.items()
    }
    moved = {name: chosen[source] for name, source in statistics.alias.items() if source in chosen}
    return chosen | moved


def applies(calibrator: Calibrator, tensor: Tensor) -> bool:
    """Whether the tensor was seen closely enough for more than max |x|."""
    return calibrator.needs == Level.EXTREMES or tensor.histogram is not None


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
