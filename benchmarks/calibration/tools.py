"""The tools, each as its documentation has it: from a file and a folder of batches to the quantized file.

Nothing here is imported before a tool needs it, so that the memory of a process is its tool's alone; ModelOpt, which
pins other versions of onnx and onnxruntime, runs in an environment of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

Run = Callable[[Path, Path, Path], "float | None"]
PER_CHANNEL = 13
"""The first opset whose DequantizeLinear has a scale for each channel; onnxruntime does not raise older files to it."""


@dataclass(frozen=True)
class Tool:
    """prepare: imports all it needs, and returns the function (file, folder of batches, target) that quantizes.

    It returns the seconds of calibration alone (runs, and ranges from what was seen; making the session is left out),
    None where it does not tell.
    precision: `int8`, `fp8`, or `fp32` for a plain forward pass. apart: in ModelOpt's environment.
    """

    precision: str
    prepare: Callable[[], Run]
    apart: bool = False


def _forward() -> Run:
    """onnxruntime on the CPU over the same batches; making the session is not counted."""
    import numpy as np
    import onnxruntime as ort

    def run(file: Path, batches: Path, _: Path) -> float:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        started = time.perf_counter()
        for path in sorted(batches.glob("*.npz")):
            session.run(None, dict(np.load(path)))
        return time.perf_counter() - started

    return run


def _aot(recipe: str, calibrator: str | None = None, *, strict: bool = True) -> Run:
    """`aot quantize` without its comparison, which the others do not make. calibrator: in the place of the recipe's,
    and nothing is done to weights but rounding them, as the others have it. strict: False lets what no kernel takes
    stay wide, where the recipe refuses the model.
    """
    from aot import content
    from aot.backends.onnxruntime_tap import Tap
    from aot.config import Recipe, Weights, load
    from aot.quantize_file import quantize_file

    for needed in ("onnxruntime", "aot.observe", "aot.observing"):
        import_module(needed)
    chosen = load(Recipe, content.find("calib", recipe))
    if calibrator is not None:
        from aot.calibrator import get

        get(calibrator)  # unknown: said before anything else
        chosen = chosen.model_copy(update={"calibrator": calibrator, "weights": Weights()})
    if not strict:
        chosen = chosen.model_copy(update={"strict": False})

    def run(file: Path, batches: Path, target: Path) -> float:
        with _within(Tap, "__init__") as making:
            done = quantize_file(file, target, chosen, data=str(batches), compare=False)
        return done.calibration_seconds - making[0]

    return run


def _onnxruntime(method: str) -> Run:
    """quantize_static after its own pre-processing, in the form that TensorRT takes: symmetric, per channel."""
    import onnx.version_converter
    from onnxruntime.quantization import CalibrationMethod, quant_pre_process, quantize_static

    module = import_module("onnxruntime.quantization.quantize")  # the package's `quantize` is a function

    def run(file: Path, batches: Path, target: Path) -> float:
        prepared = target.with_name("prepared.onnx")
        model = onnx.load(file)
        if next(opset.version for opset in model.opset_import if not opset.domain) < PER_CHANNEL:
            file = target.with_name("raised.onnx")
            onnx.save(onnx.version_converter.convert_version(model, PER_CHANNEL), file)
        quant_pre_process(
            str(file),
            str(prepared),
            skip_symbolic_shape=True,  # its own inference of symbolic shapes fails on transformers
            save_as_external_data=True,
            external_data_location="prepared.data",
        )
        with _clock(module, "create_calibrator") as spent:
            quantize_static(
                str(prepared),
                str(target),
                _reader(batches),
                per_channel=True,
                op_types_to_quantize=["MatMul", "Gemm", "Conv", "ConvTranspose"],
                calibrate_method=getattr(CalibrationMethod, method),
                extra_options={"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False},
                use_external_data_format=True,
            )
        return spent[0]

    return run


def _modelopt(mode: str, method: str) -> Run:
    from modelopt.onnx.quantization import ort_patching, quantize  # type: ignore[import-not-found]

    def run(file: Path, batches: Path, target: Path) -> float:
        with _clock(ort_patching, "_create_calibrator_with_extra_options") as spent:
            quantize(
                str(file),
                quantize_mode=mode,
                calibration_method=method,
                calibration_data_reader=_reader(batches),
                calibration_eps=["cpu"],
                use_external_data_format=True,
                output_path=str(target),
                log_level="ERROR",
            )
        return spent[0]

    return run


def _reader(batches: Path) -> Any:
    """The batches as both peers read them: one by one, from the disk."""
    import numpy as np
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.paths = sorted(batches.glob("*.npz"))
            self.rewind()

        def get_next(self) -> dict[str, Any] | None:
            path = next(self.left, None)
            return None if path is None else dict(np.load(path))

        def get_first(self) -> dict[str, Any]:
            return dict(np.load(self.paths[0]))

        def rewind(self) -> None:
            self.left = iter(self.paths)

        def __len__(self) -> int:
            return len(self.paths)

        def set_range(self, start_index: int, end_index: int) -> None:
            self.left = iter(self.paths[start_index:end_index])

    return Reader()


@contextmanager
def _clock(module: Any, factory: str) -> Iterator[list[float]]:
    """Seconds spent in `collect_data` and `compute_data` of the calibrators that `module.factory` makes."""
    make, watch = getattr(module, factory), _Watch()

    def made(*given: Any, **named: Any) -> Any:
        calibrator = make(*given, **named)
        for name in ("collect_data", "compute_data"):
            setattr(calibrator, name, watch.timed(getattr(calibrator, name)))
        return calibrator

    with _instead(module, factory, made):
        yield watch.spent


@contextmanager
def _within(owner: Any, name: str) -> Iterator[list[float]]:
    """Seconds spent in calls of `owner.name`."""
    watch = _Watch()
    with _instead(owner, name, watch.timed(getattr(owner, name))):
        yield watch.spent


@contextmanager
def _instead(owner: Any, name: str, other: Any) -> Iterator[None]:
    """`owner.name` is `other` for a while."""
    own = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, own)


class _Watch:
    """The seconds that some functions take, those counted once of which one calls the other."""

    def __init__(self) -> None:
        self.spent, self._inside = [0.0], 0

    def timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted."""

        def run(*given: Any, **named: Any) -> Any:
            started = time.perf_counter()
            self._inside += 1
            try:
                return work(*given, **named)
            finally:
                self._inside -= 1
                if not self._inside:
                    self.spent[0] += time.perf_counter() - started

        return run


