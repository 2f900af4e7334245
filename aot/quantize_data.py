"""`--data` of `aot quantize`: batches from a file, a folder or a function, checked against the model's inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot import batches
from aot.declaration import ModelSpec
from aot.errors import CalibrationError, DeclarationError, UsageError

if TYPE_CHECKING:
    from aot.arrays import Arrays

BATCH = 8
"""Samples of a batch where a file of samples is cut and the model fixes no batch size."""
BATCHES = 4
"""A file of fewer than so many times `BATCH` samples is cut into so many batches, one of which is held out."""
FORMS = (
    "--data FILE.npz (arrays by input name, samples along the first axis), FOLDER (of .npz files, a batch each), "
    "module:function or FILE.py:function (yields batches)"
)


def read(data: str, spec: ModelSpec) -> Iterator[Arrays]:
    """The batches behind `data` (see `FORMS`), in order.

    Raises UsageError for what cannot be read, DeclarationError for what the function raises, and CalibrationError for
    data that do not fit the inputs (batch and input are named) and, at their end, for data that tell nothing.
    """
    return _telling(_read(data, spec), data)


def _telling(given: Iterable[Arrays], data: str) -> Iterator[Arrays]:
    """The batches. Raises CalibrationError after the last where they hold no sample, or nothing but zeros."""
    samples = some = False
    for batch in given:
        samples = samples or all(array.size for array in batch.values())
        some = some or any(array.any() for array in batch.values())
        yield batch
    if not samples:
        raise CalibrationError("the data hold no samples", where=f"--data {data}", fix="give at least one")
    if not some:
        raise CalibrationError(
            "every value of every input is 0: no range can be taken from that",
            where=f"--data {data}",
            fix="give data as the model meets them",
        )


def _read(data: str, spec: ModelSpec) -> Iterator[Arrays]:
    path = Path(data)
    if path.is_dir():
        return _folder(path, spec)
    if path.suffix == ".npz":
        return _cut(data, spec)
    base, colon, _ = data.rpartition(":")
    if colon and (base.endswith(".py") or all(part.isidentifier() for part in base.split("."))):
        return _called(data, spec)
    if not path.exists() and path.suffix == "":
        raise UsageError(f"no such folder: {data}", where=f"--data {data}", fix=FORMS)
    raise UsageError("calibration data of an unknown form", where=f"--data {data}", fix=FORMS)


def _folder(path: Path, spec: ModelSpec) -> Iterator[Arrays]:
    from aot.runners import read_arrays

    files = sorted(path.glob("*.npz"))
    if not files:
        raise CalibrationError(
            "the folder holds no .npz file",
            where=f"--data {path}",
            fix="write one a batch: numpy.savez(path, NAME=...)",
        )
    return (_checked(read_arrays(str(file)), spec, str(file)) for file in files)


def _cut(file: str, spec: ModelSpec) -> Iterator[Arrays]:
    """The samples of a file, cut into batches; those that fill no batch of a fixed size are left out."""
    from aot.runners import read_arrays

    arrays = read_arrays(file)
    samples = _samples(arrays, spec, file)
    first = {tensor.shape[0] for tensor in spec.inputs.values() if tensor.shape}
    fixed = {size for size in first if isinstance(size, int)}
    if len(fixed) > 1:
        raise CalibrationError(
            f"the inputs have batches of {', '.join(map(str, sorted(fixed)))}: a file cannot be cut for them",
            where=file,
            fix="give a folder of .npz files, a batch each",
        )
    size = fixed.pop() if fixed else max(1, min(BATCH, samples // BATCHES))
    if samples < size:
        raise CalibrationError(
            f"the file holds {samples} samples, the model takes batches of {size}",
            where=file,
            fix=f"give at least {size} samples",
        )
    # A model of any batch size takes the rest as a smaller batch.
    stop = samples - samples % size if any(isinstance(one, int) for one in first) else samples
    for number, start in enumerate(range(0, stop, size)):
        part = {name: array[start : start + size] for name, array in arrays.items()}
        last = min(start + size, samples) - 1
        yield _checked(part, spec, f"{file}, batch {number} (samples {start} to {last})")


def _samples(arrays: Arrays, spec: ModelSpec, file: str) -> int:
    """How many samples a file holds. Raises CalibrationError where its arrays do not agree, or there is none."""
    _check_names(arrays, spec, file)
    counts = {name: array.shape[0] if array.ndim else None for name, array in arrays.items()}
    if len(set(counts.values())) != 1 or None in counts.values():
        said = ", ".join(f"'{name}' {list(array.shape)}" for name, array in arrays.items())
        raise CalibrationError(
            f"the arrays do not hold equally many samples: {said}",
            where=file,
            fix="put samples along the first axis of each; where an input has none, give a folder of batches",
        )
    samples = int(next(iter(counts.values())) or 0)
    if not samples:
        raise CalibrationError("the file holds no samples", where=file, fix="give at least one")
    return samples


def _called(data: str, spec: ModelSpec) -> Iterator[Arrays]:
    """The batches that the user's function yields."""
    from aot.sources import loading

    where = loading.place(data)
    value: Any = loading.imported(where)
    for part in (where.attribute or "").split("."):
        if not hasattr(value, part):
            raise UsageError(
                f"'{part}' is not in {where.module}",
                where=f"--data {data}",
                fix="name a function in it that yields batches",
            )
        value = getattr(value, part)
    if not callable(value):
        raise UsageError(
            f"'{where.attribute}' is no function", where=f"--data {data}", fix="name one that yields batches"
        )
    with loading.user_code(f"running {where.attribute}()"):
        given = value()
    if not isinstance(given, Iterable):
        raise DeclarationError(
            f"{where.attribute}() returned {type(given).__name__}, not batches",
            where=str(where),
            fix=f"yield {batches.example(spec)}",
        )
    return _yielded(iter(given), spec, f"{where.attribute}()")


def _yielded(given: Iterator[Any], spec: ModelSpec, name: str) -> Iterator[Arrays]:
    from aot.sources import loading

    number, end = 0, object()
    while True:
        with loading.user_code(f"running {name}"):
            batch = next(given, end)
        if batch is end:
            break
        yield _checked(batch, spec, f"batch {number} of {name}")
        number += 1
    if not number:
        raise CalibrationError(f"{name} yields no batch", where=name, fix=f"yield {batches.example(spec)}")


def _checked(batch: Any, spec: ModelSpec, where: str) -> Arrays:
    """The batch, if it fits. Raises CalibrationError, naming batch and input."""
    if isinstance(batch, Mapping):
        _check_names(batch, spec, where)
        for name, tensor in spec.inputs.items():
            dtype = getattr(getattr(batch[name], "dtype", None), "name", tensor.dtype)
            if dtype != tensor.dtype:
                raise CalibrationError(
                    f"expected {tensor.dtype}, got {dtype}",
                    where=f"{where}, input '{name}'",
                    fix=f"convert it: array.astype('{tensor.dtype}')",
                )
    return batches.checked(batch, spec, where)


def _check_names(batch: Mapping[str, Any], spec: ModelSpec, where: str) -> None:
    for said, wrong in (
        ("lacks", [name for name in spec.inputs if name not in batch]),
        ("has unknown", [str(name) for name in batch if name not in spec.inputs]),
    ):
        if wrong:
            raise CalibrationError(
                f"the data {said} {', '.join(wrong)}", where=where, fix=f"the inputs are {', '.join(spec.inputs)}"
            )
