"""Requests wait here, in a bounded queue, until a lane is free; those that fit together are computed as one batch.

All of it runs in the event loop's thread but the computing itself, so nothing here is locked. Groups of requests that
can be joined are ripe when they fill a batch, or when their oldest request has waited for `max_wait`; of the ripe ones
that with the oldest request is computed next.
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
from aot.serving.joining import Group, Joining, Limits, group_of, joined, split
from aot.serving.metrics import Metrics
from aot.serving.refusals import NotReady, QueueFull

Outputs = dict[str, Array]
Answer = Outputs | AotError


@dataclass(slots=True, eq=False)
class _Work:
    """One request. limits: the rows that a batch with it may have. since: by the loop's clock. waits: in the queue."""

    inputs: Mapping[str, Array]
    rows: int
    group: Group
    limits: Limits
    future: asyncio.Future[Outputs]
    since: float
    waits: bool = True

    def joins(self, rows: int) -> bool:
        """Whether a batch with it may have that many rows."""
        return any(low <= rows <= high for low, high in self.limits)


@dataclass(slots=True)
class _Waiting:
    """The requests of one group, oldest first, never none. rows: of all of them."""

    works: deque[_Work] = field(default_factory=deque)
    rows: int = 0

    def full(self) -> bool:
        """Whether they fill a batch."""
        return self.rows >= max((high for _, high in self.works[0].limits), default=0)


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
        self._lanes = self._free = lanes
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
        work = _Work(
            inputs,
            self._joining.rows(sizes),
            group_of(inputs),
            self._joining.limits(sizes),
            self._loop.create_future(),
            self._loop.time(),
        )
        waiting = self._groups.setdefault(work.group, _Waiting())
        waiting.works.append(work)
        waiting.rows += work.rows
        self._changed(1)
        self._dispatch()
        try:
            return await work.future
        finally:
            if work.waits:  # its client is gone
                self._leave(work)

    async def drain(self) -> None:
        """Take no more requests, and wait until those that are here are answered."""
        self._stopping = True
        self._dispatch()
        await self._idle.wait()

    def close(self) -> bool:
        """End, and say whether nothing was left to compute; what waits is answered with NotReady."""
        self._stopping = True
        idle = self._idle.is_set()
        for work in [work for waiting in self._groups.values() for work in waiting.works]:
            self._leave(work)
            work.future.set_exception(NotReady("the server stopped before the request's turn", fix="send it again"))
        self._pool.shutdown(wait=False)
        return idle

    def _changed(self, length: int) -> None:
        self._length += length
        self._metrics.queue.set(self._length)
        if self._length or self._free < self._lanes:
            self._idle.clear()
        else:
            self._idle.set()

    def _leave(self, work: _Work) -> None:
        """Take a request out of the queue."""
        waiting = self._groups[work.group]
        waiting.works.remove(work)
        waiting.rows -= work.rows
        work.waits = False
        if not waiting.works:
            del self._groups[work.group]
        self._changed(-1)

    def _dispatch(self) -> None:
        """Start batches while lanes are free and groups are ripe; else come back when the oldest has waited enough."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._free and self._groups:
            waited = self._loop.time() - self._max_wait
            groups = sorted(self._groups.values(), key=lambda one: one.works[0].since)
            ripe = (one for one in groups if self._stopping or one.full() or one.works[0].since <= waited)
            first = next(ripe, None)
            if first is None:
                self._timer = self._loop.call_at(groups[0].works[0].since + self._max_wait, self._dispatch)
                return
            self._start(first)

    def _start(self, waiting: _Waiting) -> None:
        """Compute the oldest requests of a group, as many as one batch takes."""
        batch, rows = list[_Work](), 0
        self._free -= 1  # before the queue is empty: else nothing would seem left to do
        for work in list(waiting.works):
            if batch and not work.joins(rows + work.rows):
                break
            batch.append(work)
            rows += work.rows
            self._leave(work)
        self._metrics.batch(len(batch), rows, [self._loop.time() - work.since for work in batch])
        inputs, counts = [work.inputs for work in batch], [work.rows for work in batch]
        computing = self._loop.run_in_executor(self._pool, self._computed, inputs, counts)
        computing.add_done_callback(partial(self._finish, batch))

    def _computed(self, requests: Sequence[Mapping[str, Array]], rows: Sequence[int]) -> list[Answer]:
        """In a lane: the outputs of each request. Where a batch fails, each by itself, since the others may be fine."""
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

    def _finish(self, batch: Sequence[_Work], computing: asyncio.Future[list[Answer]]) -> None:
        """Give every request its answer; all of them the exception of a bug."""
        self._free += 1
        self._changed(0)
        bug = computing.exception()
        answers: Sequence[Outputs | BaseException] = [bug] * len(batch) if bug is not None else computing.result()
        for work, answer in zip(batch, answers, strict=True):
            if work.future.done():  # its client is gone
                continue
            if isinstance(answer, BaseException):
                work.future.set_exception(answer)
            else:
                work.future.set_result(answer)
        self._dispatch()
