"""Random weights that are worth comparing: signals neither vanish nor overflow, and no part of a model is idle.

Freshly built models are full of ones and zeros: a swapped scale and shift, a branch scaled by 1e-6, a forgotten bias
would not be seen. And batch normalization with mean 0 and variance 1 lets the signal of a deep network explode.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from aot import Input
from aot.batches import generated
from aot.declaration import ModelSpec

BATCH = 4
"""Samples from which batch normalization takes its statistics."""
SMALLEST, LARGEST = 1e-4, 1e4
"""Between these the standard deviation of the largest output has to lie."""


def settled(module: torch.nn.Module, inputs: Mapping[str, Input], padding: str | None = None) -> torch.nn.Module:
    """The module in evaluation mode: constant parameters spread, batch normalization with statistics of random inputs.

    Raises ValueError where the outputs at the optimum of every Dim are not finite, or of no sensible size.
    """
    module.eval().requires_grad_(False)
    spec = ModelSpec("sweep", inputs, padding=padding)
    sizes = {name: dim.bounds[1] for name, dim in spec.dims.items()}
    more = {name: BATCH if name == "batch" else size for name, size in sizes.items()}
    for parameter in module.parameters():
        _spread(parameter)
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over the passes below
        norm.train()
    if norms:
        for seed in range(2):
            _run(module, spec, more, seed)
    module.eval()
    _check(_run(module, spec, sizes, 0))
    return module


def _run(module: torch.nn.Module, spec: ModelSpec, sizes: Mapping[str, int], seed: int) -> list[torch.Tensor]:
    with torch.no_grad():
        result = module(**{name: torch.from_numpy(a) for name, a in generated(spec, sizes, seed).items()})
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def _spread(parameter: torch.nn.Parameter) -> None:
    """Give a parameter that is one number throughout several near it; a tiny one becomes about 0.1."""
    if parameter.numel() < 2 or not parameter.is_floating_point():
        return
    value = float(parameter.flatten()[0])
    if not bool((parameter == value).all()):
        return
    if value == 0:
        parameter.normal_(0, 0.02)
    elif abs(value) < 0.01:
        parameter.uniform_(0.05, 0.15)
    else:
        parameter.uniform_(0.9, 1.1).mul_(value)


def _check(outputs: list[torch.Tensor]) -> None:
    deviations = [float(output.double().std(correction=0)) for output in outputs if output.numel()]
    if not all(d == d and d != float("inf") for d in deviations):
        raise ValueError("an output is not finite")
    if outputs and not SMALLEST <= max(deviations, default=0.0) <= LARGEST:
        raise ValueError(f"the outputs have standard deviations of {deviations}: nothing to compare")
