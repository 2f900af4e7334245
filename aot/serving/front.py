"""What both front ends stand on: the model, whether it is ready, and counted calls into the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aot.errors import AotError
from aot.serving.log import log
from aot.serving.metrics import Metrics
from aot.serving.model import Model, Request
from aot.serving.refusals import CANCELLED, ENGINE, Late, NotReady, sentence, status
from aot.serving.scheduler import Outputs, Scheduler


class Front:
    """scheduler: None until the model is loaded. ready: whether requests are taken."""

    def __init__(self, model: Model, metrics: Metrics) -> None:
        self.model, self.metrics = model, metrics
        self.scheduler: Scheduler | None = None
        self.ready = False

    def admit(self) -> None:
        """Raise NotReady or QueueFull where a request would be refused whatever is in it."""
        self._scheduler().admit()

    async def infer(self, request: Request) -> Outputs:
        """See Scheduler.infer. Raises Late when the request's timeout is over."""
        computing = self._scheduler().infer(request.inputs, request.sizes)
        if request.timeout is None:
            return await computing
        try:
            return await asyncio.wait_for(computing, request.timeout)
        except TimeoutError:
            raise Late(f"no answer within the request's {request.timeout:g} s", fix="give it more time") from None

    def _scheduler(self) -> Scheduler:
        if self.scheduler is None:
            raise NotReady("the model is not loaded yet", fix="wait until /v2/health/ready says so")
        return self.scheduler

    @contextmanager
    def counted(self, protocol: str) -> Iterator[None]:
        """Count a request, and how it failed; the engine's failures are logged."""
        self.metrics.requests.labels(protocol).inc()
        try:
            yield
        except AotError as error:
            found = status(error)
            self.metrics.failures.labels(protocol, found.reason).inc()
            if found is ENGINE:
                log.error("a request failed: %s", sentence(error))
            raise
        except asyncio.CancelledError:
            self.metrics.failures.labels(protocol, CANCELLED).inc()
            raise
