"""The process that checks on a GPU: `python -m aot.plugins._gpu CACHE FILE...`, answering as the interpreter's does.

Kernels are compiled as an engine gets them, for sizes that vary wherever the plugin allows it, and launched through the
CUDA driver. References run on the GPU too. A kernel that reads or writes where nothing is ends CUDA in a process: it
answers `stopped`, and another one goes on with the next plugin, and with what Triton has compiled already, in CACHE.
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
from aot.plugins import _launching, cases
from aot.plugins._interpreter import say
from aot.plugins._launching import Launcher, Stopped, waited
from aot.plugins._trying import sizes_that_vary, tried
from aot.plugins._watching import tell_where
from aot.plugins._workers import Compilers
from aot.plugins.growing import HUGE, grown
from aot.plugins.loading import Plugin, load

if TYPE_CHECKING:
    import torch

PATIENCE = 20
"""Seconds for a case of more than 2^31 elements, the reference included."""


@dataclass(frozen=True)
class _Plan:
    plugin: Plugin
    vary: list[str]
    fixed: list[str]
    trials: list[cases.Trial]
    unchecked: list[str]


def main(cache: Path, files: list[Path]) -> None:
    """Check plugin after plugin, all of their kernels being compiled meanwhile."""
    import torch

    tell_where()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    target = toolchain.machine().gpu.target  # type: ignore[union-attr]  # checking.py has asked for it
    compilers = Compilers(cache=cache)
    launcher = Launcher(compilers, target)
    file, plans = Path(), list[_Plan]()
    try:
        with redirect_stdout(sys.stderr):
            for file in files:
                plans.append(_planned(load(file), target))
            for plan in plans:
                for trial in plan.trials:
                    launcher.begin(plan.plugin, trial, plan.vary, plan.plugin.configs[trial.config])
            for plan in plans:
                file = plan.plugin.file
                _check(plan, launcher)
    except Stopped:
        say({"stopped": True})
        sys.stdout.flush()
        compilers.close()
        os._exit(0)  # what CUDA would do on the way out fails as well
    except AotError as error:
        say({"error": {"what": error.what, "where": error.where, "fix": error.fix}, "file": str(file)})
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
    trials: list[cases.Trial] = []
    if combinations:
        trials += cases.compiled_trials(plugin, plugin.configs, combinations, fixed)
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
        except (PluginError, EngineError, RuntimeError) as error:  # the last is torch's, out of memory among others
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
    made = launcher.compiled(plan.plugin, trial, plan.vary, plan.plugin.configs[trial.config])

    def run(
        plugin: Plugin,
        trial: cases.Trial,
        launch: Launch,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        waited(launcher.bound(made, inputs, outputs))

    with _patient(trial.huge):
        return tried(plan.plugin, trial, plan.vary, run, _launching.DEVICE)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
