"""The process that checks on Triton's interpreter: `python -m aot.plugins._interpreter FILE...`.

It answers in lines of JSON: one for each plugin, what is to be run, then one for each run.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.errors import AotError
from aot.plugin import Launch
from aot.plugins import cases
from aot.plugins._trying import sizes_that_vary, tried
from aot.plugins._watching import tell_where
from aot.plugins.loading import Plugin, load

if TYPE_CHECKING:
    import torch


def main(files: list[Path]) -> None:
    """Check plugin after plugin; the first error, which names the file, ends it."""
    tell_where()
    file = Path()
    try:
        # What a plugin prints is not an answer: it goes where messages go.
        with redirect_stdout(sys.stderr):
            for file in files:
                _check(load(file))
    except AotError as error:
        say({"error": {"what": error.what, "where": error.where, "fix": error.fix}, "file": str(file)})


def _check(plugin: Plugin) -> None:
    may_vary, fixed = sizes_that_vary(plugin)
    combinations = list(plugin.schema.combinations())
    able = [chosen for chosen in combinations if cases.interpreted(plugin, chosen)]
    unchecked = [" ".join(chosen.values()) for chosen in combinations if chosen not in able]
    todo = list(cases.trials(plugin, plugin.configs, able))
    say({"total": len(todo), "varying": may_vary, "fixed": fixed, "unchecked": unchecked})
    for trial in todo:
        started = time.perf_counter()
        relative, failures = tried(plugin, trial, may_vary, _interpret)
        seconds = time.perf_counter() - started
        say({"what": trial.describe(), "seconds": seconds, "relative": relative, "failures": failures})


def say(answer: Mapping[str, Any]) -> None:
    """One answer, on the standard output that the process began with."""
    print(json.dumps(answer), file=sys.__stdout__, flush=True)


def _interpret(
    plugin: Plugin,
    trial: cases.Trial,
    launch: Launch,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
) -> None:
    with plugin.calling("kernel"):
        plugin.kernel[tuple(launch.grid)](*inputs, *launch.scalars.values(), *outputs, **launch.constants)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
