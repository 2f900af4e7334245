"""The process that checks: `python -m aot.plugins._interpreter FILE...`, one line of JSON an answer.

Every tensor lies between two guards. Those of inputs hold NaN, or the largest integer, so that what is read beside a
tensor shows in the result; those of outputs are looked at afterwards, and an output that is not written stays NaN.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.errors import AotError, PluginError
from aot.frontend import plugins
from aot.plugins import cases
from aot.plugins.header import REST
from aot.plugins.loading import Plugin, load
from aot.plugins.sizes import evaluate, tree_of, varying

if TYPE_CHECKING:
    import torch

GUARD = 1024
"""Elements on either side of a tensor."""
TOLERANCE = {"float32": 5e-5, "float16": 2e-3}
"""Of an output's largest magnitude: FP32 sums in another order; one rounding to FP16 and a little."""


def main(files: list[Path]) -> None:
    """Check plugin after plugin; the first error ends it."""
    try:
        # What a plugin prints is not an answer: it goes where messages go.
        with redirect_stdout(sys.stderr):
            for file in files:
                _check(load(file))
    except AotError as error:
        _say({"error": {"what": error.what, "where": error.where, "fix": error.fix}})


def _check(plugin: Plugin) -> None:
    may_vary, fixed = _varying(plugin)
    unchecked = [
        " ".join(chosen.values()) for chosen in plugin.schema.combinations() if not cases.interpreted(plugin, chosen)
    ]
    todo = list(cases.trials(plugin, plugin.configs))
    _say({"total": len(todo), "varying": may_vary, "fixed": fixed, "unchecked": unchecked})
    for trial in todo:
        started = time.perf_counter()
        relative, failures = _tried(plugin, trial, may_vary)
        seconds = time.perf_counter() - started
        _say({"what": trial.describe(), "seconds": seconds, "relative": relative, "failures": failures})


def _say(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), file=sys.__stdout__, flush=True)


def _varying(plugin: Plugin) -> tuple[list[str], list[str]]:
    """The sizes that may vary in an engine, and those that are constants of the kernel."""
    base = cases.sizes(plugin)[0]
    found: tuple[list[str], list[str]] = [], []
    for symbol in plugin.symbols():
        try:
            shapes = _symbolic(plugin, cases.shapes(plugin, base), [symbol])
            plugin.outputs(shapes, cases.defaults(plugin))
            plugin.launch(shapes, cases.defaults(plugin), plugin.configs[0])
        except PluginError:
            found[1].append(symbol)
        else:
            found[0].append(symbol)
    return found


def _symbolic(plugin: Plugin, shapes: Mapping[str, tuple[int, ...]], vary: list[str]) -> dict[str, tuple[Any, ...]]:
    """The shapes, sizes of `vary` as ones that vary."""
    made = {}
    for name, shape in shapes.items():
        axes = plugin.shapes[name]
        leading = len(shape) - len(axes) + 1 if axes[:1] == (REST,) else 0
        keys = [REST] * leading + list(axes[1:] if axes[:1] == (REST,) else axes)
        made[name] = tuple(
            varying(name, axis) if key in vary else size
            for axis, (key, size) in enumerate(zip(keys, shape, strict=True))
        )
    return made


def _tried(plugin: Plugin, trial: cases.Trial, vary: list[str]) -> tuple[float, list[str]]:
    """(largest error, of an output's magnitude, what is wrong) of one run."""
    import torch

    inputs = _inputs(plugin, trial)
    given = {name: tensor.clone() for name, tensor in inputs.items()}
    wanted = plugins.run_reference(plugin, *given.values(), *trial.attributes.values())
    changed = [f"reference changes its input '{name}'" for name in inputs if not _same(given[name], inputs[name])]
    reference = list(wanted) if isinstance(wanted, tuple) else [wanted]
    held = {name: _guarded(tensor, trial.misaligned) for name, tensor in inputs.items()}
    empty = [_guarded(torch.full_like(tensor, _filler(tensor.dtype)), trial.misaligned) for tensor in reference]
    config = plugin.configs[trial.config]
    launch = plugin.launch(trial.shapes, trial.attributes, config)
    failures = changed + _expressions(plugin, trial, vary, launch)
    with plugin.calling("kernel"):
        plugin.kernel[tuple(launch.grid)](
            *(tensor for tensor, _ in held.values()),
            *launch.scalars.values(),
            *(tensor for tensor, _ in empty),
            **launch.constants,
        )
    failures += [
        f"the kernel writes to its input '{name}', or beside it"
        for name, (tensor, whole) in held.items()
        if not (_same(tensor, inputs[name]) and _intact(whole, tensor))
    ]
    relative = 0.0
    for declared, (got, whole), right in zip(plugin.schema.outputs, empty, reference, strict=True):
        error, why = _compared(got, right)
        relative = max(relative, error)
        failures += [f"'{declared.name}' {why}"] if why else []
        if not _intact(whole, got):
            failures.append(f"'{declared.name}' is written beside its end")
    return relative, failures


