"""Two graphs of one model in one onnxruntime session, errors summed up inside it.

The session holds the first graph, the second (its names under `b/`), and once more the segments of the second that make
each paired value (under `lN/`), reading what the *first* graph computed, rounded to the dtype in which the second holds
it. Of each paired value only sums of squares leave the session, taken in FP64, so memory does not grow with the number
of layers. Of scores that Softmax reads, places that a mask has put out are left out: what is there changes nothing, and
is so large that nothing else would count. Narrow dtypes are emulated as everywhere (`_emulate.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.backends import _emulate
from aot.backends._graph import load_structure
from aot.backends.onnxruntime import evaluator
from aot.layers.pairing import Pair, Pairing, Value, describe, pair

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

SECOND = "b/"
_FLAT, _MASKED, _NONE = "aot/flat", "aot/masked", "aot/none"
# At such a score and below exp is 0, in any dtype and for any other scores that a network has.
_OUT = -1e4


@dataclass(frozen=True)
class Sums:
    """Of one value over all its elements, in FP64. first, second: sum of a^2 and of b^2. product: of ab. error: of
    (b - a)^2. added: of (l - a)^2 where l is what the second graph's layer makes of the first's values; None where
    that cannot be said. shape: of the value."""

    first: float
    second: float
    product: float
    error: float
    added: float | None
    shape: tuple[int, ...]

    def __add__(self, other: Sums) -> Sums:
        added = None if self.added is None or other.added is None else self.added + other.added
        return Sums(
            self.first + other.first,
            self.second + other.second,
            self.product + other.product,
            self.error + other.error,
            added,
            other.shape,
        )


class SideBySide:
    """Both graphs, loaded. Raises GraphError for what onnx cannot read, EngineError for what onnxruntime cannot run."""

    def __init__(self, first: Path, second: Path) -> None:
        import onnx

        values = [_described(path) for path in (first, second)]
        one, two = _same_opset(_loaded(first), _loaded(second), second)
        self.pairing: Pairing = pair(one.graph, two.graph, *values)
        self._layout: list[tuple[Pair, bool]] = []
        model = self._joined(one, two, values[1])
        self._floats = {v.name: v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT for v in model.graph.input}
        self._run = evaluator(model)

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Sums]:
        """The sums of every pair for one batch of inputs."""
        import numpy as np

        fed = {
            name: np.asarray(inputs[name], np.float32) if is_float else inputs[name]
            for name, is_float in self._floats.items()
        }
        found = iter(self._run(fed))
        sums = {}
        for one, local in self._layout:
            a, b, ab, error = (float(next(found)) for _ in range(4))
            added = float(next(found)) if local else None
            sums[one.value] = Sums(a, b, ab, error, added, tuple(int(size) for size in next(found)))
        return sums

    def _joined(self, one: ModelProto, two: ModelProto, values: Mapping[str, Value]) -> ModelProto:
        import numpy as np
        import onnx
        from onnx import compose, numpy_helper

        fed = {value.name for value in one.graph.input}
        segments = {p.value: [_copy(node) for node in p.segment or ()] for p in self.pairing.pairs}
        second = compose.add_prefix_graph(two.graph, SECOND, rename_inputs=False, inplace=True)
        model = onnx.ModelProto(ir_version=max(one.ir_version, two.ir_version))
        model.opset_import.extend(one.opset_import)
        domains = {entry.domain for entry in one.opset_import}
        model.opset_import.extend(entry for entry in two.opset_import if entry.domain not in domains)
        graph = model.graph
        graph.name = "pair"
        graph.input.extend(one.graph.input)
        graph.input.extend(value for value in second.input if value.name not in fed)
        graph.initializer.extend(one.graph.initializer)
        graph.initializer.extend(second.initializer)
        own = {_FLAT: np.array([-1]), _MASKED: np.array(_OUT), _NONE: np.array(0.0)}
        graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in own.items())
        graph.node.extend(one.graph.node)
        graph.node.extend(second.node)
        weights = {tensor.name for tensor in second.initializer}
        rounded: dict[str, str] = {}
        for number, paired in enumerate(self.pairing.pairs):
            segment = segments[paired.value]
            for name in paired.reads:
                if name not in rounded:
                    rounded[name] = _round(graph, name, values.get(name))
            graph.node.extend(_local(segment, f"l{number}/", rounded, weights))
            self._layout.append((paired, bool(segment)))
            _reduce(graph, paired, f"l{number}/{paired.value}" if segment else None)
        return model


def _copy(node: NodeProto) -> NodeProto:
    from onnx import NodeProto

    copied = NodeProto()
    copied.CopyFrom(node)
    return copied


def _local(nodes: list[NodeProto], prefix: str, rounded: Mapping[str, str], weights: set[str]) -> Iterator[NodeProto]:
    """The nodes of a segment under names of their own, reading the first graph's values and the second's weights."""
    inner = {name for node in nodes for name in node.output if name}
    for node in nodes:
        for i, name in enumerate(node.input):
            if name in inner:
                node.input[i] = prefix + name
            elif SECOND + name in weights:
                node.input[i] = SECOND + name
            elif name:
                node.input[i] = rounded[name]
        for i, name in enumerate(node.output):
            node.output[i] = name and prefix + name
        node.name = node.name and prefix + node.name
        yield node


def _round(graph: GraphProto, name: str, value: Value | None) -> str:
    """The name of the first graph's value as the second holds it."""
    from onnx import TensorProto, helper

    if value is None or value.narrow is None:
        return name
    kind = TensorProto.FLOAT16 if value.narrow == "float16" else TensorProto.BFLOAT16
    graph.node.append(helper.make_node("Cast", [name], [f"aot/{name}/narrow"], to=kind))
    graph.node.append(helper.make_node("Cast", [f"aot/{name}/narrow"], [f"aot/{name}/rounded"], to=TensorProto.FLOAT))
    return f"aot/{name}/rounded"


