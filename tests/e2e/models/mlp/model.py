"""A model of everything that a declaration can depend on: weights, a local module, calibration data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from layers import Mlp

import aot

HERE = Path(__file__).parent
batch = aot.Dim("batch", min=1, opt=4, max=8)


@aot.model(inputs={"x": aot.Input([batch, 32])}, outputs=["y"])
def mlp() -> torch.nn.Module:
    module = Mlp()
    weights = np.load(HERE / "weights.npz")
    module.load_state_dict({name: torch.from_numpy(weights[name]) for name in weights.files})
    return module.eval()


@mlp.calibration
def batches() -> Iterator[dict[str, np.ndarray]]:
    for x in np.load(HERE / "samples.npz")["x"]:
        yield {"x": x}


@mlp.metric
def positives(run: Callable[..., Mapping[str, Any]]) -> float:
    return float((run(x=np.ones((2, 32), np.float32))["y"] > 0).mean())
