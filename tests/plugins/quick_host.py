"""The part of TensorRT that quick plugins meet, without TensorRT: NVIDIA's own Python code under a host that is ours.

`tensorrt/plugin/*.py` of the bindings' wheel is run as it is, with a stand-in below it for what is written in C++: the
base classes, the enumerations, the registry, the builder of expressions. `build` then does with a graph what the ONNX
parser and the builder do, in their order (onnx-tensorrt's importerUtils.cpp, `createPlugin`; NvInferPythonPlugin.h), so
that every annotation, type and call is judged by the code that judges it in an engine's build.
"""

from __future__ import annotations

import enum
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import onnx
import pytest

Sizes = Mapping[tuple[int, int], int]
"""(input, axis) -> size: what an expression is evaluated with."""


class Expression:
    """An IDimensionExpr: a function of the sizes, and whether it is none."""

    def __init__(self, value: Callable[[Sizes], int], constant: bool) -> None:
        self.value, self._constant = value, constant

    def is_constant(self) -> bool:
        return self._constant

    def get_constant_value(self) -> int:
        assert self._constant
        return self.value({})


class ExprBuilder:
    """An IExprBuilder."""

    def __init__(self, operations: Any) -> None:
        self._functions: dict[Any, Callable[[int, int], int]] = {
            operations.SUM: lambda a, b: a + b,
            operations.PROD: lambda a, b: a * b,
            operations.MAX: max,
            operations.MIN: min,
            operations.SUB: lambda a, b: a - b,
            operations.FLOOR_DIV: lambda a, b: a // b,
            operations.CEIL_DIV: lambda a, b: -(-a // b),
        }

    def constant(self, value: int) -> Expression:
        assert type(value) is int
        return Expression(lambda _: value, True)

    def operation(self, operation: Any, a: Expression, b: Expression) -> Expression:
        assert {type(a), type(b)} == {Expression}  # pybind11 takes nothing else
        function = self._functions[operation]
        constant = a.is_constant() and b.is_constant()
        return Expression(lambda sizes: function(a.value(sizes), b.value(sizes)), constant)


class Registry:
    """An IPluginRegistry."""

    def __init__(self) -> None:
        self.creators: dict[tuple[str, str, str], Any] = {}

    def register_creator(self, creator: Any, namespace: str) -> bool:
        self.creators[creator.name, creator.plugin_version, namespace] = creator
        return True

    def get_creator(self, name: str, version: str, namespace: str) -> Any:
        return self.creators.get((name, version, namespace))


def _module() -> ModuleType:
    """What of the module `tensorrt` is C++."""
    trt: Any = ModuleType("tensorrt")
    trt.__path__ = []

    def enumeration(name: str, members: str) -> None:
        setattr(trt, name, enum.IntEnum(name, members, start=0))

    enumeration("DataType", "FLOAT HALF INT8 INT32 BOOL UINT8 FP8 BF16 INT64 INT4 FP4 E8M0")
    enumeration("TensorFormat", "LINEAR CHW2 HWC8 CHW4 CHW16 CHW32 DHWC8 CDHW32 HWC DLA_LINEAR DLA_HWC4 HWC16 DHWC")
    enumeration("DimensionOperation", "SUM PROD MAX MIN SUB EQUAL LESS FLOOR_DIV CEIL_DIV")
    enumeration("PluginFieldType", "FLOAT16 FLOAT32 FLOAT64 INT8 INT16 INT32 CHAR DIMS UNKNOWN BF16 INT64 FP8 INT4 FP4")
    enumeration("QuickPluginCreationRequest", "UNKNOWN PREFER_JIT PREFER_AOT STRICT_JIT STRICT_AOT")
    enumeration("PluginArgType", "INT")
    enumeration("PluginArgDataType", "INT8 INT16 INT32")
    enumeration("TensorRTPhase", "BUILD RUNTIME")
    bases = "IPluginV3 IPluginV3QuickCore IPluginV3QuickBuild IPluginV3QuickAOTBuild IPluginV3QuickRuntime ITensor"
    for name in (*bases.split(), "IPluginCreatorV3Quick", "ISymExpr"):
        setattr(trt, name, type(name, (), {"__init__": lambda self: None}))
    for name in ("PluginTensorDesc", "DynamicPluginTensorDesc"):
        setattr(trt, name, type(name, (SimpleNamespace,), {}))
    trt.IDimensionExpr = Expression
    trt.Dims = type("Dims", (tuple,), {"MAX_DIMS": 8})
    trt.DimsExprs = lambda length: [None] * length
    trt.PluginFieldCollection = list
    trt.PluginField = lambda name, data=None, type=None: SimpleNamespace(name=name, data=data, type=type)
    trt.Logger = type("Logger", (), {"WARNING": 1, "log": lambda *_: None})
    registry = Registry()
    trt.get_plugin_registry = lambda: registry
    return trt  # type: ignore[no-any-return]


def install(bindings: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module `tensorrt` with NVIDIA's `tensorrt.plugin`. bindings: the folder `tensorrt_bindings` of a wheel."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt"]:
        monkeypatch.delitem(sys.modules, name)
    trt: Any = _module()
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    folder = bindings / "plugin"
    spec = importlib.util.spec_from_file_location(
        "tensorrt.plugin", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    trt.plugin = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tensorrt.plugin", trt.plugin)
    spec.loader.exec_module(trt.plugin)
    return trt


@dataclass(frozen=True)
class Tactic:
    """A kernel that the builder could launch, for the sizes that it is asked about."""

    name: str
    code: bytes
    grid: Callable[[Sizes], tuple[int, ...]]
    block: Callable[[Sizes], tuple[int, ...]]
    shared: int
    scalars: Callable[[Sizes], tuple[int, ...]]


@dataclass(frozen=True)
class Layer:
    """A plugin in a network: types and shapes of its outputs, and its tactics by number."""

    plugin: Any
    types: tuple[str, ...]
    shapes: Callable[[Sizes], list[tuple[int, ...]]]
    tactics: Mapping[int, Tactic]


Given = tuple[str, Sequence[int]]
"""The DataType and the dims of an input, -1 for a size that varies."""


def build(trt: Any, graph: onnx.GraphProto, inputs: Mapping[str, Sequence[Given]]) -> dict[str, Layer]:
    """Every node of `inputs` as a layer. All are created before one is tuned, as in a build."""
    nodes = {node.name: node for node in graph.node}
    created = {name: _created(trt, nodes[name]) for name in inputs}
    described = {name: _described(trt, created[name], inputs[name]) for name in inputs}
    return {name: _tuned(trt, created[name], inputs[name], *described[name]) for name in inputs}


def _created(trt: Any, node: onnx.NodeProto) -> Any:
    """The plugin, as the parser creates it: its name is the node's op type, and `aot` says which kind is wanted."""
    given = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    version, namespace = given.pop("plugin_version").decode(), given.pop("plugin_namespace").decode()
    assert given.pop("aot") == 1
    creator = trt.get_plugin_registry().get_creator(node.op_type, version, namespace)
    assert creator is not None, f"no creator for {namespace}::{node.op_type}"
    assert [field.name for field in creator.field_names] == [*given] == []
    request = trt.QuickPluginCreationRequest.STRICT_AOT
    return creator.create_plugin(node.op_type, namespace, trt.PluginFieldCollection(), trt.TensorRTPhase.BUILD, request)


def _described(trt: Any, plugin: Any, inputs: Sequence[Given]) -> tuple[list[Any], list[list[Expression]], list[Any]]:
    """(types of the outputs, sizes of the inputs, sizes of the outputs)."""
    types = plugin.get_output_data_types([trt.DataType[kind] for kind, _ in inputs], [len(dims) for _, dims in inputs])
    builder = ExprBuilder(trt.DimensionOperation)
    sizes = [
        [
            builder.constant(size) if size >= 0 else Expression(lambda known, at=(i, j): known[at], False)  # type: ignore[misc]
            for j, size in enumerate(dims)
        ]
        for i, (_, dims) in enumerate(inputs)
    ]
    return types, sizes, plugin.get_output_shapes(sizes, [], builder)


def _tuned(
    trt: Any, plugin: Any, inputs: Sequence[Given], types: list[Any], sizes: list[list[Expression]], shapes: list[Any]
) -> Layer:
    linear = trt.TensorFormat.LINEAR
    kinds = [*(trt.DataType[kind] for kind, _ in inputs), *types]
    dims = [*(dims for _, dims in inputs), *([_size(one) for one in shape] for shape in shapes)]
    tensors = [
        trt.DynamicPluginTensorDesc(
            desc=trt.PluginTensorDesc(dims=trt.Dims(shape), type=kind, format=linear, scale=1.0),
            min=shape,
            opt=shape,
            max=shape,
        )
        for kind, shape in zip(kinds, dims, strict=True)
    ]
    combinations = plugin.get_supported_format_combinations(tensors, len(inputs))
    # The network is strongly typed and its tensors are linear: nothing else is taken.
    assert [(one.type, one.format) for one in combinations] == [(kind, linear) for kind in kinds]
    plugin.configure_plugin(tensors[: len(inputs)], tensors[len(inputs) :])
    tactics = {number: _tactic(trt, plugin.clone(), number, tensors, sizes) for number in plugin.get_valid_tactics()}
    assert all(number > 0 for number in tactics)
    return Layer(
        plugin,
        tuple(kind.name for kind in types),
        lambda known: [tuple(one.value(known) for one in shape) for shape in shapes],
        tactics,
    )


def _size(expression: Expression) -> int:
    return expression.get_constant_value() if expression.is_constant() else -1


def _tactic(trt: Any, plugin: Any, number: int, tensors: list[Any], sizes: list[list[Expression]]) -> Tactic:
    plugin.set_tactic(number)
    launch = SimpleNamespace()
    scalars = _Scalars()
    count = len(sizes)
    plugin.get_launch_params(sizes, tensors, count, launch, scalars, ExprBuilder(trt.DimensionOperation))
    name, code = plugin.get_kernel([one.desc for one in tensors[:count]], [one.desc for one in tensors[count:]])
    assert sorted(scalars.held) == [*range(scalars.nbSymExprs)]
    held = [scalars.held[index] for index in range(scalars.nbSymExprs)]
    assert all(one.dtype == trt.PluginArgDataType.INT32 for one in held)

    def three(kind: str) -> Callable[[Sizes], tuple[int, ...]]:
        parts = [getattr(launch, f"{kind}_{axis}").expr for axis in "xyz"]
        return lambda known: tuple(part.value(known) for part in parts)

    return Tactic(
        name,
        code,
        three("grid"),
        three("block"),
        launch.shared_mem.expr.get_constant_value(),
        lambda known: tuple(one.expr.value(known) for one in held),
    )


class _Scalars:
    """An ISymExprs."""

    nbSymExprs = 0

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}

    def __setitem__(self, index: int, value: Any) -> None:
        self.held[index] = value
