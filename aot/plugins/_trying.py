"""One run of a kernel, on Triton's interpreter or on a GPU, held against the reference.

Every tensor lies between two guards. Those of inputs hold NaN, or the largest integer, so that what is read beside a
tensor shows in the result; those of outputs are looked at afterwards, and an output that is not written stays NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aot.errors import PluginError
from aot.frontend import plugins
from aot.plugin import Launch
from aot.plugins import cases
from aot.plugins.header import REST
from aot.plugins.loading import Plugin
from aot.plugins.sizes import Varies, evaluate, tree_of, varying

if TYPE_CHECKING:
    import torch

    Run = Callable[[Plugin, cases.Trial, Launch, Sequence[torch.Tensor], Sequence[torch.Tensor]], None]
    """Runs the kernel on inputs and outputs, and waits for it."""

GUARD = 1024
"""Elements on either side of a tensor: a multiple of the 256 bytes that TensorRT aligns to."""
TOLERANCE = {"float32": 5e-5, "float16": 2e-3, "bfloat16": 1e-2, "float8_e4m3fn": 2e-3}
"""Of an output's largest magnitude: FP32 sums in another order; elsewhere one rounding, which is 2^-10 of FP16 and 2^-7
of BF16 at most, and a little. E4M3 may be off by one step, too, which is as much as an eighth."""
_PIECE = 1 << 26
"""So many elements are compared at once: a copy of a tensor in FP64 may not fit beside it."""


def sizes_that_vary(plugin: Plugin) -> tuple[list[str], list[str]]:
    """The sizes that may vary in an engine, and those that are constants of the kernel."""
    shapes, attributes = cases.occurring(plugin)[0]
    found: tuple[list[str], list[str]] = [], []
    for symbol in plugin.symbols():
        try:
            free = symbolic(plugin, shapes, [symbol])
            plugin.outputs(free, attributes)
            plugin.launch(free, attributes, plugin.configs[0])
        except PluginError:
            found[1].append(symbol)
        else:
            found[0].append(symbol)
    return found


def symbolic(plugin: Plugin, shapes: Mapping[str, Sequence[int]], vary: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """The shapes, sizes of `vary` as ones that vary."""
    made = {}
    for name, shape in shapes.items():
        keys = [REST if isinstance(key, tuple) else key for key in plugin.keys(name, len(shape))]
        made[name] = tuple(
            varying(name, axis) if key in vary else size
            for axis, (key, size) in enumerate(zip(keys, shape, strict=True))
        )
    return made


def tried(
    plugin: Plugin, trial: cases.Trial, vary: Sequence[str], run: Run, device: str = "cpu"
) -> tuple[float, list[str]]:
    """(largest error, of an output's magnitude, what is wrong) of one run."""
    import torch

    inputs = sampled(plugin, trial, device)
    given = {name: tensor.clone() for name, tensor in inputs.items()}
    reference = referred(plugin, given, trial.attributes)
    changed = [f"reference changes its input '{name}'" for name in inputs if not _same(given[name], inputs[name])]
    del given
    held = {name: _guarded(tensor, trial.misaligned) for name, tensor in inputs.items()}
    empty = [_guarded(torch.full_like(tensor, _filler(tensor.dtype)), trial.misaligned) for tensor in reference]
    launch = plugin.launch(trial.shapes, trial.attributes, plugin.configs[trial.config])
    if 0 in launch.grid and any(tensor.numel() for tensor in reference):
        changed.append(f"launch: the grid is {list(launch.grid)}, so that no program runs")
    failures = changed + _expressions(plugin, trial, vary, launch)
    run(plugin, trial, launch, [tensor for tensor, _ in held.values()], [tensor for tensor, _ in empty])
    failures += [
        f"the kernel writes to its input '{name}', or beside it"
        for name, (tensor, whole) in held.items()
        if not (_same(tensor, inputs[name]) and _intact(whole, tensor))
    ]
    relative = 0.0
    for declared, (got, whole), right in zip(plugin.schema.outputs, empty, reference, strict=True):
        error, why = compared(got, right)
        relative = max(relative, error)
        failures += [f"'{declared.name}' {why}"] if why else []
        if not _intact(whole, got):
            failures.append(f"'{declared.name}' is written beside its end")
    return relative, failures


def sampled(
    plugin: Plugin,
    trial: cases.Trial,
    device: str = "cpu",
    sample: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] | None = None,
) -> dict[str, torch.Tensor]:
    """Inputs of a trial, the same in every call: contiguous tensors on the device. sample: in place of the plugin's.

    What a `sample` draws from torch's own generators is the same, too; they are left as they were.
    """
    import torch

    generator = torch.Generator(device).manual_seed(0)
    made: dict[str, torch.Tensor] = {}
    types = {one.name: getattr(torch, trial.chosen.get(one.kind, one.kind)) for one in plugin.schema.inputs}
    with torch.random.fork_rng([0] if device == "cuda" else []), torch.device(device):
        torch.manual_seed(1)
        for name, dtype in types.items():
            shape = trial.shapes[name]
            if dtype.is_floating_point:
                made[name] = torch.randn(shape, generator=generator)
            else:
                made[name] = torch.randint(0, 2 if dtype == torch.bool else 8, shape, generator=generator)
        made = plugin.sample(made, trial.attributes) if sample is None else sample(made)
    for name in types:
        got = tuple(made[name].shape) if isinstance(made.get(name), torch.Tensor) else None
        if got != tuple(trial.shapes[name]):
            said = "no tensor" if got is None else f"a tensor {list(got)}"
            raise plugin.error(
                f"sample gives {said} for '{name}', which is {list(trial.shapes[name])}",
                "sample",
                "return every input, its shape as it was",
            )
    return {name: made[name].to(dtype).contiguous() for name, dtype in types.items()}


