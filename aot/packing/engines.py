"""Which engines of an artifact go into a form that runs one kind of them alone."""

from __future__ import annotations

from collections.abc import Sequence

from aot.errors import UsageError, unknown
from aot.runtime.manifest import Engine, Manifest

CPU = "cpu"


def chosen(manifest: Manifest, target: str | None) -> Sequence[Engine]:
    """The engines for a target, or all where none is named; none: the final graph, on onnxruntime.

    target: `sm90`, ..., or `cpu` for onnxruntime. Raises UsageError for one that the artifact has no engine for, where
    engines of several libraries or versions are there and none is named, and where neither engine nor graph is there.
    """
    held = list(dict.fromkeys(one.target for one in manifest.engines))
    if target is not None and target not in [*held, CPU]:
        raise unknown("engine", target, [*held, *([] if CPU in held or manifest.graph is None else [CPU])])
    found = [one for one in manifest.engines if target in (None, one.target)]
    if len({(one.backend, one.version) for one in found}) > 1:
        said = ", ".join(f"{one.target} ({one.backend} {one.version})" for one in found)
        raise UsageError(
            f"the artifact has engines of several libraries: {said}",
            where=manifest.shown,
            fix=f"say which one to pack: --engine {found[0].target}",
        )
    if not found and manifest.graph is None:
        raise UsageError(
            "the artifact has neither an engine for it nor an ONNX graph",
            where=manifest.shown,
            fix=f"pack one of its engines: --engine {held[0]}" if held else "build an engine first: aot build",
        )
    return found
