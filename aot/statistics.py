"""What one pass over the data saw of every value: its extremes, and of what layers read as much more as a recipe needs.

Everything is a maximum or a sum of whole numbers, so it is the same to the last bit whatever the order of the samples,
the batches they came in and the processes that saw them, and two of them merge into one that saw both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.errors import CalibrationError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from aot.channels import Channels
    from aot.histogram import Histogram

    Array = np.ndarray[Any, Any]

FILE, ARRAYS = "statistics.json", "statistics.npz"


class Level(IntEnum):
    """How much is kept of a value that layers read; each level includes those before it.

    WEIGHTED: a histogram in which a value counts as much as its channel matters to the layers that read it.
    CHANNELS: largest magnitude, mean and a coarse histogram of every channel. PRODUCTS: sums of x x^T.
    """

    EXTREMES = 0
    HISTOGRAM = 1
    WEIGHTED = 2
    CHANNELS = 3
    PRODUCTS = 4


class NotFinite(ValueError):
    """An observed tensor holds NaN or infinity."""

    def __init__(self, tensor: str) -> None:
        super().__init__(tensor)
        self.tensor = tensor


@dataclass
class Tensor:
    """What was seen of one tensor. low, high: its extremes. count: how many values.

    histogram: of |x|. weighted: the same, where a value counts `gain[channel]` times (`Reading`). channels: of the
    axis that layers contract over. Each is None where it was not asked for.
    """

    low: float = math.inf
    high: float = -math.inf
    count: int = 0
    histogram: Histogram | None = None
    weighted: Histogram | None = None
    channels: Channels | None = None

    @property
    def amax(self) -> float:
        """max |x|, 0 where nothing was seen."""
        return max(-self.low, self.high, 0.0)

    def merge(self, other: Tensor) -> None:
        """Take into account what `other` saw."""
        from aot.histogram import Histogram

        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.count += other.count
        if other.histogram is not None:
            self.histogram = self.histogram or Histogram()
            self.histogram.merge(other.histogram)
        if other.weighted is not None:
            self.weighted = self.weighted or Histogram()
            self.weighted.merge(other.weighted)
        if other.channels is not None:
            if self.channels is None:
                self.channels = other.channels.empty()
            self.channels.merge(other.channels)


@dataclass(frozen=True)
class Reading:
    """How layers read a value. axis: the one they contract over, None where there is none to tell apart (an operand of
    attention). gain: int64 [C], how much an error in each channel does to their outputs: the squared norm of the
    channel's weights, summed over the layers, in whole steps of 2^-20 of the largest, never below one.
    """

    axis: int | None = None
    gain: NDArray[np.int64] | None = None


@dataclass
class Statistics(Mapping[str, Tensor]):
    """Tensors by name. alias: values that were only moved -> the observed value with the same numbers.

    provenance: `graph` and `data` (digests of what was run on what), `aot` (version), `level`.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    alias: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.alias.get(name, name)]

    def __iter__(self) -> Iterator[str]:
        yield from self.tensors
        yield from (name for name, source in self.alias.items() if source in self.tensors)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def amax(self) -> dict[str, float]:
        """The largest magnitude observed of every tensor."""
        return {name: self[name].amax for name in self}

    def observe(self, name: str, array: Array, level: Level = Level.EXTREMES, reading: Reading | None = None) -> None:
        """Take one batch of a tensor into account: any shape, a float dtype; samples lie along the first axis.

        Raises NotFinite where it holds NaN or infinity. An empty batch tells nothing.
        """
        if not array.size:
            return
        # Minimum and maximum propagate NaN, so they tell whether all is finite without a copy of the tensor.
        self.extremes(name, float(array.min()), float(array.max()), array.size)
        self.detail(name, array, level, reading or Reading())

    def extremes(self, name: str, low: float, high: float, count: int) -> None:
        """Take a batch into account of which only the extremes are known. Raises NotFinite."""
        if not (math.isfinite(low) and math.isfinite(high)):
            raise NotFinite(name)
        tensor = self.tensors.setdefault(name, Tensor())
        tensor.low, tensor.high = min(tensor.low, low), max(tensor.high, high)
        tensor.count += count

    def detail(self, name: str, array: Array, level: Level, reading: Reading) -> None:
        """What the level asks beyond extremes, of a batch whose extremes are known to be finite."""
        from aot.channels import Channels
        from aot.histogram import Histogram

        tensor = self.tensors[name]
        if level < Level.HISTOGRAM:
            return
        tensor.histogram = tensor.histogram or Histogram()
        if level == Level.HISTOGRAM or reading.axis is None or reading.gain is None:
            tensor.histogram.add(array)
        else:
            tensor.weighted = tensor.weighted or Histogram()
            tensor.histogram.add_with(tensor.weighted, array, reading.gain, reading.axis)
        if reading.axis is None:
            return
        if level >= Level.CHANNELS:
            if tensor.channels is None:
                tensor.channels = Channels.of(array, reading.axis, products=level >= Level.PRODUCTS)
            tensor.channels.add(array)

    def merge(self, other: Statistics) -> None:
        """Take into account what `other` saw."""
        for name, tensor in other.tensors.items():
            self.tensors.setdefault(name, Tensor()).merge(tensor)
        self.alias.update(other.alias)

    def arrays(self) -> dict[str, Array]:
        """Everything observed, as arrays: names and extremes, and for each tensor by its number what else there is."""
        import numpy as np

        ordered = sorted(self.tensors.items())
        found: dict[str, Array] = {
            "names": np.array([name for name, _ in ordered], dtype=str),
            "extremes": np.array([(t.low, t.high) for _, t in ordered], np.float64).reshape(-1, 2),
            "counts": np.array([t.count for _, t in ordered], np.int64),
            "moved": np.array(sorted(self.alias), dtype=str),
            "sources": np.array([self.alias[name] for name in sorted(self.alias)], dtype=str),
        }
        for number, (_, tensor) in enumerate(ordered):
            for kind, histogram in (("histogram", tensor.histogram), ("weighted", tensor.weighted)):
                if histogram is not None:
                    first, last = histogram.window
                    found[f"{number}/{kind}"] = histogram.counts[first:last]
                    found[f"{number}/{kind}/first"] = np.array(first)
            if tensor.channels is not None:
                found |= {f"{number}/channels/{key}": array for key, array in tensor.channels.arrays().items()}
        return found

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array]) -> Statistics:
        """The inverse of `arrays`."""
        from aot.channels import Channels
        from aot.histogram import Histogram

        def histogram(key: str) -> Histogram | None:
            if key not in arrays:
                return None
            made, first = Histogram(), int(arrays[f"{key}/first"])
            made.counts[first : first + len(arrays[key])] = arrays[key]
            return made

        found = cls()
        for number, name in enumerate(arrays["names"]):
            low, high = arrays["extremes"][number]
            head = f"{number}/channels/"
            channels = {key.removeprefix(head): array for key, array in arrays.items() if key.startswith(head)}
            found.tensors[str(name)] = Tensor(
                float(low),
                float(high),
                int(arrays["counts"][number]),
                histogram(f"{number}/histogram"),
                histogram(f"{number}/weighted"),
                Channels.of_arrays(channels) if channels else None,
            )
        found.alias = dict(zip(map(str, arrays["moved"]), map(str, arrays["sources"]), strict=True))
        return found

    def save(self, folder: Path) -> None:
        """Write `statistics.json` (provenance, and for each tensor its extremes) and `statistics.npz` (all of it)."""
        import numpy as np

        folder.mkdir(parents=True, exist_ok=True)
        seen = {name: {"low": t.low, "high": t.high, "count": t.count} for name, t in sorted(self.tensors.items())}
        text = {"provenance": self.provenance, "tensors": seen, "moved": dict(sorted(self.alias.items()))}
        (folder / FILE).write_text(json.dumps(text, indent=1) + "\n")
        with (folder / ARRAYS).open("wb") as file:
            np.savez(file, **self.arrays())  # type: ignore[arg-type]

    @classmethod
    def load(cls, folder: Path) -> Statistics:
        """Read what `save` wrote. Raises CalibrationError where it cannot be read."""
        import zipfile

        import numpy as np

        try:
            provenance = json.loads((folder / FILE).read_text())["provenance"]
            with np.load(folder / ARRAYS, allow_pickle=False) as file:
                found = cls.of_arrays({key: file[key] for key in file.files})
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise CalibrationError(
                f"cannot read the statistics: {' '.join(str(error).split())}",
                where=str(folder),
                fix="calibrate again",
            ) from error
        found.provenance = provenance
        return found