def referred(
    plugin: Plugin, inputs: Mapping[str, torch.Tensor], attributes: Mapping[str, Any]
) -> tuple[torch.Tensor, ...]:
    """What the reference gives."""
    with plugin.calling("reference"):
        made = plugins.run_reference(plugin, *inputs.values(), *attributes.values())
    return made if isinstance(made, tuple) else (made,)


def _filler(dtype: torch.dtype) -> Any:
    import torch

    if dtype.is_floating_point:
        return float("nan")
    return True if dtype == torch.bool else torch.iinfo(dtype).max


def _guarded(tensor: torch.Tensor, misaligned: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(a copy of the tensor, the buffer that it lies in the middle of)."""

    start = GUARD + misaligned
    whole = tensor.new_empty((2 * GUARD + 1 + tensor.numel(),))
    whole[:start] = _filler(tensor.dtype)
    whole[start + tensor.numel() :] = _filler(tensor.dtype)
    inner = whole[start : start + tensor.numel()].view(tensor.shape)
    inner.copy_(tensor)
    return inner, whole


def _intact(whole: torch.Tensor, inner: torch.Tensor) -> bool:
    import torch

    start = inner.storage_offset()
    guards = (whole[:start], whole[start + inner.numel() :])
    return all(_same(guard, torch.full_like(guard, _filler(whole.dtype))) for guard in guards)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same bytes."""
    import torch

    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def compared(got: torch.Tensor, right: torch.Tensor) -> tuple[float, str | None]:
    """(largest error, of the largest magnitude, why that is too much)."""
    if not right.numel():
        return 0.0, None
    flat: tuple[Any, Any] = got.reshape(-1), right.reshape(-1)
    pieces: list[tuple[Any, Any]] = list(zip(*(one.split(_PIECE) for one in flat), strict=True))
    if not right.is_floating_point():
        # Half a step either way is what rounding leaves open.
        off = max(int((one.long() - two.long()).abs().max()) for one, two in pieces)
        allowed = 1 if plugins.dtype_of(right) in ("int8", "uint8") else 0
        return 0.0, f"differs by {off}" if off > allowed else None
    lost = error = magnitude = 0.0
    steps = plugins.dtype_of(right) == "float8_e4m3fn"
    for one, two in pieces:
        a, b = one.double(), two.double()
        lost += int((a.isnan() & ~b.isnan()).sum())
        finite = b[b.isfinite()]
        magnitude = max(magnitude, float(finite.abs().max()) if finite.numel() else 0.0)
        other = ~((a == b) | (a.isnan() & b.isnan()))
        if steps:
            other &= ~_next_to(one, two)
        if bool(other.any()):
            error = max(error, float((a - b).abs()[other].nan_to_num(nan=float("inf")).max()))
    if lost:
        return 1.0, f"is not a number in {int(lost)} of {right.numel()} places: not written, or read beside an input"
    relative = error / max(magnitude, 1e-30)
    limit = TOLERANCE[plugins.dtype_of(right)]
    allowed_is = f"{limit:g} is allowed" + (", or one step" if steps else "")
    return relative, None if relative <= limit else f"differs by {relative:.2g} of its magnitude, and {allowed_is}"


def _next_to(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    """Where two tensors of E4M3 are at most one representable number apart: its codes are sign and magnitude."""
    import torch

    codes = [tensor.view(torch.int8).int() for tensor in (one, two)]
    ordered = [torch.where(code < 0, -(code & 127), code) for code in codes]
    return (ordered[0] - ordered[1]).abs() <= 1


def _expressions(plugin: Plugin, trial: cases.Trial, vary: Sequence[str], launch: Any) -> list[str]:
    """What `outputs` and `launch` give as expressions of sizes that vary, held against what they give for numbers."""
    free_shapes = symbolic(plugin, trial.shapes, vary)
    try:
        free = plugin.launch(free_shapes, trial.attributes, plugin.configs[trial.config])
        shapes = plugin.outputs(free_shapes, trial.attributes)
    except Varies:
        return []  # at this rank, or with these attributes, a size has to be fixed that elsewhere need not
    failures = []
    for what, made, plain in (
        ("launch: the grid", free.grid, launch.grid),
        ("launch: the scalars", free.scalars.values(), launch.scalars.values()),
    ):
        found = [evaluate(tree_of(size), trial.shapes) for size in made]
        if found != list(plain):
            failures.append(f"{what} is {list(plain)} for numbers, and {found} for sizes that vary")
    for declared, free_shape, shape in zip(
        plugin.schema.outputs, shapes, plugin.outputs(trial.shapes, trial.attributes), strict=True
    ):
        if [evaluate(tree_of(size), trial.shapes) for size in free_shape] != list(shape):
            failures.append(f"outputs: '{declared.name}' is another shape for sizes that vary")
    return failures
