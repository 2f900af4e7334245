"""Kernels of plugins in engines of TensorRT 10.6 to 10.8: an IPluginV3 in Python that launches PTX through the driver.

One plugin type serves every op. Its fields hold a digest that stands for a node and its kernels; these lie beside the
plan (`kernels.LAUNCHED`), for the bindings of 10.6 give back the first element of a field alone where numpy is 2.3 or
later. So an engine needs where it runs Python, cuda-bindings, `register` and `learn`. Each config of a kernel is a
tactic that TensorRT times. A call costs the microseconds that Python takes, which a CUDA graph of the engine leaves
out.

TensorRT keeps pointers to what it is given: fields, their names and their data are held here for as long. And no
exception travels through its C++: what a callback raises is kept, and raised by `raise_kept` once TensorRT has failed.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

from aot.errors import AotError, EngineError
from aot.plugins.schema import TENSORRT_TYPES
from aot.plugins.sizes import read
from aot.runtime.driver import Kernel
from aot.runtime.kernels import LAUNCHED, Compiled

NAMESPACE, TYPE, VERSION = "aot", "Kernel", "1"
FIELDS = ("kernels_0", "kernels_1", "kernels_2")
Key = tuple[int, ...]
_OPERATIONS = {
    "+": "SUM", "-": "SUB", "*": "PROD", "//": "FLOOR_DIV", "ceil": "CEIL_DIV", "max": "MAX", "min": "MIN",
}  # fmt: skip
"""An operation on sizes as TensorRT's DimensionOperation names it."""
_kept: list[tuple[int, BaseException]] = []
"""What callbacks raised, each with the thread in which that was: a build calls them in a thread of its own."""
_known: dict[Key, Launcher] = {}


def learn(kernels: Mapping[str, Sequence[Compiled]]) -> None:
    """Know the kernels of nodes, by name, in this process: before an engine that launches them is loaded."""
    for node, given in kernels.items():
        launcher = Launcher(node, given)
        _known[launcher.key] = launcher


@cache
def register(trt: ModuleType) -> None:
    """Make the plugin known to TensorRT in this process, for building engines with it and for loading them.

    Raises EngineError where TensorRT does not take it.
    """
    if not trt.get_plugin_registry().register_creator(_creator(trt), NAMESPACE):
        raise EngineError(f"TensorRT does not take the plugin {NAMESPACE}::{TYPE}")


def raise_kept(*, here: bool = False) -> None:
    """Raise the first error that callbacks of the plugin kept, if any, and forget the others.

    here: only what was raised in this thread, where several run engines.
    """
    mine = [one for one in _kept if not here or one[0] == threading.get_ident()]
    _kept[:] = [one for one in _kept if one not in mine]
    if mine:
        raise mine[0][1]


class _Keeping:
    """Keeps what is raised inside, which then travels on: TensorRT sees that the call failed."""

    def __init__(self, node: str, plugin: str) -> None:
        self._where = f"node '{node}' ({plugin})"

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, AotError):
            error = EngineError(error.what, where=self._where, fix=error.fix)
        if error is not None:
            _kept.append((threading.get_ident(), error))


