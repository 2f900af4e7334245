"""The queue: what is computed together and when, what is refused, and what is dropped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.errors import EngineError
from aot.runtime import manifest
from aot.serving.joining import Joining
from aot.serving.metrics import Metrics
from aot.serving.refusals import NotReady, QueueFull
from aot.serving.scheduler import Scheduler
from tests.serving import models

Arrays = Mapping[str, Any]


class Session:
    """y = 10 x; notes the batches, and computes none while it is held. A negative x breaks the call."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()
        self.go.set()

    def __call__(self, inputs: Arrays) -> dict[str, Any]:
        self.batches.append(inputs["x"][:, 0].tolist())
        assert self.go.wait(30)
        if (inputs["x"] < 0).any():
            raise EngineError("a negative index")
        return {"y": inputs["x"] * 10}


class Queue:
    """A scheduler of the lookup model, up to 8 rows, over that session."""

    def __init__(self, folder: Path, **options: Any) -> None:
        joining = Joining.of(manifest.read(str(models.lookup(folder / "m.aot"))), options.pop("most", None))
        self.session, self.metrics = Session(), Metrics()
        settings = {"queue": 100, "max_wait": 0.02, "lanes": 1, **options}
        self.scheduler = Scheduler(self.session, joining, self.metrics, **settings)  # type: ignore[arg-type]

    def ask(self, *rows: int, length: int = 1) -> asyncio.Task[Any]:
        x = np.repeat(np.array(rows)[:, None], length, 1)
        sizes = {"batch": len(rows), "n": length}
        return asyncio.ensure_future(self.scheduler.infer({"x": x}, sizes))

    async def held(self, *rows: int) -> asyncio.Task[Any]:
        """A request that is being computed until `session.go` is set."""
        self.session.go.clear()
        task = self.ask(*(rows or (0,)))
        while not self.session.batches:
            await asyncio.sleep(0.001)
        return task


def values(outputs: Any) -> list[int]:
    return outputs["y"][:, 0].tolist()  # type: ignore[no-any-return]


async def test_requests_that_wait_together_are_computed_together(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    first = await queue.held()
    later = [queue.ask(1), queue.ask(2, 3), queue.ask(4)]
    await asyncio.sleep(0)
    queue.session.go.set()
    assert [values(await one) for one in later] == [[10], [20, 30], [40]]
    assert values(await first) == [0]
    assert queue.session.batches == [[0], [1, 2, 3, 4]]


async def test_a_batch_is_never_larger_than_the_profile_and_no_request_is_cut(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    await queue.held()
    later = [queue.ask(*range(n, n + 3)) for n in (1, 4, 7, 10)]
    await asyncio.sleep(0)
    queue.session.go.set()
    assert [values(await one)[0] for one in later] == [10, 40, 70, 100]
    assert queue.session.batches[1:] == [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]


async def test_other_sizes_of_other_dims_are_another_batch_and_the_oldest_comes_first(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    await queue.held()
    later = [queue.ask(1, length=2), queue.ask(2, length=3), queue.ask(3, length=2)]
    await asyncio.sleep(0.05)
    queue.session.go.set()
    await asyncio.gather(*later)
    assert queue.session.batches[1:] == [[1, 3], [2]]


async def test_a_lone_request_waits_for_others_no_longer_than_max_wait(tmp_path: Path) -> None:
    queue = Queue(tmp_path, max_wait=0.15)
    loop = asyncio.get_running_loop()
    started = loop.time()
    first = queue.ask(1)
    await asyncio.sleep(0.05)
    second = queue.ask(2)
    await asyncio.gather(first, second)
    assert queue.session.batches == [[1, 2]]
    assert loop.time() - started >= 0.149


async def test_a_full_batch_does_not_wait(tmp_path: Path) -> None:
    queue = Queue(tmp_path, max_wait=3600)
    await asyncio.wait_for(asyncio.gather(*(queue.ask(n, n) for n in range(4))), 30)
    assert queue.session.batches == [[0, 0, 1, 1, 2, 2, 3, 3]]


async def test_without_batches_requests_come_one_by_one_at_once(tmp_path: Path) -> None:
    queue = Queue(tmp_path, most=1, max_wait=3600)
    await asyncio.wait_for(asyncio.gather(*(queue.ask(n) for n in range(4))), 30)
    assert queue.session.batches == [[0], [1], [2], [3]]


async def test_as_many_batches_are_computed_at_once_as_there_are_lanes(tmp_path: Path) -> None:
    queue = Queue(tmp_path, most=1, lanes=2)
    queue.session.go.clear()
    tasks = [queue.ask(n) for n in range(3)]
    while len(queue.session.batches) < 2:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    assert sorted(queue.session.batches) == [[0], [1]]
    queue.session.go.set()
    await asyncio.gather(*tasks)


async def test_more_than_the_queue_holds_is_refused_with_what_to_do(tmp_path: Path) -> None:
    queue = Queue(tmp_path, queue=2)
    first = await queue.held()
    waiting = [queue.ask(1), queue.ask(2)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull, match="2 requests wait, and the queue holds no more") as refused:
        await queue.ask(3)
    assert "--queue" in str(refused.value.fix)
    queue.session.go.set()
    assert [values(one) for one in await asyncio.gather(first, *waiting)] == [[0], [10], [20]]


async def test_a_request_whose_client_is_gone_is_not_computed(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    first = await queue.held()
    gone, stays = queue.ask(1), queue.ask(2)
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    queue.session.go.set()
    assert values(await stays) == [20]
    assert queue.session.batches == [[0], [2]]
    assert values(await first) == [0]


async def test_a_client_that_goes_while_its_batch_is_computed_harms_nobody(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    (await queue.held()).cancel()
    queue.session.go.set()
    assert values(await queue.ask(5)) == [50]


async def test_the_request_that_breaks_a_batch_fails_alone(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    first = await queue.held()
    later = [queue.ask(1), queue.ask(-2), queue.ask(3)]
    await asyncio.sleep(0)
    queue.session.go.set()
    one, broken, three = await asyncio.gather(*later, return_exceptions=True)
    assert values(one) == [10]
    assert values(three) == [30]
    assert isinstance(broken, EngineError)
    assert queue.session.batches[1:] == [[1, -2, 3], [1], [-2], [3]]
    await first


async def test_draining_answers_what_waits_and_takes_no_more(tmp_path: Path) -> None:
    queue = Queue(tmp_path, max_wait=3600)
    first = await queue.held(0, 0, 0, 0, 0, 0, 0, 0)
    waiting = queue.ask(1)
    await asyncio.sleep(0)
    draining = asyncio.ensure_future(queue.scheduler.drain())
    await asyncio.sleep(0)
    with pytest.raises(NotReady, match="the server stops"):
        await queue.ask(2)
    queue.session.go.set()
    await asyncio.wait_for(draining, 30)
    assert values(await waiting) == [10]
    assert await first
    assert queue.scheduler.close()


async def test_closing_early_tells_those_that_wait(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    first = await queue.held()
    waiting = queue.ask(1)
    await asyncio.sleep(0)
    assert not queue.scheduler.close()
    with pytest.raises(NotReady, match="before the request's turn"):
        await waiting
    queue.session.go.set()
    assert values(await first) == [0]
    assert queue.session.batches == [[0]]
