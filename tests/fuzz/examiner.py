"""ONNX files are read in a process that may end with them, as `aot` itself does it, but one for many files."""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import traceback
from pathlib import Path

from aot.errors import AotError, GraphError
from aot.onnx_input import vetting

MEMORY, SECONDS = 4 << 30, 60
REAL = vetting._apart
"""What the tests' conftest puts something else in the place of."""


class Examiner:
    """Called with a path, it raises AotError where the file is refused, and AssertionError for anything else but
    success. died: how often a parser took the process with it, which `vet` made an AotError of."""

    def __init__(self) -> None:
        self.died = 0
        self._pid = 0

    def __call__(self, path: Path) -> None:
        if not self._pid:
            self._start()
        os.write(self._ask, f"{path}\n".encode())
        answer = self._answer()
        if answer is None:
            self._buried(path)
        elif answer["bug"]:
            raise AssertionError(answer["bug"])
        elif answer["refused"]:
            raise AotError(answer["refused"])

    def _answer(self) -> dict[str, str] | None:
        """None where the process ended, or had to be ended."""
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._told, selectors.EVENT_READ)
            if not waiting.select(SECONDS):
                os.kill(self._pid, signal.SIGKILL)
                return None
        line = self._told.readline()
        return json.loads(line) if line.endswith("\n") else None

    def _buried(self, path: Path) -> None:
        self.died += 1
        os.waitpid(self._pid, 0)
        self._pid = 0
        self._told.close()
        os.close(self._ask)
        REAL(path, "read", vetting.Limits(4 << 30, SECONDS))
        raise AssertionError(f"the process that read {path} ended, and the one of `vet` did not")

    def _start(self) -> None:
        import onnx.inliner  # so that each child has it  # noqa: F401

        import aot.onnx_input.loading
        import aot.sources.onnx_file  # noqa: F401

        asked, self._ask = os.pipe()
        told, tell = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(self._ask), os.close(told)
            _serve(asked, tell)
        os.close(asked), os.close(tell)
        self._told = os.fdopen(told)


def _serve(asked: int, tell: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in os.fdopen(asked):
        answer = {"bug": "", "refused": ""}
        try:
            _read(Path(line.rstrip("\n")))
        except AotError as error:
            answer["refused"] = str(error)
        except MemoryError:
            os._exit(1)  # as the process of `vet` does
        except BaseException:  # noqa: BLE001  what is no AotError is a bug, and is told
            answer["bug"] = traceback.format_exc()
        os.write(tell, json.dumps(answer).encode() + b"\n")
    os._exit(0)


def _read(path: Path) -> None:
    from aot.onnx_input.loading import load
    from aot.sources.onnx_file import inputs_of

    vetting._seen.clear()
    model = load(path)
    inputs_of(model, path)
    if not model.graph.outputs:
        raise GraphError("no outputs")
