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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
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


def check(header: Header, told: Callable[[int, int], None] = lambda done, of: None) -> Checked:
    """Run the kernel over dtypes, sizes (odd, 0, 1), attributes, configs and misaligned inputs.

    told: called with (cases done, cases in all). Raises PluginError for a plugin that is broken; a kernel that computes
    something else is a failure of its cases. TargetError where triton is missing.
    """
    if toolchain.version("triton") is None:
        raise TargetError(
            "triton, which runs plugins, is not installed",
            where=f"plugin {header.name}",
            fix="pip install 'aot-engine[plugins]'",
        )
    with tempfile.TemporaryDirectory(prefix="aot-check-") as place:
        errors = Path(place) / "stderr"
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        command = [sys.executable, "-m", "aot.plugins._interpreter", str(header.file)]
        with (
            errors.open("w") as refused,
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=refused, text=True) as process,
        ):
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(json.loads(line))
                if "total" in lines[0]:
                    told(len(lines) - 1, lines[0]["total"])
        said = (errors.read_text().strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    for line in lines:
        if "error" in line:
            raise PluginError(line["error"]["what"], where=line["error"]["where"], fix=line["error"]["fix"])
    if process.returncode or not lines:
        done = len(lines) - 1
        case = f"in case {done + 1} of {lines[0]['total']}" if lines else "before the first case"
        raise header.error(f"the interpreter ended {case}: {said}", "kernel")
    first, *cases = lines
    return Checked(
        header.qualified,
        str(header.file),
        tuple(Case(one["what"], one["seconds"], one["relative"], tuple(one["failures"])) for one in cases),
        tuple(first["varying"]),
        tuple(first["fixed"]),
        tuple(first["unchecked"]),
    )
