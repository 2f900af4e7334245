"""Which GPUs and which TensorRT an engine runs on: pure functions of what its manifest says.

An engine is for one compute capability and one release of TensorRT. A hardware-compatible one runs on others, a
version-compatible one on later releases, `HardwareCompatibilityLevel` and `BuilderFlag.VERSION_COMPATIBLE` of the
vendor's API.
"""

from __future__ import annotations

import re

AMPERE = 80
"""The compute capability, times ten, from which on an engine of level `ampere_plus` runs."""


def gpu_fits(target: str, here: str, hardware: str | None) -> bool:
    """Whether an engine for `target` (`sm90`) of that level of hardware compatibility runs on a GPU `here`."""
    if hardware == "ampere_plus":
        return int(here.removeprefix("sm")) >= AMPERE
    return here == target


def meant_for(target: str, hardware: str | None) -> str:
    """What it is for, as a clause says it."""
    return "sm80 and later" if hardware == "ampere_plus" else target


def version_fits(built: str, installed: str, compatible: str | None) -> bool:
    """Whether a release runs what another one built.

    compatible: None for an engine of one release; `with` or `without` for a version-compatible one that holds its lean
    runtime or does not. With it, every later release runs it; without, the full library of the same release does, and
    the lean runtime of that release.
    """
    return built == installed or (compatible == "with" and _parts(installed) >= _parts(built))


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
