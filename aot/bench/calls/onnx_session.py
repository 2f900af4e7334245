"""An ONNX file on onnxruntime, with the options that it has without being asked, but for the number of threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import onnxruntime as ort

from aot.bench.contender import Call, Contender, Job
from aot.bench.tools import PROVIDERS
from aot.errors import TargetError

if TYPE_CHECKING:
    from aot.arrays import Arrays

_OPTIONS = {"TensorrtExecutionProvider": {"trt_fp16_enable": "1"}}


def make(job: Job) -> OnnxSession:
    """See `tools.make`."""
    provider = PROVIDERS[job.tool]
    if provider not in ort.get_available_providers():
        raise TargetError(f"this onnxruntime {ort.__version__} has no {provider}", fix="pip install onnxruntime-gpu")
    return OnnxSession(job, provider)


class OnnxSession(Contender):
    """One execution provider. TensorRT's computes in FP16 where that was asked for, the others as the file says."""

    def __init__(self, job: Job, provider: str) -> None:
        self._job, self._provider = job, provider
        self._narrow = provider in _OPTIONS and job.precision == "fp16"

    def load(self) -> None:
        """Raises TargetError where onnxruntime goes on with another provider, as it does without a word."""
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = self._job.threads
        chosen = (self._provider, _OPTIONS[self._provider]) if self._narrow else self._provider
        self._session = ort.InferenceSession(self._job.source, options, providers=[chosen])
        if self._session.get_providers()[0] != self._provider:
            raise TargetError(
                f"onnxruntime {ort.__version__} cannot load {self._provider} here, and would take the CPU"
            )
        dtypes = {put.type for put in self._session.get_inputs()}
        self.precision = "fp16" if self._narrow or "tensor(float16)" in dtypes else "fp32"
        where = "cpu" if self._provider == PROVIDERS["onnxruntime-cpu"] else "cuda"
        self.label = f"ONNX (onnxruntime {ort.__version__}, {where})"

    def place(self, inputs: Mapping[str, Any]) -> Call:
        """Arrays on the CPU, bound values on the GPU."""
        names = [put.name for put in self._session.get_inputs()]
        feed = {name: inputs[name] for name in names}
        if self._provider == PROVIDERS["onnxruntime-cpu"]:
            return _OnCpu(self._session, feed)
        return _OnGpu(self._session, feed)


class _OnCpu(Call):
    def __init__(self, session: ort.InferenceSession, feed: Mapping[str, Any]) -> None:
        self._session, self._feed = session, feed
        self._found: list[Any] = []

    def enqueue(self) -> None:
        self._found = self._session.run(None, self._feed)

    def outputs(self) -> Arrays:
        return {out.name: value for out, value in zip(self._session.get_outputs(), self._found, strict=True)}


class _OnGpu(Call):
    """`run_with_iobinding` waits for the GPU by itself."""

    def __init__(self, session: ort.InferenceSession, feed: Mapping[str, Any]) -> None:
        self._session = session
        self._binding = session.io_binding()
        for name, array in feed.items():
            self._binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
        for out in session.get_outputs():
            self._binding.bind_output(out.name, "cuda")

    def enqueue(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def outputs(self) -> Arrays:
        names = [out.name for out in self._session.get_outputs()]
        return dict(zip(names, self._binding.copy_outputs_to_cpu(), strict=True))
