"""From start to stop: listen, load, warm up, ready; then answer what waits, and end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

import grpc
from aot.errors import UsageError
from aot.runtime import Session, load, manifest
from aot.serving import log as logs
from aot.serving.front import Front
from aot.serving.grpc import SERVICE, Grpc
from aot.serving.http import Http
from aot.serving.joining import Joining
from aot.serving.log import log
from aot.serving.metrics import Metrics
from aot.serving.model import Model
from aot.serving.options import Options
from aot.serving.scheduler import Scheduler

GPU_LANES = 2
"""On a GPU, one batch is copied while another is computed; on the CPU, one call takes all cores."""
ANSWERING = 2.0
"""Seconds of the grace that are kept for writing the last answers."""


def serve(options: Options) -> int:
    """Serve an artifact until SIGTERM or SIGINT. The exit code: 0, or 1 where requests were cut off.

    Raises UsageError for an address that cannot be taken, and what `aot.load` raises.
    """
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
    async with _http(front, options) as http_port, _grpc(front, options) as (grpc_port, servicer):
        loading = asyncio.get_running_loop().run_in_executor(None, _loaded, options, model.joining)
        if not await signals.first(loading):
            return 0, False
        session = loading.result()
        lanes = options.lanes or _lanes(session)
        front.scheduler = Scheduler(
            session,
            model.joining,
            front.metrics,
            queue=options.queue,
            max_wait=options.max_wait_ms / 1000,
            lanes=lanes,
        )
        front.ready = True
        await _tell(servicer, health_pb2.HealthCheckResponse.SERVING)
        _announce(options, model, session, http_port, grpc_port)
        await signals.stop.wait()
        front.ready = False
        log.info("stopping: what waits is answered, for %g s at the longest", options.grace)
        await _tell(servicer, health_pb2.HealthCheckResponse.NOT_SERVING)
        draining = asyncio.ensure_future(front.scheduler.drain())
        signals.stop.clear()  # a second signal ends the wait
        await signals.first(draining, max(options.grace - ANSWERING, options.grace / 2))
        draining.cancel()
        answered = front.scheduler.close()
    if answered:
        session.close()
    log.info("stopped" if answered else "stopped; some requests were cut off")
    return (0 if answered else 1), answered


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


def _loaded(options: Options, joining: Joining) -> Session:
    # Where requests are joined, the next batch is gathered on the CPUs that compute one: threads that wait leave them.
    spin = joining.dim is None
    session = load(options.artifact, engine=options.engine, contexts=options.lanes or GPU_LANES, spin=spin)
    log.info("loaded: %s", session.label)
    session.warm_up(callers=options.lanes or _lanes(session))
    return session


def _lanes(session: Session) -> int:
    return GPU_LANES if session.memory()["device_bytes"] else 1


def _announce(options: Options, model: Model, session: Session, http_port: int, grpc_port: int) -> None:
    """Say on standard output, in one line, where the server is; and on standard error, what it does."""
    host = f"[{options.host}]" if ":" in options.host else options.host
    log.info("%s; batches of up to %d rows", model.joining.why, model.joining.largest)
    where = {"name": model.name, "http": f"{host}:{http_port}", "grpc": f"{host}:{grpc_port}", "runs": session.label}
    text = f"{model.name} is served at http://{where['http']} and, gRPC, {where['grpc']}"
    print(json.dumps(where) if options.json else text, flush=True)
    log.info("ready")


@asynccontextmanager
async def _http(front: Front, options: Options) -> AsyncIterator[int]:
    """The HTTP server, while it listens; its port. Raises UsageError for an address that cannot be taken."""
    runner = web.AppRunner(
        Http(front, options.max_request_bytes).application(),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=ANSWERING / 2,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, options.host, options.http_port).start()
    except OSError as error:
        raise _taken("--http-port", options.host, options.http_port, error.strerror or str(error)) from error
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _grpc(front: Front, options: Options) -> AsyncIterator[tuple[int, health.HealthServicer]]:
    """The gRPC server, while it listens; its port, and its health. Raises UsageError as `_http` does."""
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 0),  # a second server on the port is an error
            ("grpc.max_receive_message_length", options.max_request_bytes),
            ("grpc.max_send_message_length", -1),
        ]
    )
    server.add_generic_rpc_handlers((Grpc(front).handler(),))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await _tell(servicer, health_pb2.HealthCheckResponse.NOT_SERVING)
    host = f"[{options.host}]" if ":" in options.host else options.host
    try:
        port = server.add_insecure_port(f"{host}:{options.grpc_port}")
    except RuntimeError as error:
        raise _taken("--grpc-port", options.host, options.grpc_port, "it is in use or not ours") from error
    await server.start()
    try:
        yield port, servicer
    finally:
        await server.stop(ANSWERING / 2)


async def _tell(servicer: health.HealthServicer, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
    for service in ("", SERVICE.full_name):
        await servicer.set(service, status)


def _taken(option: str, host: str, port: int, why: str) -> UsageError:
    return UsageError(
        f"cannot listen on {host} port {port}: {why}", fix=f"give another {option}, or 0 for any; or --host"
    )
