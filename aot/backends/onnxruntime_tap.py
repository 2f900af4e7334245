"""Reading the values inside a graph while onnxruntime runs it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.backends import _emulate
from aot.backends.onnxruntime import refused
from aot.runtime.sessions import errors

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto

    from aot.arrays import Arrays

# What the nodes that are added give: of each sample and channel the largest value; every n-th place of a feature map.
_LARGEST, _PLACES = "aot.largest:", "aot.places:"


class Tap:
    """A graph on the CPU that gives the named values inside it (or fed to it), whatever its own outputs are.

    largest: values [N, C, H, W] of which the graph itself takes the largest value of every channel, [N, C, 1, 1]; they
    come in its place. places: those of them of which a lattice is wanted as well, and its step. Both are pooling: it
    works in the layout that convolutions compute in, so that nothing is brought into another one to be looked at.

    The weights stay in their external file, so models over 2 GB work. FP16 and BF16 in the model's own code are
    emulated as everywhere (`_emulate.py`), and given as FP32. threads: of one run; several may run at a time. Raises
    GraphError for what onnxruntime does not take.
    """

    def __init__(
        self,
        model: Path,
        values: Sequence[str],
        largest: Collection[str] = (),
        places: Mapping[str, int] | None = None,
        threads: int = 0,
    ) -> None:
        import onnx

        import onnxruntime as ort

        proto = onnx.load(model, load_external_data=False)
        known = {value.name: value for value in (*proto.graph.output, *proto.graph.value_info)}
        if _emulate.is_narrow(model):
            proto, _ = _emulate.emulated(model)
            for value in known.values():
                _emulate.widen(value)
        computed = [name for name in values if name in known]
        self._fed = [name for name in values if name not in known]
        del proto.graph.output[:]
        proto.graph.output.extend(known[name] for name in computed if name not in largest)
        # What comes out, and the name it is given under.
        self._given = {name: name for name in computed if name not in largest}
        for name in computed:
            if name in largest:
                self._given[_pool(proto, _LARGEST, name)] = name
        self._sampled = {
            _pool(proto, _PLACES, name, step): name for name, step in (places or {}).items() if name in largest
        }
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(model.parent))
        try:
            self._session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except errors() as error:
            refused(model, error)
        self._inputs = {value.name for value in self._session.get_inputs()}

    def __call__(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> tuple[Arrays, Arrays]:
        """The named values for one batch, and the lattices of feature maps."""
        inputs = {name: _emulate.widened(array) for name, array in inputs.items()}
        found: Arrays = {name: inputs[name] for name in self._fed}
        sampled: Arrays = {}
        wanted = [*self._given, *self._sampled]
        if wanted:
            fed = {name: array for name, array in inputs.items() if name in self._inputs}
            for name, array in zip(wanted, self._session.run(wanted, fed), strict=True):
                if name in self._given:
                    found[self._given[name]] = array
                else:
                    sampled[self._sampled[name]] = array
        return found, sampled


def _pool(proto: ModelProto, kind: str, name: str, step: int = 0) -> str:
    """Add a pooling of the value to the graph's outputs: all of it, or one place in each window of `step`."""
    from onnx import TensorProto, helper

    made = f"{kind}{name}"
    if step:
        node = helper.make_node("MaxPool", [name], [made], made, kernel_shape=[1, 1], strides=[step, step])
    else:
        node = helper.make_node("GlobalMaxPool", [name], [made], made)
    proto.graph.node.append(node)
    proto.graph.output.append(helper.make_tensor_value_info(made, TensorProto.FLOAT, None))
    return made
