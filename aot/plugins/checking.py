"""Kernels against their references: on Triton's interpreter, which needs no GPU, and on a GPU where there is one.

The interpreter rounds BF16 and FP8 otherwise than a GPU, so those dtypes are left to a GPU, as are tensors of more than
2^31 elements. Both run in processes of their own: Triton decides once, when it is imported, whether it interprets, and
a kernel that reads where nothing is ends CUDA in its process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot import toolchain
from aot.errors import PluginError, TargetError
from aot.plugins._watching import PATIENCE, last_words, line_in, watched
from aot.plugins.compiling import TARGETS
from aot.plugins.header import Header

_CRASHED = "what is read or written beside a tensor can end it: give each tl.load and tl.store a mask"
INTERPRETED = frozenset({"float32", "float16", "int8", "uint8", "int32", "int64", "bool"})


@dataclass(frozen=True)
class Case:
    """One run of a kernel. what: dtypes, shapes, attributes and config, in words. failures: what is wrong, in words."""

    what: str
    seconds: float
    relative: float
    failures: tuple[str, ...]


@dataclass(frozen=True)
class Checked:
    """What a check found. at: file and line of the kernel. device: `cpu` or `gpu`. total: how many cases there were to
    run; fewer ran where one stopped the GPU. varying: the sizes that may vary in an engine; the others are constants of
    the kernel. unchecked: what this device does not check, in words; on `cpu` the dtypes that only a GPU can check."""

    plugin: str
    file: str
    at: str
    device: str
    cases: tuple[Case, ...]
    total: int
    varying: tuple[str, ...]
    fixed: tuple[str, ...]
    unchecked: tuple[str, ...]

    @property
    def failed(self) -> tuple[Case, ...]:
        """The cases that went wrong."""
        return tuple(case for case in self.cases if case.failures)

    @property
    def missed(self) -> int:
        """How many cases did not run, since one before them stopped the GPU."""
        return self.total - len(self.cases)

    @property
    def passed(self) -> bool:
        """Whether all ran, and none went wrong."""
        return not self.failed and not self.missed

    def to_json(self) -> dict[str, Any]:
        """Plain data; of the cases only those that failed."""
        return {
            "plugin": self.plugin,
            "file": self.file,
            "at": self.at,
            "device": self.device,
            "passed": self.passed,
            "cases": len(self.cases),
            "missed": self.missed,
            "relative": max((case.relative for case in self.cases), default=0.0),
            "seconds": sum(case.seconds for case in self.cases),
            "varying": list(self.varying),
            "fixed": list(self.fixed),
            "unchecked": list(self.unchecked),
            "failed": [{"case": case.what, "failures": list(case.failures)} for case in self.failed],
        }


def devices(wanted: str, gpu: toolchain.Gpu | None) -> tuple[str, ...]:
    """Where `auto`, `cpu` or `gpu` checks: `cpu`, Triton's interpreter; `gpu`, this machine's.

    Raises TargetError where `gpu` is wanted and there is none that kernels are compiled for.
    """
    known = gpu is not None and gpu.target in TARGETS
    if wanted == "gpu" and not known:
        raise TargetError(
            "there is no GPU to run plugins on" if gpu is None else f"kernels are not compiled for {gpu.target}",
            fix=f"--device cpu takes Triton's interpreter; kernels are compiled for {', '.join(TARGETS)}",
        )
    return {"auto": ("cpu", "gpu") if known else ("cpu",), "cpu": ("cpu",), "gpu": ("gpu",)}[wanted]


def check(
    headers: Sequence[Header],
    told: Callable[[str, int, int], None] = lambda *_: None,
    device: str = "cpu",
    broken: list[PluginError] | None = None,
) -> list[Checked]:
    """Run kernels over dtypes, sizes (odd, 0, 1), attributes and configs; with misaligned inputs on `cpu`, Triton's
    interpreter, and with more than 2^31 elements on `gpu`.

    told: called with (plugin, cases done, cases in all). broken: takes the errors of plugins that are broken, and the
    others are checked; without it the first is raised, a PluginError. A kernel that computes something else is a
    failure of its cases. Raises TargetError where triton is missing.
    """
    if toolchain.version("triton") is None:
        raise TargetError("triton, which runs plugins, is not installed", fix="pip install 'aot-engine[plugins]'")
    found: list[Checked] = []
    with tempfile.TemporaryDirectory(prefix="aot-ptx-") as cache:
        todo = list(headers)
        while todo:
            answers, failed = _asked(todo, device, cache, told)
            found += [_read(header, one, device) for header, one in zip(todo, answers, strict=False)]
            if failed is not None:
                place, error = failed
                if broken is None:
                    raise error
                broken.append(error)
                todo.pop(place)
            todo = todo[len(answers) :]
    return found


def _asked(
    headers: Sequence[Header], device: str, cache: str, told: Callable[[str, int, int], None]
) -> tuple[list[list[dict[str, Any]]], tuple[int, PluginError] | None]:
    """The answers of one process, by plugin: all of them, or those up to the one that stopped the GPU, or up to one
    that is broken, which is told with its place among the headers."""
    module, interprets = (["_gpu", cache], "0") if device == "gpu" else (["_interpreter"], "1")
    answers: list[list[dict[str, Any]]] = []
    stopped = False
    with tempfile.TemporaryFile("w+") as errors:
        environment = {**os.environ, "TRITON_INTERPRET": interprets}
        files = [str(header.file) for header in headers]
        command = [sys.executable, "-m", f"aot.plugins.{module[0]}", *module[1:], *files]
        with (
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
            ExitStack() as stack,
        ):
            assert process.stdout is not None
            watch = stack.enter_context(watched(process, PATIENCE))
            for line in process.stdout:
                watch.heard()
                answer = json.loads(line)
                if "error" in answer:
                    process.kill()
                    place = [str(header.file.resolve()) for header in headers].index(
                        str(Path(answer["file"]).resolve())
                    )
                    return answers[:place], (place, PluginError(**answer["error"]))
                if "stopped" in answer:
                    stopped = True
                    break
                if "total" in answer:
                    answers.append([])
                answers[-1].append(answer)
                told(headers[len(answers) - 1].name, len(answers[-1]) - 1, answers[-1][0]["total"])
        errors.seek(0)
        said = errors.read()
    if not stopped and (process.returncode or len(answers) < len(headers)):
        place = max(len(answers) - 1, 0)
        why = None if watch.over else last_words(said) or f"exit code {process.returncode}"
        return answers[:place], (
            place,
            _ended(headers[place], answers[place] if answers else [], said, why, process.returncode),
        )
    return answers, None


def _ended(header: Header, answers: Sequence[Mapping[str, Any]], said: str, why: str | None, code: int) -> PluginError:
    """The error for a plugin whose check ended midway. said: what its process wrote to standard error. why: None where
    it took too long."""
    case = f"case {len(answers)} of {answers[0]['total']}" if answers else "the first case"
    if why is None:
        what = f"the check heard nothing for {PATIENCE:g} s in {case}, and was ended"
        fix: str | None = (
            "does every loop there end? A reference or kernel that is right and takes so long needs smaller CASES"
        )
    else:
        what = f"the check ended in {case}: {why}"
        fix = None if code >= 0 else _CRASHED
    wrong = next((one["failures"][0] for one in answers if one.get("failures")), None)
    if wrong is not None:
        what += f"; before that, {wrong}"
    return PluginError(
        f"plugin {header.name}: {what}", where=line_in(header.file, said) or header.at("kernel"), fix=fix
    )


def _read(header: Header, answers: Sequence[Mapping[str, Any]], device: str) -> Checked:
    first, *cases = answers
    return Checked(
        header.qualified,
        str(header.file),
        header.at("kernel"),
        device,
        tuple(
            Case(one["what"], one["seconds"], one["relative"], tuple(one["failures"])) for one in cases if "what" in one
        ),
        first["total"] - sum("unchecked" in one for one in cases),
        tuple(first["varying"]),
        tuple(first["fixed"]),
        (*first["unchecked"], *(one["unchecked"] for one in cases if "unchecked" in one)),
    )
