"""A model that is ONNX already: `x.onnx`, with or without external data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.errors import GraphError
from aot.records import MODEL
from aot.source import Runner
from aot.sources.dims import Found, identifier
from aot.sources.file import FileSource, Tensor

if TYPE_CHECKING:
    import onnx_ir as ir

OPSET = 20
"""Older models are converted up to this: the first that has everything the later stages write."""


class OnnxFile(FileSource):
    """An ONNX file. Its Dims are its named dimensions; an unnamed one, or `?`, is unlike every other."""

    tools = ("onnx", "onnx-ir", "onnxscript", "onnxruntime")
    _loaded: ir.Model | None = None

    def _model(self) -> ir.Model:
        if self._loaded is None:
            import onnx
            import onnx_ir as ir

            from aot.frontend import origins

            try:
                onnx.checker.check_model(str(self.path))
                model = ir.load(self.path)
                for weight in model.graph.initializers.values():
                    if weight.const_value is not None:
                        weight.const_value.numpy()
            except (onnx.checker.ValidationError, OSError, ValueError, TypeError) as error:
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                raise GraphError(
                    f"not a whole ONNX model: {lines[0] if lines else type(error).__name__}",
                    where=str(self.path),
                    fix="export or copy it again, external data beside it",
                ) from error
            for name in [v.name for v in model.graph.inputs if v.name in model.graph.initializers]:
                # Before IR version 4 weights were listed among the inputs as well.
                model.graph.inputs[:] = [v for v in model.graph.inputs if v.name != name]
            origins.write_from_file(model, self.path, self.project)
            self._loaded = model
        return self._loaded

    def files(self) -> list[Path]:
        """The ONNX file and its external data."""
        import onnx_ir as ir

        weights = (value.const_value for value in self._model().graph.initializers.values())
        external = {Path(weight.path).resolve() for weight in weights if isinstance(weight, ir.ExternalTensor)}
        return [self.path, *sorted(external)]

    def describe(self) -> list[Tensor]:
        """Raises GraphError for an input that is not a tensor or whose rank is unknown."""
        tensors = []
        for value in self._model().graph.inputs:
            name = str(value.name)
            if value.shape is None or value.dtype is None:
                raise GraphError(
                    f"input '{name}' is not a tensor of known rank",
                    where=str(self.path),
                    fix="export the model again with tensors as its only inputs, their ranks known",
                )
            shape = [
                size if isinstance(size, int) else Found(_name(size.value, name, axis), name, axis)
                for axis, size in enumerate(value.shape)
            ]
            tensors.append(Tensor(name, _DTYPES.get(value.dtype.name, value.dtype.name.lower()), shape))
        return tensors

    def write_onnx(self, folder: Path) -> Mapping[str, Any]:
        """Write the model in opset 20 or later, dims named, shapes inferred. Raises GraphError where that fails."""
        import onnx_ir as ir
        from onnx_ir.passes.common import ShapeInferencePass

        _refuse_nan(self._model(), str(self.path))
        model = _upgraded(self._model(), str(self.path))
        self._loaded = None  # converted in place
        graph = model.graph
        for value in graph.inputs:
            assert value.shape is not None
            declared = self.spec.inputs[str(value.name)].shape
            value.shape = ir.Shape([size if isinstance(size, int) else size.name for size in declared])
        model = ShapeInferencePass()(model).model
        ir.save(model, folder / MODEL, external_data=f"{MODEL}.data")
        outputs = [str(value.name) for value in model.graph.outputs]
        return {"nodes": len(model.graph), "opset": model.opset_imports[""], "outputs": outputs}

    def eager(self) -> Runner:
        """onnxruntime on the file as it was given."""
        from aot.backends.onnxruntime import OnnxRuntime

        return OnnxRuntime().open(self.path, self.spec, ())


_DTYPES = {"FLOAT": "float32", "DOUBLE": "float64"}


def _name(symbol: str | None, tensor: str, axis: int) -> str:
    """A Dim's name for an axis. Two axes called `?`, or nothing, are not known to be equal."""
    if not symbol or not any(letter.isalnum() for letter in symbol) or symbol.startswith("unk__"):
        return identifier(f"{tensor}_{axis}")
    return identifier(symbol)


def _refuse_nan(model: ir.Model, where: str) -> None:
    """Raise GraphError for a weight that holds NaN. Infinity may stand in a mask."""
    import numpy as np

    for name, value in model.graph.initializers.items():
        weight = value.const_value
        if weight is None or not weight.dtype.is_floating_point():
            continue
        if np.isnan(weight.numpy().astype(np.float32, copy=False)).any():
            raise GraphError(f"weight '{name}' holds NaN", where=where, fix="export the model from other weights")


def _upgraded(model: ir.Model, where: str) -> ir.Model:
    before = model.opset_imports.get("")
    if before is None or before >= OPSET:
        return model
    import onnx
    from onnxscript import version_converter

    from aot.frontend.constraints import silenced

    try:
        silenced(lambda: version_converter.convert_version(model, OPSET, fallback=True))
    except (onnx.version_converter.ConvertError, RuntimeError, ValueError) as error:
        raise _stuck(before, where, str(error)) from error
    if model.opset_imports.get("") != OPSET:
        raise _stuck(before, where, f"the converter stopped at {model.opset_imports.get('')}")
    return model


def _stuck(before: int, where: str, reason: str) -> GraphError:
    said = " ".join(reason.split())[:300]
    return GraphError(
        f"opset {before} cannot be brought to {OPSET}: {said}",
        where=where,
        fix=f"export the model again with opset_version={OPSET}",
    )
