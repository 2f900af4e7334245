"""Requests wait here, in a bounded queue, until a lane is free; those that fit together are computed as one batch.

All of it runs in the event loop's thread but the computing itself, so nothing here is locked. The oldest request
decides what is computed next: its group waits until it fills a batch, or for `max_wait` at the longest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from aot.errors import AotError
from aot.runtime import Session
from aot.runtime.interchange import Array
from aot.serving.joining import Group, Joining, group_of, joined, split
from aot.serving.metrics import Metrics
from aot.serving.refusals import NotReady, QueueFull

Outputs = dict[str, Array]


@dataclass(slots=True, eq=False)
class _Work:
    """One request. limits: the ranges of rows that a batch of its group may have. since: by the loop's clock."""

    inputs: Mapping[str, Array]
    rows: int
    group: Group
    limits: Sequence[tuple[int, int]]
    future: asyncio.Future[Outputs]
    since: float

    @property
    def most(self) -> int:
        """The most rows of a batch of its group."""
        return max((high for _, high in self.limits), default=self.rows)

    def takes(self, rows: int) -> bool:
        """Whether a batch of its group may have that many rows."""
        return any(low <= rows <= high for low, high in self.limits)


@dataclass(slots=True)
class _Waiting:
    """The requests of one group, oldest first."""

    works: deque[_Work] = field(default_factory=deque)
    rows: int = 0


class Scheduler:
    """Computes requests on a session. Made and used in a running event loop.

    queue: how many requests may wait. max_wait: seconds that a request waits for others at the longest while a lane is
    free. lanes: how many batches are computed at once.
    """

    def __init__(
        self, session: Session, joining: Joining, metrics: Metrics, *, queue: int, max_wait: float, lanes: int
    ) -> None:
        self._session, self._joining, self._metrics = session, joining, metrics
        self._queue, self._max_wait = queue, max_wait
        self._free = lanes
        self._lanes = lanes
        self._pool = ThreadPoolExecutor(lanes, thread_name_prefix="lane")
        self._loop = asyncio.get_running_loop()
        self._groups: dict[Group, _Waiting] = {}
        self._length = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()

    def admit(self) -> None:
        """Raise QueueFull where no request has room, NotReady where none is taken any more."""
        if self._stopping:
            raise NotReady("the server stops", fix="send the request to another server")
        if self._length >= self._queue:
            raise QueueFull(
                f"{self._length} requests wait, and the queue holds no more",
                fix="send it again later, send fewer at once, or start the server with a longer --queue",
            )

    async def infer(self, inputs: Mapping[str, Array], sizes: Mapping[str, int]) -> Outputs:
        """The outputs of a request that fits the model; sizes: of its Dims. Cancelled while it waits, it is dropped.

        Raises QueueFull, NotReady, and EngineError for what goes wrong while it is computed.
        """
        self.admit()
        limits = self._joining.limits(sizes)
        rows = sizes[self._joining.dim] if self._joining.dim is not None else 1
        work = _Work(inputs, rows, group_of(inputs), limits, self._loop.create_future(), self._loop.time())
        waiting = self._groups.setdefault(work.group, _Waiting())
        waiting.works.append(work)
        waiting.rows += work.rows
        self._count(1)
        self._dispatch()
        try:
            return await work.future
        finally:
            self._leave(work)

    async def drain(self) -> None:
        """Take no more requests, and wait until those that are here are answered."""
        self._stopping = True
        self._dispatch()
        await self._idle.wait()

    def close(self) -> bool:
        """End, and say whether nothing was left to compute; what waits is answered with NotReady."""
        self._stopping = True
        for waiting in self._groups.values():
            for work in waiting.works:
                if not work.future.done():
                    work.future.set_exception(NotReady("the server stopped before the request's turn"))
        done = self._idle.is_set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        return done

    def _count(self, change: int) -> None:
        self._length += change
        self._metrics.queue.set(self._length)
        if self._length == 0 and self._free == self._lanes:
            self._idle.set()
        else:
            self._idle.clear()

    def _leave(self, work: _Work) -> None:
        """Take a request out of the queue, where it still is there: its client is gone."""
        waiting = self._groups.get(work.group)
        if waiting is not None and work in waiting.works:
            waiting.works.remove(work)
            self._left(waiting, work)

    def _left(self, waiting: _Waiting, work: _Work) -> None:
        waiting.rows -= work.rows
        if not waiting.works:
            self._groups.pop(work.group, None)
        self._count(-1)

    def _dispatch(self) -> None:
        """Start batches while lanes are free and groups are ripe; else come back when the oldest has waited enough."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._free and self._groups:
            now = self._loop.time()
            oldest: list[tuple[float, _Waiting]] = [(one.works[0].since, one) for one in self._groups.values()]
            ripe = [(since, one) for since, one in oldest if self._ripe(one, now)]
            if not ripe:
                since = min(since for since, _ in oldest)
                self._timer = self._loop.call_at(since + self._max_wait, self._dispatch)
                return
            self._start(min(ripe, key=lambda pair: pair[0])[1])

    def _ripe(self, waiting: _Waiting, now: float) -> bool:
        oldest = waiting.works[0]
        return self._stopping or waiting.rows >= oldest.most or now >= oldest.since + self._max_wait

    def _start(self, waiting: _Waiting) -> None:
        """Compute the oldest requests of a group, as many as one batch takes, in a lane of their own."""
        batch = [waiting.works.popleft()]
        rows = batch[0].rows
        self._left(waiting, batch[0])
        while waiting.works and batch[0].takes(rows + waiting.works[0].rows):
            work = waiting.works.popleft()
            rows += work.rows
            batch.append(work)
            self._left(waiting, work)
        self._free -= 1
        self._idle.clear()
        self._metrics.batch_requests.observe(len(batch))
        self._metrics.batch_rows.observe(rows)
        now = self._loop.time()
        for work in batch:
            self._metrics.queue_seconds.observe(now - work.since)
        computing = self._loop.run_in_executor(
            self._pool, self._computed, [work.inputs for work in batch], [work.rows for work in batch]
        )
        computing.add_done_callback(partial(self._finish, batch))

    def _computed(self, requests: Sequence[Mapping[str, Array]], rows: Sequence[int]) -> list[Outputs | AotError]:
        """In a lane's thread: the outputs of each request. Where the batch fails, each alone: most may be fine."""
        started = perf_counter()
        try:
            outputs = self._session(joined(requests))
            return [*split(outputs, rows)] if len(requests) > 1 else [outputs]
        except AotError as error:
            if len(requests) == 1:
                return [error]
            return [self._computed([one], [count])[0] for one, count in zip(requests, rows, strict=True)]
        finally:
            self._metrics.compute_seconds.observe(perf_counter() - started)

    def _finish(self, batch: Sequence[_Work], computing: asyncio.Future[list[Outputs | AotError]]) -> None:
        """Give every request its answer. A bug's exception goes to all of them."""
        self._free += 1
        self._count(0)
        failed = computing.exception()
        answers = [failed] * len(batch) if failed is not None else computing.result()
        for work, answer in zip(batch, answers, strict=True):
            if work.future.done():
                continue
            if isinstance(answer, BaseException):
                work.future.set_exception(answer)
            else:
                work.future.set_result(answer)
        self._dispatch()
