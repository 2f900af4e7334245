"""torch and ONNX talk while they work, on both standard streams, in logs and in warnings. Here they are silent: ours
is the one message."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

RAISED = (Exception, SystemExit, GeneratorExit)
"""What the model's own code may raise: anything, and `sys.exit()` there is no wish to end the build. Ctrl-C is one."""


def silenced(work: Callable[[], T]) -> T:
    """Run without the chatter of torch and ONNX."""
    with _quiet():
        held = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            return work()
        finally:
            logging.disable(held)


@contextlib.contextmanager
def listening(handler: logging.Handler, logger: str) -> Iterator[None]:
    """Be silent but for this handler, which hears one of torch's loggers from level INFO on."""
    with _quiet(), _only("torch", logging.NullHandler(), logging.CRITICAL), _only(logger, handler, logging.INFO):
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _only(name: str, handler: logging.Handler, level: int) -> Iterator[None]:
    """Send one logger's records to this handler and nowhere else."""
    logger = logging.getLogger(name)
    held = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = held[0], held[2]
        logger.setLevel(held[1])
