"""A model that is ONNX already: `x.onnx`, with or without external data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from aot import content
from aot.declaration import DTYPES
from aot.errors import GraphError, UsageError
from aot.plugins.replacing import NOTHING, Replacing
from aot.records import MODEL
from aot.source import Runner
from aot.sources.dims import Found, identifier
from aot.sources.file import FileSource, Tensor
from aot.store import digest

if TYPE_CHECKING:
    import onnx_ir as ir

    from aot.onnx_input.plugin_calls import Calls

# FP64 is narrowed to FP32 wherever it stands.
_DTYPES = {"float": "float32", "double": "float32"}


class OnnxFile(FileSource):
    """An ONNX file. Its Dims are its named dimensions; an unnamed one, or `?`, is unlike every other."""

    tools: tuple[str, ...] = ("onnx", "onnx-ir", "onnxscript", "onnxruntime")
    suspects = (
        "the file may draw random numbers, or magnify rounding on inputs unlike those it is for: give integer inputs a "
        "sensible range with --dim NAME=MIN:OPT:MAX; --verify-passes says whether a rewrite of the graph is at fault, "
        "--without-pass NAME leaves it out"
    )
    _loaded: ir.Model | None = None
    _calls: Calls | None = None
    _ops: list[str]
    _folder: TemporaryDirectory[str] | None = None

    def _model(self) -> ir.Model:
        if self._loaded is None:
            from aot.frontend import origins
            from aot.onnx_input.loading import load
            from aot.onnx_input.plugin_calls import called, ops_of

            def kept(model: ir.Model) -> Collection[tuple[str, str]]:
                self._ops = ops_of(model)
                self._calls = called(model, content.names("plugins", self.project))
                return self._calls.headers

            self._loaded = load(self.path, kept)
            origins.write_from_file(self._loaded, self.path, self.project)
        return self._loaded

    def files(self) -> list[Path]:
        """The ONNX file and its external data."""
        import onnx_ir as ir

        weights = (value.const_value for value in self._model().graph.initializers.values())
        external = {Path(weight.path).resolve() for weight in weights if isinstance(weight, ir.ExternalTensor)}
        return [self.path, *sorted(external)]

    def ops(self) -> list[str]:
        """Of its nodes, and of those in its functions."""
        self._model()
        return self._ops

    def plugins_key(self, ops: Sequence[str]) -> str:
        """The plugins that implement nodes of the file, whose references their functions are made of."""
        names = {op.partition("::")[2] for op in ops} & content.names("plugins", self.project).keys()
        self.tools = (*OnnxFile.tools, "torch") if names else OnnxFile.tools
        return content.plugin_digest(self.project) if names else digest([])

    def describe(self) -> list[Tensor]:
        """Raises GraphError for an input that is not a tensor or whose rank is unknown."""
        import onnx_ir as ir

        for value in self._model().graph.outputs:
            dtype = value.dtype.name.lower() if value.dtype is not None else "of none"
            if value.type is not None and not isinstance(value.type, ir.TensorType):
                kind = type(value.type).__name__.removesuffix("Type").lower()
                dtype = f"a {kind}" if kind == "sequence" else f"of kind {kind}"
            if not isinstance(value.type, ir.TensorType) or _DTYPES.get(dtype, dtype) not in DTYPES:
                raise GraphError(
                    f"output '{value.name}' is {dtype}, which no engine gives",
                    where=str(self.path),
                    fix="cut the model before it, or export it with outputs of one of: " + ", ".join(DTYPES),
                )
        return inputs_of(self._model(), self.path)

    def write_onnx(self, folder: Path, replacing: Replacing = NOTHING) -> Mapping[str, Any]:
        """Write the model as `aot.onnx_input` prepares it: opset 20 or later, dims named, shapes inferred.

        facts also hold `warnings`, sentences on what is not as the file says, and `requantized`, whether quantized
        activations became float. Raises GraphError where the file cannot be brought into that form, UsageError where
        plugins are to replace something in it.
        """
        if replacing.asked:
            raise UsageError(
                "patterns of plugins are looked for in programs of torch, and this is an ONNX file",
                where=f"--plugin {replacing.asked[0]}",
                fix="leave it away, or build from the model that the file was exported from",
            )
        import onnx
        import onnx_ir as ir

        from aot import origins
        from aot.onnx_input import prepare
        from aot.stages.surgery import check_weights

        model = self._model()
        self._loaded = None  # rewritten in place
        check_weights(model)
        before = origins.by_value(model)
        done = prepare(model, self.spec.inputs, str(self.path), self._calls)
        origins.inherit(model, before)
        ir.save(model, folder / MODEL, external_data=f"{MODEL}.data")
        try:
            onnx.checker.check_model(str(folder / MODEL))
        except onnx.checker.ValidationError as error:
            raise GraphError(
                f"not a valid ONNX model: {str(error).strip().splitlines()[0]}",
                where=str(self.path),
                fix="export the model again; onnx.checker.check_model says what is wrong with it",
            ) from error
        return {
            "nodes": len(model.graph),
            "opset": model.opset_imports[""],
            "outputs": [str(value.name) for value in model.graph.outputs],
            "warnings": list(done.notes),
            "requantized": done.requantized,
        }

    def eager(self) -> Runner:
        """The file as it was given, on onnxruntime; on onnx's own evaluator where onnxruntime does not take it."""
        from aot.onnx_input.original import original

        return original(self._whole(), self.spec)

    def _whole(self) -> Path:
        """The file, or one like it in which nodes of plugins have functions, where they came without."""
        import onnx_ir as ir

        from aot.graph import infer_shapes
        from aot.onnx_input import declare
        from aot.onnx_input.plugin_calls import attach, lacking

        model = self._model()
        assert self._calls is not None
        if not lacking(model, self._calls):
            return self.path
        self._loaded = None
        declare(model, self.spec.inputs)
        infer_shapes(model)
        attach(model, self._calls, str(self.path))
        self._folder = TemporaryDirectory(prefix="aot-onnx-")
        whole = Path(self._folder.name) / MODEL
        ir.save(model, whole, external_data=f"{MODEL}.data")
        return whole


