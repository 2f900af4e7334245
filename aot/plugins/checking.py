"""Kernels against their references, on Triton's interpreter: no GPU is needed.

The interpreter rounds BF16 and FP8 otherwise than a GPU, so those dtypes are left to a GPU. It runs in a process of its
own, for Triton decides once, when it is imported, whether it interprets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aot import toolchain
from aot.errors import PluginError, TargetError
from aot.plugins.header import Header

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
    """What a check found. varying: the sizes that may vary in an engine; the others are constants of the kernel.
    unchecked: the dtypes that only a GPU can check."""

    plugin: str
    file: str
    cases: tuple[Case, ...]
    varying: tuple[str, ...]
    fixed: tuple[str, ...]
    unchecked: tuple[str, ...]

    @property
    def failed(self) -> tuple[Case, ...]:
        """The cases that went wrong."""
        return tuple(case for case in self.cases if case.failures)

    def to_json(self) -> dict[str, Any]:
        """Plain data; of the cases only those that failed."""
        return {
            "plugin": self.plugin,
            "file": self.file,
            "passed": not self.failed,
            "cases": len(self.cases),
            "relative": max((case.relative for case in self.cases), default=0.0),
            "seconds": sum(case.seconds for case in self.cases),
            "varying": list(self.varying),
            "fixed": list(self.fixed),
            "unchecked": list(self.unchecked),
            "failed": [{"case": case.what, "failures": list(case.failures)} for case in self.failed],
        }


def check(headers: Sequence[Header], told: Callable[[str, int, int], None] = lambda *_: None) -> list[Checked]:
    """Run kernels over dtypes, sizes (odd, 0, 1), attributes, configs and misaligned inputs.

    told: called with (plugin, cases done, cases in all). Raises PluginError for a plugin that is broken; a kernel that
    computes something else is a failure of its cases. TargetError where triton is missing.
    """
    if toolchain.version("triton") is None:
        raise TargetError("triton, which runs plugins, is not installed", fix="pip install 'aot-engine[plugins]'")
    answers: list[list[dict[str, Any]]] = []
    with tempfile.TemporaryFile("w+") as errors:
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        command = [sys.executable, "-m", "aot.plugins._interpreter", *(str(header.file) for header in headers)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                answer = json.loads(line)
                if "error" in answer:
                    process.kill()
                    raise PluginError(**answer["error"])
                if "total" in answer:
                    answers.append([])
                answers[-1].append(answer)
                told(headers[len(answers) - 1].name, len(answers[-1]) - 1, answers[-1][0]["total"])
        errors.seek(0)
        said = (errors.read().strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    if process.returncode or len(answers) < len(headers):
        where = f"in case {len(answers[-1])} of {answers[-1][0]['total']}" if answers else "before the first case"
        raise headers[max(len(answers) - 1, 0)].error(f"the interpreter ended {where}: {said}", "kernel")
    return [_read(header, found) for header, found in zip(headers, answers, strict=True)]


def _read(header: Header, answers: Sequence[Mapping[str, Any]]) -> Checked:
    first, *cases = answers
    return Checked(
        header.qualified,
        str(header.file),
        tuple(Case(one["what"], one["seconds"], one["relative"], tuple(one["failures"])) for one in cases),
        tuple(first["varying"]),
        tuple(first["fixed"]),
        tuple(first["unchecked"]),
    )
