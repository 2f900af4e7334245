"""The statistics while weights are changed: what is divided in the graph is divided in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from aot.precision.formats import INT8, Quantized
from aot.precision.weights.absorb import along
from aot.precision.weights.divided import divided
from aot.statistics import Statistics, Tensor

if TYPE_CHECKING:
    from aot.calibrator import Calibrator
    from aot.channels import Channels

Array = np.ndarray[Any, Any]

# A weighted histogram counts a channel in steps of this share of the heaviest one.
_STEPS = 1 << 12


class Seen:
    """statistics: as they are now. amax: as the calibrator chose it from them. form: what it was chosen for."""

    def __init__(
        self,
        statistics: Statistics,
        amax: Mapping[str, float],
        calibrator: Calibrator | None = None,
        form: Quantized = INT8,
    ) -> None:
        self.statistics = Statistics(dict(statistics.tensors), dict(statistics.alias), dict(statistics.provenance))
        self.amax = dict(amax)
        self._calibrator = calibrator
        self.form = form

    def channels(self, value: ir.Value | None, axis: int) -> Channels | None:
        """What was seen of the channels along `axis` of a value; None where they were not looked at."""
        name = str(value.name) if value is not None else ""
        if value is None or name not in self.statistics or value.shape is None:
            return None
        found = self.statistics[name].channels
        rank = len(value.shape)
        if found is None or found.axis % rank != axis % rank or not found.rows:
            return None
        return found

    def tensor(self, value: ir.Value | None) -> Tensor | None:
        """All that was seen of a value."""
        return self.statistics.get(str(value.name)) if value is not None else None

    def weighted(self, value: ir.Value) -> bool:
        """Whether a histogram was kept in which channels have weights."""
        name = str(value.name)
        return name in self.statistics and self.statistics[name].weighted is not None

    def copy(self, value: ir.Value, new: ir.Value) -> None:
        """Take note that `new` is a value of the graph with the numbers of `value`."""
        name = str(value.name)
        if name in self.statistics:
            self.statistics.tensors[str(new.name)] = self.statistics[name]
        if name in self.amax:
            self.amax[str(new.name)] = self.amax[name]

    def divide(self, values: Mapping[ir.Value, Array], gain: Array) -> None:
        """Take note that values of the graph have been divided. gain: what each channel of the value that layers read
        weighs in their outputs."""
        from aot.calibrator import applies

        steps = np.maximum(np.rint(gain / max(float(gain.max()), 1e-300) * _STEPS), 1)
        for value, factor in values.items():
            name = str(value.name)
            if name not in self.statistics:
                continue
            # From now on the value is not what it was moved from.
            tensor = self.statistics[name]
            self.statistics.alias.pop(name, None)
            for moved, source in list(self.statistics.alias.items()):
                if source == name:
                    self.statistics.tensors[moved] = tensor
                    del self.statistics.alias[moved]
            one = None if tensor.channels is None else along(factor, tensor.channels.axis)
            known = one is not None and tensor.channels is not None and len(one) == len(tensor.channels.amax)
            changed = divided(tensor, one if known and one is not None else factor.reshape(-1), steps)
            self.statistics.tensors[name] = changed
            if name in self.amax:
                choice = self._calibrator
                chosen = choice is not None and changed.histogram is not None and applies(choice, changed)
                # What was cut off stays cut off in proportion where nothing can choose anew.
                ratio = self.amax[name] / tensor.amax if tensor.amax else 1.0
                self.amax[name] = choice.amax(changed, self.form) if chosen and choice else changed.amax * ratio
