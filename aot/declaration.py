"""What a model is: its inputs, the range of every dynamic dimension, the state it keeps.

Nothing here imports torch, so `aot --help` and an unchanged rebuild stay fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from aot.errors import DeclarationError
from aot.structure import Tree

DTYPES = ("bool", "int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Dim:
    """A dynamic dimension: the `torch.export` constraint and the optimization profile in one.

    `min` and `max` bound the size (both included); `opt` is the size TensorRT tunes for, by default
    the midpoint. Every size is a multiple of `multiple_of`: an image side that a network halves five times,
    say, of 32. Raises DeclarationError unless 0 <= min <= opt <= max, max > 0, and all three are multiples.
    """

    name: str
    min: int | None = None
    max: int | None = None
    opt: int | None = None
    multiple_of: int = 1

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
        for bound in ("min", "opt", "max", "multiple_of"):
            value = getattr(self, bound)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise DeclarationError(f"Dim '{self.name}': {bound} must be an integer, not {value!r}", where=where)
        assert self.min is not None
        assert self.max is not None
        if self.multiple_of < 1:
            raise DeclarationError(f"Dim '{self.name}': multiple_of is {self.multiple_of}, not 1 or more", where=where)
        if self.opt is None:
            middle = (self.min + self.max) // 2
            object.__setattr__(self, "opt", max(middle - middle % self.multiple_of, self.min))
        assert self.opt is not None
        if not 0 <= self.min <= self.opt <= self.max:
            raise DeclarationError(
                f"Dim '{self.name}': need 0 <= min <= opt <= max, got min={self.min} opt={self.opt} max={self.max}",
                where=where,
                fix="put opt inside the range, or widen the range",
            )
        for bound in ("min", "opt", "max"):
            value = getattr(self, bound)
            if value % self.multiple_of:
                near = value // self.multiple_of * self.multiple_of
                raise DeclarationError(
                    f"Dim '{self.name}': {bound}={value} is no multiple of {self.multiple_of}",
                    where=where,
                    fix=f"{bound}={near} or {bound}={near + self.multiple_of}",
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

    @property
    def sizes(self) -> range:
        """Every size it may have."""
        low, _, high = self.bounds
        return range(low, high + 1, self.multiple_of)

    def __str__(self) -> str:
        """`4..64`, or `32..640 in steps of 32`."""
        low, _, high = self.bounds
        return f"{low}..{high}" + (f" in steps of {self.multiple_of}" if self.multiple_of > 1 else "")


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
class State:
    """What a module keeps between calls, lifted: it comes in as an input and goes out as the output `output`.

    path: where the module keeps it (`lstm.h`). initial: what it holds before the first call, as base64 of the bytes
    of its elements in C order, or of a single one where all are alike (so that it fits every size of a Dim).
    """

    path: str
    output: str
    initial: str


@dataclass(frozen=True)
class ModelSpec:
    """A declaration reduced to data: what every stage after export needs to know of it.

    `inputs` are the tensors by flat name, states last. `structure` says how `forward` takes them (see
    `aot.structure`); it is empty where every input is a parameter of its own. `kept` holds the lifted states by input.
    `outputs` holds the names asked for, empty where the export decides. `padding` names a mask input:
    output positions whose mask is 0 are left out of comparisons.
    """

    name: str
    inputs: Mapping[str, Input]
    outputs: tuple[str, ...] = ()
    padding: str | None = None
    has_calibration: bool = False
    has_metric: bool = False
    structure: Mapping[str, Tree] = field(default_factory=dict)
    kept: Mapping[str, State] = field(default_factory=dict)

    @property
    def parameters(self) -> Mapping[str, Tree]:
        """The tree that each declared parameter of `forward` takes."""
        return self.structure or {name: {"input": name} for name in self.inputs if name not in self.kept}

    @property
    def states(self) -> dict[str, str]:
        """Which output is the next call's value of which input."""
        return {name: state.output for name, state in self.kept.items()}

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
            "dims": {
                name: [*dim.bounds, *([k] if (k := dim.multiple_of) > 1 else [])] for name, dim in self.dims.items()
            },
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
            "structure": dict(self.structure),
            "states": {name: asdict(state) for name, state in self.kept.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelSpec:
        """The inverse of `to_json`."""
        dims = {name: Dim(name, lo, hi, opt, *multiple) for name, (lo, opt, hi, *multiple) in data["dims"].items()}
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
            structure=data.get("structure", {}),  # absent in artifacts of earlier versions
            kept={name: State(**state) for name, state in data.get("states", {}).items()},
        )