class Launcher:
    """The kernels of one node, and how the chosen one is launched. One execution context has one.

    Raises EngineError for what the driver refuses.
    """

    def __init__(self, node: str, kernels: Sequence[Compiled], tactic: int = 1) -> None:
        self.node, self.kernels = node, tuple(kernels)
        self._tactic = tactic
        self._chosen: tuple[Compiled, Kernel] | None = None
        self._reads: list[tuple[int, int]] = []
        self._sizes: tuple[int, ...] | None = None
        self._launch: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    @property
    def one(self) -> Compiled:
        """Any of the kernels: dtypes and outputs are those of the node."""
        return self.kernels[0]

    @property
    def digest(self) -> str:
        """The same for the same kernels, launched the same way, in the same order."""
        text = json.dumps([{**kernel.to_json(), "source": None} for kernel in self.kernels], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def key(self) -> Key:
        """What stands for the node and its kernels in an engine: 31 bits of a digest in each field."""
        found = hashlib.sha256(f"{self.node} {self.digest}".encode()).digest()
        return tuple(int.from_bytes(found[4 * at : 4 * at + 4]) >> 1 for at in range(len(FIELDS)))

    def choose(self, tactic: int) -> None:
        """Load the kernel of a tactic, counted from 1: 0 is TensorRT's word for a plugin without tactics."""
        self._tactic = max(tactic, 1)
        compiled = self.kernels[self._tactic - 1]
        self._chosen = compiled, Kernel.load(compiled.code, compiled.entry, compiled.shared)
        self._sizes = None
        trees = (*compiled.grid, *compiled.scalars.values())
        reads = sorted(set().union(*map(read, trees)))
        self._reads = [(compiled.inputs.index(name), axis) for name, axis in reads]

    def copy(self) -> Launcher:
        """Another one with the same choice, which loads its kernel in the context that is then current."""
        return Launcher(self.node, self.kernels, self._tactic)

    def launch(self, given: Sequence[Any], inputs: Sequence[int], outputs: Sequence[int], stream: int) -> None:
        """Enqueue the kernel. given: the inputs' descriptions; inputs, outputs: addresses."""
        if self._chosen is None:
            self.choose(self._tactic)
        assert self._chosen is not None
        compiled, kernel = self._chosen
        sizes = tuple([given[index].dims[axis] for index, axis in self._reads])
        if sizes != self._sizes:  # as a rule the same as in the call before
            self._launch = compiled.launched([tuple(one.dims) for one in given])
            self._sizes = sizes
        grid, scalars = self._launch
        kernel.launch(grid, compiled.threads, (*inputs, *scalars, *outputs), stream)  # type: ignore[arg-type]


def expression(trt: ModuleType, tree: Any, sizes: Mapping[str, Any], builder: Any) -> Any:
    """An expression of sizes as TensorRT's IDimensionExpr. sizes: the inputs' DimsExprs by name."""
    if isinstance(tree, int):
        return builder.constant(tree)
    op, left, right = tree
    if op == "size":
        return sizes[left][right]
    operation = getattr(trt.DimensionOperation, _OPERATIONS[op])
    return builder.operation(operation, *(expression(trt, one, sizes, builder) for one in (left, right)))


def _creator(trt: ModuleType) -> Any:
    """The creator; its classes exist only once TensorRT is imported."""

    import numpy as np

    def collection(key: Key) -> tuple[Any, Any]:
        """The fields of a key, and what they point to."""
        arrays = [np.array([part], np.int32) for part in key]
        fields = [
            trt.PluginField(name, array, trt.PluginFieldType.INT32) for name, array in zip(FIELDS, arrays, strict=True)
        ]
        return trt.PluginFieldCollection(fields), (fields, arrays)

    class Plugin(
        trt.IPluginV3,  # type: ignore[misc,name-defined]
        trt.IPluginV3OneCore,  # type: ignore[misc,name-defined]
        trt.IPluginV3OneBuild,  # type: ignore[misc,name-defined]
        trt.IPluginV3OneRuntime,  # type: ignore[misc,name-defined]
    ):
        def __init__(self, launcher: Launcher) -> None:
            for base in (trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime):
                base.__init__(self)
            self.plugin_name, self.plugin_version, self.plugin_namespace = TYPE, VERSION, NAMESPACE
            self.num_outputs = len(launcher.one.outputs)
            # Timed tactics are kept under the one, with dtypes and shapes; the other is what an inspector shows.
            self.timing_cache_id = self.metadata_string = f"{launcher.one.plugin} {launcher.digest[:16]}"
            self._launcher, self._keeping = launcher, _Keeping(launcher.node, launcher.one.plugin)
            self._types = [
                getattr(trt.DataType, TENSORRT_TYPES[dtype])
                for dtype in (*launcher.one.dtypes, *launcher.one.output_dtypes)
            ]
            self._fields: Any = None

        def get_capability_interface(self, kind: Any) -> Any:
            return self

        def clone(self) -> Any:
            return Plugin(self._launcher.copy())

        def attach_to_context(self, context: Any) -> Any:
            return self.clone()

        def get_output_data_types(self, types: Any) -> Any:
            return self._types[-self.num_outputs :]

        def get_output_shapes(self, inputs: Any, shape_inputs: Any, builder: Any) -> Any:
            with self._keeping:
                one = self._launcher.one
                sizes = dict(zip(one.inputs, inputs, strict=True))
                return [
                    trt.DimsExprs([expression(trt, tree, sizes, builder) for tree in shape]) for shape in one.outputs
                ]

        def supports_format_combination(self, position: int, tensors: Any, count: int) -> bool:
            one = tensors[position].desc
            return bool(one.format == trt.TensorFormat.LINEAR and one.type == self._types[position])

        def configure_plugin(self, inputs: Any, outputs: Any) -> None:
            """Nothing to do: sizes are read when the kernel is launched."""

        def on_shape_change(self, inputs: Any, outputs: Any) -> None:
            """Nothing to do either."""

        def get_valid_tactics(self) -> list[int]:
            return list(range(1, len(self._launcher.kernels) + 1))

        def set_tactic(self, tactic: int) -> None:
            with self._keeping:
                self._launcher.choose(tactic)

        def enqueue(self, given: Any, made: Any, inputs: Any, outputs: Any, workspace: int, stream: int) -> None:
            with self._keeping:
                self._launcher.launch(given, inputs, outputs, stream)

        def get_fields_to_serialize(self) -> Any:
            self._fields = collection(self._launcher.key)
            return self._fields[0]

    class Creator(trt.IPluginCreatorV3One):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            trt.IPluginCreatorV3One.__init__(self)
            self.name, self.plugin_version, self.plugin_namespace = TYPE, VERSION, NAMESPACE
            self._fields = collection((0,) * len(FIELDS))
            self.field_names = self._fields[0]

        def create_plugin(self, name: str, fields: Any, phase: Any) -> Any:
            with _Keeping(name, f"{NAMESPACE}::{TYPE}"):
                given = {one.name: int(np.asarray(one.data).flat[0]) for one in fields}
                launcher = _known.get(tuple(given[name] for name in FIELDS))
                if launcher is None:
                    raise EngineError(
                        "the kernels that the engine launches are not known",
                        fix=f"keep the file {LAUNCHED} that belongs beside the engine, or build it again",
                    )
                return Plugin(launcher.copy())

    return Creator()
