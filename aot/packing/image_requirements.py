"""What a container installs beside the runtime's wheel: pinned by version, and by hash as far as we can know it.

`locks/` has the hashes of what serves an artifact, made with the versions that `requirements.lock` names (`make lock`).
TensorRT is installed in the version that built the engine, whatever that is, so that only one equal to ours has hashes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aot.errors import UsageError
from aot.runtime import sessions
from aot.runtime.manifest import Engine

LOCKS = Path(__file__).with_name("locks")
UNUSED = (
    "numpy/distutils",
    "numpy/f2py",
    "numpy/_core/include",
    "onnxruntime/backend",
    "onnxruntime/datasets",
    "onnxruntime/quantization",
    "onnxruntime/tools",
    "onnxruntime/transformers",
    "onnxruntime/capi/libonnxruntime.so*",
)
"""Below site-packages, what nothing imports that a server does. The library of onnxruntime is a second copy, for
programs in C: its Python module is linked with the first."""
SLIMMING = (
    "find . -type d -name tests -prune -exec rm -rf {} +",
    "find . -name '*.pyi' -delete",
    f"rm -rf {' '.join(UNUSED)}",
)
"""Commands of a shell in site-packages."""


@dataclass(frozen=True)
class Requirements:
    """hashed: the lines of a requirements file with hashes. pinned: packages by version alone, none where there is no
    need. gpu: whether the container wants one."""

    hashed: str
    pinned: tuple[str, ...]
    gpu: bool


def requirements(engines: Sequence[Engine]) -> Requirements:
    """What runs these engines, all of one library; none: the final graph. Raises UsageError for an unknown library."""
    if not engines or engines[0].backend == sessions.NAME:
        return Requirements(_lock("serve", "onnxruntime"), (), gpu=False)
    one = engines[0]
    if not re.fullmatch(r"[0-9]+(\.[0-9a-z]+)*", one.version):
        raise UsageError(f"no release of TensorRT is called {one.version!r}", where=one.file, fix="build it again")
    if one.backend == "tensorrt_rtx":
        pin = f"tensorrt-rtx-cu13=={one.version}"
        if f"{pin} \\\n" in _lock("tensorrt_rtx"):
            return Requirements(_lock("serve", "cuda", "tensorrt_rtx"), (), gpu=True)
        return Requirements(_lock("serve", "cuda"), (pin,), gpu=True)
    if one.backend != "tensorrt":
        raise UsageError(f"no package is known for engines of {one.backend}", where=one.file)
    lean = "-lean" if all(engine.compatible is not None for engine in engines) else ""
    cuda = 13 if int(one.version.partition(".")[0]) >= 11 else 12
    return Requirements(_lock("serve", "cuda"), (f"tensorrt{lean}-cu{cuda}=={one.version}",), gpu=True)


def _lock(*names: str) -> str:
    return "".join((LOCKS / f"{name}.lock").read_text() for name in names)
