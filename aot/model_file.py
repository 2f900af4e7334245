"""An ONNX file that becomes another: what may be read, what stays as it was, and writing it whole or not at all."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from aot.errors import AotError, GraphError, UsageError

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

_INLINE = 1 << 30
"""Bytes of weights up to which they are written into the file itself, where they were in the file before."""
_EXTERNAL = 1024
"""Bytes from which a weight is written beside the file, where they are."""
_IR_VERSION = b"\x08"
"""The key of ModelProto's first field in the encoding of protobuf: number 1, a varint."""
_OTHER = {
    ".py": "declares a model",
    ".pt2": "is an exported program",
    ".aot": "is an artifact",
    ".tar": "is an artifact",
    **dict.fromkeys((".pt", ".pth", ".safetensors", ".ckpt", ".bin", ".data"), "holds weights"),
}
"""What a file of another form is, by its suffix."""


@dataclass(frozen=True)
class Stated:
    """What a file states of an input or output."""

    shape: ir.Shape | None
    type: ir.TypeProtocol | None
    doc_string: str | None
    metadata: dict[str, str]

    @classmethod
    def of(cls, value: ir.Value) -> Stated:
        """As it stands now."""
        return cls(value.shape, value.type, value.doc_string, dict(value.metadata_props))


def ends(model: ir.Model) -> list[ir.Value]:
    """Inputs, then outputs."""
    return [*model.graph.inputs, *model.graph.outputs]


def restore(model: ir.Model, stated: list[Stated]) -> None:
    """Inputs and outputs are described as in the file.

    One of no stated rank keeps what was inferred, its made-up names left out.
    """
    import onnx_ir as ir

    from aot.graph.inference import made_up

    for value, was in zip(ends(model), stated, strict=True):
        if was.shape is not None:
            value.shape = was.shape
        elif value.shape is not None:
            sizes = [size if isinstance(size, int) else size.value for size in value.shape]
            value.shape = ir.Shape([size if isinstance(size, int) or not made_up(size) else None for size in sizes])
        value.type = was.type or value.type
        value.doc_string = was.doc_string
        value.metadata_props.clear()
        value.metadata_props.update(was.metadata)


def is_external(model: ir.Model) -> bool:
    """Whether the weights go beside the file."""
    import onnx_ir as ir

    weights = [value.const_value for graph in model.graphs() for value in graph.initializers.values()]
    held = sum(weight.nbytes for weight in weights if weight is not None)
    return held > _INLINE or any(isinstance(weight, ir.ExternalTensor) for weight in weights)


def check_source(source: Path, takes: str) -> None:
    """Raise UsageError for what cannot be an ONNX file, told without opening it. takes: what the command takes."""
    name, folder = str(source), source.parent
    # os.path, since Path raises for names that are too long.
    if os.path.exists(source):
        if source.suffix in _OTHER:
            raise UsageError(f"'{name}' {_OTHER[source.suffix]}; it is not an ONNX file", fix=takes)
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


def check_place(source: Path, target: Path) -> None:
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
        if link.exists() and any(link.samefile(weights) for weights in weights_of(source)):
            raise UsageError(
                "the output holds weights of the input", where=str(target), fix="give another name, e.g. model.onnx"
            )
        if link.exists() and not _may_be_onnx(link):
            raise UsageError(
                "will not overwrite what is not an ONNX file",
                where=str(target),
                fix="give another name, e.g. model.onnx, or remove it first",
            )
        with TemporaryDirectory(dir=link.parent, prefix=".aot-"):
            pass


def _may_be_onnx(file: Path) -> bool:
    """Whether a file is named as one, is empty, or begins with the field that every exporter writes first."""
    with file.open("rb") as opened:
        return file.suffix == ".onnx" or opened.read(1) in (b"", _IR_VERSION)


def write(model: ir.Model, target: Path, *, external: bool, judge: Callable[[Path], None] | None = None) -> None:
    """Write into a folder beside `target`, check, and rename into place: the weights, then what refers to them.

    judge: looks at the file before it takes its place; what it raises leaves everything as it was.
    """
    import onnx
    import onnx_ir as ir

    link = Path(os.path.realpath(target))
    data = _free_name(link) if external else None
    with workplace(target) as folder:
        written = folder / link.name
        ir.save(model, written, external_data=data, size_threshold_bytes=_EXTERNAL)
        try:
            _check(written, shapeless=_shapeless(model))
        except (onnx.checker.ValidationError, ValueError) as error:
            raise GraphError(
                f"the new model is not valid: {str(error).strip().splitlines()[0]}",
                where=str(target),
                fix="nothing was written; where the file itself passes onnx.checker.check_model, this is a bug of aot",
            ) from error
        if judge is not None:
            judge(written)
        if data is None:
            os.replace(written, link)
        else:
            _put_in_place(written, link, folder / data)


def _shapeless(model: ir.Model) -> list[str | None]:
    """The names of the inputs and outputs that are tensors of no stated rank."""
    import onnx_ir as ir

    return [value.name for value in ends(model) if isinstance(value.type, ir.TensorType) and value.shape is None]


def _check(file: Path, shapeless: Sequence[str | None]) -> None:
    """onnx's checker on a file. It is told that `shapeless` inputs and outputs, which runtimes take, are numbers."""
    import onnx

    if shapeless:
        model = onnx.load(file, load_external_data=False)
        for value in (*model.graph.input, *model.graph.output):
            if value.name in shapeless:
                value.type.tensor_type.shape.SetInParent()
        file = file.with_name(f"checked-{file.name}")
        onnx.save(model, file)
    # By path: weights beside the file are looked for there, and may exceed the 2 GB of a protobuf.
    onnx.checker.check_model(str(file))


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


def left_behind(source: Path, target: Path) -> list[Path]:
    """The files of weights that the model at `target` reads and a new one there, made from `source`, will not.

    Weights go into a file that was not there, so whatever was read before no longer is.
    """
    left = weights_of(target)
    if left and not source.samefile(target):
        left -= weights_of(source)
    return sorted(left)


def weights_of(path: Path) -> set[Path]:
    """The files beside an ONNX file that hold its weights."""
    import onnx

    from aot.onnx_input.reading import proto_of
    from aot.onnx_input.vetting import vet

    path = Path(os.path.realpath(path))
    try:
        vet(path)
        graph = proto_of(path).graph
    except GraphError:
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
def workplace(target: Path) -> Iterator[Path]:
    """A folder beside `target` for what is made on the way; gone afterwards. Raises UsageError for a full disk."""
    with _writing(target), TemporaryDirectory(dir=Path(os.path.realpath(target)).parent, prefix=".aot-") as folder:
        yield Path(folder)


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except AotError:
        raise
    except OSError as error:
        raise UsageError(
            f"cannot write the output: {error.strerror or error}",
            where=str(target),
            fix="make room, change the permissions, or give another place",
        ) from error
