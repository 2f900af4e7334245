"""What passes between stages: frozen records over store entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot import arrays
from aot.runtime.files import damaged, json_of
from aot.runtime.kernels import read_kernels
from aot.runtime.refit import WEIGHTS
from aot.store import Entry

if TYPE_CHECKING:
    from aot.arrays import Arrays
    from aot.config import Recipe
    from aot.runtime.kernels import Compiled
    from aot.statistics import Statistics

MODEL = "model.onnx"
PROGRAM = "program.pt2"
KERNELS = "kernels.json"
TIMING = ".timing"
"""Ends the name of the timing cache that lies beside a plan; `runtime.kernels.LAUNCHED` that of its kernels."""
TACTICS = ".tactics"
"""Ends the name of the list of its layers and tactics."""


@dataclass(frozen=True)
class Record:
    """A finished stage: its store entry."""

    entry: Entry

    @property
    def key(self) -> str:
        """The digest of everything this was made from."""
        return self.entry.key

    @property
    def path(self) -> Path:
        """The folder that holds the files; those of an earlier build are held against their digests first.

        Raises StoreError where what is damaged cannot be made again.
        """
        self.entry.ensure()
        return self.entry.path

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the stage said about its result, plain data."""
        return self.entry.facts


@dataclass(frozen=True)
class GraphRecord(Record):
    """A stage whose result is an ONNX file (weights in `model.onnx.data` beside it)."""

    @property
    def model(self) -> Path:
        """The ONNX file."""
        return self.path / MODEL

    @property
    def nodes(self) -> int:
        """How many nodes the main graph has."""
        return int(self.facts["nodes"])


@dataclass(frozen=True)
class Exported(GraphRecord):
    """The model as ONNX, FP32 as its author wrote it. facts: nodes, opset, outputs (names), where the source is an
    ONNX file warnings and requantized, and where patterns of plugins were looked for warnings and replaced."""

    @property
    def requantized(self) -> bool:
        """Whether the source's quantized activations became float: it differs from the source by their rounding."""
        return bool(self.facts.get("requantized", False))

    @property
    def replaced(self) -> tuple[Mapping[str, Any], ...]:
        """Where patterns of plugins occur: {plugin, node, replaced (whether the op was put there), why, module,
        source}."""
        return tuple(self.facts.get("replaced", ()))


@dataclass(frozen=True)
class Graph(GraphRecord):
    """The exported graph after surgery; same inputs and outputs. facts: nodes, passes, ops ({before, after}: op ->
    count)."""


@dataclass(frozen=True)
class QuantizedGraph(GraphRecord):
    """The final graph, every tensor of the dtype the engine will use.

    facts: nodes, precision, ops (quantized op type -> count), qdq (DequantizeLinear nodes),
    decisions ([{node, op, precision, reason, module, source}], one a node of the input graph), warnings, steps ([{step:
    exported, surgery or final; ops: op -> count; of surgery passes: name -> places changed}]).
    """


@dataclass(frozen=True)
class Program(QuantizedGraph):
    """What stands for the final graph on the second route: an exported program, `program.pt2`.

    facts: those of a graph, and outputs ([{name, dtype, shape}]).
    """

    @property
    def model(self) -> Path:
        """The saved program."""
        return self.path / PROGRAM


@dataclass(frozen=True)
class Kernels(Record):
    """Kernels of plugins for one target, `kernels.json`.

    facts: target, triton (the version that compiled them), kernels ([{plugin, nodes (names), source (SHA-256 of the
    plugin's file), digests (SHA-256 of the PTX, one a config)}]), left ([{op, plugin, nodes, why}]: nodes without one),
    and where attention was looked for attention ({formed (nodes with kernels that it becomes), left ([{why, nodes,
    told}]: sites that stay), places (of both: see Exported.replaced)}).
    """

    @property
    def target(self) -> str:
        """What they are compiled for."""
        return str(self.facts["target"])

    @property
    def left(self) -> list[dict[str, Any]]:
        """The nodes that have no kernel, and why."""
        return list(self.facts["left"])

    def by_node(self) -> dict[str, tuple[Compiled, ...]]:
        """Node name -> its kernels, one for each way to run it. Raises PluginError for damaged code."""
        return read_kernels(self.path / KERNELS)


@dataclass(frozen=True)
class Data(Record):
    """Calibration batches, `NNNNN.npz` each an input name -> array mapping.

    facts: calibration, heldout (file names; the held-out ones are never calibrated on), generated (bool).
    """

    def _read(self, which: str) -> Iterator[Arrays]:
        for name in self.facts[which]:
            yield arrays.load(self.path / name)

    def calibration(self) -> Iterator[Arrays]:
        """The batches that ranges are taken from."""
        return self._read("calibration")

    def heldout(self) -> Iterator[Arrays]:
        """The batches kept back to judge the result with."""
        return self._read("heldout")


@dataclass(frozen=True)
class Ranges(Record):
    """What was observed, and the ranges chosen from it: `ranges.json`, tensor name -> {amax, low, high, calibrator}.

    observed: the stage that saw the data, which an artifact does not carry.
    """

    observed: Record | None = None

    def _read(self, *names: str) -> dict[str, list[float]]:
        """These numbers of every tensor. Raises ArtifactError where the file does not hold them."""
        file = self.path / "ranges.json"
        try:
            return {tensor: [float(found[name]) for name in names] for tensor, found in json_of(file).items()}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise damaged(file, f"it does not hold a range for each tensor: {error!r}") from error

    def amax(self) -> dict[str, float]:
        """The magnitude that the largest quantized number stands for, as the calibrator chose it, of every tensor
        observed; the largest one observed where the tensor feeds no layer."""
        return {name: amax for name, (amax,) in self._read("amax").items()}

    def extremes(self) -> dict[str, float]:
        """The largest magnitude observed of every float value, whatever the calibrator clips."""
        return {name: max(-low, high) for name, (low, high) in self._read("low", "high").items()}

    def statistics(self) -> Statistics:
        """All that was observed, at the level that the recipe needs. Raises ValueError for ranges that come from an
        artifact, and CalibrationError where the files are damaged."""
        from aot.statistics import Statistics

        if self.observed is None:
            raise ValueError("an artifact carries ranges and no statistics")
        return Statistics.load(self.observed.path)


