"""Batches of input tensors: checked against a declaration, generated from it, digested."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from aot.arrays import dtype_named
from aot.declaration import DTYPES, Dim, Input, ModelSpec
from aot.errors import CalibrationError, DeclarationError
from aot.structure import picked, shown

if TYPE_CHECKING:
    import numpy as np

    from aot.arrays import Arrays


LIMIT = 8 * 2**30
"""Bytes that one input may take at the optimum of its Dims."""


def bytes_of(tensor: Input, sizes: Mapping[str, int]) -> int:
    """Bytes of an input at the given sizes of its Dims."""
    bits = re.search(r"\d+", tensor.dtype)  # by its name: an unchanged rebuild, which asks this, has no time for numpy
    width = int(bits[0]) // 8 if bits else 1
    return width * prod(sizes[d.name] if isinstance(d, Dim) else d for d in tensor.shape)


def refuse_huge(spec: ModelSpec) -> None:
    """Raise DeclarationError for an input above `LIMIT` at the optimum of its Dims, before anything allocates it."""
    sizes = {name: dim.bounds[1] for name, dim in spec.dims.items()}
    for name, tensor in spec.inputs.items():
        size = bytes_of(tensor, sizes)
        if size > LIMIT:
            used = {d.name: sizes[d.name] for d in tensor.shape if isinstance(d, Dim)}
            at = f" at the optimum ({', '.join(f'{dim}={length}' for dim, length in used.items())})" if used else ""
            raise DeclarationError(
                f"input '{name}' takes {size:,} bytes{at}; aot makes inputs of up to {LIMIT:,} bytes",
                where=f"input '{name}' of model '{spec.name}'",
                fix="lower opt of its Dims (aot.Dim, or --dim)" if used else "declare a smaller shape",
            )


def array(value: Any) -> np.ndarray[Any, Any]:
    """A torch tensor or anything numpy takes, as a contiguous array; torch's bfloat16 as `ml_dtypes`."""
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            import torch

            bits: np.ndarray[Any, Any] = value.contiguous().view(torch.int16).numpy()
            return bits.view(dtype_named("bfloat16"))
        value = value.numpy()
    return np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)


def checked(batch: object, spec: ModelSpec, where: str) -> Arrays:
    """The batch as arrays in the spec's order. A state that it leaves out is what it is before the first call.

    A batch holds tensors by flat name, or parameters as `forward` takes them, their constants left out or not.
    Raises CalibrationError, naming batch and input, for: something that is not a mapping, names that are
    missing or unknown, another dtype, rank or fixed dimension, a size outside its Dim, a Dim with two sizes,
    NaN or infinity.
    """
    if not isinstance(batch, Mapping):
        raise CalibrationError(
            f"a batch is a mapping from input name to tensor, not a {type(batch).__name__}",
            where=where,
            fix=f"yield {example(spec)}",
        )
    given = dict(_flat(batch, spec, where))
    for kind, wrong in (
        ("lacks", [name for name in spec.inputs if name not in given and name not in spec.kept]),
        ("has unknown", [str(name) for name in batch if name not in spec.inputs and name not in spec.parameters]),
    ):
        if wrong:
            raise CalibrationError(
                f"the batch {kind} {', '.join(wrong)}", where=where, fix=f"the inputs are {', '.join(spec.inputs)}"
            )
    found: Arrays = {}
    for name, tensor in spec.inputs.items():
        if name in given:
            found[name] = _numbers(given[name], tensor, f"{where}, input '{name}'")
            _check(found[name], tensor, f"{where}, input '{name}'")
    sizes = sizes_of(found, spec, where)
    missing = {name: value for name, value in initial(spec, sizes).items() if name not in found}
    return {name: found[name] if name in found else missing[name] for name in spec.inputs}


def example(spec: ModelSpec) -> str:
    """A batch as Python would write it, `...` for every tensor."""
    dots = dict.fromkeys(spec.inputs, "...")
    return "{" + ", ".join(f"{name!r}: {shown(tree, dots)}" for name, tree in spec.parameters.items()) + "}"


def _flat(batch: Mapping[Any, Any], spec: ModelSpec, where: str) -> Iterator[tuple[str, Any]]:
    """(flat name, value) for what is declared. Raises CalibrationError for a parameter of another form."""

    def refuse(said: str) -> CalibrationError:
        return CalibrationError(said, where=where, fix=f"yield {example(spec)}, or tensors by flat name")

    for key, value in batch.items():
        tree = spec.parameters.get(str(key))
        if tree is not None:
            yield from picked(value, tree, str(key), refuse)
        elif key in spec.inputs:
            yield str(key), value


def initial(spec: ModelSpec, sizes: Mapping[str, int]) -> Arrays:
    """What the lifted states are before the first call, at the given sizes of their Dims."""
    import numpy as np

    made: Arrays = {}
    for name, state in spec.kept.items():
        tensor = spec.inputs[name]
        values = np.frombuffer(base64.b64decode(state.initial), dtype_named(tensor.dtype))
        shape = tuple(sizes[d.name] if isinstance(d, Dim) else d for d in tensor.shape)
        made[name] = np.full(shape, values[0]) if values.size == 1 else values.reshape(shape)
    return made


def _numbers(value: object, tensor: Input, where: str) -> np.ndarray[Any, Any]:
    """The value as an array. Raises CalibrationError for what holds no numbers of any dtype that can be declared."""
    kind = f"a {type(value).__name__}"
    try:
        got = array(value)
    except (TypeError, ValueError, RuntimeError):  # ragged lists; tensors that are sparse or have no data
        got = None
    if got is not None and got.dtype.name in DTYPES:
        return got
    if got is not None and got.dtype.kind not in "OUS":
        kind += f" of {got.dtype.name}"
    raise CalibrationError(
        f"expected a tensor of {tensor.dtype}, got {kind}" + (f" ({value!r:.40})" if isinstance(value, str) else ""),
        where=where,
        fix=f"yield a torch tensor or a numpy array of {tensor.dtype}",
    )


