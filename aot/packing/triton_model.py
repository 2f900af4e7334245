"""A model of Triton's Python backend: copied as `1/model.py`, it runs the artifact beside it through `aot.load`.

The server provides `triton_python_backend_utils`; numpy, cuda-bindings and the engine's TensorRT have to be in its
Python environment. aot itself is in the wheel beside this file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

HERE = Path(__file__).parent


class TritonPythonModel:
    """One instance of the model: a session on its GPU."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the artifact, and make the first request as fast as the others. Raises AotError."""
        sys.path[:0] = [str(wheel) for wheel in HERE.glob("*.whl")]
        import aot

        config = json.loads(args["model_config"])
        self._joins = config["max_batch_size"] > 0
        engine = config.get("parameters", {}).get("engine", {}).get("string_value")
        self._error = aot.AotError
        self._session = aot.load(HERE / "artifact", engine=engine, device=int(args["model_instance_device_id"]))
        self._session.warm_up()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer requests; where the model has a batch, all of them in one call, since their shapes are alike."""
        if self._joins:
            return self._answered(requests)
        return [response for request in requests for response in self._answered([request])]

    def _answered(self, requests: Sequence[Any]) -> list[Any]:
        from aot.serving.joining import joined, split

        try:
            inputs = [self._inputs(request) for request in requests]
            if not self._joins:
                outputs = [self._session(inputs[0])]
            else:
                rows = [len(next(iter(one.values()))) for one in inputs]
                outputs = list(split(self._session(joined(inputs)), rows))
        except self._error as error:
            refusal = pb_utils.TritonError(" ".join(str(error).split()))
            return [pb_utils.InferenceResponse(output_tensors=[], error=refusal) for _ in requests]
        return [self._response(*pair) for pair in zip(requests, outputs, strict=True)]

    def _inputs(self, request: Any) -> dict[str, Any]:
        """The inputs of a request; a scalar comes as one element."""
        found = {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self._session.inputs}
        return {name: array if self._session.inputs[name].shape else array.reshape(()) for name, array in found.items()}

    def _response(self, request: Any, outputs: Mapping[str, Any]) -> Any:
        asked = set(request.requested_output_names())
        tensors = [
            pb_utils.Tensor(name, array if array.ndim else array.reshape(1))
            for name, array in outputs.items()
            if name in asked
        ]
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def finalize(self) -> None:
        """Give the GPU's memory back."""
        self._session.close()
