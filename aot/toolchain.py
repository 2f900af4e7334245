"""What this machine is: its GPU, its driver, the versions installed. The only file that probes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path


@cache
def version(distribution: str) -> str | None:
    """The installed version of a distribution, None where it is not installed. Imports nothing."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@cache
def own_digest() -> str:
    """SHA-256 over aot's own source files: an edit to aot invalidates what an older aot made."""
    total = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine: product name, target (`sm90`), memory in bytes."""

    name: str
    target: str
    memory: int


@dataclass(frozen=True)
class Machine:
    """The facts that decisions are made from. gpu None: none that the driver reports."""

    gpu: Gpu | None
    driver: str | None
    cpu: str


@cache
def machine() -> Machine:
    """Probe this machine once: NVML through ctypes, so neither torch nor CUDA is needed."""
    raise NotImplementedError
