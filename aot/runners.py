"""Anything that can be run, opened by its name: an artifact, an `.onnx` file, a model in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot import artifact, backend, batches, toolchain
from aot.declaration import Dim, ModelSpec
from aot.errors import CalibrationError, TargetError, UsageError, unknown
from aot.records import Program

if TYPE_CHECKING:
    import onnx

    from aot.arrays import Arrays
    from aot.artifact import Prepared
    from aot.profile import Triple
    from aot.run import Run
    from aot.source import Runner

GRAPH = "cpu"
Taken = tuple[str, Sequence[int | str]]  # dtype, shape; a dynamic dimension is its name


@dataclass(frozen=True)
class Runnable:
    """One side of a comparison. label: what it is, for people. prepared: what travelled along, for an artifact.

    given: what an ONNX file takes, whose spec may be borrowed from the other side.
    """

    name: str
    label: str
    spec: ModelSpec
    open: Callable[[], AbstractContextManager[Runner]]
    prepared: Prepared | None = None
    given: Mapping[str, Taken] | None = None

    @property
    def takes(self) -> Mapping[str, Taken]:
        """What it takes, by name."""
        return taken(self.spec) if self.given is None else self.given


def open_two(first: str, second: str, dims: Mapping[str, Triple], run: Run) -> tuple[Runnable, Runnable]:
    """The runnables behind two names, each an artifact, an `.onnx` file or a model as `aot build` takes it.

    An ONNX file does not say what its dynamic dimensions range over: it takes the other side's declaration,
    or `dims` where both are ONNX. Raises the errors of `artifact.load` and `open_source`.
    """
    opened = {name: _open(name, dims, run) for name in (first, second) if not _is_onnx(name)}
    spec = next((side.spec for side in opened.values()), None)
    for name in (first, second):
        if name not in opened:
            opened[name] = _of_onnx(name, spec, dims, run)
            spec = opened[name].spec
    check_inputs(opened[first], opened[second])
    return opened[first], opened[second]


def check_inputs(first: Runnable, second: Runnable) -> None:
    """Raise UsageError, naming what either side lacks, unless both take inputs of the same names, dtypes and ranks."""
    one, two = first.takes, second.takes
    where = f"A is {first.name}, B is {second.name}"
    lacks = [(side, [n for n in other if n not in own]) for side, own, other in (("A", one, two), ("B", two, one))]
    if any(names for _, names in lacks):
        missing = ", ".join(f"{side} lacks {' and '.join(names)}" for side, names in lacks if names)
        raise UsageError(
            f"the two take different inputs: A takes {', '.join(one)}; B takes {', '.join(two)}",
            where=where,
            fix=f"compare two forms of one model, or rename its inputs: {missing}",
        )
    for name, (dtype, shape) in one.items():
        dtype2, shape2 = two[name]
        fixed = [(a, b) for a, b in zip(shape, shape2, strict=False) if isinstance(a, int) and isinstance(b, int)]
        if dtype != dtype2 or len(shape) != len(shape2) or any(a != b for a, b in fixed):
            raise UsageError(
                f"the two take different inputs: input '{name}' is {_shown(dtype, shape)} in A "
                f"and {_shown(dtype2, shape2)} in B",
                where=where,
                fix="compare two forms of one model",
            )


def taken(spec: ModelSpec) -> dict[str, Taken]:
    """The dtype and the shape of every input of a declaration."""
    return {
        name: (tensor.dtype, [dim.name if isinstance(dim, Dim) else dim for dim in tensor.shape])
        for name, tensor in spec.inputs.items()
    }


def taken_by(path: Path) -> dict[str, Taken]:
    """The same of an ONNX file. Raises GraphError for a file that is not ONNX."""
    from aot.onnx_input.reading import proto_of
    from aot.onnx_input.vetting import vet

    vet(path)
    graph = proto_of(path).graph
    constants = {tensor.name for tensor in graph.initializer}
    return {value.name: _described(value) for value in graph.input if value.name not in constants}


def _described(value: onnx.ValueInfoProto) -> Taken:
    import onnx

    tensor = value.type.tensor_type
    name = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    shape: list[int | str] = [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim
    ]
    return {"float": "float32", "double": "float64"}.get(name, name), shape


def _shown(dtype: str, shape: Sequence[int | str]) -> str:
    return f"{dtype} [{', '.join(map(str, shape))}]"


def _is_onnx(name: str) -> bool:
    return name.endswith(".onnx")


def _open(name: str, dims: Mapping[str, Triple], run: Run) -> Runnable:
    return of_artifact(name, None) if artifact.is_artifact(name) else _of_model(name, dims, run)


def of_artifact(name: str, engine: str | None) -> Runnable:
    """An engine of the artifact that runs on this machine, else its final graph on onnxruntime.

    `engine` asks for one: a target, or `cpu` for the graph. Raises UsageError for one that the artifact
    does not hold, TargetError for one that does not run here.
    """
    prepared = artifact.load(name)
    spec = prepared.spec
    machine = toolchain.machine()
    held = {built.target: built for built, _ in prepared.engines}
    if engine is not None and engine not in {*held, GRAPH}:
        raise unknown("engine", engine, [*held, GRAPH])
    for target in [engine] if engine else held:
        if target not in held:
            break
        built = held[target]
        vendor = backend.get(str(built.facts["backend"]))
        reason = vendor.can_run(target, machine, built.facts.get("hardware_compatible"))
        if reason is None:
            label = f"engine {target} ({vendor.name} {built.facts['version']})"
            opened = partial(vendor.open, built.plan, spec, prepared.plan.profiles, built.weights)
            return Runnable(name, label, spec, opened, prepared)
        if engine is not None:
            raise TargetError(
                f"the engine for {target} does not run here: {reason}",
                where=name,
                fix=f"--engine {GRAPH} runs the final graph on onnxruntime",
            )
    cpu = backend.get("onnxruntime")
    program = isinstance(prepared.final, Program)
    reason = "it holds a program of torch's, no graph" if program else cpu.can_run("cpu", machine)
    if reason is not None:
        fix = "run it where its GPU is" if program else "pip install onnxruntime"
        raise TargetError(f"nothing in the artifact runs here: {reason}", where=name, fix=fix)
    label = f"final graph, {prepared.plan.precision} (onnxruntime {cpu.version()}, cpu)"
    return Runnable(name, label, spec, partial(cpu.open, prepared.final.model, spec, prepared.plan.profiles), prepared)


def _of_onnx(name: str, spec: ModelSpec | None, dims: Mapping[str, Triple], run: Run) -> Runnable:
    from aot.config import Request
    from aot.source import open_source

    if spec is None:
        spec = open_source(Request(model=name, dims=dict(dims)), run).spec
    elif not Path(name).is_file():
        raise UsageError(f"no such file: {name}", fix="check the path")
    from aot.onnx_input.vetting import vet

    given = taken_by(Path(name))
    vet(Path(name), "open")
    cpu = backend.get("onnxruntime")
    label = f"ONNX (onnxruntime {cpu.version()}, cpu)"
    return Runnable(name, label, spec, partial(cpu.open, Path(name), spec, ()), given=given)


def _of_model(name: str, dims: Mapping[str, Triple], run: Run) -> Runnable:
    from aot.config import Request
    from aot.source import open_source

    source = open_source(Request(model=name, dims=dict(dims)), run)

    @contextmanager
    def eager() -> Iterator[Runner]:
        yield source.eager()

    return Runnable(name, "eager PyTorch", source.spec, eager)


def read_inputs(path: str, spec: ModelSpec) -> Arrays:
    """Inputs from an `.npz`. Raises UsageError for one that is not readable or holds not what the model takes."""
    found = read_arrays(path)
    try:
        return batches.checked(found, spec, path)
    except CalibrationError as error:
        raise UsageError(error.what, where=error.where, fix=error.fix) from error


def read_arrays(path: str) -> Arrays:
    """The arrays of an `.npz`, by name. Raises UsageError for one that is not readable."""
    from aot import arrays

    try:
        return arrays.load(Path(path))
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}", fix="write one with numpy.savez(path, NAME=array, ...)") from None
    except OSError as error:
        raise UsageError(
            f"the inputs cannot be read: {error.strerror or error}",
            where=path,
            fix="check the path and its permissions",
        ) from error
    except ValueError as error:
        raise UsageError(
            f"not an .npz file of arrays: {error}", where=path, fix="write one with numpy.savez(path, NAME=array, ...)"
        ) from error


def make_inputs(spec: ModelSpec, sizes: Mapping[str, int], seed: int = 0) -> Arrays:
    """Random inputs; Dims that `sizes` leaves out take their optimum. Raises UsageError for a size that cannot be."""
    dims = spec.dims
    for name, size in sizes.items():
        if name not in dims:
            raise unknown("Dim", name, dims)
        if size not in dims[name].sizes:
            low, _, high = dims[name].bounds
            steps = f", in steps of {dims[name].multiple_of}" if low <= size <= high else ""
            raise UsageError(
                f"size {size} is outside Dim '{name}'",
                where=f"--size {name}={size}",
                fix=f"from {low} to {high}{steps}",
            )
    return batches.generated(spec, {name: sizes.get(name, dim.bounds[1]) for name, dim in dims.items()}, seed)


def cases_for(first: Runnable, second: Runnable) -> Iterator[tuple[str, Arrays, str | None]]:
    """(name, inputs, padding mask) to compare two runnables on: the references that travel in an artifact,
    else generated at the minimum, optimum and maximum of every Dim."""
    for side in (first, second):
        if side.prepared is not None:
            for case in side.prepared.references.cases():
                yield case.name, case.inputs, side.spec.padding
            return
    spec = first.spec
    names = ("minimum", "optimum", "maximum") if spec.dims else ("generated",)
    for which, name in enumerate(names):
        sizes = {dim: bound.bounds[which] for dim, bound in spec.dims.items()}
        yield name, batches.generated(spec, sizes, seed=which), spec.padding


def matched(reference: Arrays, got: Arrays) -> dict[str, Any]:
    """`got` under the reference's output names: by name where all are there, by position where only names differ."""
    if set(reference) <= set(got) or len(reference) != len(got):
        return dict(got)
    return dict(zip(reference, got.values(), strict=True))
