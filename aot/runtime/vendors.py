"""The two vendor modules: what is installed, and importing it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from aot import toolchain
from aot.errors import EngineError

TITLES = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}
_LEAN = {"tensorrt": "tensorrt_lean"}
"""The module that runs version-compatible engines where the whole library is not installed."""
_DISTRIBUTIONS = {
    name: (name.replace("_", "-"), *(f"{name.replace('_', '-')}-cu{cuda}{part}" for cuda in (13, 12) for part in parts))
    for name, parts in (("tensorrt", ("", "-bindings")), ("tensorrt_lean", ("", "-bindings")), ("tensorrt_rtx", ("",)))
}


def version(name: str) -> str | None:
    """The installed version of one of the two; None where it is not installed. Imports nothing.

    The bindings' wheel alone has no module and does not count.
    """
    if find_spec(name) is None:
        return None
    found = (toolchain.version(distribution) for distribution in _DISTRIBUTIONS[name])
    return next((version for version in found if version), None)


def runtime(name: str, *, lean: bool = False) -> tuple[str, str | None]:
    """(module, installed version) that runs engines of one of the two. lean: they are version-compatible."""
    other = _LEAN.get(name) if lean else None
    if other is not None and version(name) is None and version(other) is not None:
        return other, version(other)
    return name, version(name)


def module(name: str) -> ModuleType:
    """Its module. Raises EngineError where its libraries do not load."""
    try:
        return import_module(name)
    except (ImportError, OSError) as error:
        raise EngineError(
            f"{TITLES.get(name, name)} does not load: {' '.join(str(error).split())}",
            where=f"import {name}",
            fix="aot doctor says what is missing",
        ) from error
