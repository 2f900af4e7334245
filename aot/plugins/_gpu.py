"""The process that checks on a GPU: `python -m aot.plugins._gpu FILE...`, answering as the interpreter's does.

Kernels are compiled as an engine gets them, for sizes that vary wherever the plugin allows it, and launched through the
CUDA driver. References run on the GPU too. A kernel that reads or writes where nothing is ends CUDA in a process: it
answers `stopped`, and another one goes on with the next plugin.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from aot import toolchain
from aot.errors import AotError, EngineError, PluginError
from aot.plugin import Launch
from aot.plugins import cases
from aot.plugins._interpreter import say
from aot.plugins._trying import sizes_that_vary, symbolic, tried
from aot.plugins._workers import Compilers
from aot.plugins.compiling import Compiled, Job
from aot.plugins.growing import HUGE, grown
from aot.plugins.loading import Plugin, load
from aot.plugins.sizes import Size
from aot.runtime.driver import Kernel

if TYPE_CHECKING:
    import torch

PATIENCE = 30
"""Seconds for a case of more than 2^31 elements, the reference included."""


class Stopped(Exception):
    """CUDA says that a kernel failed while it ran; nothing more runs in this process."""


class Launcher:
    """Compiles kernels for this machine's GPU, loads each once, and launches them."""

    def __init__(self, compilers: Compilers, target: str) -> None:
        self._compilers = compilers
        self._target = target
        self._loaded: dict[str, Kernel] = {}

    def begin(self, plugin: Plugin, trial: cases.Trial, vary: Sequence[str]) -> None:
        """Have the kernel of a run compiled."""
        self._compilers.begin(plugin, self.job(plugin, trial, vary), plugin.configs[trial.config])

    def job(self, plugin: Plugin, trial: cases.Trial, vary: Sequence[str]) -> Job:
        """What an engine would ask for whose sizes vary wherever they may."""
        free = symbolic(plugin, trial.shapes, vary)
        shapes = {name: tuple(None if isinstance(size, Size) else size for size in free[name]) for name in free}
        dtypes = plugin.schema.dtypes(plugin.schema.inputs, trial.chosen)
        return Job(self._target, shapes, dtypes, dict(trial.attributes))

    def compiled(self, plugin: Plugin, job: Job, config: Any) -> Compiled:
        """The kernel, waited for. Raises PluginError where it does not compile."""
        return self._compilers.result(plugin, job, config)

    def launch(
        self, made: Compiled, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], stream: int
    ) -> None:
        """Enqueue a kernel. Raises EngineError where the driver refuses."""
        grid, scalars = made.launched([tuple(tensor.shape) for tensor in inputs])
        if made.digest not in self._loaded:
            self._loaded[made.digest] = Kernel.load(made.code, made.entry, made.shared)
        arguments = [*(one.data_ptr() for one in inputs), *scalars, *(one.data_ptr() for one in outputs)]
        x, y, z = grid
        self._loaded[made.digest].launch((x, y, z), made.threads, arguments, stream)


@dataclass(frozen=True)
class _Plan:
    plugin: Plugin
    vary: list[str]
    fixed: list[str]
    trials: list[cases.Trial]
    unchecked: list[str]


def main(files: list[Path]) -> None:
    """Check plugin after plugin, all of their kernels being compiled meanwhile."""
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    target = toolchain.machine().gpu.target  # type: ignore[union-attr]  # checking.py has asked for it
    compilers = Compilers()
    launcher = Launcher(compilers, target)
    try:
        with redirect_stdout(sys.stderr):
            plans = [_planned(load(file), target) for file in files]
            for plan in plans:
                for trial in plan.trials:
                    launcher.begin(plan.plugin, trial, plan.vary)
            for plan in plans:
                _check(plan, launcher)
    except Stopped:
        say({"stopped": True})
        sys.stdout.flush()
        compilers.close()
        os._exit(0)  # what CUDA would do on the way out fails as well
    except AotError as error:
        say({"error": {"what": error.what, "where": error.where, "fix": error.fix}})
    compilers.close()


