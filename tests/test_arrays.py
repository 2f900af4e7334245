"""Arrays on disk come back as they were."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from aot import arrays


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "float16", "float32", "float64", "bfloat16"])
def test_every_dtype_survives(tmp_path: Path, dtype: str) -> None:
    values = np.array([[0, 1, 2], [3, 4, 5]]).astype(arrays.dtype_named(dtype))
    arrays.save(tmp_path / "a.npz", {"x": values, "file": values[0, 0], "empty": values[:0]})
    found = arrays.load(tmp_path / "a.npz")
    assert list(found) == ["x", "file", "empty"]
    assert {array.dtype for array in found.values()} == {values.dtype}
    np.testing.assert_array_equal(found["x"], values)
    assert found["file"].shape == ()
    assert found["empty"].shape == (0, 3)


def test_numpys_own_files_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    np.testing.assert_array_equal(arrays.load(tmp_path / "a.npz")["x"], np.arange(3))


def test_numpy_reads_ours(tmp_path: Path) -> None:
    arrays.save(tmp_path / "a.npz", {"x": np.arange(3), "half": np.ones(2, ml_dtypes.bfloat16)})
    with np.load(tmp_path / "a.npz") as found:
        np.testing.assert_array_equal(found["x"], np.arange(3))
        assert found["half:bfloat16"].dtype == np.uint16


def test_a_name_may_hold_the_mark(tmp_path: Path) -> None:
    arrays.save(tmp_path / "a.npz", {"serving_default_input:0": np.arange(3)})
    np.testing.assert_array_equal(arrays.load(tmp_path / "a.npz")["serving_default_input:0"], np.arange(3))