def inputs_of(model: ir.Model, path: Path) -> list[Tensor]:
    """The inputs of a loaded model, in order, FP64 ones as FP32.

    Raises GraphError for an input that is not a tensor or whose rank is unknown.
    """
    import onnx_ir as ir

    tensors = []
    names = _Names()
    for value in model.graph.inputs:
        name = str(value.name)
        if value.shape is None or value.dtype is None or not isinstance(value.type, ir.TensorType):
            raise GraphError(
                f"input '{name}' is not a tensor of known rank",
                where=str(path),
                fix="export the model again with tensors as its only inputs, their ranks known",
            )
        shape = [
            # A size of 0 or below is how some exporters say that they do not know it.
            size if isinstance(size, int) and size > 0 else Found(names(size, name, axis), name, axis)
            for axis, size in enumerate(value.shape)
        ]
        dtype = value.dtype.name.lower()
        tensors.append(Tensor(name, _DTYPES.get(dtype, dtype), shape))
    return tensors


class _Names:
    """Names of Dims: one for each symbol of the file, and one of its own for each axis that has none."""

    def __init__(self) -> None:
        self._taken: dict[str, object] = {}

    def __call__(self, size: int | ir.SymbolicDim, tensor: str, axis: int) -> str:
        symbol = None if isinstance(size, int) else size.value
        placeholder = not symbol or not any(letter.isalnum() for letter in symbol) or symbol.startswith("unk__")
        # Two axes called `?`, or nothing, are not known to be equal.
        key: object = (tensor, axis) if placeholder else symbol
        base = identifier(f"{tensor}_{axis}" if placeholder else str(symbol))
        name, count = base, 1
        while self._taken.setdefault(name, key) != key:
            count += 1
            name = f"{base}_{count}"
        return name
