"""`aot optimize`: an ONNX file becomes one of fewer nodes; whatever the passes do not know is left as it is."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from aot.errors import AotError, GraphError, UsageError

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from aot.graph_check import Check
    from aot.optimize import Optimized

_INLINE = 1 << 30
"""Bytes of weights up to which they are written into the file itself, where they were in the file before."""
_EXTERNAL = 1024
"""Bytes from which a weight is written beside the file, where they are."""
_OTHER = {
    ".py": "declares a model",
    ".pt2": "is an exported program",
    ".aot": "is an artifact",
    ".tar": "is an artifact",
    **dict.fromkeys((".pt", ".pth", ".safetensors", ".ckpt", ".bin", ".data"), "holds weights"),
}
"""What a file of another form is, by its suffix."""
_TAKES = "aot optimize takes an .onnx file; aot build takes model.py, x.pt2, x.onnx and prepared artifacts"


@dataclass(frozen=True)
class _Stated:
    """What a file states of an input or output."""

    shape: ir.Shape | None
    type: ir.TypeProtocol | None
    doc_string: str | None
    metadata: dict[str, str]

    @classmethod
    def of(cls, value: ir.Value) -> _Stated:
        return cls(value.shape, value.type, value.doc_string, dict(value.metadata_props))


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
    _check_source(source)
    _check_place(source, target)
    model, stated = _load(source, check)
    done = optimize(
        model,
        narrow=narrow,
        quantized=quantized,
        operator=operator,
        without=without,
        check=check,
        fold_limit=fold_limit,
    )
    _restore(model, stated)
    # Weights go into a file that was not there, so whatever was read before no longer is. Told before the writing,
    # after which nothing should take time.
    left = _weights_of(target)
    if left and not source.samefile(target):
        left -= _weights_of(source)
    _write(model, target, external=_is_external(model))
    return done, sorted(left)


def _load(source: Path, check: Check | None) -> tuple[ir.Model, list[_Stated]]:
    """The model of a file, in the opset of the passes where it can be brought there.

    With what the file states of its inputs and outputs, before anything is inferred.
    """
    from aot.graph import Pass, infer_shapes
    from aot.graph_shapes import forget_wrong_shapes
    from aot.graph_state import State
    from aot.onnx_input import OPSET
    from aot.onnx_input.loading import load
    from aot.onnx_input.opsets import upgrade

    model = load(source, inline=False)
    stated = [_Stated.of(value) for value in _ends(model)]
    forget_wrong_shapes(model)
    if model.functions or model.opset_imports.get("", OPSET) >= OPSET:
        return model, stated
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
    return model, stated


def _ends(model: ir.Model) -> list[ir.Value]:
    return [*model.graph.inputs, *model.graph.outputs]


def _restore(model: ir.Model, stated: list[_Stated]) -> None:
    """Inputs and outputs are described as in the file.

    One of no stated rank, which a valid file cannot have, keeps what was inferred, its made-up names left out.
    """
    import onnx_ir as ir

    from aot.graph_shapes import made_up

    for value, was in zip(_ends(model), stated, strict=True):
        if was.shape is not None:
            value.shape = was.shape
        elif value.shape is not None:
            sizes = [size if isinstance(size, int) else size.value for size in value.shape]
            value.shape = ir.Shape([size if isinstance(size, int) or not made_up(size) else None for size in sizes])
        value.type = was.type or value.type
        value.doc_string = was.doc_string
        value.metadata_props.clear()
        value.metadata_props.update(was.metadata)


def _is_external(model: ir.Model) -> bool:
    """Whether the weights go beside the file."""
    import onnx_ir as ir

    weights = [value.const_value for graph in model.graphs() for value in graph.initializers.values()]
    held = sum(weight.nbytes for weight in weights if weight is not None)
    return held > _INLINE or any(isinstance(weight, ir.ExternalTensor) for weight in weights)


def _check_source(source: Path) -> None:
    """Raise UsageError for what cannot be an ONNX file, told without opening it."""
    name, folder = str(source), source.parent
    # os.path, since Path raises for names that are too long.
    if os.path.exists(source):
        if source.suffix in _OTHER:
            raise UsageError(f"'{name}' {_OTHER[source.suffix]}; it is not an ONNX file", fix=_TAKES)
        if source.is_dir():
            raise UsageError(f"'{name}' is a folder, not a file", fix="name the ONNX file in it")
        if not source.is_file():
            raise UsageError(f"'{name}' is not a regular file", fix="write the model into a file first")
        return
    if not os.path.isdir(folder):
        raise UsageError(f"no such folder: {folder}", where=name, fix="check the path")
    stems = [path.stem for path in sorted(folder.glob("*.onnx")) if path.is_file()]
    near = difflib.get_close_matches(source.stem, stems, n=1, cutoff=0.7)
    raise UsageError(
        f"no such file: {name}", fix=f"did you mean '{folder / near[0]}.onnx'?" if near else "check the path"
    )


def _check_place(source: Path, target: Path) -> None:
    """Raise UsageError for a place where no file can be written, or where one must stay."""
    with _writing(target):
        link = Path(os.path.realpath(target))
        if not link.parent.is_dir():
            raise UsageError(
                "the folder of the output does not exist", where=str(target), fix=f"mkdir -p {link.parent}"
            )
        if link.exists() and not link.is_file():
            kind = "a folder, not" if link.is_dir() else "not"
            raise UsageError(
                f"the output is {kind} a regular file",
                where=str(target),
                fix="give the name of a file, e.g. model.onnx",
            )
        if link.exists() and any(link.samefile(weights) for weights in _weights_of(source)):
            raise UsageError(
                "the output holds weights of the input", where=str(target), fix="give another name, e.g. model.onnx"
            )
        with TemporaryDirectory(dir=link.parent, prefix=".aot-"):
            pass


def _write(model: ir.Model, target: Path, *, external: bool) -> None:
    """Write into a folder beside `target`, check, and rename into place: the weights, then what refers to them."""
    import onnx
    import onnx_ir as ir

    link = Path(os.path.realpath(target))
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

    path = Path(os.path.realpath(path))
    try:
        graph = onnx.load(str(path), load_external_data=False).graph
    except (OSError, DecodeError):
        return set()
    outside = (tensor for tensor in _tensors(graph) if tensor.data_location == onnx.TensorProto.EXTERNAL)
    named = {entry.value for tensor in outside for entry in tensor.external_data if entry.key == "location"}
    return {path.parent / name for name in named if (path.parent / name).is_file()}


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The weights of a graph and of its bodies, and the tensors that nodes hold."""
    yield from graph.initializer
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        yield from (attribute.t, *attribute.tensors)
        for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from _tensors(body)


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
