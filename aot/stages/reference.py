"""Reference: what the model itself answers, at the sizes that a result will be compared at."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot import arrays, batches
from aot.declaration import Dim, ModelSpec
from aot.errors import ExportError, UsageError, unknown
from aot.noise import SHAKY, SHARE, moves, noisy
from aot.plan import Plan
from aot.profile import as_json
from aot.records import Data, References
from aot.run import Run
from aot.source import Runner, Source

if TYPE_CHECKING:
    from aot.arrays import Arrays

OUTPUT_LIMIT = 32 * 2**20
"""Bytes of outputs beyond which the all-maximum case is replaced."""
CASE_LIMIT = 2 * 2**30
"""Bytes of inputs, or of outputs, beyond which a size is not compared at all, the optimum excepted."""

Sizes = Mapping[str, int]


def reference(run: Run, source: Source, data: Data, plan: Plan) -> References:
    """Inputs and eager outputs: held-out batches as they came, then the minimum, optimum and maximum of every Dim
    and of every profile, one size never used before, and the sizes the profile asks for.

    Raises ExportError where two runs on the same inputs differ (randomness, or state), or the model fails on
    a size that was declared.
    """
    spec = source.spec

    def make(folder: Path) -> Mapping[str, Any]:
        return _write(folder, source.eager(), spec, data, plan)

    config = {
        "spec": spec.to_json(),
        "profiles": as_json(plan.profiles),
        "verify": plan.verify.model_dump(mode="json"),
    }
    record = run.stage(References, "reference", make, config=config, inputs=[source.key, data], tools=source.tools)
    for note in record.facts["notes"]:
        run.progress.warn(note)
    return record


@dataclass(frozen=True)
class Wanted:
    """A case to make: its name and the size of every Dim."""

    name: str
    sizes: Sizes


def _write(folder: Path, eager: Runner, spec: ModelSpec, data: Data, plan: Plan) -> dict[str, Any]:
    notes: list[str] = []
    rows: list[dict[str, Any]] = []
    first: tuple[Arrays, Arrays] | None = None
    for name, kind, inputs in _cases(eager, spec, data, plan, notes):
        outputs = eager(inputs)
        first = first or (inputs, outputs)
        arrays.save(folder / f"{name}.in.npz", inputs)
        arrays.save(folder / f"{name}.out.npz", outputs)
        rows.append({"name": name, "kind": kind, "sizes": batches.sizes_of(inputs, spec, name)})
    assert first is not None
    # Last, so that whatever the other cases left behind in the model shows.
    _refuse_difference(first[1], eager(first[0]), spec)
    shares = moves(eager, *first)
    noise = noisy(shares)
    notes += [
        f"output '{name}' is not judged: it is rounding noise of the model itself, for a change in the last digit "
        f"of the inputs moves it by {share:.0%}"
        for name, share in noise.items()
    ]
    moved = max((share for share in shares.values() if share <= SHARE), default=0.0)
    if moved > SHAKY:
        notes.append(
            f"a change in the last digit of these inputs moves the outputs by {moved:.1%}: results are compared no "
            "more closely than that allows"
        )
    (folder / "cases.json").write_text(json.dumps(rows, indent=1))
    return {"cases": [row["name"] for row in rows], "notes": notes, "noise": sorted(noise), "moved": moved}


def _cases(
    eager: Runner, spec: ModelSpec, data: Data, plan: Plan, notes: list[str]
) -> Iterator[tuple[str, str, Arrays]]:
    generated = bool(data.facts["generated"])
    base: Arrays | None = None
    for index, batch in enumerate(data.heldout()):
        yield f"heldout-{index:03d}", "generated" if generated else "heldout", batch
        if base is None or _elements(batch) > _elements(base):
            base = batch
    if base is None:
        base = next(data.calibration())
    cost = Cost(eager, spec, base)
    taken = {name: set(sizes) for name, sizes in data.facts["sizes"].items()}
    for seed, wanted in enumerate(sizes_to_compare(spec, plan, taken, cost, notes)):
        if generated:
            yield wanted.name, "generated", batches.generated(spec, wanted.sizes, seed)
        else:
            yield wanted.name, "resized", batches.resized(base, spec, wanted.sizes, seed)


def _elements(batch: Mapping[str, Any]) -> int:
    return sum(int(values.size) for values in batch.values())


@dataclass
class Cost:
    """What a forward pass costs at given sizes, scaled from one at the optimum of every Dim.

    Both FLOPs and bytes are taken to grow with the product of the sizes; attention grows faster, so for long
    sequences the estimate is low by at most the share of attention.
    """

    eager: Runner
    spec: ModelSpec
    base: Mapping[str, Any]
    _known: tuple[float, float] | None = field(default=None, init=False)

    def __call__(self, sizes: Sizes) -> tuple[float, float]:
        """(floating-point operations, bytes of output)."""
        opt = {name: dim.bounds[1] for name, dim in self.spec.dims.items()}
        if self._known is None:
            inputs = batches.resized(self.base, self.spec, opt, seed=0)
            count = getattr(self.eager, "flops", None)
            flops = float(count(inputs)) if count else 0.0
            self._known = flops, float(sum(values.nbytes for values in self.eager(inputs).values()))
        growth = prod(sizes[name] / max(opt[name], 1) for name in opt)
        return self._known[0] * growth, self._known[1] * growth


def sizes_to_compare(
    spec: ModelSpec, plan: Plan, taken: Mapping[str, set[int]], cost: Cost, notes: list[str]
) -> list[Wanted]:
    """The sizes to compare at, without repetition; `notes` gains a sentence for whatever was left out."""
    dims = {name: dim.bounds for name, dim in spec.dims.items()}
    boxes = {"": dims}
    for index, profile in enumerate(plan.profiles):
        box = {name: profile.get(name, bounds) for name, bounds in dims.items()}
        if box not in boxes.values():
            boxes[f"profile{index}-"] = box
    found: list[Wanted] = []
    for prefix, box in boxes.items():
        low, opt, high = ({name: bounds[at] for name, bounds in box.items()} for at in range(3))
        found += [Wanted(f"{prefix}min", low), Wanted(f"{prefix}opt", opt)]
        found += _largest(prefix, low, high, plan.verify.flop_limit, cost, notes)
    new = _unseen(spec.dims, taken)
    if new:
        found.append(Wanted("unseen", new))
    elif dims:
        notes.append("every size between the bounds of the Dims is used already: none is left that was never seen")
    found += [Wanted(f"asked-{index}", _asked(sizes, spec.dims)) for index, sizes in enumerate(plan.verify.sizes)]
    return list(_distinct(_fitting(found, spec, cost, notes)))


def _fitting(cases: Iterable[Wanted], spec: ModelSpec, cost: Cost, notes: list[str]) -> Iterator[Wanted]:
    """The cases whose tensors stay below `CASE_LIMIT`; `notes` gains a sentence for each of the others."""
    opt = {name: dim.bounds[1] for name, dim in spec.dims.items()}
    for case in cases:
        inputs = sum(batches.bytes_of(tensor, case.sizes) for tensor in spec.inputs.values())
        # The optimum is bounded by the declaration, and what a cost is estimated from.
        needed = 0.0 if case.sizes == opt else max(inputs, cost(case.sizes)[1])
        if needed <= CASE_LIMIT:
            yield case
            continue
        at = ", ".join(f"{name}={size}" for name, size in case.sizes.items())
        notes.append(f"not compared at {at}: its tensors would take {needed / 2**30:,.0f} GiB")


def _largest(prefix: str, low: Sizes, high: Sizes, flop_limit: float, cost: Cost, notes: list[str]) -> Iterable[Wanted]:
    flops, size = cost(high)
    if flops <= flop_limit and size <= OUTPUT_LIMIT:
        return [Wanted(f"{prefix}max", high)]
    why = f"{flops:.1e} FLOPs" if flops > flop_limit else f"{size / 2**20:.0f} MiB of outputs"
    at = ", ".join(f"{name}={size}" for name, size in high.items())
    notes.append(f"all Dims at their maximum ({at}) would take {why}: compared at one maximum at a time instead")
    return [Wanted(f"{prefix}max-{name}", {**low, name: high[name]}) for name in high]


def _unseen(dims: Mapping[str, Dim], taken: Mapping[str, set[int]]) -> dict[str, int]:
    """A size for every Dim that no batch and no bound has, odd if possible; empty where there is none for any."""
    sizes: dict[str, int] = {}
    new = False
    for name, dim in dims.items():
        step = dim.multiple_of
        low, opt, high = (size // step for size in dim.bounds)
        used = {size // step for size in taken.get(name, set())} | {low, opt, high}
        first = next((s for s in _between(low, opt, high) if s not in used), None)
        odd = next((s for s in _between(low, opt, high) if s not in used and s % 2), None)
        new |= first is not None
        sizes[name] = (odd or first or opt) * step
    return sizes if new else {}


def _between(low: int, opt: int, high: int) -> Iterator[int]:
    """Sizes between the bounds: those below opt from their middle outward, then those above. Ranges may be huge."""
    middle = (low + opt) // 2
    for step in range(opt - low):
        for size in (middle - step, middle + step) if step else (middle,):
            if low < size < opt:
                yield size
    yield from range(opt + 1, high)


def _asked(sizes: Sizes, dims: Mapping[str, Dim]) -> dict[str, int]:
    for name, size in sizes.items():
        if name not in dims:
            raise unknown("Dim", name, dims)
        if size not in dims[name].sizes:
            raise UsageError(f"verify.sizes asks for {name}={size}, outside {dims[name]}", where="the profile")
    return {name: sizes.get(name, dim.bounds[1]) for name, dim in dims.items()}


def _distinct(cases: Iterable[Wanted]) -> Iterator[Wanted]:
    seen: list[Sizes] = []
    for case in cases:
        if case.sizes not in seen:
            seen.append(case.sizes)
            yield case


def _refuse_difference(one: Arrays, two: Arrays, spec: ModelSpec) -> None:
    import numpy as np

    for name, values in one.items():
        a, b = values.astype(np.float64), two[name].astype(np.float64)
        if a.shape == b.shape and np.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True):
            continue
        apart = float(np.nanmax(np.abs(a - b))) if a.shape == b.shape else float("nan")
        raise ExportError(
            f"two runs on the same inputs differ in output '{name}', by up to {apart:.3g}: "
            "the model draws random numbers or keeps state between calls",
            where=f"model '{spec.name}'",
            fix="take noise and state as inputs; use nn.Dropout rather than F.dropout(training=True)",
        )
