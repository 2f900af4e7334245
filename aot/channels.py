"""What was seen of every channel of a tensor: of the axis that the layers which read it contract over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = np.ndarray[Any, Any]

# Coarse bins: the exponent and two bits of the mantissa, four an octave; 1024 of them, 0 for zero.
SHIFT = 5
BINS = 1 << 10
# Bits kept of a sample's largest sum, of a mean, and of its largest value, of a product.
_SUM_BITS = 40
_PRODUCT_BITS = 16


@dataclass
class Channels:
    """axis: of the tensor. amax: [C], the largest magnitude. rows: how many values a channel had.

    first, coarse: int64 [C, n], how many values of each channel fell into bin `first` + j, where a bin is a quarter of
    an octave (`edges`). sums, squares: whole numbers by power of two, whose total is the sum of x (`mean`) and of
    x x^T (`products`): a sample is rounded to a grid that its own largest value gives, and then all sums are exact.
    """

    axis: int
    amax: NDArray[np.float64]
    rows: int = 0
    first: int = BINS
    coarse: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    sums: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    squares: dict[int, NDArray[np.int64]] | None = None

    @classmethod
    def of(cls, array: Array, axis: int, products: bool = False) -> Channels:
        """Nothing seen yet, of tensors such as `array`."""
        return cls._of(array.shape[axis], axis, products)

    @classmethod
    def _of(cls, size: int, axis: int, products: bool) -> Channels:
        return cls(axis, np.zeros(size), coarse=np.zeros((size, 0), np.int64), squares={} if products else None)

    def empty(self) -> Channels:
        """Nothing seen yet, of the same kind."""
        return self._of(len(self.amax), self.axis, self.squares is not None)

    @property
    def mean(self) -> NDArray[np.float64]:
        """[C], the mean of every channel; zeros where nothing was seen."""
        return _total(self.sums, self.amax.shape) / max(self.rows, 1)

    @property
    def products(self) -> NDArray[np.float64] | None:
        """[C, C], the sum of x x^T over all rows; None where it was not asked for. Each factor keeps 16 bits of its
        sample's largest value."""
        return None if self.squares is None else _total(self.squares, (len(self.amax),) * 2)

    @property
    def counts(self) -> NDArray[np.int64]:
        """[C, n], the coarse histogram of |x| of every channel; the bins are those of `edges`."""
        return self.coarse

    @property
    def edges(self) -> NDArray[np.float64]:
        """[n + 1], the lower edges of the coarse bins and the upper edge of the last, all finite."""
        bins = np.arange(self.first, self.first + self.coarse.shape[1] + 1, dtype=np.uint32)
        found = (bins << (16 + SHIFT)).view(np.float32).astype(np.float64)
        found[np.isinf(found)] = 2.0**128
        return found

    def add(self, array: Array) -> None:
        """Take a batch into account: finite values, samples along the first axis."""
        size = len(self.amax)
        samples = 1 if array.ndim == 1 or self.axis % array.ndim == 0 else array.shape[0]
        moved = np.moveaxis(array, self.axis, -1).reshape(samples, -1, size)
        rows = np.ascontiguousarray(moved, dtype=np.float32)
        np.maximum(self.amax, np.abs(rows).max(axis=(0, 1)), out=self.amax)
        self.rows += rows.shape[0] * rows.shape[1]
        self._count(rows.reshape(-1, size))
        self._sum(rows)
        if self.squares is not None:
            self._multiply(rows)

    def _count(self, rows: NDArray[np.float32]) -> None:
        bins = (rows.view(np.uint32) >> (16 + SHIFT)).astype(np.int64) & (BINS - 1)
        first, last = int(bins.min()), int(bins.max()) + 1
        self._widen(first, last)
        bins += np.arange(rows.shape[1]) * self.coarse.shape[1] - self.first
        self.coarse += np.bincount(bins.reshape(-1), minlength=self.coarse.size).reshape(self.coarse.shape)

    def _widen(self, first: int, last: int) -> None:
        """Let the bins reach from `first` to before `last`; what was counted stays where it was."""
        end = self.first + self.coarse.shape[1] if self.coarse.shape[1] else last
        first, last = min(first, self.first), max(last, end)
        if (first, last) != (self.first, end) or not self.coarse.shape[1]:
            left = self.first - first if self.coarse.shape[1] else 0
            right = last - first - left - self.coarse.shape[1]
            self.coarse, self.first = np.pad(self.coarse, ((0, 0), (left, right))), first

    def _sum(self, rows: NDArray[np.float32]) -> None:
        # A sample at a time: how numpy adds up would else depend on how many there are.
        if rows.shape[1] == 1:
            sums = rows[:, 0].astype(np.float64)
        else:
            sums = np.stack([sample.sum(axis=0, dtype=np.float64) for sample in rows])
        exponents = np.frexp(np.abs(sums).max(axis=1))[1]
        for power in map(int, np.unique(exponents)):
            whole = np.rint(np.ldexp(sums[exponents == power], _SUM_BITS - power)).astype(np.int64).sum(axis=0)
            _add(self.sums, power - _SUM_BITS, whole)

    def _multiply(self, rows: NDArray[np.float32]) -> None:
        assert self.squares is not None
        exponents = np.frexp(np.abs(rows).max(axis=(1, 2)))[1]
        for power in map(int, np.unique(exponents)):
            flat = rows[exponents == power].reshape(-1, rows.shape[2])
            # Factors of 16 bits: a float64 adds up 2**20 of their products exactly.
            for start in range(0, len(flat), 1 << 20):
                part = np.rint(np.ldexp(flat[start : start + (1 << 20)].astype(np.float64), _PRODUCT_BITS - power))
                _add(self.squares, 2 * (power - _PRODUCT_BITS), (part.T @ part).astype(np.int64))

    def merge(self, other: Channels) -> None:
        """Take into account what `other` saw."""
        np.maximum(self.amax, other.amax, out=self.amax)
        self.rows += other.rows
        if other.coarse.shape[1]:
            self._widen(other.first, other.first + other.coarse.shape[1])
            start = other.first - self.first
            self.coarse[:, start : start + other.coarse.shape[1]] += other.coarse
        for power, whole in other.sums.items():
            _add(self.sums, power, whole)
        for power, whole in (other.squares or {}).items():
            self.squares = {} if self.squares is None else self.squares
            _add(self.squares, power, whole)

    def arrays(self) -> dict[str, Array]:
        """Everything, as arrays; in an order that does not tell which part was counted first."""
        found = {
            "axis": np.array(self.axis),
            "amax": self.amax,
            "rows": np.array(self.rows),
            "first": np.array(self.first),
            "coarse": self.coarse,
            "products": np.array(self.squares is not None),
        }
        found |= {f"sums/{power}": whole for power, whole in sorted(self.sums.items())}
        return found | {f"squares/{power}": whole for power, whole in sorted((self.squares or {}).items())}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array]) -> Channels:
        """The inverse of `arrays`."""

        def powers(head: str) -> dict[int, Array]:
            return {int(key.removeprefix(head)): arrays[key] for key in arrays if key.startswith(head)}

        return cls(
            int(arrays["axis"]),
            np.array(arrays["amax"]),
            int(arrays["rows"]),
            int(arrays["first"]),
            np.array(arrays["coarse"]),
            powers("sums/"),
            powers("squares/") if arrays["products"] else None,
        )


def _add(sums: dict[int, NDArray[np.int64]], power: int, whole: NDArray[np.int64]) -> None:
    sums[power] = sums[power] + whole if power in sums else whole


def _total(sums: Mapping[int, NDArray[np.int64]], shape: tuple[int, ...]) -> NDArray[np.float64]:
    # From the smallest power up: one order, whatever the order in which they came.
    found = np.zeros(shape)
    for power in sorted(sums):
        found += np.ldexp(sums[power].astype(np.float64), power)
    return found
