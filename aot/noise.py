"""Outputs that are nothing but rounding: the sum of what a normalization has centred, say.

Their values depend on the order of every addition before them, so no two implementations agree, and a comparison
of them says nothing. They give themselves away: moving the inputs in their last digit moves them entirely.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aot.arrays import Arrays
    from aot.source import Runner

SHARE = 0.1
"""An output that moves by this share of its norm is noise; a badly conditioned model reaches 1e-3."""
SHAKY = 2.5e-4
"""Beyond this share a comparison asks for less (`aot.allowance`): a quarter of what FP32 is judged by."""


def noisy(shares: Mapping[str, float]) -> dict[str, float]:
    """Those of `shares` that are rounding noise; empty where every output is."""
    found = {name: share for name, share in shares.items() if share > SHARE}
    return found if len(found) < len(shares) else {}


def moves(run: Runner, inputs: Arrays, outputs: Arrays) -> dict[str, float]:
    """||f(x') - f(x)|| / ||f(x)|| of every output, where x' is x moved by at most two units in the last place.

    `outputs` is f(x). Empty where no input is floating point.
    """
    import numpy as np

    rng = np.random.default_rng(0)
    moved = dict(inputs)
    for name, array in inputs.items():
        if np.issubdtype(array.dtype, np.floating):
            factor = 1 + 2 * np.finfo(array.dtype).eps * rng.uniform(-1, 1, array.shape)
            moved[name] = (array * factor).astype(array.dtype)
    if all(moved[name] is inputs[name] for name in inputs):
        return {}
    return {name: share(outputs[name], found) for name, found in run(moved).items() if name in outputs}


def share(before: object, after: object) -> float:
    """||after - before|| / ||before||; 0 for what is not floating point."""
    import numpy as np

    a, b = np.asarray(before), np.asarray(after)
    if a.shape != b.shape or a.dtype.kind in "biu":
        return 0.0
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    finite = np.isfinite(a) & np.isfinite(b)
    norm = float(np.linalg.norm(a[finite]))
    return float(np.linalg.norm(b[finite] - a[finite])) / norm if norm else 0.0
