"""Calls of many threads at random sizes, each held against the product that it is."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from aot.runtime import Session


def hammer(session: Session, weight: np.ndarray[Any, Any], *, largest: int, calls: int, threads: int = 8) -> None:
    """So many calls of y = x W, some of them submitted; raises AssertionError for a wrong one."""
    wrong: list[Any] = []
    done: list[int] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for count in range(calls // threads):
            x = random.standard_normal((int(random.integers(1, largest + 1)), len(weight))).astype(np.float32)
            got = session(x=x) if count % 3 else session.submit(x=x).result()
            if not np.allclose(got["y"], x @ weight, rtol=1e-4, atol=1e-5):
                wrong.append((seed, count, x.shape))
        done.append(seed)  # a thread that an error ended is missing

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    assert len(done) == threads
