"""Random ONNX graphs to hold the passes to: valid, runnable at every size, and full of what passes look for, or nearly.

`generate(seed)` grows a graph step by step from the lists `STEPS` of the modules here. `draft.py` holds the graph in
the making; `reduce.py` makes a graph on which something fails small.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from tests.passes.random_graphs import elementwise, flow, layers, patterns, views
from tests.passes.random_graphs.draft import DIMS, RUNS, Array, Draft, Value, info, is_fixed

_STEPS = (*elementwise.STEPS, *views.STEPS, *layers.STEPS, *patterns.STEPS, *flow.STEPS)
_WEIGHTS = [weight for weight, _ in _STEPS]
FEWEST, MOST = 5, 60


@dataclass(frozen=True)
class Graph:
    """A model and what to feed it, one set of inputs for each size of the dynamic dims."""

    model: onnx.ModelProto
    feeds: tuple[dict[str, Array], ...]


def generate(seed: int) -> Graph:
    """A graph of 5 to 60 ops; the same for the same seed."""
    rng = random.Random(seed)
    opset = rng.choice((13, 17, 18, 20, 20, 20, 21, 23))
    main = rng.choices(("float32", "float64", "float16"), (8, 1, 1))[0]
    draft = Draft(rng, opset, main)
    for dims in rng.sample(
        [
            ["A", 4],
            ["A", "B", 4],
            ["A", 4, 6, "B"],
            [2, 3, 4],
            ["A", 4, 4, 6],
            [3],
            [],
            ["B", "A"],
            [1, 4, 6, 6],
            ["A", "B", 8],
        ],
        rng.randint(1, 3),
    ):
        draft.input(main, dims)
    if rng.random() < 0.5:
        draft.input("bool", rng.choice((["A", "B"], [], ["A", 1], [4])))
    if rng.random() < 0.3:
        draft.input(rng.choice(("int64", "int32")), rng.choice((["A"], ["A", "B"], [3])))
    target = rng.randint(FEWEST, MOST)
    while draft.ops < target:
        draft.attempt(rng.choices(_STEPS, _WEIGHTS)[0][1], MOST)
    outputs = _outputs(draft)
    model = helper.make_model(
        draft.graph("random", outputs),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8 if opset < 20 else 10,
        producer_name=f"seed {seed}",
    )
    if rng.random() < 0.2:
        for node in model.graph.node:
            node.name = ""
    return Graph(model, tuple(_feed(draft.inputs, run, seed) for run in range(RUNS)))


def _outputs(draft: Draft) -> list[Value]:
    """Most of what nothing reads, some of what is read, now and then an input; the rest of the first is dead code."""
    read = {name for node in draft.nodes for name in node.input}
    made = [v for v in draft.values if v not in draft.inputs]
    found = [v for v in made if draft.chance(0.7 if v.name not in read else 0.05)]
    if draft.chance(0.05):
        found.append(draft.rng.choice(draft.inputs))
    return found or made[-1:] or [draft.inputs[0]]


def _feed(inputs: list[Value], run: int, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng((seed, run))
    fed = {}
    for value in inputs:
        shape = [size[run] for size in value.shape]
        if value.is_float:
            drawn = rng.normal(size=shape).clip(-3, 3)
        elif value.dtype == "bool":
            drawn = rng.random(shape) < 0.6
        else:
            drawn = rng.integers(-3, 4, shape)
        fed[value.name] = np.asarray(drawn).astype(value.dtype)
    return fed


__all__ = ["DIMS", "Graph", "generate", "info", "is_fixed"]
