"""What is answered to a request that is not: the status of both protocols, and the reason that metrics count."""

from __future__ import annotations

from dataclasses import dataclass

from aot.errors import AotError, InputError


class Refused(AotError):
    """A request that the server does not take, whatever is in it."""


class UnknownModel(Refused):
    """Another model or version than the one that is served."""


class TooLarge(Refused):
    """More bytes than a request may have."""


class QueueFull(Refused):
    """More requests wait than the queue holds."""


class NotReady(Refused):
    """The server starts, or stops."""


class Late(Refused):
    """The request's own time ran out, or that in which its body had to come."""


@dataclass(frozen=True)
class Status:
    """http: the status code. grpc: the name of the code. reason: the label of the metric."""

    http: int
    grpc: str
    reason: str


_STATUS: dict[type[AotError], Status] = {
    InputError: Status(400, "INVALID_ARGUMENT", "input"),
    UnknownModel: Status(404, "NOT_FOUND", "model"),
    TooLarge: Status(413, "RESOURCE_EXHAUSTED", "size"),
    QueueFull: Status(503, "RESOURCE_EXHAUSTED", "queue"),
    NotReady: Status(503, "UNAVAILABLE", "state"),
    Late: Status(504, "DEADLINE_EXCEEDED", "timeout"),
}
ENGINE = Status(500, "INTERNAL", "engine")
CANCELLED = "cancelled"
"""The reason of a request whose client is gone."""


def status(error: AotError) -> Status:
    """What an error is to the client; the engine's own are the server's fault."""
    return next((found for kind, found in _STATUS.items() if isinstance(error, kind)), ENGINE)


def sentence(error: AotError) -> str:
    """The error in one line: what, where, and what to do."""
    return "; ".join(part for part in (error.what, error.where, error.fix) if part)
