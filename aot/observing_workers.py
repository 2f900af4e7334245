"""One pass over the data by several processes: each takes a share of the batches, and what they saw is merged.

Statistics are sums of whole numbers, so the result is that of one process to the last bit.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from aot.errors import AotError, CalibrationError
from aot.observing import MEMORY, Unfit, watch
from aot.statistics import Level, Statistics

if TYPE_CHECKING:
    from aot.arrays import Arrays


def share(
    model: Path,
    files: Sequence[Path],
    level: Level,
    workers: int,
    done: Callable[[int], None],
    memory: int = MEMORY,
) -> Statistics:
    """What `watch` sees of the batches in `files`, by so many processes. `done` is told how many batches are.

    Each has a session of its own and holds `memory` bytes. Raises Unfit for the first batch that has a value which is
    NaN or infinite, and CalibrationError for a process that ended by itself.
    """
    shares = [
        _Share(number, workers, model, files, level, memory, max(1, (os.cpu_count() or 1) // workers))
        for number in range(min(workers, len(files)))
    ]
    with _running(shares) as ends:
        return _gather(shares, ends, done)


@dataclass
class _Share:
    """The batches `first`, `first + step`, ... of `files`, as sent to a process."""

    first: int
    step: int
    model: Path
    files: Sequence[Path]
    level: Level
    memory: int
    threads: int

    def batches(self) -> Iterator[tuple[int, Arrays]]:
        """The batches with their numbers, read one at a time."""
        from aot import arrays

        for number in range(self.first, len(self.files), self.step):
            yield number, arrays.load(self.files[number])


def _work(mine: _Share, end: Connection) -> None:
    """In the process: send each finished batch's number, then what was seen, or the error."""
    try:
        seen = watch(mine.model, mine.batches(), mine.level, end.send, mine.memory, mine.threads)
        end.send(seen)
    except AotError as error:
        end.send(error)
    except BrokenPipeError:
        pass  # nobody listens any more


def _gather(
    shares: Sequence[_Share], ends: dict[Connection, tuple[_Share, BaseProcess]], done: Callable[[int], None]
) -> Statistics:
    following = {share.first: share.first for share in shares}  # of each share, the batch it is at
    seen: dict[int, Statistics] = {}
    error: Unfit | None = None
    count, waiting = 0, dict(ends)
    while waiting:
        for end in wait(list(waiting)):
            assert isinstance(end, Connection)
            share, process = waiting[end]
            try:
                message = end.recv()
            except EOFError:
                process.join()
                raise CalibrationError(
                    f"a process that calibrates ended by itself (exit code {process.exitcode})",
                    where=f"worker {share.first + 1} of {len(shares)}, batch {following[share.first]}",
                    fix="give --workers a smaller number, if memory ran out: each holds a copy of the model",
                ) from None
            if isinstance(message, int):
                count += 1
                following[share.first] = message + share.step
                done(count)
            elif isinstance(message, Statistics):
                seen[share.first] = message
                del waiting[end]
            elif isinstance(message, Unfit):
                error = message if error is None or message.batch < error.batch else error
                del waiting[end]
            else:
                raise message
        if error is not None:
            # The others go on as long as theirs may come first: the error is that of one process.
            waiting = {end: pair for end, pair in waiting.items() if following[pair[0].first] < error.batch}
    if error is not None:
        raise error
    found = Statistics()
    for number in sorted(seen):
        found.merge(seen[number])
    return found


@contextmanager
def _running(shares: Sequence[_Share]) -> Iterator[dict[Connection, tuple[_Share, BaseProcess]]]:
    """The processes, and our ends of their pipes; whatever happens, none is left behind."""
    # Not forked: onnxruntime's threads do not survive that.
    context = multiprocessing.get_context("spawn")
    ends: dict[Connection, tuple[_Share, BaseProcess]] = {}
    try:
        # An interrupt is for us, who end them: none of them shall answer it with a traceback.
        with _uninterrupted():
            for mine in shares:
                ours, theirs = context.Pipe(duplex=False)
                started = context.Process(target=_work, args=(mine, theirs), daemon=True)
                started.start()
                theirs.close()
                ends[ours] = (mine, started)
        yield ends
    finally:
        with _uninterrupted():  # a second interrupt comes after they are gone
            for end, (_, process) in ends.items():
                process.kill()
                process.join()
                end.close()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """No SIGINT here; processes started here ignore it for good."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
