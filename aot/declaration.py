"""What a model is: its inputs, the range of every dynamic dimension, calibration data and metric.

Nothing here imports torch, so `aot --help` and an unchanged rebuild stay fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aot.errors import DeclarationError

if TYPE_CHECKING:
    import torch

    Builder = TypeVar("Builder", bound=Callable[[], torch.nn.Module])
else:
    Builder = TypeVar("Builder")

DTYPES = ("bool", "int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Dim:
    """A dynamic dimension: the `torch.export` constraint and the optimization profile in one.

    `min` and `max` bound the size (both included); `opt` is the size TensorRT tunes for, by default
    the midpoint. Raises DeclarationError unless 0 <= min <= opt <= max and max > 0.
    """

    name: str
    min: int | None = None
    max: int | None = None
    opt: int | None = None

    def __post_init__(self) -> None:
        where = f"aot.Dim({self.name!r})"
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise DeclarationError(f"a Dim needs a name that is an identifier, not {self.name!r}", where="aot.Dim")
        for bound in ("min", "max"):
            value = getattr(self, bound)
            if value is None:
                raise DeclarationError(
                    f"Dim '{self.name}' has no {bound}",
                    where=where,
                    fix=f"give both bounds, e.g. aot.Dim({self.name!r}, min=1, opt=8, max=64)",
                )
        for bound in ("min", "opt", "max"):
            value = getattr(self, bound)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise DeclarationError(f"Dim '{self.name}': {bound} must be an integer, not {value!r}", where=where)
        assert self.min is not None
        assert self.max is not None
        if self.opt is None:
            object.__setattr__(self, "opt", (self.min + self.max) // 2)
        assert self.opt is not None
        if not 0 <= self.min <= self.opt <= self.max:
            raise DeclarationError(
                f"Dim '{self.name}': need 0 <= min <= opt <= max, got min={self.min} opt={self.opt} max={self.max}",
                where=where,
                fix="put opt inside the range, or widen the range",
            )
        if self.max == 0:
            raise DeclarationError(f"Dim '{self.name}' can only be 0", where=where, fix="give it a max of at least 1")

    @property
    def bounds(self) -> tuple[int, int, int]:
        """(min, opt, max), all known."""
        assert self.min is not None
        assert self.opt is not None
        assert self.max is not None
        return self.min, self.opt, self.max


@dataclass(frozen=True)
class Input:
    """One input tensor: shape (ints and Dims), dtype, and the range generated values are drawn from.

    Integers are drawn from [low, high), as `torch.randint` does; floats are normal, or uniform in
    [low, high) when both are given. An int input whose values decide shapes gets its profile from
    the same two bounds.
    """

    shape: Sequence[int | Dim]
    dtype: str = "float32"
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.shape, str) or not isinstance(self.shape, Iterable):
            raise DeclarationError(
                f"a shape is a list of integers and aot.Dim, not {self.shape!r}",
                where="aot.Input",
                fix="aot.Input([batch, 3, 224, 224])",
            )
        object.__setattr__(self, "shape", tuple(self.shape))
        for axis, dim in enumerate(self.shape):
            if isinstance(dim, int) and not isinstance(dim, bool) and dim == 0:
                raise DeclarationError(
                    f"axis {axis} has size 0: the input would hold nothing",
                    where=f"aot.Input({list(self.shape)!r})",
                    fix="give the axis its size, or declare it: aot.Dim(name, min=..., opt=..., max=...)",
                )
            if not isinstance(dim, Dim) and (not isinstance(dim, int) or isinstance(dim, bool) or dim < 0):
                raise DeclarationError(
                    f"a shape holds integers and aot.Dim, not {dim!r}",
                    where=f"aot.Input({list(self.shape)!r})",
                    fix="declare the dimension: aot.Dim(name, min=..., opt=..., max=...)",
                )
        if not isinstance(self.dtype, str):
            name = str(getattr(self.dtype, "__name__", self.dtype)).rpartition(".")[2]
            raise DeclarationError(
                f"a dtype is given by name, not as {self.dtype!r}",
                where="aot.Input",
                fix=f'write "{name}"' if name in DTYPES else f"one of: {', '.join(DTYPES)}",
            )
        if self.dtype not in DTYPES:
            raise DeclarationError(
                f"unknown dtype {self.dtype!r}", where="aot.Input", fix=f"one of: {', '.join(DTYPES)}"
            )
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise DeclarationError(f"low={self.low} is not below high={self.high}", where="aot.Input")


@dataclass(frozen=True)
class ModelSpec:
    """A declaration reduced to data: what every stage after export needs to know of it.

    `outputs` holds the names asked for, empty where the export decides. `padding` names a mask input:
    output positions whose mask is 0 are left out of comparisons.
    """

    name: str
    inputs: Mapping[str, Input]
    outputs: tuple[str, ...] = ()
    padding: str | None = None
    has_calibration: bool = False
    has_metric: bool = False

    @property
    def dims(self) -> dict[str, Dim]:
        """Every Dim by name, in the order of first use."""
        found: dict[str, Dim] = {}
        for name, tensor in self.inputs.items():
            for dim in tensor.shape:
                if isinstance(dim, Dim) and found.setdefault(dim.name, dim) != dim:
                    raise DeclarationError(
                        f"two different Dims are called '{dim.name}'",
                        where=f"input '{name}' of model '{self.name}'",
                        fix="use one Dim object for both, or give them different names",
                    )
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` restores an equal spec."""
        return {
            "name": self.name,
            "dims": {name: list(dim.bounds) for name, dim in self.dims.items()},
            "inputs": {
                name: {
                    "shape": [d.name if isinstance(d, Dim) else d for d in tensor.shape],
                    "dtype": tensor.dtype,
                    "low": tensor.low,
                    "high": tensor.high,
                }
                for name, tensor in self.inputs.items()
            },
            "outputs": list(self.outputs),
            "padding": self.padding,
            "has_calibration": self.has_calibration,
            "has_metric": self.has_metric,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelSpec:
        """The inverse of `to_json`."""
        dims = {name: Dim(name, min=lo, opt=opt, max=hi) for name, (lo, opt, hi) in data["dims"].items()}
        inputs = {
            name: Input([dims[d] if isinstance(d, str) else d for d in t["shape"]], t["dtype"], t["low"], t["high"])
            for name, t in data["inputs"].items()
        }
        return cls(
            name=data["name"],
            inputs=inputs,
            outputs=tuple(data["outputs"]),
            padding=data["padding"],
            has_calibration=data["has_calibration"],
            has_metric=data["has_metric"],
        )


Batches = Callable[[], Iterable[Mapping[str, Any]]]
Metric = Callable[[Callable[..., Mapping[str, Any]]], float]
C = TypeVar("C", bound=Batches)
M = TypeVar("M", bound=Metric)


@dataclass
class Declaration(Generic[Builder]):
    """What `@aot.model` makes of a function: the function, its spec, and what was attached to it.

    Calling it builds the module, as calling the plain function would.
    """

    build: Builder
    inputs: Mapping[str, Input]
    outputs: tuple[str, ...] = ()
    padding: str | None = None
    files: tuple[str, ...] = ()
    batches: Batches | None = field(default=None, repr=False)
    score: Metric | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The function's name: it names the artifact."""
        return str(getattr(self.build, "__name__", "model"))

    def __call__(self) -> torch.nn.Module:
        """Build the module."""
        return self.build()

    def calibration(self, function: C) -> C:
        """Attach a generator of batches: mappings from input name to tensor or array."""
        self.batches = function
        return function

    def metric(self, function: M) -> M:
        """Attach the task's own score (higher is better); it gets `run(**inputs) -> {output: array}`."""
        self.score = function
        return function

    def spec(self) -> ModelSpec:
        """The declaration as data. Raises DeclarationError where two Dims clash."""
        spec = ModelSpec(
            name=self.name,
            inputs=dict(self.inputs),
            outputs=self.outputs,
            padding=self.padding,
            has_calibration=self.batches is not None,
            has_metric=self.score is not None,
        )
        _ = spec.dims
        return spec


def model(
    *,
    inputs: Mapping[str, Input],
    outputs: Sequence[str] = (),
    padding: str | None = None,
    files: Sequence[str] = (),
) -> Callable[[Builder], Declaration[Builder]]:
    """Declare the decorated function as the builder of a model.

    `inputs` maps the names of `forward`'s parameters, in order, to their `Input`. `outputs` names the
    outputs. `padding` names the mask input whose zeros mark padding. `files` lists files that the
    model reads in a way that Python cannot see, relative to the declaring file.
    """
    _check_kinds(inputs, outputs, files)
    for name, tensor in inputs.items():
        if not isinstance(tensor, Input):
            raise DeclarationError(
                f"input '{name}' must be an aot.Input, not {type(tensor).__name__}",
                where="@aot.model",
                fix=f'inputs={{"{name}": aot.Input([batch, 3, 224, 224])}}',
            )
    if not inputs:
        raise DeclarationError("a model needs at least one input", where="@aot.model")
    for name in outputs:
        if name in inputs or list(outputs).count(name) > 1:
            other = "an input" if name in inputs else "another output"
            raise DeclarationError(f"output '{name}' has the name of {other}", where="@aot.model")
    if padding is not None and padding not in inputs:
        raise DeclarationError(f"padding names '{padding}', which is not an input", where="@aot.model")

    def declare(build: Builder) -> Declaration[Builder]:
        return Declaration(build, dict(inputs), tuple(outputs), padding, tuple(files))

    return declare


def _check_kinds(inputs: object, outputs: object, files: object) -> None:
    """Raise DeclarationError unless `inputs` is a mapping and the others are lists of strings."""
    if not isinstance(inputs, Mapping):
        raise DeclarationError(
            f"inputs= is a mapping from the names of forward's parameters to aot.Input, not a {type(inputs).__name__}",
            where="@aot.model",
            fix='inputs={"x": aot.Input([batch, 3, 224, 224])}',
        )
    for option, given, example in (("outputs", outputs, "y"), ("files", files, "weights.bin")):
        listed = isinstance(given, Sequence) and not isinstance(given, str | bytes)
        if not listed or not all(isinstance(name, str) for name in given):  # type: ignore[attr-defined]
            alone = f'{option}=["{given}"]' if isinstance(given, str) else f'{option}=["{example}"], or leave it out'
            raise DeclarationError(f"{option}= is a list of names, not {given!r}", where="@aot.model", fix=alone)
