"""Processes that compile side by side, for checking and tuning, which compile hundreds of kernels.

Importing torch and triton takes longer than compiling a kernel, so each process takes one kernel after the other.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from aot import toolchain
from aot.errors import AotError, PluginError
from aot.plugins.compiling import Job
from aot.plugins.header import Header
from aot.runtime.kernels import Compiled


class Compilers:
    """Kernels that are being compiled, each once. Of a job, `config` is left aside: it is given beside it.

    count: of processes, one a core where it is left out. cache: a folder with what Triton has compiled before; without
    one, everything is compiled.
    """

    def __init__(self, count: int | None = None, cache: Path | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="aot-ptx-")
        count = count or len(toolchain.cpus())
        self._pool = ProcessPoolExecutor(count, get_context("spawn"), _begin, (str(cache or self._folder.name),))
        self._begun: dict[str, Future[dict[str, Any]]] = {}

    def begin(self, header: Header, job: Job, config: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """Have a kernel compiled, if it is not already. Raises PluginError where a compiler has ended."""
        wanted = {**vars(job), "config": dict(config)}
        name = json.dumps([str(header.file), wanted], sort_keys=True)
        if name not in self._begun:
            try:
                self._begun[name] = self._pool.submit(_answer, header.file, wanted)
            except BrokenProcessPool as error:
                raise header.error(_ENDED, "kernel") from error
        return self._begun[name]

    def result(self, header: Header, job: Job, config: Mapping[str, Any], timeout: float | None = None) -> Compiled:
        """The kernel, waited for, `timeout` seconds at most. Raises PluginError where it does not compile by then."""
        try:
            answer = self.begin(header, job, config).result(timeout)
        except TimeoutError as error:
            raise header.error("the kernel is not compiled in the time that there is", "kernel") from error
        except BrokenProcessPool as error:
            raise header.error(_ENDED, "kernel") from error
        if "error" in answer:
            raise PluginError(**answer["error"])
        return Compiled.from_json(answer)

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)
        self._folder.cleanup()


_ENDED = "a compiler's process ended, on this kernel or on another one beside it"


def _begin(cache: str) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.pop("TRITON_INTERPRET", None)
    # As in compiling.py: line numbers would make the text depend on where the file lies.
    os.environ.update(TRITON_CACHE_DIR=cache, TRITON_DISABLE_LINE_INFO="1")


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _answer(file: Path, job: dict[str, Any]) -> dict[str, Any]:
    from aot.plugins._compiler import compiled
    from aot.plugins.loading import load

    try:
        return compiled(load(file), job, job["config"])
    except AotError as error:
        return {"error": {"what": error.what, "where": error.where, "fix": error.fix}}