def _inputs(plugin: Plugin, trial: cases.Trial) -> dict[str, torch.Tensor]:
    import torch

    generator = torch.Generator().manual_seed(0)
    made: dict[str, torch.Tensor] = {}
    for declared in plugin.schema.inputs:
        shape = trial.shapes[declared.name]
        dtype = getattr(torch, trial.chosen.get(declared.kind, declared.kind))
        if dtype.is_floating_point:
            made[declared.name] = torch.randn(shape, generator=generator)
        else:
            made[declared.name] = torch.randint(0, 2 if dtype == torch.bool else 8, shape, generator=generator)
    made = plugin.sample(made, trial.attributes)
    types = {one.name: getattr(torch, trial.chosen.get(one.kind, one.kind)) for one in plugin.schema.inputs}
    return {name: made[name].to(dtype).contiguous() for name, dtype in types.items()}


def _filler(dtype: torch.dtype) -> Any:
    import torch

    if dtype.is_floating_point:
        return float("nan")
    return True if dtype == torch.bool else torch.iinfo(dtype).max


def _guarded(tensor: torch.Tensor, misaligned: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(a copy of the tensor, the buffer that it lies in the middle of)."""
    import torch

    start = GUARD + misaligned
    whole = torch.full((2 * GUARD + 1 + tensor.numel(),), _filler(tensor.dtype), dtype=tensor.dtype)
    inner = whole[start : start + tensor.numel()].view(tensor.shape)
    inner.copy_(tensor)
    return inner, whole


def _intact(whole: torch.Tensor, inner: torch.Tensor) -> bool:
    start = inner.storage_offset()
    guards = (whole[:start], whole[start + inner.numel() :])
    if whole.is_floating_point():
        return all(bool(guard.isnan().all()) for guard in guards)
    return all(bool((guard == _filler(whole.dtype)).all()) for guard in guards)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same, NaN included."""
    import torch

    return torch.equal(one.nan_to_num(), other.nan_to_num()) and torch.equal(one.isnan(), other.isnan())


def _compared(got: torch.Tensor, right: torch.Tensor) -> tuple[float, str | None]:
    """(largest error, of the largest magnitude, why that is too much)."""
    if not right.numel():
        return 0.0, None
    if not right.is_floating_point():
        # Half a step either way is what rounding leaves open.
        off = int((got.long() - right.long()).abs().max())
        return 0.0, f"differs by {off}" if off > (
            1 if str(right.dtype) in ("torch.int8", "torch.uint8") else 0
        ) else None
    lost = got.isnan() & ~right.isnan()
    if bool(lost.any()):
        return (
            0.0,
            f"is not a number in {int(lost.sum())} of {right.numel()} places: not written, or read beside an input",
        )
    same = (got == right) | (got.isnan() & right.isnan())
    if bool(same.all()):
        return 0.0, None
    magnitude = float(right[right.isfinite()].double().abs().max()) if bool(right.isfinite().any()) else 0.0
    error = float((got.double() - right.double()).abs()[~same].max()) / max(magnitude, 1e-30)
    limit = TOLERANCE[plugins.dtype_of(right)]
    return error, None if error <= limit else f"differs by {error:.2g} of its magnitude, and {limit:g} is allowed"


def _expressions(plugin: Plugin, trial: cases.Trial, vary: list[str], launch: Any) -> list[str]:
    """What `outputs` and `launch` give as expressions of sizes that vary, held against what they give for numbers."""
    symbolic = _symbolic(plugin, trial.shapes, vary)
    free = plugin.launch(symbolic, trial.attributes, plugin.configs[trial.config])
    failures = []
    for what, made, plain in (
        ("launch: the grid", free.grid, launch.grid),
        ("launch: the scalars", free.scalars.values(), launch.scalars.values()),
    ):
        found = [evaluate(tree_of(size), trial.shapes) for size in made]
        if found != list(plain):
            failures.append(f"{what} is {list(plain)} for numbers, and {found} for sizes that vary")
    shapes = plugin.outputs(symbolic, trial.attributes)
    for declared, free_shape, shape in zip(
        plugin.schema.outputs, shapes, plugin.outputs(trial.shapes, trial.attributes), strict=True
    ):
        if [evaluate(tree_of(size), trial.shapes) for size in free_shape] != list(shape):
            failures.append(f"outputs: '{declared.name}' is another shape for sizes that vary")
    return failures


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
