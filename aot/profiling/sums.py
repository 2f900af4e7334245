"""A profile: the layers of an engine and their times, summed by module and by precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aot.profiling.attribution import Layer

UNKNOWN = "not known"


@dataclass(frozen=True)
class Timed:
    """What a profile found. ran: the engine, for people. ms: of a run without the profiler. runs: what medians are of.

    layers: in the order in which they run.
    """

    ran: str
    sizes: Mapping[str, int]
    ms: float
    runs: int
    layers: tuple[Layer, ...]

    @property
    def total(self) -> float:
        """Milliseconds of all layers together."""
        return sum(layer.ms for layer in self.layers)

    def longest(self) -> list[Layer]:
        """The layers, the longest first; those that are made of the same nodes are one, which takes their time."""
        found: dict[object, Layer] = {}
        for layer in self.layers:
            key = layer.nodes or layer.name
            found[key] = replace(layer, ms=layer.ms + found[key].ms) if key in found else layer
        return sorted(found.values(), key=lambda layer: -layer.ms)

    def modules(self) -> dict[str, float]:
        """Module path -> milliseconds; empty for what belongs to the model itself."""
        return _summed(self.layers, lambda layer: UNKNOWN if layer.main is None else layer.main.module)

    def precisions(self) -> dict[str, float]:
        """Precision -> milliseconds; `conversion` for layers that compute nothing."""
        return _summed(self.layers, lambda layer: layer.precision if layer.nodes else UNKNOWN)

    def to_json(self) -> dict[str, Any]:
        """Plain data: times in milliseconds, shares of the layers' total."""
        return {
            "ran": self.ran,
            "sizes": dict(self.sizes),
            "runs": self.runs,
            "ms": self.ms,
            "layers_ms": self.total,
            "difference_ms": self.total - self.ms,
            "layers": [self._layer(layer) for layer in self.layers],
            "modules": [{"module": name, **self._share(ms)} for name, ms in self.modules().items()],
            "precisions": [{"precision": name, **self._share(ms)} for name, ms in self.precisions().items()],
        }

    def share(self, ms: float) -> float:
        """Of the total of all layers."""
        return ms / self.total if self.total else 0.0

    def _share(self, ms: float) -> dict[str, float]:
        return {"ms": ms, "share": self.share(ms)}

    def _layer(self, layer: Layer) -> dict[str, Any]:
        main = layer.main
        return {
            "layer": layer.name,
            **self._share(layer.ms),
            "ops": layer.ops,
            "precision": layer.precision if layer.nodes else None,
            "module": None if main is None else main.module,
            "source": None if main is None else main.source,
            "nodes": [
                {"node": node.name, "op": node.op, "module": node.module, "source": node.source} for node in layer.nodes
            ],
        }


def _summed(layers: Sequence[Layer], key: Callable[[Layer], str]) -> dict[str, float]:
    """Key -> milliseconds, the longest first."""
    found: dict[str, float] = {}
    for layer in layers:
        found[key(layer)] = found.get(key(layer), 0.0) + layer.ms
    return dict(sorted(found.items(), key=lambda one: -one[1]))
