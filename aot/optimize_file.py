"""`aot optimize`: an ONNX file becomes one of fewer nodes; whatever the passes do not know is left as it is."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from aot import model_file
from aot.errors import GraphError
from aot.model_file import Stated, ends

if TYPE_CHECKING:
    import onnx_ir as ir

    from aot.graph.check import Check
    from aot.optimize import Optimized

_TAKES = "aot optimize takes an .onnx file; aot build takes model.py, x.pt2, x.onnx and prepared artifacts"


def optimize_file(
    source: Path,
    target: Path,
    *,
    narrow: bool = False,
    quantized: bool = False,
    operator: bool = False,
    without: Collection[str] = (),
    check: Check | None = None,
    fold_limit: int | None = None,
) -> tuple[Optimized, list[Path]]:
    """Write `source`, optimized, as `target`; both may be the same file. See `aot.optimize.optimize`.

    The model is brought to the opset that the passes write, where it is older and every node of it has a form there.
    Weights stay beside the file where they were, as do those of more than 1 GiB together; they go into
    `NAME.onnx.data`, or the first of `NAME.onnx.2.data`, ... that does not exist. No file of weights is ever removed,
    since any other model may read it: those that the model at `target` read before, and that neither it nor `source`
    reads now, are returned. Killed at any moment, what was at `target` before is whole, or what comes after it. Raises
    UsageError for a place that cannot be written, and GraphError for a file that is no whole and valid ONNX model.
    """
    from aot.optimize import chosen, optimize

    chosen(narrow=narrow, quantized=quantized, operator=operator, without=without)
    model_file.check_source(source, _TAKES)
    model_file.check_place(source, target)
    model, stated = _load(source, check)
    done = optimize(
        model,
        narrow=narrow,
        quantized=quantized,
        operator=operator,
        without=without,
        check=check,
        fold_limit=fold_limit,
    )
    model_file.restore(model, stated)
    left = model_file.left_behind(source, target)  # before the writing, after which nothing should take time
    model_file.write(model, target, external=model_file.is_external(model))
    return done, left


def _load(source: Path, check: Check | None) -> tuple[ir.Model, list[Stated]]:
    """The model of a file, in the opset of the passes where it can be brought there.

    With what the file states of its inputs and outputs, before anything is inferred.
    """
    from aot.graph import Pass, infer_shapes
    from aot.graph.shapes import forget_wrong_shapes
    from aot.graph.state import State
    from aot.onnx_input import OPSET
    from aot.onnx_input.loading import load
    from aot.onnx_input.opsets import upgrade

    model = load(source, inline=False)
    stated = [Stated.of(value) for value in ends(model)]
    forget_wrong_shapes(model)
    if model.functions or model.opset_imports.get("", OPSET) >= OPSET:
        return model, stated
    infer_shapes(model)
    before = State.of(model)
    try:
        upgrade(model, OPSET, str(source))
        infer_shapes(model)
        if check is not None:
            check(Pass("opset", lambda model, skip: 0, ""), before, State.of(model))
    except GraphError:
        # It is rewritten in place; what it was is in the file.
        model = load(source, inline=False)
        forget_wrong_shapes(model)
    return model, stated
