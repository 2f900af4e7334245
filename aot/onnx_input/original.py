"""The file as it was given, as the reference that everything made of it is compared with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.batches import sizes_of
from aot.errors import AotError, EngineError, GraphError

if TYPE_CHECKING:
    from aot.arrays import Arrays
    from aot.declaration import ModelSpec
    from aot.source import Runner


_FAILED = re.compile(r"while running (\w+) node\. Name:'(.*?)' Status Message: (.*)", re.DOTALL)


def original(path: Path, spec: ModelSpec) -> Runner:
    """A runner of the file on onnxruntime; on onnx's own evaluator, which is slow, where onnxruntime refuses it.

    FP64 inputs are fed from the spec's FP32, FP64 outputs come back as FP32. Raises GraphError where neither runs it.
    """
    from aot.backends.onnxruntime import OnnxRuntime
    from aot.onnx_input.vetting import vet

    vet(path, "open")
    try:
        run: Runner = OnnxRuntime().open(path, spec, ())
    except GraphError as refusal:
        run = _evaluated(path, refusal)
    return Original(run, path, spec)


class Original:
    """See `original`. It is called as a runner."""

    def __init__(self, run: Runner, path: Path, spec: ModelSpec) -> None:
        self._run, self._path, self._spec = run, path, spec
        self._doubles = _doubles(path)

    def __call__(self, inputs: Mapping[str, Any]) -> Arrays:
        """Run once."""
        import numpy as np

        fed = {n: v.astype(np.float64) if n in self._doubles else v for n, v in inputs.items()}
        try:
            made = self._run(fed)
        except EngineError as error:
            raise self._unsuitable(error, inputs) from error
        return {n: v.astype(np.float32) if v.dtype == np.float64 else v for n, v in made.items()}

    def _unsuitable(self, error: EngineError, inputs: Mapping[str, Any]) -> AotError:
        """The model does not run on inputs of the declared shapes; integers that no range is known of may be why."""
        loose = [name for name, t in self._spec.inputs.items() if t.dtype.startswith(("int", "uint")) and t.low is None]
        if loose:
            names = ", ".join(f"'{name}'" for name in loose)
            return GraphError(
                f"the file does not run on generated inputs: {error.what}",
                where=f"integers drawn from 0..1 for {names}",
                fix="give the values that they can have: " + " ".join(f"--dim {name}=MIN:OPT:MAX" for name in loose),
            )
        sizes = sizes_of(inputs, self._spec, str(self._path))
        at = _FAILED.search(error.what)
        if at is None or not sizes:
            return error
        op, name, said = at.groups()
        given = ", ".join(f"{dim}={size}" for dim, size in sizes.items())
        return GraphError(
            f"the file does not run with {given}: {said}",
            where=(f"node '{name}' ({op})" if name else f"a node {op} without a name") + f" in {self._path}",
            fix="every size of a --dim must run, and it takes no steps; one size that runs: "
            + " ".join(f"--dim {dim}=SIZE:SIZE:SIZE" for dim in sizes),
        )


def _doubles(path: Path) -> frozenset[str]:
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    double = onnx.TensorProto.DOUBLE
    return frozenset(value.name for value in graph.input if value.type.tensor_type.elem_type == double)


def _evaluated(path: Path, refusal: GraphError) -> Runner:
    import onnx
    from onnx.reference import ReferenceEvaluator

    try:
        evaluator = ReferenceEvaluator(onnx.load(str(path)))
    except (RuntimeError, NotImplementedError, TypeError, ValueError, KeyError, AttributeError):
        # The evaluator looks every op up when it is made; it knows nothing of other domains.
        raise refusal from None
    names = [str(name) for name in evaluator.output_names]

    def run(inputs: Mapping[str, Any]) -> Arrays:
        import numpy as np

        try:
            with np.errstate(all="ignore"):  # its ops overflow on the way to a right result, as in 1 / (1 + exp(-x))
                made = evaluator.run(None, dict(inputs))
        except Exception as error:  # the evaluator's ops raise whatever numpy raises
            raise GraphError(
                f"neither onnxruntime nor onnx's own evaluator runs the file, so nothing shows what it means: {error}",
                where=str(path),
                fix=f"onnxruntime says: {refusal.what}",
            ) from error
        return {name: np.asarray(values) for name, values in zip(names, made, strict=True)}

    return run
