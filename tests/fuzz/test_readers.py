"""Whatever a file holds, reading it ends well or in an AotError: never in a traceback, a crash or a hang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings

from aot.errors import AotError
from tests.fuzz.readers import READERS

SAMPLE = 40
"""Cases of each reader in `make test`."""
ALL, BLOCK = 100_000, 1_000
"""Cases of all readers in `make sweep`, and those of one test of it, whose number is their seed."""


def fuzz(name: str, folder: Path, count: int, number: int) -> dict[str, int]:
    """Give a reader that many cases; return how many it took and refused."""
    cases, read = READERS[name].open(folder)
    seen = {"taken": 0, "refused": 0}

    @seed(number)
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(cases)
    def each(case: Any) -> None:
        try:
            read(case)
        except AotError:
            seen["refused"] += 1
        else:
            seen["taken"] += 1

    each()
    return seen


@pytest.mark.parametrize("name", READERS)
def test_a_few_cases_of_each(name: str, tmp_path: Path) -> None:
    seen = fuzz(name, tmp_path, SAMPLE, number=0)
    assert sum(seen.values()) >= SAMPLE
    assert seen["refused"]


BLOCKS = [
    (name, number) for name, reader in READERS.items() for number in range(1, reader.weight * ALL // BLOCK // 100 + 1)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), BLOCKS)
def test_all_cases(name: str, number: int, tmp_path: Path) -> None:
    assert sum(fuzz(name, tmp_path, BLOCK, number).values()) >= BLOCK


def test_the_blocks_are_that_many() -> None:
    assert len(BLOCKS) * BLOCK >= ALL
