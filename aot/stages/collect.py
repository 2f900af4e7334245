"""Collect: the calibration batches, checked and split into those that ranges are taken from and those that judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot import arrays, batches
from aot.declaration import ModelSpec
from aot.plan import Plan
from aot.records import Data
from aot.run import Run
from aot.source import Source

if TYPE_CHECKING:
    from aot.arrays import Arrays

EVERY = 4
GENERATED = 8


def collect(run: Run, source: Source, plan: Plan) -> Data:
    """The batches of `calibration()`, or generated ones where the model declares none.

    Every fourth batch is held out, and at least one where there are two. The data serves every precision,
    since references are made from what is held out. Raises CalibrationError for a batch that does not fit
    the declaration.
    """
    spec = source.spec

    def make(folder: Path) -> Mapping[str, Any]:
        given = source.batches()
        facts = spooled(folder, spec, given if given is not None else generated(spec))
        return {**facts, "generated": given is None}

    data = run.stage(Data, "collect", make, config={"spec": spec.to_json(), "every": EVERY}, inputs=[source.data_key()])
    if data.facts["generated"]:
        run.progress.warn("no calibration data is declared: ranges and comparisons come from generated inputs")
    elif not data.facts["heldout"]:
        run.progress.warn("one calibration batch: nothing is held out, so the result is judged on what it was tuned on")
    return data


def spooled(folder: Path, spec: ModelSpec, stream: Iterable[Arrays]) -> dict[str, Any]:
    """Write batches that fit the spec into `folder`; return which are calibrated on, which are held out, and sizes."""
    names: list[str] = []
    seen: dict[str, set[int]] = {name: set() for name in spec.dims}
    for index, batch in enumerate(stream):
        names.append(f"{index:05d}.npz")
        arrays.save(folder / names[-1], batch)
        for dim, size in batches.sizes_of(batch, spec, names[-1]).items():
            seen[dim].add(size)
    heldout = names[EVERY - 1 :: EVERY] or names[1:][-1:]
    return {
        "calibration": [name for name in names if name not in heldout],
        "heldout": heldout,
        "sizes": {name: sorted(sizes) for name, sizes in seen.items()},
    }


def generated(spec: ModelSpec) -> Iterable[Arrays]:
    """What stands in for real data: inputs at the optimum of every Dim."""
    sizes = {name: dim.bounds[1] for name, dim in spec.dims.items()}
    return (batches.generated(spec, sizes, seed) for seed in range(GENERATED))