def _planned(plugin: Plugin, target: str) -> _Plan:
    vary, fixed = sizes_that_vary(plugin)
    combinations, unchecked = [], ["misaligned starts: kernels are compiled for tensors aligned to 16 bytes"]
    for chosen in plugin.schema.combinations():
        tensors = (*plugin.schema.inputs, *plugin.schema.outputs)
        if "float8_e4m3fn" in plugin.schema.dtypes(tensors, chosen) and int(target[2:]) < 89:
            unchecked.append(f"{' '.join(chosen.values())}: {target} has no FP8")
        else:
            combinations.append(chosen)
    trials = list(cases.trials(plugin, plugin.configs, combinations, gpu=True))
    if combinations:
        huge = _huge(plugin, vary, combinations)
        trials += [huge] if isinstance(huge, cases.Trial) else []
        unchecked += [huge] if isinstance(huge, str) else []
    return _Plan(plugin, vary, fixed, trials, unchecked)


def _huge(plugin: Plugin, vary: Sequence[str], combinations: Sequence[dict[str, str]]) -> cases.Trial | str:
    """The run that no 32-bit offset survives, in the narrowest dtypes; or why there is none."""
    import torch

    try:
        found = grown(plugin, vary, HUGE)
    except PluginError as error:
        return f"more than 2^31 elements: {error.what}"
    if found is None:
        return "more than 2^31 elements: the sizes that may vary do not allow it"
    width = {name: getattr(torch, name).itemsize for chosen in combinations for name in chosen.values()}
    chosen = min(combinations, key=lambda one: sum(width[dtype] for dtype in one.values()))
    sizes, attributes = found
    return cases.Trial(cases.shapes(plugin, sizes), chosen, attributes, huge=True)


def _check(plan: _Plan, launcher: Launcher) -> None:
    facts = {"varying": plan.vary, "fixed": plan.fixed, "unchecked": plan.unchecked}
    say({"total": len(plan.trials), **facts})
    for trial in plan.trials:
        started = time.perf_counter()
        answer: dict[str, Any] = {"what": trial.describe(), "relative": 0.0, "failures": []}
        try:
            answer["relative"], answer["failures"] = _tried(plan, trial, launcher)
        except _NotRun as reason:
            answer = {"unchecked": f"more than 2^31 elements: {reason}"}
        except (PluginError, EngineError) as error:
            answer["failures"] = [" ".join(str(error).split())]
        except Stopped as stopped:
            answer["failures"] = [f"it fails on the GPU: {stopped}"]
            say({**answer, "seconds": time.perf_counter() - started})
            raise
        say({**answer, "seconds": time.perf_counter() - started})


class _NotRun(Exception):
    """Why a run did not take place."""


@contextmanager
def _patient(huge: bool) -> Iterator[None]:
    """For a huge case, raise _NotRun where the GPU's memory does not hold it, or it takes longer than PATIENCE."""
    import torch

    def over(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    if not huge:
        yield
        return
    signal.signal(signal.SIGALRM, over)
    signal.alarm(PATIENCE)
    try:
        yield
    except (torch.OutOfMemoryError, TimeoutError, PluginError) as error:
        cause = error.__cause__ if isinstance(error, PluginError) else error
        if isinstance(cause, torch.OutOfMemoryError):
            raise _NotRun("the GPU's memory does not hold what the reference makes of them") from error
        if isinstance(cause, TimeoutError):
            raise _NotRun(f"not done after {PATIENCE} s") from error
        raise
    finally:
        signal.alarm(0)
        torch.cuda.empty_cache()


def _tried(plan: _Plan, trial: cases.Trial, launcher: Launcher) -> tuple[float, list[str]]:
    import torch

    made = launcher.compiled(
        plan.plugin, launcher.job(plan.plugin, trial, plan.vary), plan.plugin.configs[trial.config]
    )

    def run(
        plugin: Plugin,
        trial: cases.Trial,
        launch: Launch,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        cuda: Any = torch.cuda
        cuda.synchronize()
        launcher.launch(made, inputs, outputs, cuda.current_stream().cuda_stream)
        try:
            cuda.synchronize()
        except RuntimeError as error:
            raise Stopped(str(error).splitlines()[0]) from error

    with _patient(trial.huge):
        return tried(plan.plugin, trial, plan.vary, run, "cuda")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