def _check(got: np.ndarray[Any, Any], tensor: Input, where: str) -> None:
    import numpy as np

    if got.dtype.name != tensor.dtype:
        raise CalibrationError(
            f"expected {tensor.dtype}, got {got.dtype.name}",
            where=where,
            fix=f"convert the batch to {tensor.dtype}, or declare the input as {got.dtype.name}",
        )
    wanted = [d.name if isinstance(d, Dim) else d for d in tensor.shape]
    if got.ndim != len(wanted):
        raise CalibrationError(
            f"expected shape [{', '.join(map(str, wanted))}], got {list(got.shape)}",
            where=where,
            fix=f"give it {len(wanted)} axes" if wanted else "give a single value, without axes",
        )
    for axis, (dim, size) in enumerate(zip(tensor.shape, got.shape, strict=True)):
        if isinstance(dim, Dim):
            if size not in dim.sizes:
                raise CalibrationError(
                    f"axis {axis} has size {size}, outside Dim '{dim.name}' ({dim})",
                    where=where,
                    fix="change the batch, or widen the range",
                )
        elif size != dim:
            raise CalibrationError(
                f"axis {axis} has size {size}, expected {dim}", where=where, fix=f"give it with {dim} there"
            )
    if got.dtype.kind not in "biu":
        values = got.astype(np.float32) if got.dtype.kind == "V" or got.dtype.itemsize < 4 else got
        bad = int(got.size - np.isfinite(values).sum())
        if bad:
            raise CalibrationError(
                f"{bad} of {got.size} values are NaN or infinite", where=where, fix="leave the batch out, or repair it"
            )


def sizes_of(batch: Mapping[str, Any], spec: ModelSpec, where: str) -> dict[str, int]:
    """The size of every Dim in a batch. Raises CalibrationError where one Dim has two sizes."""
    sizes: dict[str, int] = {}
    for name, values in batch.items():
        for dim, size in zip(spec.inputs[name].shape, values.shape, strict=True):
            if isinstance(dim, Dim) and sizes.setdefault(dim.name, size) != size:
                raise CalibrationError(
                    f"Dim '{dim.name}' is {sizes[dim.name]} in one input and {size} in '{name}'",
                    where=where,
                    fix="give all inputs the same size there",
                )
    return sizes


def generated(spec: ModelSpec, sizes: Mapping[str, int], seed: int) -> Arrays:
    """Random inputs of the given sizes, the same for the same seed.

    Integers are drawn from [low, high), by default {0, 1}; floats are normal, or uniform in [low, high).
    The padding mask is ones up to a random length of at least one, then zeros, along its last axis. Seed 0 has
    lifted states as they are before the first call.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    made: Arrays = {}
    start = initial(spec, sizes) if seed == 0 else {}
    for name, tensor in spec.inputs.items():
        shape = tuple(sizes[d.name] if isinstance(d, Dim) else d for d in tensor.shape)
        dtype = dtype_named(tensor.dtype)
        if name in start:
            made[name] = start[name]
        elif name == spec.padding and shape:
            length = random.integers(1, max(shape[-1], 1) + 1, size=(*shape[:-1], 1))
            made[name] = (np.arange(shape[-1]) < length).astype(dtype)
        elif tensor.dtype == "bool":
            made[name] = random.integers(0, 2, size=shape).astype(bool)
        elif dtype.kind in "iu":
            low = int(tensor.low) if tensor.low is not None else 0
            high = int(tensor.high) if tensor.high is not None else low + 2
            made[name] = random.integers(low, high, size=shape).astype(dtype)
        elif tensor.low is not None and tensor.high is not None:
            made[name] = random.uniform(tensor.low, tensor.high, size=shape).astype(dtype)
        else:
            made[name] = random.standard_normal(size=shape, dtype=np.float32).astype(dtype)
    return made


def resized(batch: Mapping[str, Any], spec: ModelSpec, sizes: Mapping[str, int], seed: int) -> Arrays:
    """The batch brought to other sizes along its Dims, repeating or cutting it; generated where it is empty.

    A row of the padding mask that lost every one to the cut keeps its first. A lifted state that the batch has as it
    is before the first call is generated, for later calls are to be compared as well.
    """
    import numpy as np

    made: Arrays = {}
    spare: Arrays | None = None
    start = initial(spec, sizes_of(batch, spec, "the batch"))
    for name, tensor in spec.inputs.items():
        values = batch[name]
        for axis, dim in enumerate(tensor.shape):
            if isinstance(dim, Dim) and values.size:
                values = np.take(values, np.arange(sizes[dim.name]) % values.shape[axis], axis)
        if not batch[name].size or (name in start and np.array_equal(batch[name], start[name])):
            spare = spare or generated(spec, sizes, seed)
            values = spare[name]
        elif name == spec.padding and values.size:
            values[..., 0] = np.where(values.any(axis=-1), values[..., 0], values.dtype.type(1))
        made[name] = np.ascontiguousarray(values)
    return made


def digest_of(batch: Mapping[str, Any]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes."""
    total = hashlib.sha256()
    for name, values in batch.items():
        total.update(f"{name}\0{values.dtype.name}\0{values.shape}\0".encode())
        total.update(values.tobytes())
    return total.hexdigest()
