"""The sums of every value, as one row a layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.layers.shares import Source, shares
from aot.origins import Origin

if TYPE_CHECKING:
    from aot.arrays import Arrays
    from aot.backends.onnxruntime_pair import SideBySide, Sums
    from aot.progress import Progress


@dataclass(frozen=True)
class LayerError:
    """How far one value of the second graph is from the first's, over all cases together.

    value: its name. node, op, module, source: what makes it in the first graph. cosine, relative_l2: of the value as
    each graph comes to it. added: the relative L2 of what the second graph's layer makes of the first graph's values,
    so what enters here and nowhere before; None where the layer could not be run by itself. share: of the outputs'
    squared error, how much entered here (see `shares`). finite: whether the value is finite in the second graph, by
    itself and in the whole; numbers that are not finite are None, as are all of a value that the first graph has not
    finite. shape: of the value, at the last case. Of scores that only Softmax reads, what is masked is left out.
    """

    value: str
    node: str
    op: str
    module: str
    source: str
    cosine: float | None
    relative_l2: float | None
    added: float | None
    share: float
    finite: bool
    shape: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data, every number finite."""
        fields = ("value", "node", "op", "module", "source", "cosine", "relative_l2", "added", "share", "finite")
        return {name: getattr(self, name) for name in fields}


@dataclass(frozen=True)
class Layers:
    """rows: in the order of the first graph. alone: how many float values either graph has that the other lacks."""

    rows: tuple[LayerError, ...]
    alone: tuple[int, int]
    cases: int


def layer_errors(first: Path, second: Path, cases: Iterable[Arrays], progress: Progress, total: int = 0) -> Layers:
    """Run both graphs on every case. Raises GraphError and EngineError for files that cannot be read or run."""
    from aot.backends.onnxruntime_pair import SideBySide

    pair = SideBySide(first, second)
    sums: dict[str, Sums] = {}
    done = 0
    for inputs in cases:
        progress.step(done, total, "layer by layer")
        for name, found in pair(inputs).items():
            sums[name] = sums[name] + found if name in sums else found
        done += 1
    progress.step(done, total or done)
    return Layers(_rows(pair, sums, _outputs(first)), pair.pairing.alone, done)


def _outputs(path: Path) -> tuple[str, ...]:
    import onnx

    return tuple(value.name for value in onnx.load(path, load_external_data=False).graph.output)


def _rows(pair: SideBySide, sums: Mapping[str, Sums], outputs: tuple[str, ...]) -> tuple[LayerError, ...]:
    pairs = pair.pairing.pairs
    read = {name for one in pairs for name in one.reads}
    # Where no output is a float (an index, a mask), what it is made of stands for it.
    ends = [one.value for one in pairs if one.value in outputs] or [p.value for p in pairs if p.value not in read]
    found = shares(
        [Source(p.value, p.op, p.reads, sums[p.value].first, sums[p.value].error, sums[p.value].added) for p in pairs],
        ends,
    )
    rows = []
    for one in pairs:
        got, origin = sums[one.value], one.origin or Origin()
        rows.append(
            LayerError(
                value=one.value,
                node=one.node,
                op=one.op,
                module=origin.module,
                source=origin.place,
                cosine=cosine(got.first, got.second, got.product, got.error),
                relative_l2=relative(got.error, got.first),
                added=relative(got.added, got.first),
                share=found[one.value],
                finite=not math.isfinite(got.first) or all(map(math.isfinite, (got.error, got.added or 0.0))),
                shape=got.shape,
            )
        )
    return tuple(rows)


def cosine(first: float, second: float, product: float, error: float) -> float | None:
    """Of sums of squares; 1 where both are all zeros, 0 where only one is, None where any sum is not finite."""
    if not all(map(math.isfinite, (first, second, product))):
        return None
    if not error:
        return 1.0
    return product / math.sqrt(first * second) if first and second else 0.0


def relative(error: float | None, first: float) -> float | None:
    """The root of the error's share of the norm; 1 where the reference is all zeros and the other is not."""
    if error is None or not math.isfinite(error) or not math.isfinite(first):
        return None
    if not error:
        return 0.0
    return math.sqrt(error / first) if first else 1.0
