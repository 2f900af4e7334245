"""Which plugins an export looks for patterns of, and in whose place a node is put: asked for, or measured to be faster.

A plugin's kernel is no faster than what TensorRT fuses by itself unless a measurement says so, for that GPU, dtypes and
sizes (see tuned.py). So a pattern that nobody asked for is replaced only where one does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot import content, toolchain
from aot.config import Patterns
from aot.errors import UsageError, unknown
from aot.plugins import tuned
from aot.plugins.header import Header, read
from aot.store import sha256

if TYPE_CHECKING:
    from aot.plan import Plan

PART = "PATTERNS"
ATTENTION = "aot::attention"
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True)
class Replacing:
    """What an export looks for. As plain data it is part of the export's key, so nothing else may be.

    asked: plugins that are used wherever a pattern of theirs occurs. measured: those for which there are measurements
    on `target`. gpu: the product, where it is known. compute: the dtype that floats will have. digests: of every file
    that the answer depends on.
    """

    asked: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    target: str | None = None
    gpu: str | None = None
    compute: str = "float32"
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The plugins to look for."""
        return tuple(dict.fromkeys((*self.asked, *self.measured)))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def judged(
        self, header: Header, dtypes: Sequence[str], shapes: tuned.Shapes, project: Path | None
    ) -> tuple[bool, str]:
        """(whether the plugin takes the place of a pattern, why). dtypes, shapes: of its inputs, as exported."""
        if header.name in self.asked:
            return True, "asked for"
        assert self.target is not None
        computed = self.computed(header, dtypes)
        won = tuned.wins(header, self.target, computed, shapes, gpu=self.gpu, project=project)
        if won is None:
            return False, f"not measured on {self.target} at these sizes: aot plugin tune {header.name}"
        return won, f"measured to be {'faster' if won else 'no faster'} than what it replaces on {self.target}"

    def computed(self, header: Header, dtypes: Sequence[str]) -> tuple[str, ...]:
        """The dtypes that the inputs will have in the engine: floats are narrowed where the plugin takes them."""
        return tuple(
            self.compute
            if dtype.startswith(("float", "bfloat")) and self.compute in header.schema.allowed(one)
            else dtype
            for one, dtype in zip(header.schema.inputs, dtypes, strict=True)
        )


NOTHING = Replacing()


def decided(asked: Patterns, plan: Plan) -> Replacing:
    """What a build of this plan looks for; nothing where no backend launches kernels and nothing was asked for.

    Raises UsageError for a name that no plugin has, or one without PATTERNS; PluginError for a file that is damaged.
    """
    files = content.names("plugins", plan.project)
    for name in asked.plugins:
        if name not in files:
            raise unknown("plugin", name, files)
        header = read(files[name])
        if header.qualified == ATTENTION and PART not in header.lines:
            continue  # it is looked for in the final graph: see stages/attention.py
        if PART not in header.lines:
            raise UsageError(
                f"plugin {name} does not say what it replaces",
                where=str(files[name]),
                fix=f"call aot.ops.{name} in the model, or add {PART} to the plugin: see aot/plugin.py",
            )
    target = next(iter(plan.targets or plan.meant or ()), None)
    gpu = toolchain.machine().gpu
    product = gpu.name if gpu is not None and gpu.target == target else None
    measured = {}
    if asked.measured and target is not None and _launches(plan):
        measured = {name: file for name, file in files.items() if _is_measured(file, target, plan.project)}
    plugins = tuple(name for name in asked.plugins if PART in read(files[name]).lines)
    chosen = {name: files[name] for name in (*plugins, *measured)}
    if not chosen:
        return NOTHING
    return Replacing(
        plugins,
        tuple(measured),
        target,
        product,
        _DTYPES[plan.recipe.compute],
        {name: _digest(file, plan.project) for name, file in sorted(chosen.items())},
    )


def _launches(plan: Plan) -> bool:
    from aot import backend as backends

    backend = backends.get(plan.backend or "tensorrt")
    return backend.launches(backend.version()) is not None and toolchain.version("triton") is not None


def _is_measured(file: Path, target: str, project: Path | None) -> bool:
    """Whether it says what it replaces, and an engine has been timed with and without it."""
    header = timed(file, target, project)
    return header is not None and PART in header.lines


def timed(file: Path, target: str, project: Path | None) -> Header | None:
    """The plugin of that file, if an engine on `target` has been timed with and without it."""
    places = (file.parent, *([project / "plugins"] if project is not None else []))
    if not any(tuned.file_of(file.stem, place).is_file() for place in places):
        return None
    header = read(file)
    found, _ = tuned.entries(header, project)
    return header if any(one.target == target and one.expanded_ms is not None for one in found) else None


def _digest(file: Path, project: Path | None) -> str:
    """Of the plugin's file and of what tuning has found."""
    places = dict.fromkeys((file.parent, *([project / "plugins"] if project is not None else [])))
    files = [file, *(tuned.file_of(file.stem, place) for place in places)]
    return " ".join(sha256(one) for one in files if one.is_file())
