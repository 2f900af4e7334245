"""Statistics: the same to the last bit whatever the order, the batches and the merges, and right numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from aot.channels import BINS as COARSE
from aot.errors import CalibrationError
from aot.histogram import BINS, Histogram, edges
from aot.statistics import Level, Reading, Statistics

GAIN = np.array([1 << 20, 3, 1, 77, 4096], np.int64)
# Tokens, a feature map and plain rows: where the channels are, and a shape for that.
LAYOUTS = {"last": (2, (24, 7, 5)), "maps": (1, (24, 5, 4, 3)), "rows": (1, (60, 5))}
EACH = pytest.mark.parametrize("layout", LAYOUTS)


def samples(shape: Sequence[int]) -> np.ndarray:
    """Magnitudes over eleven octaves, so that sums would round differently in every order."""
    rng = np.random.default_rng(0)
    return (rng.normal(size=shape) * 2.0 ** rng.integers(-8, 3, shape)).astype(np.float32)


def seen(batches: Sequence[np.ndarray], axis: int) -> Statistics:
    found = Statistics()
    for batch in batches:
        found.observe("x", batch, Level.PRODUCTS, Reading(axis, GAIN))
    return found


def same(left: Statistics, right: Statistics) -> bool:
    a, b = left.arrays(), right.arrays()
    return list(a) == list(b) and all(np.array_equal(a[key], b[key]) for key in a)


@EACH
def test_batches_order_and_merges_change_no_bit(layout: str) -> None:
    axis, shape = LAYOUTS[layout]
    data = samples(shape)
    whole = seen([data], axis)
    assert same(seen(np.array_split(data, 7), axis), whole)
    assert same(seen(list(data[::-1, None]), axis), whole)
    parts = [seen([part], axis) for part in np.array_split(data, 5)]
    for order in ((0, 1, 2, 3, 4), (3, 1, 4, 0, 2)):
        merged = Statistics()
        for index in order:
            merged.merge(parts[index])
        assert same(merged, whole)
    assert np.array_equal(merged["x"].channels.mean, whole["x"].channels.mean)  # type: ignore[union-attr]


@EACH
def test_channels_are_what_numpy_says(layout: str) -> None:
    axis, shape = LAYOUTS[layout]
    data = samples(shape)
    found = seen(np.array_split(data, 3), axis)["x"].channels
    assert found is not None
    rows = np.moveaxis(data, axis, -1).reshape(-1, 5).astype(np.float64)
    assert found.rows == len(rows)
    np.testing.assert_array_equal(found.amax, np.abs(rows).max(axis=0))
    np.testing.assert_allclose(found.mean, rows.mean(axis=0), rtol=1e-9, atol=1e-12)
    assert found.products is not None
    products = np.asarray(rows.T @ rows)
    np.testing.assert_allclose(found.products, products, rtol=1e-4, atol=1e-4 * float(products.max()))
    for channel in range(5):
        expected, _ = np.histogram(np.abs(rows[:, channel]), found.edges)
        np.testing.assert_array_equal(found.counts[channel], expected)


@EACH
def test_weighted_counts_are_counts_times_the_gain_of_the_channel(layout: str) -> None:
    axis, shape = LAYOUTS[layout]
    data = samples(shape)
    found = seen([data], axis)["x"]
    assert found.histogram is not None
    assert found.weighted is not None
    rows = np.moveaxis(data, axis, 0)
    expected = np.zeros(BINS, np.int64)
    for channel in range(5):
        one = Histogram()
        one.add(rows[channel])
        expected += one.counts * GAIN[channel]
    np.testing.assert_array_equal(found.weighted.counts, expected)
    assert found.histogram.total == data.size


def test_weighted_counts_stay_exact_in_large_arrays() -> None:
    data = np.full((1 << 17, 5), 1.5, np.float32)
    found = Statistics()
    found.observe("x", data, Level.WEIGHTED, Reading(1, np.full(5, 1 << 20)))
    tensor = found["x"]
    assert tensor.histogram is not None
    assert tensor.weighted is not None
    assert tensor.histogram.total == data.size
    assert tensor.weighted.total == data.size << 20


def test_every_bin_holds_the_values_between_its_edges() -> None:
    data = np.concatenate([samples((5000,)), np.array([0, -0.0, 1, -1, 3.4e38, 1e-40, 2.0**-126], np.float32)])
    histogram = Histogram()
    histogram.add(data)
    bounds = edges()
    expected, _ = np.histogram(np.abs(data.astype(np.float64)), bounds)
    np.testing.assert_array_equal(histogram.counts[: len(bounds) - 1], expected)
    assert histogram.counts[0] >= 2
    normal = bounds[128:]
    assert (np.diff(normal) / normal[:-1]).max() <= 1 / 128


def test_channels_of_any_magnitude_find_their_bin() -> None:
    found = Statistics()
    for value in (1.0, 1e-30, 1e30, 0.0):
        found.observe("x", np.full((3, 5), value, np.float32), Level.CHANNELS, Reading(1, GAIN))
    channels = found["x"].channels
    assert channels is not None
    assert channels.counts.sum() == 60
    assert (channels.counts.sum(axis=1) == 12).all()
    assert (np.count_nonzero(channels.counts, axis=1) == 4).all()
    assert channels.first + channels.counts.shape[1] <= COARSE


def test_a_level_keeps_what_it_names_and_no_more() -> None:
    data = samples((24, 5))
    for level in Level:
        found = Statistics()
        found.observe("x", data, level, Reading(1, GAIN))
        tensor = found["x"]
        assert (tensor.histogram is not None) == (level >= Level.HISTOGRAM)
        assert (tensor.weighted is not None) == (level >= Level.WEIGHTED)
        assert (tensor.channels is not None) == (level >= Level.CHANNELS)
        assert (getattr(tensor.channels, "products", None) is not None) == (level >= Level.PRODUCTS)


def test_a_folder_keeps_everything_and_where_it_comes_from(tmp_path: Path) -> None:
    found = seen([samples((24, 7, 5))], 2)
    found.alias["moved"] = "x"
    found.provenance = {"graph": "g", "data": "d", "aot": "1", "level": "products"}
    found.save(tmp_path / "seen")
    back = Statistics.load(tmp_path / "seen")
    assert same(back, found)
    assert back.provenance == found.provenance
    assert back["moved"] is back["x"]
    assert back.amax() == found.amax()
    back.observe("x", samples((3, 7, 5)), Level.PRODUCTS, Reading(2, GAIN))
    found.observe("x", samples((3, 7, 5)), Level.PRODUCTS, Reading(2, GAIN))
    assert same(back, found)


def test_a_damaged_folder_is_refused_by_name(tmp_path: Path) -> None:
    seen([samples((24, 5))], 1).save(tmp_path / "seen")
    (tmp_path / "seen/statistics.npz").write_bytes(b"PK")
    with pytest.raises(CalibrationError, match="cannot read the statistics"):
        Statistics.load(tmp_path / "seen")
