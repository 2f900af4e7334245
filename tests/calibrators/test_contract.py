"""Every calibrator keeps the contract of `aot.calibrator`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aot.calibrator import Calibrator, NotFinite, get, names
from aot.errors import UsageError

EACH = pytest.mark.parametrize("kind", [get(name) for name in names()], ids=lambda kind: kind.name)


def samples() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(97, 5, 3)).astype(np.float32)


def observed(kind: type[Calibrator], batches: list[np.ndarray]) -> Calibrator:
    calibrator = kind()
    for batch in batches:
        calibrator.observe("x", batch)
    return calibrator


@EACH
def test_answer_does_not_depend_on_how_samples_are_cut_or_ordered(kind: type[Calibrator]) -> None:
    data = samples()
    whole = observed(kind, [data]).ranges()
    assert observed(kind, np.array_split(data, 13)).ranges() == whole
    assert observed(kind, list(data[::-1])).ranges() == whole


@EACH
def test_merging_two_halves_is_observing_both(kind: type[Calibrator]) -> None:
    data = samples()
    left, right = observed(kind, [data[:40]]), observed(kind, [data[40:]])
    right.observe("only here", data[:1])
    left.merge(right)
    both = observed(kind, [data])
    both.observe("only here", data[:1])
    assert left.ranges() == both.ranges()


@EACH
def test_state_survives_a_file(kind: type[Calibrator], tmp_path: Path) -> None:
    calibrator = observed(kind, [samples()])
    calibrator.save(tmp_path / "state")
    loaded = kind.load(tmp_path / "state")
    assert loaded.ranges() == calibrator.ranges()
    loaded.observe("x", samples() * 9)
    calibrator.observe("x", samples() * 9)
    assert loaded.ranges() == calibrator.ranges()


@EACH
def test_memory_does_not_grow_with_samples(kind: type[Calibrator]) -> None:
    data = samples()

    def size(batches: int) -> int:
        return sum(array.nbytes for array in observed(kind, [data] * batches).state().values())

    assert size(1) == size(50)


@EACH
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_name(kind: type[Calibrator], bad: float) -> None:
    data = samples()
    data[50, 2, 1] = bad
    with pytest.raises(NotFinite, match="x"):
        observed(kind, [data])


@EACH
def test_an_empty_batch_tells_nothing(kind: type[Calibrator]) -> None:
    assert observed(kind, [np.zeros((0, 4), np.float32)]).ranges() == {}


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'max'"):
        get("maxx")


def test_max_is_the_largest_absolute_value() -> None:
    data = samples()
    assert observed(get("max"), [data]).ranges() == {"x": float(np.abs(data).max())}
    assert observed(get("max"), [-np.abs(data)]).ranges() == {"x": float(np.abs(data).max())}
