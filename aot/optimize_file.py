"""`aot optimize`: an ONNX file becomes one of fewer nodes; whatever the passes do not know is left as it is."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from aot.errors import AotError, GraphError, UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

    from aot.graph_check import Check
    from aot.optimize import Optimized

_INLINE = 1 << 30
"""Bytes of weights up to which they are written into the file itself, where they were in the file before."""
_EXTERNAL = 1024
"""Bytes from which a weight is written beside the file, where they are."""


def optimize_file(
    source: Path,
    target: Path,
    *,
    narrow: bool = False,
    quantized: bool = False,
    operator: bool = False,
    without: Collection[str] = (),
    check: Check | None = None,
    fold_limit: int | None = None,
) -> tuple[Optimized, list[Path]]:
    """Write `source`, optimized, as `target`; both may be the same file. See `aot.optimize.optimize`.

    The model is brought to the opset that the passes write, where it is older and every node of it has a form there.
    Weights stay beside the file where they were, as do those of more than 1 GiB together; they go into
    `NAME.onnx.data`, or the first of `NAME.onnx.2.data`, ... that does not exist. No file of weights is ever removed,
    since any other model may read it: those that the model at `target` read before, and that neither it nor `source`
    reads now, are returned. Killed at any moment, what was at `target` before is whole, or what comes after it. Raises
    UsageError for a place that cannot be written, and GraphError for a file that is no whole and valid ONNX model.
    """
    from aot.optimize import chosen, optimize

    chosen(narrow=narrow, quantized=quantized, operator=operator, without=without)
    _check_place(target)
    model = _load(source, check)
    done = optimize(
        model,
        narrow=narrow,
        quantized=quantized,
        operator=operator,
        without=without,
        check=check,
        fold_limit=fold_limit,
    )
    before = _weights_of(target)
    _write(model, target, external=_is_external(model))
    return done, sorted(before - _weights_of(target) - _weights_of(source) if before else before)


def _load(source: Path, check: Check | None) -> ir.Model:
    """The model of a file, in the opset of the passes where it can be brought there."""
    from aot.graph import Pass, infer_shapes
    from aot.graph_shapes import forget_wrong_shapes
    from aot.graph_state import State
    from aot.onnx_input import OPSET
    from aot.onnx_input.loading import load
    from aot.onnx_input.opsets import upgrade

    model = load(source, inline=False)
    forget_wrong_shapes(model)
    if model.functions or model.opset_imports.get("", OPSET) >= OPSET:
        return model
    infer_shapes(model)
    before = State.of(model)
    try:
        upgrade(model, OPSET, str(source))
        infer_shapes(model)
        if check is not None:
            check(Pass("opset", lambda model, skip: 0, ""), before, State.of(model))
    except GraphError:
        # It is rewritten in place; what it was is in the file.
        model = load(source, inline=False)
        forget_wrong_shapes(model)
    return model


def _is_external(model: ir.Model) -> bool:
    """Whether the weights go beside the file."""
    import onnx_ir as ir

    weights = [value.const_value for graph in model.graphs() for value in graph.initializers.values()]
    held = sum(weight.nbytes for weight in weights if weight is not None)
    return held > _INLINE or any(isinstance(weight, ir.ExternalTensor) for weight in weights)


def _check_place(target: Path) -> None:
    folder = target.absolute().parent
    if not folder.is_dir():
        raise UsageError("the folder of the output does not exist", where=str(target), fix=f"mkdir -p {folder}")
    if target.is_dir():
        raise UsageError("the output is a folder", where=str(target), fix="give the name of a file, e.g. model.onnx")
    with _writing(target), TemporaryDirectory(dir=folder, prefix=".aot-"):
        pass


def _write(model: ir.Model, target: Path, *, external: bool) -> None:
    """Write into a folder beside `target`, check, and rename into place: the weights, then what refers to them."""
    import onnx
    import onnx_ir as ir

    link = target.resolve()
    data = _free_name(link) if external else None
    with _writing(target), TemporaryDirectory(dir=link.parent, prefix=".aot-") as folder:
        written = Path(folder) / link.name
        ir.save(model, written, external_data=data, size_threshold_bytes=_EXTERNAL)
        try:
            # By path: weights beside the file are looked for there, and may exceed the 2 GB of a protobuf.
            onnx.checker.check_model(str(written))
        except (onnx.checker.ValidationError, ValueError) as error:
            raise GraphError(
                f"the optimized model is not valid: {str(error).strip().splitlines()[0]}",
                where=str(target),
                fix="nothing was written; where the file itself passes onnx.checker.check_model, this is a bug of aot",
            ) from error
        if data is None:
            os.replace(written, link)
        else:
            _put_in_place(written, link, Path(folder) / data)


def _put_in_place(written: Path, target: Path, weights: Path) -> None:
    """Rename the weights, where there are any, then the file that refers to them; stopped between, neither is there."""
    beside = target.parent / weights.name
    try:
        if weights.exists() and weights.stat().st_size:  # onnx-ir leaves an empty one where no weight is large enough
            os.replace(weights, beside)
        os.replace(written, target)
    finally:
        if written.exists() and not weights.exists():
            beside.unlink(missing_ok=True)


def _weights_of(path: Path) -> set[Path]:
    """The files beside an ONNX file that hold its weights."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    path = path.resolve()
    try:
        graph = onnx.load(str(path), load_external_data=False).graph
    except (OSError, DecodeError):
        return set()
    outside = (weight for weight in graph.initializer if weight.data_location == onnx.TensorProto.EXTERNAL)
    named = {entry.value for weight in outside for entry in weight.external_data if entry.key == "location"}
    return {path.parent / name for name in named if (path.parent / name).is_file()}


def _free_name(target: Path) -> str:
    """A name for the weights of `target` that no file has: what is there may still be referred to."""
    name, count = f"{target.name}.data", 1
    while (target.parent / name).exists():
        count += 1
        name = f"{target.name}.{count}.data"
    return name


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except AotError:
        raise
    except OSError as error:
        raise UsageError(
            f"cannot write the output: {error.strerror or error}",
            where=str(error.filename or target),
            fix="make room, change the permissions, or give another place",
        ) from error
