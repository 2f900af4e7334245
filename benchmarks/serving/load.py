"""Clients of a server, each asking for one thing after the other over a connection of its own, in one process.

    python benchmarks/serving/load.py JOB        a file that `Job.write` wrote

Requests are bytes made before; an answer is kept as bytes, and looked at when the time is over: what the clients cost
is little beside the server, with which they share the machine. asyncio alone, so that nothing has to be installed.
"""

from __future__ import annotations

import asyncio
import pickle
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Job:
    """requests: the bytes of whole HTTP requests. seconds: how long clients ask; warm_up: before that, not counted."""

    host: str
    port: int
    requests: list[bytes]
    clients: int
    seconds: float
    warm_up: float = 2.0
    seed: int = 0


@dataclass
class Answers:
    """times: (when asked, seconds until the answer) by the clock of this process. bodies: (request, status, headers and
    body). lost: requests that got no answer. started, ended: of what is counted."""

    times: list[tuple[float, float]] = field(default_factory=list)
    bodies: list[tuple[int, bytes]] = field(default_factory=list)
    lost: int = 0
    started: float = 0.0
    ended: float = 0.0


class Client(asyncio.Protocol):
    """One client: asks, waits for the whole answer, asks again."""

    def __init__(self, job: Job, answers: Answers, choose: random.Random, until: float) -> None:
        self.job, self.answers, self.choose, self.until = job, answers, choose, until
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.buffer = b""
        self.wanted = -1
        self.asked = 0
        self.at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        """The next request, or the end."""
        self.at = time.perf_counter()
        if self.at >= self.until:
            self.transport.close()
            self.over.set_result(None)
            return
        self.asked = self.choose.randrange(len(self.job.requests))
        self.transport.write(self.job.requests[self.asked])

    def data_received(self, data: bytes) -> None:
        """A part of an answer; the next request when it is whole."""
        self.buffer = self.buffer + data if self.buffer else data
        if self.wanted < 0:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self.buffer[:end].lower()
            start = head.index(b"\r\ncontent-length:") + 17
            stop = head.find(b"\r\n", start)
            self.wanted = end + 4 + int(head[start : stop if stop >= 0 else None])
        if len(self.buffer) >= self.wanted:
            self.answers.times.append((self.at, time.perf_counter() - self.at))
            self.answers.bodies.append((self.asked, self.buffer))
            self.buffer, self.wanted = b"", -1
            self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        """The server hung up on a request."""
        if not self.over.done():
            self.answers.lost += 1
            self.over.set_result(None)


async def run(job: Job) -> Answers:
    """All clients at once."""
    answers = Answers()
    answers.started = time.perf_counter() + job.warm_up
    answers.ended = answers.started + job.seconds
    loop = asyncio.get_running_loop()
    clients = []
    for number in range(job.clients):
        choose = random.Random(job.seed * 1000 + number)
        _, client = await loop.create_connection(
            lambda choose=choose: Client(job, answers, choose, answers.ended), job.host, job.port
        )
        clients.append(client)
    await asyncio.gather(*(client.over for client in clients))
    return answers


if __name__ == "__main__":
    path = Path(sys.argv[1])
    from serving import load  # what is pickled is of the module by its name

    path.with_suffix(".answers").write_bytes(pickle.dumps(asyncio.run(load.run(pickle.loads(path.read_bytes())))))
