"""What a TensorRT build says while it runs: its log, its progress, and how Ctrl-C stops it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from aot.progress import Progress
from aot.runtime.log import STAMP

T = TypeVar("T")

# Said of every build, or of facts that the network states on purpose: nothing a user could act on.
_NOISE = re.compile(
    r"has Int64 binding"
    r"|CUDA lazy loading"
    r"|[Uu]sing default stream"
    r"|Profiling verbosity|profiling_verbosity"
    r"|cask|Tactic Device request"
    r"|strongly.typed"
    r"|Detected layernorm nodes in FP16"  # surgery decided what stays in FP32
    r"|Calibrator is not being used"
)


def useful(warnings: list[str]) -> list[str]:
    """Warnings worth showing: without noise, and one of those that differ in numbers only."""
    kept: dict[str, str] = {}
    for message in warnings:
        text = " ".join(STAMP.sub("", message).split())
        if text and not _NOISE.search(text):
            kept.setdefault(re.sub(r"\d+", "#", text), text)
    return list(kept.values())


def make_monitor(trt: ModuleType, stop: threading.Event) -> Any:
    """An IProgressMonitor that adds up nested phases and ends the build once `stop` is set."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.phases: dict[str, list[int]] = {}  # name -> [steps, done], innermost last
            self.state = (0, 0, "")

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self.phases[phase_name] = [max(num_steps, 1), 0]
            self._update()

        def step_complete(self, phase_name: str, step: int) -> bool:
            if phase_name in self.phases:
                self.phases[phase_name][1] = step + 1
                self._update()
            return not stop.is_set()

        def phase_finish(self, phase_name: str) -> None:
            self.phases.pop(phase_name, None)

        def _update(self) -> None:
            fraction, weight = 0.0, 1.0
            for steps, done in self.phases.values():
                fraction += weight * min(done, steps) / steps
                weight /= steps
            outer = list(self.phases)[:2]  # the whole build, and the part of it that is under way
            self.state = (max(self.state[0], int(1000 * min(fraction, 1.0))), 1000, outer[-1] if outer else "")

    return Monitor()


def supervised(
    work: Callable[[], T], state: Callable[[], tuple[int, int, str]], stop: threading.Event, progress: Progress
) -> T:
    """Run `work` beside the main thread, which draws its progress and stays open to Ctrl-C.

    A KeyboardInterrupt sets `stop`, waits for the builder to notice at its next step, and goes on. Nothing is
    drawn from the builder's own callbacks: an exception there would have to cross C++.
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="builder") as pool:
        future = pool.submit(work)
        try:
            while True:
                try:
                    return future.result(timeout=0.1)
                except TimeoutError:
                    if future.done():  # the work itself raised TimeoutError
                        raise
                    done, total, what = state()
                    progress.step(done, total, what)
        except KeyboardInterrupt:
            stop.set()
            raise
