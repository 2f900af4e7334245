"""Which values of two graphs are the same quantity, and what the second computes each from.

Values are paired by name: surgery's names stay through Q/DQ and casts (`aot.precision`), which call what they add
`NAME_quantized`, `NAME_dequantized`, `NAME_fp32`. Values whose channels smoothing or equalization has divided are no
longer the same and are left out: the layers that read them are then run from what comes before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

    from aot.origins import Origin

Dims = tuple[int | str | None, ...]


@dataclass(frozen=True)
class Value:
    """What is known of a value. narrow: it is FP16 or BF16, as numpy calls it. divided: its channels were divided."""

    is_float: bool
    narrow: str | None
    dims: Dims | None
    divided: bool = False


@dataclass(frozen=True)
class Pair:
    """A float value that both graphs compute, made by `node` of the first.

    segment: the nodes of the second that compute it from `reads`, in order; None where one of them holds a subgraph.
    reads: names of values that the first graph has as well, graph inputs among them. scores: only Softmax reads it.
    """

    value: str
    node: str
    op: str
    origin: Origin | None
    segment: tuple[NodeProto, ...] | None
    reads: tuple[str, ...]
    scores: bool = False


@dataclass(frozen=True)
class Pairing:
    """pairs: in the order of the first graph. common: every name that means the same in both, integers included.

    alone: how many float values each graph computes that the other has under no such name.
    """

    pairs: tuple[Pair, ...]
    common: frozenset[str]
    alone: tuple[int, int]


def pair(
    first: GraphProto, second: GraphProto, first_values: Mapping[str, Value], second_values: Mapping[str, Value]
) -> Pairing:
    """Pair the values of two graphs. The `*_values` describe them before any emulation (see `_emulate`)."""
    from aot.backends._graph import origin

    makers = {name: node for node in second.node for name in node.output if name}
    weights = {tensor.name for tensor in second.initializer}
    inputs = {value.name for value in first.input} & {value.name for value in second.input}
    made = [(name, node) for node in first.node for name in node.output if name]
    both = {name for name, _ in made if name in makers and _alike(first_values.get(name), second_values.get(name))}
    common = frozenset((both | inputs) - weights)
    readers: dict[str, set[str]] = {}
    for node in first.node:
        for name in node.input:
            readers.setdefault(name, set()).add(node.op_type)
    order = {id(node): place for place, node in enumerate(second.node)}
    pairs = []
    for name, node in made:
        if name not in both or not second_values[name].is_float:
            continue
        found = _segment(name, makers, common, weights)
        segment = None if found is None else tuple(sorted(found[0], key=lambda one: order[id(one)]))
        reads = () if found is None else found[1]
        scores = readers.get(name) == {"Softmax"}
        pairs.append(Pair(name, node.name or name, node.op_type, origin(node), segment, reads, scores))
    floats = [
        {name for node in graph.node for name in node.output if name in values and values[name].is_float}
        for graph, values in ((first, first_values), (second, second_values))
    ]
    paired = {one.value for one in pairs}
    return Pairing(tuple(pairs), common, (len(floats[0] - paired), len(floats[1] - paired)))


def _alike(one: Value | None, two: Value | None) -> bool:
    if one is None or two is None or one.is_float != two.is_float or one.divided != two.divided:
        return False
    if one.dims is None or two.dims is None:
        return True
    fixed = zip(one.dims, two.dims, strict=False)
    return len(one.dims) == len(two.dims) and all(a == b for a, b in fixed if isinstance(a, int) and isinstance(b, int))


def _segment(
    value: str, makers: Mapping[str, NodeProto], common: frozenset[str], weights: set[str]
) -> tuple[list[NodeProto], tuple[str, ...]] | None:
    """The nodes between `value` and the values that both graphs have; None where one holds a subgraph, whose names
    would have to be renamed with it."""
    nodes: dict[int, NodeProto] = {}
    reads: dict[str, None] = {}
    queue = [makers[value]]
    while queue:
        node = queue.pop()
        if id(node) in nodes:
            continue
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            return None
        nodes[id(node)] = node
        for name in node.input:
            if not name or name in weights:
                continue
            if name in common and name != value:
                reads[name] = None
            elif name in makers:
                queue.append(makers[name])
            else:
                return None  # an input that only the second graph has
    return list(nodes.values()), tuple(reads)


def describe(graph: GraphProto) -> dict[str, Value]:
    """Every value of a graph whose types were inferred; those of subgraphs left out."""
    from onnx import TensorProto

    from aot.precision.weights.move import DIVIDED

    narrow = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
    floats = {TensorProto.FLOAT, TensorProto.DOUBLE, *narrow}
    found: dict[str, Value] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        dims: Sequence[int | str | None] | None = None
        if tensor.HasField("shape"):
            dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
        found[value.name] = Value(
            is_float=tensor.elem_type in floats,
            narrow=narrow.get(tensor.elem_type),
            dims=None if dims is None else tuple(dims),
            divided=any(entry.key == DIVIDED for entry in value.metadata_props),
        )
    return found
