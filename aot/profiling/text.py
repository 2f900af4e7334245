"""A profile in 100 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aot.profiling.attribution import Layer
from aot.profiling.sums import UNKNOWN, Timed
from aot.text import sizes, table

EMULATED = "on the CPU, where narrow types are emulated: an engine spends its time elsewhere"


def shown(timed: Timed, top: int) -> str:
    """The longest layers, modules and precisions, and what the profiler itself costs."""
    longest, modules = timed.longest(), timed.modules()
    head = ("ms", "share", "ops", "precision", "module", "source")
    rows = [
        (f"{layer.ms:.4f}", f"{timed.share(layer.ms):.1%}", _end(_ops(layer), 22), *_place(layer))
        for layer in longest[:top]
    ]
    rest = longest[top:]
    if rest:
        ms = sum(layer.ms for layer in rest)
        rows.append((f"{ms:.4f}", f"{timed.share(ms):.1%}", f"{len(rest)} more", "", "", ""))
    parts = [
        f"{timed.ran}, {sizes(timed.sizes)}",
        compared(timed),
        *([EMULATED] if "onnxruntime" in timed.ran else []),
        "",
        table([head, *rows]),
        "",
        table([("ms", "share", "module"), *_sums(timed, modules, top)]),
        "",
        table([("ms", "share", "precision"), *_sums(timed, timed.precisions(), top)]),
    ]
    return "\n".join(parts)


def compared(timed: Timed) -> str:
    """How the layers' sum differs from a run without the profiler."""
    more = timed.total - timed.ms
    share = f"{abs(more) / timed.ms:.0%} {'more' if more >= 0 else 'less'}"
    return (
        f"a run takes {timed.ms:.4g} ms without the profiler; with it the layers add up to {timed.total:.4g} ms, "
        f"{share}\n(medians of {timed.runs} runs)"
    )


def _sums(timed: Timed, found: Mapping[str, float], top: int) -> Iterable[tuple[str, ...]]:
    for name, ms in list(found.items())[:top]:
        yield f"{ms:.4f}", f"{timed.share(ms):.1%}", name or "the model itself"
    rest = list(found.values())[top:]
    if rest:
        yield f"{sum(rest):.4f}", f"{timed.share(sum(rest)):.1%}", f"{len(rest)} more"


def _ops(layer: Layer) -> str:
    return layer.ops or layer.name


def _place(layer: Layer) -> tuple[str, str, str]:
    if layer.main is None:
        return UNKNOWN, "-", "-"
    return layer.precision, _end(layer.main.module, 28) or "-", _end(layer.main.source, 26) or "-"


def _end(text: str, most: int) -> str:
    """The end of a text, which tells more than its beginning, where it is too long."""
    return text if len(text) <= most else f"…{text[1 - most :]}"
