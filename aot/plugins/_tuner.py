"""The process that tunes on a GPU: `python -m aot.plugins._tuner`, a list of tasks on standard input, as JSON.

It answers in lines of JSON: `total` tasks, then for each an `entry`, or with `failed` why there is none.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot import toolchain
from aot.errors import AotError, EngineError, PluginError
from aot.plugins import _launching, cases, tuned
from aot.plugins._interpreter import say
from aot.plugins._launching import Launcher, Stopped, waited
from aot.plugins._timing import in_turns
from aot.plugins._trying import compared, sampled, sizes_that_vary
from aot.plugins._workers import Compilers
from aot.plugins.descent import Config, search
from aot.plugins.growing import grown, usual
from aot.plugins.loading import Plugin, load

if TYPE_CHECKING:
    import torch

USUAL = 1 << 24
"""Elements of the largest tensor, where no size is given that says otherwise: some tens of microseconds of memory."""
BUDGET = 120.0
"""Seconds for one size in one choice of dtypes, compiling included; then the fastest so far is taken."""
HOPELESS = 3.0
"""A config that once took so many times as long as the fastest of its group is not timed again."""


def main() -> None:
    """Tune task after task, the kernels of all being compiled meanwhile."""
    tasks = json.load(sys.stdin)
    compilers = Compilers()
    launcher = Launcher(compilers, toolchain.machine().gpu.target)  # type: ignore[union-attr]  # tuning.py has asked
    try:
        with redirect_stdout(sys.stderr):
            todo = [one for task in tasks for one in _trials(load(Path(task["file"])), task)]
            for plugin, trial, vary in todo:
                for config in plugin.configs:
                    launcher.begin(plugin, trial, vary, config)
            say({"total": len(todo)})
            for plugin, trial, vary in todo:
                try:
                    say({"entry": asdict(Tuner(launcher, plugin, trial, vary).entry()), "file": str(plugin.file)})
                except (PluginError, EngineError, RuntimeError) as error:
                    say({"failed": " ".join(str(error).split()), "what": trial.describe(), "file": str(plugin.file)})
    except Stopped as stopped:
        say({"error": {"what": f"a kernel fails on the GPU: {stopped}", "where": None, "fix": "aot plugin check"}})
        sys.stdout.flush()
        compilers.close()
        os._exit(0)  # what CUDA would do on the way out fails as well
    except AotError as error:
        say({"error": {"what": error.what, "where": error.where, "fix": error.fix}})
    compilers.close()


def _trials(plugin: Plugin, task: Mapping[str, Any]) -> list[tuple[Plugin, cases.Trial, list[str]]]:
    """What a task asks for, in each of its dtypes. Raises PluginError for sizes that do not go together."""
    vary, _ = sizes_that_vary(plugin)
    _, attributes = cases.base(plugin)
    given = {name: tuple(size) if isinstance(size, list) else size for name, size in task["sizes"].items()}
    free = [name for name in vary if name not in given]
    known = {name: size for name, size in usual(plugin).items() if name not in free} | given
    found = grown(plugin, free, USUAL, known)
    sizes = found[0] if found is not None else cases.base(plugin)[0] | known
    shapes = cases.shapes(plugin, sizes)
    plugin.bind(shapes)
    plugin.outputs(shapes, attributes)
    return [(plugin, cases.Trial(shapes, chosen, attributes), vary) for chosen in task["types"]]


class Tuner:
    """One plugin at one size in one choice of dtypes, and what each config takes.

    inputs: on the GPU; the plugin's own samples where they are left out. budget: seconds from now on, after which no
    further config is tried: the fastest so far is taken.
    """

    def __init__(
        self,
        launcher: Launcher,
        plugin: Plugin,
        trial: cases.Trial,
        vary: Sequence[str],
        inputs: Sequence[torch.Tensor] | None = None,
        budget: float = BUDGET,
    ) -> None:
        import torch

        self._until = time.monotonic() + budget
        self.plugin = plugin
        self.trial = trial
        self.inputs = inputs or list(sampled(plugin, trial, _launching.DEVICE).values())
        dtypes = plugin.schema.dtypes(plugin.schema.outputs, trial.chosen)
        shapes = plugin.outputs(trial.shapes, trial.attributes)
        self.outputs = [
            torch.empty(shape, dtype=getattr(torch, dtype), device=_launching.DEVICE)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        self._vary = vary
        self._launcher = launcher
        self._right: list[torch.Tensor] | None = None
        self.measured = 0
        self.reasons: list[str] = []

    def launch_of(self, config: Config) -> Any:
        """A function that launches the kernel on the inputs, tried once.

        Raises PluginError, EngineError where it does not compile or run, and where its results are not those of the
        first config that ran, which `aot plugin check` holds against the reference.
        """
        # The first config that runs is waited for, however long it takes: without one there is nothing to keep.
        left = None if self._right is None else max(self._until - time.monotonic(), 0.0)
        made = self._launcher.compiled(self.plugin, self.trial, self._vary, config, left)
        launch = self._launcher.bound(made, self.inputs, self.outputs)
        waited(launch)
        if self._right is None:
            self._right = [one.clone() for one in self.outputs]
        for declared, got, right in zip(self.plugin.schema.outputs, self.outputs, self._right, strict=True):
            why = compared(got, right)[1]
            if why is not None:
                raise self.plugin.error(f"with {dict(config)} '{declared.name}' {why}", "CONFIGS")
        return launch

    def times(self, configs: Sequence[Config]) -> list[float | None]:
        """Milliseconds of each, the median of runs in turns; None for one that cannot be taken, see `reasons`."""
        for config in configs:
            self._launcher.begin(self.plugin, self.trial, self._vary, config)
        launches: dict[int, Any] = {}
        for place, config in enumerate(configs):
            try:
                launches[place] = self.launch_of(config)
            except (PluginError, EngineError) as error:
                self.reasons.append(" ".join(str(error).split()))
        taken = (
            dict(zip(launches, in_turns(list(launches.values()), hopeless=HOPELESS), strict=True)) if launches else {}
        )
        self.measured += sum(map(len, taken.values()))
        return [statistics.median(taken[place]) if place in taken else None for place in range(len(configs))]

    def _over(self) -> bool:
        return time.monotonic() > self._until

    def entry(self) -> tuned.Entry:
        """The fastest config. Raises PluginError where none runs, with the first reason."""
        found = search(self.plugin.configs, self.plugin.space, self.times, self._over)
        if found is None:
            raise PluginError(f"no config runs: {self.reasons[0]}")
        machine = toolchain.machine()
        assert machine.gpu is not None
        sizes = tuned.bucket(self.plugin, self.trial.shapes)
        return tuned.Entry(
            gpu=machine.gpu.name,
            target=machine.gpu.target,
            dtypes=self.plugin.schema.dtypes(self.plugin.schema.inputs, self.trial.chosen),
            bucket={name: size for name, size in sizes.items() if size is not None},
            config=dict(found.config),
            ms=round(found.ms, 5),
            tried=found.tried,
            measured=self.measured,
            shapes=self.trial.shapes,
            source=tuned.source(self.plugin),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            driver=machine.driver,
            triton=toolchain.version("triton"),
        )


if __name__ == "__main__":
    main()