@dataclass(frozen=True)
class Case:
    """One comparison: the sizes of every Dim, the inputs, and what eager made of them.

    kind: `heldout` (real data as it came), `resized` (real data brought to a size) or `generated`.
    """

    name: str
    kind: str
    sizes: Mapping[str, int]
    inputs: Arrays
    outputs: Arrays


@dataclass(frozen=True)
class References(Record):
    """Inputs and eager outputs to compare with: `cases.json`, and for each case `NAME.in.npz`, `NAME.out.npz`."""

    @property
    def noise(self) -> tuple[str, ...]:
        """The outputs that no comparison judges (see `aot/noise.py`)."""
        return tuple(self.facts.get("noise", ()))

    @property
    def moved(self) -> float:
        """The share of its norm by which a change in the last digit of the inputs moves the least exact output that
        is judged."""
        return float(self.facts.get("moved", 0.0))

    def cases(self, first: Sequence[str] = ()) -> Iterator[Case]:
        """The cases, read one at a time; those named in `first` before the others, in its order.

        Raises ArtifactError where they are damaged.
        """
        place = {name: number for number, name in enumerate(first)}
        file = self.path / "cases.json"
        cases = json_of(file)
        if not isinstance(cases, list) or not all(_is_case(case) for case in cases):
            raise damaged(file, "it does not list cases with a name, a kind and sizes")
        for case in sorted(cases, key=lambda case: place.get(case["name"], len(place))):
            given, made = (_arrays(self.path / f"{case['name']}.{end}.npz") for end in ("in", "out"))
            yield Case(case["name"], case["kind"], case["sizes"], given, made)


def _is_case(case: Any) -> bool:
    """Whether it has what a case needs, and its name is that of files in the same folder."""
    return (
        isinstance(case, dict)
        and all(isinstance(case.get(text), str) for text in ("name", "kind"))
        and not {"/", "\\", "\0"} & set(case["name"])
        and isinstance(case.get("sizes"), dict)
        and all(type(size) is int for size in case["sizes"].values())
    )


def _arrays(path: Path) -> Arrays:
    try:
        return arrays.load(path)
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error


@dataclass(frozen=True)
class StrippedWeights(Record):
    """The weights that stripped plans leave out, `weights.safetensors`.

    facts: names, bytes (of the file), rest (SHA-256 of the graph without their values, which is all that a stripped
    plan depends on).
    """

    @property
    def file(self) -> Path:
        """The safetensors file."""
        return self.path / WEIGHTS


@dataclass(frozen=True)
class Engine(Record):
    """A serialized engine. facts: target, backend, version, file, bytes, sha256, origin (GPU, driver) or None; of a
    stripped one stripped ({weights: how many it takes}), of one for later TensorRT version_compatible (`with` or
    `without` its lean runtime), of one for other GPUs hardware_compatible (the level), of one with inputs whose values
    decide shapes shape_inputs (names).

    weighed: what a stripped plan takes its weights from; it belongs to the model, not to the plan.
    """

    weighed: StrippedWeights | None = None

    @property
    def weights(self) -> Path | None:
        """The file that a stripped plan takes its weights from; None of a plan that holds them."""
        return None if self.weighed is None else self.weighed.file

    @property
    def plan(self) -> Path:
        """The file the vendor's tools load."""
        return self.path / str(self.facts["file"])

    @property
    def target(self) -> str:
        """`sm89`, ...; `cpu` for onnxruntime."""
        return str(self.facts["target"])


@dataclass(frozen=True)
class Timings(Record):
    """How long engines run. facts: ms (name -> median milliseconds, one for each profile), sizes (of every profile,
    the Dims that it was timed at), on (the GPU or CPU)."""


@dataclass(frozen=True)
class Report(Record):
    """A comparison, as `report.json`. facts: ran, reason (when not run), accepted, cosine, relative_l2, max_abs."""


@dataclass(frozen=True)
class Repair(Record):
    """Which nodes are kept wide so that the budget holds.

    facts: met; why (in words, where no set of nodes is enough); kept ([{node, op, module, source, was, kept (the
    precisions before and after), operations (its share of all), share (of the outputs' squared error that entered
    there), without ({case, cosine, relative_l2, missed: the reason} when it alone is not kept, or None)}]); keep
    ({layers, fp32}: the recipe's `placement.keep` and `keep` with them); before, after, wide (the same numbers of the
    graph as it was, with the kept nodes, and with every node wide); low ({precision, before, after}: the share of the
    multiply-adds in it); candidates, trials (graphs made and compared), exhausted (trials ran out, so that less might
    do).
    """

    def applied(self, recipe: Recipe) -> Recipe:
        """The recipe that keeps these nodes wide."""
        keep = self.facts["keep"]
        placement = recipe.placement.model_copy(update={"keep": tuple(keep["layers"])})
        return recipe.model_copy(update={"keep": tuple(keep["fp32"]), "placement": placement})
