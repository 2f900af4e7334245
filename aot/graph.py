"""The pass contract: a function that edits an `onnx_ir.Model` in place and says how many sites it changed.

`@graph_pass` makes a `Pass` of such a function. Its docstring states the algebra: what is replaced by what, and
why both are equal. Its `example` is a tiny graph in ONNX's text form that the pass changes; from it a test is
made that holds every pass to the contract: at least one site changes, a second run changes nothing, the checker
passes, and the numbers stay equal.

`run_passes` runs passes in order, each until it finds nothing more to do. After every change what nothing reads is
removed and shapes are inferred, so that a pass may rely on the shapes of what it sees; and a node that a pass made
without saying where it comes from inherits the origin of what it replaced (`aot.origins.inherit` has the rule).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from aot import origins

Skip = Callable[[ir.Node, str], None]
Rewrite = Callable[[ir.Model, Skip], int]

_ROUNDS = 50


@dataclass(frozen=True)
class Pass:
    """A graph rewrite; see the module's docstring.

    name: the function's name. example: a model in ONNX's text form. narrow_only: it is run only for builds that
    compute in a type narrower than FP32, since FP32 does not need what it does.
    """

    name: str
    rewrite: Rewrite
    example: str
    narrow_only: bool = False

    @property
    def algebra(self) -> str:
        """What is replaced by what, and why both are equal."""
        return (self.rewrite.__doc__ or "").strip()

    def __call__(self, model: ir.Model, skip: Skip | None = None) -> int:
        """Edit `model` in place until nothing is left to do; return the number of sites changed.

        `skip(node, reason)` hears of every site that looked right and was left alone. Raises RuntimeError when
        the pass never settles, which is a bug in the pass.
        """
        from onnx_ir.passes.common import RemoveUnusedNodesPass

        total = 0
        for _ in range(_ROUNDS):
            before = origins.by_value(model)
            reasons: dict[str, tuple[ir.Node, str]] = {}
            sites = self.rewrite(model, lambda node, why, r=reasons: r.update({node.name or "": (node, why)}))  # type: ignore[misc]
            if not sites:
                for node, why in reasons.values():
                    if skip is not None:
                        skip(node, why)
                return total
            total += sites
            RemoveUnusedNodesPass()(model)
            origins.inherit(model, before)
            infer_shapes(model)
        raise RuntimeError(f"pass '{self.name}' still changes the graph after {_ROUNDS} rounds")


def graph_pass(*, example: str, narrow_only: bool = False) -> Callable[[Rewrite], Pass]:
    """Make a `Pass` of a function `(model, skip) -> sites changed`."""

    def declare(rewrite: Rewrite) -> Pass:
        return Pass(rewrite.__name__, rewrite, example, narrow_only)

    return declare


@dataclass(frozen=True)
class Applied:
    """What one pass did: the sites it changed, its seconds, and (node, reason) for those it left alone."""

    name: str
    sites: int
    seconds: float
    skipped: tuple[tuple[str, str], ...]


def run_passes(passes: Iterable[Pass], model: ir.Model) -> list[Applied]:
    """Run `passes` in order over `model`, in place."""
    infer_shapes(model)
    done = []
    for one in passes:
        start = time.perf_counter()
        skipped: list[tuple[str, str]] = []
        sites = one(model, lambda node, why, s=skipped: s.append((node.name or "", why)))  # type: ignore[misc]
        done.append(Applied(one.name, sites, time.perf_counter() - start, tuple(skipped)))
    return done


def infer_shapes(model: ir.Model) -> None:
    """Complete the dtype and shape of every value, following the contents of shape tensors; symbolic dims are kept."""
    from onnx_ir.passes.common import ShapeInferencePass

    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)


def apply_rules(model: ir.Model, rules: Sequence[Any]) -> int:
    """Apply rules of `onnxscript.rewriter`, which carry metadata over to the new nodes; return the number of sites."""
    from onnxscript.rewriter import RewriteRuleSet

    sites = int(RewriteRuleSet(rules).apply_to_model(model))
    hold_constants(model)
    return sites


def hold_constants(model: ir.Model) -> None:
    """Make initializers of constants that nodes read and no graph holds.

    Rules of onnxscript name a new constant after the value that it is applied to; of two with one name the graph
    keeps the last, and the model could not be written.
    """
    held = {id(value) for value in model.graph.initializers.values()}
    for node in model.graph.all_nodes():
        for value in node.inputs:
            if value is None or value.const_value is None or value.producer() is not None or value.is_graph_input():
                continue
            if id(value) in held or value.is_initializer():
                continue
            name, count = value.name or "constant", 1
            while value.name is None or value.name in model.graph.initializers:
                count += 1
                value.name = f"{name}_{count}"
            model.graph.register_initializer(value)
            held.add(id(value))