HISTOGRAMS = ("percentile", "entropy", "mse", "output_error")
"""aot's calibrators that look at more than extremes."""
TIMED: dict[str, Tool] = {
    "forward": Tool("fp32", _forward),
    **{f"aot-{name}": Tool("int8", partial(_aot, "int8", name)) for name in ("max", *HISTOGRAMS)},
    "aot-int8": Tool("int8", partial(_aot, "int8")),
    "onnxruntime-minmax": Tool("int8", partial(_onnxruntime, "MinMax")),
    "onnxruntime-entropy": Tool("int8", partial(_onnxruntime, "Entropy")),
    "onnxruntime-percentile": Tool("int8", partial(_onnxruntime, "Percentile")),
    "modelopt-max": Tool("int8", partial(_modelopt, "int8", "max"), apart=True),
    "modelopt-entropy": Tool("int8", partial(_modelopt, "int8", "entropy"), apart=True),
    "modelopt-fp8": Tool("fp8", partial(_modelopt, "fp8", "max"), apart=True),
}
JUDGED: dict[str, Tool] = {
    "aot-int8": TIMED["aot-int8"],
    "aot-int8-smooth": Tool("int8", partial(_aot, "int8-smooth")),
    "aot-int8-all": Tool("int8", partial(_aot, "int8-strict", strict=False)),
    "onnxruntime-minmax": TIMED["onnxruntime-minmax"],
    "onnxruntime-entropy": TIMED["onnxruntime-entropy"],
    "modelopt-int8-max": TIMED["modelopt-max"],
    "modelopt-int8-entropy": TIMED["modelopt-entropy"],
    "aot-fp8": Tool("fp8", partial(_aot, "fp8")),
    "aot-fp8-adaptive": Tool("fp8", partial(_aot, "fp8-adaptive")),
    "aot-fp8-convolutions": Tool("fp8", partial(_aot, "fp8-convolutions")),
    "aot-fp8-all": Tool("fp8", partial(_aot, "fp8-strict", strict=False)),
    "modelopt-fp8-max": TIMED["modelopt-fp8"],
    "modelopt-fp8-entropy": Tool("fp8", partial(_modelopt, "fp8", "entropy"), apart=True),
}
