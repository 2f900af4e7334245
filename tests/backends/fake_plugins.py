"""The part of the stand-in for `tensorrt` that plugins written in Python see: TensorRT 10.6's classes and calls.

As the vendor's do, its classes hold what their C++ halves hold (`num_outputs` must be set before it is read), strings
of the parser end with NUL, and an exception of a callback is swallowed and becomes a failure.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx

DataType = enum.Enum("DataType", "FLOAT HALF INT8 INT32 BOOL UINT8 FP8 BF16 INT64")
TensorFormat = enum.Enum("TensorFormat", "LINEAR CHW32")
PluginFieldType = enum.Enum("PluginFieldType", "CHAR FLOAT32 INT32")
TensorRTPhase = enum.Enum("TensorRTPhase", "BUILD RUNTIME")
DimensionOperation = enum.Enum("DimensionOperation", "SUM PROD MAX MIN SUB EQUAL LESS FLOOR_DIV CEIL_DIV")
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "SUM": lambda a, b: a + b,
    "SUB": lambda a, b: a - b,
    "PROD": lambda a, b: a * b,
    "FLOOR_DIV": lambda a, b: a // b,
    "CEIL_DIV": lambda a, b: -(-a // b),
    "MAX": max,
    "MIN": min,
}


class _Base:
    """Each base of a plugin must be made by itself."""

    def __init__(self) -> None:
        self.made = getattr(self, "made", 0) + 1


class IPluginV3(_Base): ...


class IPluginV3OneCore(_Base): ...


class IPluginV3OneBuild(_Base): ...


class IPluginV3OneRuntime(_Base): ...


class IPluginCreatorV3One(_Base): ...


class PluginField:
    """As the bindings of 10.6 give it back with a late numpy: of its data the first element, in the place of all."""

    def __init__(self, name: str, data: Any, type: Any) -> None:
        self.name, self.type, self._data = name, type, data

    @property
    def data(self) -> Any:
        array = np.asarray(self._data)
        return np.full_like(array, array.flat[0])


@dataclass(frozen=True)
class IDimensionExpr:
    value: int


class IExprBuilder:
    def constant(self, value: int) -> IDimensionExpr:
        return IDimensionExpr(value)

    def operation(self, op: Any, first: IDimensionExpr, second: IDimensionExpr) -> IDimensionExpr:
        return IDimensionExpr(OPERATIONS[op.name](first.value, second.value))


class DimsExprs(list[IDimensionExpr]):
    def __init__(self, sizes: Sequence[IDimensionExpr]) -> None:
        assert all(isinstance(size, IDimensionExpr) for size in sizes)
        super().__init__(sizes)


@dataclass
class Registry:
    creators: dict[tuple[str, str, str], Any] = field(default_factory=dict)

    def register_creator(self, creator: Any, namespace: str = "") -> bool:
        assert creator.plugin_namespace == namespace
        assert [one.name for one in creator.field_names]
        key = (creator.name, creator.plugin_version, namespace)
        if key in self.creators:
            return False
        self.creators[key] = creator
        return True


@dataclass
class Layer:
    """A plugin in a network, and what TensorRT would ask it for sizes of `inputs`."""

    name: str
    plugin: Any

    def output_types(self, types: Sequence[str]) -> list[str]:
        return [one.name for one in self.plugin.get_output_data_types([DataType[name] for name in types])]

    def output_shapes(self, *inputs: Sequence[int]) -> list[tuple[int, ...]]:
        given = [DimsExprs([IDimensionExpr(size) for size in shape]) for shape in inputs]
        return [tuple(one.value for one in shape) for shape in self.plugin.get_output_shapes(given, [], IExprBuilder())]

    def takes(self, types: Sequence[str], format: str = "LINEAR") -> bool:
        tensors = [
            SimpleNamespace(desc=SimpleNamespace(type=DataType[name], format=TensorFormat[format])) for name in types
        ]
        count = len(types) - self.plugin.num_outputs
        return all(self.plugin.supports_format_combination(at, tensors, count) for at in range(len(types)))

    def run(self, *shapes: Sequence[int], tactic: int = 1, stream: int = 5) -> bool:
        """One enqueue in a context of its own, inputs at 1000, 2000, ..., outputs from 9000 on. False: it failed."""
        context = self.plugin.attach_to_context(None)
        try:
            context.set_tactic(tactic)
            given = [SimpleNamespace(dims=tuple(shape)) for shape in shapes]
            context.on_shape_change(given, [])
            inputs = [1000 * (at + 1) for at in range(len(shapes))]
            outputs = [9000 + 1000 * at for at in range(context.num_outputs)]
            context.enqueue(given, [], inputs, outputs, 0, stream)
        except Exception:  # noqa: BLE001 as C++ does
            return False
        return True

    def serialized(self) -> list[PluginField]:
        """The fields as an engine holds them, made anew from the data that they point to."""
        return [PluginField(one.name, one.data.copy(), one.type) for one in self.plugin.get_fields_to_serialize()]


def parsed(registry: Registry, node: onnx.NodeProto) -> Layer | None:
    """What the parser makes of a node that a creator is registered for; None: there is no such creator."""
    given = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    key = (node.op_type, *(given.get(name, b"").decode() for name in ("plugin_version", "plugin_namespace")))
    creator = registry.creators.get(key)
    if creator is None:
        return None
    fields = [
        PluginField(one.name, np.array([given[one.name]], {PluginFieldType.INT32: np.int32}[one.type]), one.type)
        for one in creator.field_names
    ]
    return Layer(node.name, creator.create_plugin(node.name, fields, TensorRTPhase.BUILD))


def install(module: Any) -> Registry:
    """Add everything to the module; its registry is new."""
    for kind in (
        *(DataType, TensorFormat, PluginFieldType, TensorRTPhase, DimensionOperation, DimsExprs, PluginField),
        *(IPluginV3, IPluginV3OneCore, IPluginV3OneBuild, IPluginV3OneRuntime, IPluginCreatorV3One),
    ):
        setattr(module, kind.__name__, kind)
    module.PluginFieldCollection = list
    registry = Registry()
    module.get_plugin_registry = lambda: registry
    return registry
