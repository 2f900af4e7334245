"""What the server can be told, in one table that `python -m aot.serving` and `aot serve` are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from aot.errors import UsageError


@dataclass(frozen=True)
class Option:
    """One option. metavar: None for a switch. least, most: of a number."""

    name: str
    help: str
    default: Any = None
    kind: type = int
    metavar: str | None = "N"
    least: float | None = None
    most: float | None = None

    @property
    def field(self) -> str:
        """Its name in Options."""
        return self.name.removeprefix("--").replace("-", "_")


@dataclass(frozen=True)
class Options:
    """See OPTIONS. Raises UsageError for a number that is out of range, and a name that no path can have."""

    artifact: str
    host: str
    http_port: int
    grpc_port: int
    name: str | None
    engine: str | None
    max_batch: int | None
    max_wait_ms: float
    queue: int
    lanes: int | None
    max_request_bytes: int
    grace: float
    json: bool

    def __post_init__(self) -> None:
        if self.name is not None and (not self.name or "/" in self.name):
            raise UsageError(f"--name {self.name!r} is no name for a path", fix="give one without a slash")
        for option in OPTIONS:
            value = getattr(self, option.field)
            if value is None or option.least is None:
                continue
            if not option.least <= value <= (option.most if option.most is not None else float("inf")):
                upto = f" to {option.most:g}" if option.most is not None else " or more"
                raise UsageError(f"{option.name} {value} is out of range", fix=f"give {option.least:g}{upto}")


OPTIONS: Sequence[Option] = (
    Option("--host", "Address to listen on; 0.0.0.0 for all.", "127.0.0.1", str, "ADDRESS"),
    Option("--http-port", "Port of HTTP; 0 for any that is free.", 8000, least=0, most=65535, metavar="PORT"),
    Option("--grpc-port", "Port of gRPC; 0 for any that is free.", 8001, least=0, most=65535, metavar="PORT"),
    Option("--name", "The model's name. Default: the artifact's.", None, str, "NAME"),
    Option("--engine", "sm90, ..., or cpu for the final graph. Default: what runs here.", None, str, "TARGET"),
    Option("--max-batch", "Most rows of a batch. Default: the most of the profiles; 1: no batches.", least=1),
    Option("--max-wait-ms", "Longest wait of a request for others to join it.", 2.0, float, "MS", least=0, most=60000),
    Option("--queue", "Most requests that wait; more are refused.", 256, least=1),
    Option("--lanes", "Batches computed at once. Default: 2; on the CPU 1 where nothing is joined.", least=1, most=64),
    Option("--max-request-bytes", "Longest request.", 64 * 2**20, least=1, most=2**31 - 1, metavar="BYTES"),
    Option("--grace", "Longest time to answer what waits, on SIGTERM.", 20.0, float, "SECONDS", least=0, most=86400),
    Option("--json", "Log lines, and the ports, as JSON.", False, bool, None),
)
assert {option.field for option in OPTIONS} | {"artifact"} == {field.name for field in fields(Options)}
