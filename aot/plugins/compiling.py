"""Kernels to PTX, without a GPU.

Triton runs in a process of its own: an instruction set that LLVM does not know for a GPU ends the process, and neither
torch nor triton is needed in ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from aot import toolchain
from aot.errors import PluginError, TargetError
from aot.plugins import ptx
from aot.plugins.header import REST, Header
from aot.plugins.sizes import Varies
from aot.runtime.kernels import Compiled

E = TypeVar("E", bound=PluginError)
TARGETS = tuple(f"sm{capability}" for capability in ptx.ISA)


@dataclass(frozen=True)
class Job:
    """One kernel to compile, or the same one in every way to run it.

    shapes: of the inputs, None for a size that varies. dtypes: of the inputs. config: an
    index into CONFIGS, or a config itself; None for each of CONFIGS.
    """

    target: str
    shapes: Mapping[str, Sequence[int | None]]
    dtypes: tuple[str, ...]
    attributes: Mapping[str, Any]
    config: int | Mapping[str, Any] | None = 0


def jobs(header: Header, target: str, sizes: Mapping[str, int] | None = None) -> list[Job]:
    """A job for every combination of dtypes, each size as given or free to vary, attributes at their defaults.

    sizes: name from SHAPES -> size. Leading axes, REST, are one that varies.
    """
    sizes = sizes or {}
    shapes: dict[str, tuple[int | None, ...]] = {}
    for name, axes in header.shapes.items():
        shapes[name] = tuple(axis if isinstance(axis, int) else sizes.get(axis) for axis in axes if axis != REST)
        if axes[:1] == (REST,):
            shapes[name] = (None, *shapes[name])
    attributes = {
        one.name: header.attributes[one.name][0] if one.default is None else one.default
        for one in header.schema.attributes
    }
    made = []
    for chosen in header.schema.combinations():
        dtypes = header.schema.dtypes(header.schema.inputs, chosen)
        if "float8_e4m3fn" not in dtypes or int(target[2:]) >= 89:
            made.append(Job(target, shapes, dtypes, attributes))
    return made


def compile_all(header: Header, wanted: Sequence[Job]) -> list[Compiled]:
    """Compile kernels of one plugin.

    Raises PluginError, naming the file and the job: for what TensorRT could not launch, with the reason, and for what
    Triton does not compile. TargetError where triton is missing, or does not know the target.
    """
    made: list[Compiled] = []
    for kernels in compile_each(header, wanted):
        if isinstance(kernels, Varies):
            raise kernels
        made += kernels
    return made


def compile_each(header: Header, wanted: Sequence[Job]) -> list[tuple[Compiled, ...] | Varies]:
    """The kernels of every job, by CONFIGS; the error in their place where a size must be fixed and varies.

    Raises what `compile_all` does for anything else.
    """
    for job in wanted:
        if job.target not in TARGETS:
            raise TargetError(
                f"kernels are compiled for {', '.join(TARGETS)}, not for {job.target}", where=f"plugin {header.name}"
            )
    if toolchain.version("triton") is None:
        raise TargetError(
            "triton, which compiles plugins, is not installed",
            where=f"plugin {header.name}",
            fix="pip install 'aot-engine[plugins]'",
        )
    with tempfile.TemporaryDirectory(prefix="aot-ptx-") as place:
        folder = Path(place)
        question, answers = folder / "jobs.json", folder / "answers.jsonl"
        question.write_text(json.dumps({"file": str(header.file), "jobs": [asdict(job) for job in wanted]}))
        # Line numbers would make the text depend on where the file lies.
        environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "cache"), "TRITON_DISABLE_LINE_INFO": "1"}
        environment.pop("TRITON_INTERPRET", None)
        command = [sys.executable, "-m", "aot.plugins._compiler", str(question), str(answers)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        lines = answers.read_text().splitlines() if answers.is_file() else []
    found: list[tuple[Compiled, ...] | Varies] = []
    for job, answer in zip(wanted, map(json.loads, lines), strict=False):
        if "kernels" in answer:
            found.append(tuple(map(Compiled.from_json, answer["kernels"])))
        elif answer["varies"]:
            found.append(_failed(Varies, header, job, **answer["error"]))
        else:
            raise _failed(PluginError, header, job, **answer["error"])
    if len(found) < len(wanted):
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise _failed(PluginError, header, wanted[len(found)], f"the compiler ended: {said}", None, None)
    return found


def _failed(kind: type[E], header: Header, job: Job, what: str, where: str | None, fix: str | None) -> E:
    said = f"for {job.target}, {' '.join(job.dtypes)}: {what.removeprefix(f'plugin {header.name}: ')}"
    return kind(f"plugin {header.name} {said}", where=where or header.at("kernel"), fix=fix)
