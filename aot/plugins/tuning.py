"""Finding the fastest config of a kernel on this machine's GPU, offline: what is found is used without timing again.

Everything that is timed runs in a process of its own: see `_tuner.py`. Which configs are tried says `descent.py`, what
is kept `tuned.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot import toolchain
from aot.errors import PluginError, TargetError, UsageError, unknown
from aot.plugins.compiling import TARGETS
from aot.plugins.header import REST, Header
from aot.plugins.tuned import Entry


@dataclass(frozen=True)
class Tuned:
    """What came of one plugin. failed: the runs that gave nothing, and why."""

    header: Header
    entries: tuple[Entry, ...]
    failed: tuple[str, ...]


def tune(
    headers: Sequence[Header],
    sizes: Mapping[str, int],
    dtype: str | None,
    told: Callable[[str, int, int], None] = lambda *_: None,
) -> list[Tuned]:
    """Time the configs of plugins on this machine's GPU, in every choice of dtypes, or those with `dtype` in them.

    sizes: by the names of SHAPES, REST for all leading axes together; what is left out is as it is checked, and sizes
    that may vary grow until a tensor has some 16 million elements. told: called with (plugin, done, in all).

    Raises UsageError for a size or dtype that none of the plugins has, TargetError without a GPU or triton, PluginError
    for a plugin that is broken.
    """
    gpu = toolchain.machine().gpu
    if gpu is None or gpu.target not in TARGETS:
        raise TargetError(
            "there is no GPU to tune on" if gpu is None else f"kernels are not compiled for {gpu.target}",
            fix=f"tune on a machine with one of {', '.join(TARGETS)}: what is found is used anywhere",
        )
    if toolchain.version("triton") is None:
        raise TargetError("triton, which compiles plugins, is not installed", fix="pip install 'aot-engine[plugins]'")
    tasks = [_task(header, sizes, dtype, gpu.target) for header in headers]
    _check_known(headers, sizes, dtype, tasks)
    answers = _asked(tasks, headers, told)
    made = []
    for header in headers:
        own = [one for one in answers if one["file"] == str(header.file)]
        made.append(
            Tuned(
                header,
                tuple(Entry.from_json(one["entry"]) for one in own if "entry" in one),
                tuple(f"{one['what']}: {one['failed']}" for one in own if "failed" in one),
            )
        )
    return made


def _task(header: Header, sizes: Mapping[str, int], dtype: str | None, target: str) -> dict[str, Any]:
    """What is asked of the process: the file, the dtypes, and those of the sizes that the plugin has."""
    types = []
    for chosen in header.schema.combinations():
        dtypes = header.schema.dtypes((*header.schema.inputs, *header.schema.outputs), chosen)
        able = "float8_e4m3fn" not in dtypes or int(target[2:]) >= 89
        if able and (dtype is None or dtype in dtypes):
            types.append(chosen)
    own = {name: (size,) if name == REST else size for name, size in sizes.items() if name in header.symbols()}
    return {"file": str(header.file), "types": types, "sizes": own}


def _check_known(
    headers: Sequence[Header], sizes: Mapping[str, int], dtype: str | None, tasks: Sequence[Mapping[str, Any]]
) -> None:
    known = {name for header in headers for name in header.symbols()}
    for name in sizes:
        if name not in known:
            raise unknown("size", name, known)
    if not any(task["types"] for task in tasks):
        allowed = {one for header in headers for types in header.schema.types.values() for one in types}
        raise UsageError(f"no plugin takes {dtype}", fix=f"there are: {', '.join(sorted(allowed))}")


def _asked(
    tasks: Sequence[Mapping[str, Any]], headers: Sequence[Header], told: Callable[[str, int, int], None]
) -> list[dict[str, Any]]:
    """The answers of the process."""
    names = {str(header.file): header.name for header in headers}
    answers: list[dict[str, Any]] = []
    total = None
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryFile("w+") as question:
        json.dump(tasks, question)
        question.seek(0)
        command = [sys.executable, "-m", "aot.plugins._tuner"]
        with subprocess.Popen(
            command, env=environment, stdin=question, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                answer = json.loads(line)
                if "error" in answer:
                    process.kill()
                    raise PluginError(**answer["error"])
                if "total" in answer:
                    total = int(answer["total"])
                    continue
                answers.append(answer)
                told(names[answer["file"]], len(answers), total or 0)
        errors.seek(0)
        said = (errors.read().strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    if len(answers) != total:
        raise PluginError(f"tuning ended after {len(answers)} of {total or 0} runs: {said}", where=str(Path.cwd()))
    return answers