def _reduce(graph: GraphProto, pair: Pair, local: str | None) -> None:
    """Outputs of one pair, in the order in which `SideBySide` reads them."""
    from onnx import TensorProto, helper

    value = pair.value

    def add(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        graph.node.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def wide(name: str) -> str:
        add("Reshape", [name, _FLAT], f"aot/flat/{name}")
        return add("Cast", [f"aot/flat/{name}"], f"aot/wide/{name}", to=TensorProto.DOUBLE)

    def flat(name: str) -> str:
        return add("Where", [seen, wide(name), _NONE], f"aot/seen/{name}") if pair.scores else wide(name)

    def out(name: str, kind: int = TensorProto.DOUBLE) -> None:
        graph.output.append(helper.make_tensor_value_info(name, kind, None))

    a = wide(value)
    if pair.scores:
        seen = add("Greater", [a, _MASKED], f"aot/places/{value}")
        a = add("Where", [seen, a, _NONE], f"aot/seen/{value}")
    b = flat(SECOND + value)
    error = add("Sub", [b, a], f"aot/error/{value}")
    for name, both in (("aa", [a, a]), ("bb", [b, b]), ("ab", [a, b]), ("ee", [error, error])):
        out(add("MatMul", both, f"aot/{name}/{value}"))
    if local is not None:
        added = add("Sub", [flat(local), a], f"aot/added/{value}")
        out(add("MatMul", [added, added], f"aot/dd/{value}"))
    out(add("Shape", [value], f"aot/shape/{value}"), TensorProto.INT64)


def _loaded(path: Path) -> ModelProto:
    """The model as it is run on the CPU: weights loaded, narrow dtypes emulated, functions inlined."""
    import onnx
    from onnx import inliner

    if _emulate.is_narrow(path):
        return _emulate.emulated(path)[0]
    model = inliner.inline_local_functions(load_structure(path))
    onnx.load_external_data_for_model(model, str(path.parent))
    return model


def _described(path: Path) -> dict[str, Value]:
    from onnx import inliner, shape_inference

    return describe(shape_inference.infer_shapes(inliner.inline_local_functions(load_structure(path))).graph)


def _same_opset(one: ModelProto, two: ModelProto, where: Path) -> tuple[ModelProto, ModelProto]:
    """Both in the newer of their opsets. Raises GraphError for a node that has no form in it."""
    versions = [next((e.version for e in m.opset_import if e.domain in ("", "ai.onnx")), 1) for m in (one, two)]
    newer = max(versions)

    def raised(model: ModelProto, version: int) -> ModelProto:
        if version == newer:
            return model
        import onnx_ir as ir

        from aot.onnx_input.opsets import upgrade

        wider = ir.from_proto(model)
        upgrade(wider, newer, str(where))
        return ir.to_proto(wider)

    return raised(one, versions[0]), raised(two, versions[1])
