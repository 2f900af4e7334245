"""Reading the values inside a graph while onnxruntime runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.backends import _emulate
from aot.backends.onnxruntime import errors, refused

if TYPE_CHECKING:
    import numpy as np

    from aot.arrays import Arrays


class Tap:
    """A graph on the CPU that gives the named values inside it (or fed to it), whatever its own outputs are.

    The weights stay in their external file, so models over 2 GB work. FP16 and BF16 in the model's own code are
    emulated as everywhere (`_emulate.py`), and given as FP32. Raises GraphError for what onnxruntime does not take.
    """

    def __init__(self, model: Path, values: Sequence[str]) -> None:
        import onnx

        import onnxruntime as ort

        proto = onnx.load(model, load_external_data=False)
        known = {value.name: value for value in (*proto.graph.output, *proto.graph.value_info)}
        if _emulate.is_narrow(model):
            proto, _ = _emulate.emulated(model)
            for value in known.values():
                _emulate.widen(value)
        self._values = [name for name in values if name in known]
        self._fed = [name for name in values if name not in known]
        del proto.graph.output[:]
        proto.graph.output.extend(known[name] for name in self._values)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(model.parent))
        try:
            self._session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except errors() as error:
            refused(model, error)
        self._inputs = {value.name for value in self._session.get_inputs()}

    def __call__(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
        """The named values for one batch."""
        found: Arrays = {name: inputs[name] for name in self._fed}
        if self._values:
            fed = {name: array for name, array in inputs.items() if name in self._inputs}
            found |= zip(self._values, self._session.run(self._values, fed), strict=True)
        return found
