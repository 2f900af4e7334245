"""From start to stop: listen, load, warm up, ready; then answer what waits, and end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import grpc
from aiohttp import web
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from aot.errors import UsageError
from aot.runtime import Session, load, manifest
from aot.serving import log as logs
from aot.serving.front import Front
from aot.serving.grpc_api import SERVICE, Grpc
from aot.serving.http_api import Http
from aot.serving.joining import Joining
from aot.serving.log import log
from aot.serving.metrics import Metrics
from aot.serving.model import Model
from aot.serving.options import Options
from aot.serving.scheduler import Scheduler

Tell = Callable[[int], Awaitable[None]]
"""Sets what the health service answers: a HealthCheckResponse.ServingStatus."""
LINGERING = 1.0
"""Seconds in which the rest of a request that was refused is read and dropped, so that its client sees the answer."""
LANES = 2
"""One batch is copied, or its threads wait for each other, while another is computed. Of single requests on the CPU one
is computed at a time, by all cores."""


def run(options: Options) -> int:
    """See `aot.serving.serve`."""
    logs.start(as_json=options.json)
    code, over = asyncio.run(_serve(options))
    if not over:  # a thread loads or computes, and nothing can stop it
        sys.stdout.flush()
        os._exit(code)
    return code


async def _serve(options: Options) -> tuple[int, bool]:
    """(exit code, whether every thread is over)."""
    found = manifest.read(options.artifact)
    model = Model(found, options.name or found.name, Joining.of(found, options.max_batch))
    front = Front(model, Metrics())
    signals = _Signals()
    async with _http(front, options) as http_port, _grpc(front, options) as (grpc_port, tell):
        loader = ThreadPoolExecutor(1, thread_name_prefix="load")
        loading = asyncio.get_running_loop().run_in_executor(loader, _loaded, options, model.joining)
        if not await signals.first(loading):
            return 0, False
        loader.shutdown()
        session, lanes = loading.result()
        front.scheduler = scheduler = Scheduler(
            session,
            model.joining,
            front.metrics,
            queue=options.queue,
            max_wait=options.max_wait_ms / 1000,
            lanes=lanes,
        )
        front.ready = True
        await tell(health_pb2.HealthCheckResponse.SERVING)
        _announce(options, model, session, http_port, grpc_port)

        await signals.stop.wait()
        log.info("stopping: what waits is answered, for %g s at the longest", options.grace)
        front.ready = False
        await tell(health_pb2.HealthCheckResponse.NOT_SERVING)
        signals.stop.clear()
        draining = asyncio.ensure_future(scheduler.drain())
        await signals.first(draining, options.grace - 2 * _writing(options))  # or until a second signal
        draining.cancel()
        answered = scheduler.close()
    if answered:
        session.close()
    log.info("stopped" if answered else "stopped; requests were cut off")
    return (0 if answered else 1), answered


def _loaded(options: Options, joining: Joining) -> tuple[Session, int]:
    """The session, warm, and how many lanes it has."""
    # Where requests are joined, the next batch is gathered on the CPUs that compute one: threads that wait leave them.
    spin = joining.most == 1
    session = load(options.artifact, engine=options.engine, contexts=options.lanes or LANES, spin=spin)
    lanes = options.lanes or (1 if spin and not session.memory()["device_bytes"] else LANES)
    log.info("loaded: %s", session.label)
    session.warm_up(callers=lanes)
    return session, lanes


def _announce(options: Options, model: Model, session: Session, http_port: int, grpc_port: int) -> None:
    """Say on standard output, in one line, where the server is; and on standard error, what it does."""
    where = {
        "name": model.name,
        "http": f"{_address(options.host)}:{http_port}",
        "grpc": f"{_address(options.host)}:{grpc_port}",
        "runs": session.label,
    }
    most = model.joining.most
    log.info(f"{model.joining.why}, up to {most} rows" if most > 1 else model.joining.why)
    text = f"{model.name} is served at http://{where['http']} and, gRPC, {where['grpc']}"
    print(json.dumps(where) if options.json else text, flush=True)


class _Signals:
    """SIGTERM and SIGINT, as an event."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop.set)

    async def first(self, work: asyncio.Future[Any], seconds: float | None = None) -> bool:
        """Wait for the work, and say whether it was done before a signal came or the time was over."""
        stopping = asyncio.ensure_future(self.stop.wait())
        await asyncio.wait({work, stopping}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        return work.done()


@asynccontextmanager
async def _http(front: Front, options: Options) -> AsyncIterator[int]:
    """The HTTP server, while it listens; its port. Raises UsageError for an address that cannot be taken."""
    runner = web.AppRunner(
        Http(front, options.max_request_bytes).application(),
        access_log=None,
        lingering_time=LINGERING,
        handler_cancellation=True,  # a request whose client is gone leaves the queue
        shutdown_timeout=_writing(options),
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, options.host, options.http_port).start()
        except OSError as error:
            raise _taken("--http-port", options.host, options.http_port, error.strerror or str(error)) from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _grpc(front: Front, options: Options) -> AsyncIterator[tuple[int, Tell]]:
    """The gRPC server, while it listens; its port, and what tells its health. Raises UsageError as `_http` does."""
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 0),  # a second server on the port is an error
            ("grpc.max_receive_message_length", options.max_request_bytes),
            ("grpc.max_send_message_length", -1),
        ]
    )
    servicer = health.HealthServicer()

    async def tell(status: int) -> None:
        for service in ("", SERVICE.full_name):
            await servicer.set(service, status)

    await tell(health_pb2.HealthCheckResponse.NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_generic_rpc_handlers((Grpc(front).handler(),))
    try:
        port = server.add_insecure_port(f"{_address(options.host)}:{options.grpc_port}")
    except RuntimeError as error:
        raise _taken("--grpc-port", options.host, options.grpc_port, "the address is in use, or not ours") from error
    await server.start()
    try:
        yield port, tell
    finally:
        await server.stop(_writing(options))


def _writing(options: Options) -> float:
    """Seconds of the grace that each front end has, after the last computation, to write answers."""
    return min(1.0, options.grace / 4)


def _address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _taken(option: str, host: str, port: int, why: str) -> UsageError:
    return UsageError(
        f"cannot listen on {host} port {port}: {why}", fix=f"another {option}, 0 for any; or another --host"
    )
