"""Planted weaknesses: the search names the node they were planted in, and keeps no more wide than is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.config import Budget, Recipe
from aot.report.search import sentences
from tests.search.planted import Array, Planted, quantized

WIDTH = 48
DEPTH = 6


def chain(random: np.random.Generator, reads: str) -> tuple[str, dict[str, Array]]:
    """`DEPTH` linear layers a0, a1, ... with a Relu each (r0, r1, ...), and weights of Kaiming's scale."""
    weights = {f"w{i}": _normal(random, WIDTH, WIDTH, math.sqrt(2 / WIDTH)) for i in range(DEPTH)}
    layers = [f"a{i} = MatMul({f'r{i - 1}' if i else reads}, w{i}) r{i} = Relu(a{i})" for i in range(DEPTH)]
    return " ".join(layers), weights | {"head": _normal(random, WIDTH, WIDTH)}


def _normal(random: np.random.Generator, rows: int, columns: int, scale: float = 1.0) -> Array:
    return (scale * random.normal(size=(rows, columns))).astype(np.float32)


def data(random: np.random.Generator) -> tuple[Array, list[Array]]:
    return _normal(random, 64, WIDTH), [_normal(random, rows, WIDTH) for rows in (1, 16, 33)]


def outlier_channel(folder: Path) -> Planted:
    """One channel of r2 is 3000 times the others, and a3 divides it away again: INT8 with one scale loses the rest."""
    random = np.random.default_rng(0)
    body, weights = chain(random, "x")
    weights["w2"][:, 5] *= 3000
    weights["w3"][5, :] /= 3000
    seen, judged = data(random)
    body += " y = MatMul(r5, head)"
    return Planted(
        folder, body, weights, seen, judged, quantized("int8"), Budget(cosine=0.995), guilty=frozenset({"a3"})
    )


def sensitive_head(folder: Path, precision: str) -> Planted:
    """The head's weights sum to zero over features that share a large part: what is left is a small difference."""
    random = np.random.default_rng(1)
    body, weights = chain(random, "x")
    weights["head"] -= weights["head"].mean(0)
    weights["common"] = np.asarray(100, np.float32)
    seen, judged = data(random)
    body += " shifted = Add(r5, common) y = MatMul(shifted, head)"
    return Planted(
        folder, body, weights, seen, judged, quantized(precision), Budget(cosine=0.98), guilty=frozenset({"y"})
    )


def beyond_fp16(folder: Path, recipe: Recipe) -> Planted:
    """A feature that no layer reads reaches 4 in calibration and 700 in one reference case, and is squared."""
    random = np.random.default_rng(2)
    body, weights = chain(random, "x")
    weights["w0"][0] = 0
    weights |= {"small": np.asarray(1e-4, np.float32), "axis": np.asarray([1], np.int64)}
    seen, judged = data(random)
    judged[-1][:, 0] = 700
    body += " out = MatMul(r5, head) top = ReduceMax(x, axis) square = Mul(top, top) scaled = Mul(square, small)"
    body += " sum = Add(out, scaled) y = Softmax(sum)"
    return Planted(
        folder, body, weights, seen, judged, recipe, Budget(cosine=0.95), guilty=frozenset({"square", "scaled"})
    )


def nodes(planted: Planted, *ops: str) -> list[str]:
    return [node.name or "" for node in planted.model.graph if not ops or node.op_type in ops]


def kept(facts: Any) -> list[str]:
    return [one["node"] for one in facts["kept"]]


def check(planted: Planted, fewest: Sequence[Sequence[str]], *, most_trials: int) -> dict[str, Any]:
    """That the search meets the budget with the planted nodes and at most two more than brute force needs."""
    facts = dict(planted.repaired().facts)
    assert facts["met"]
    assert planted.guilty <= set(kept(facts))
    assert len(facts["kept"]) <= len(fewest[0]) + 2
    assert planted.keeping(layers=facts["keep"]["layers"], fp32=facts["keep"]["fp32"]).facts["accepted"]
    assert facts["trials"] <= most_trials
    return facts


def test_an_outlier_channel_is_traced_to_the_layer_that_reads_it(tmp_path: Path) -> None:
    planted = outlier_channel(tmp_path)
    fewest = planted.fewest(nodes(planted, "MatMul"), 1, fp32=False)
    assert fewest == [("a3",)]
    facts = check(planted, fewest, most_trials=2 + math.ceil(math.log2(DEPTH + 1)) + 2)
    [one] = facts["kept"]
    assert (one["was"], one["kept"], one["module"], one["source"]) == ("int8", "fp16", "net.a3", "net.py:7")
    assert one["share"] > 0.95
    assert facts["after"]["cosine"] >= 0.995 > one["without"]["cosine"]


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_a_head_that_takes_a_small_difference_is_kept_wide(tmp_path: Path, precision: str) -> None:
    planted = sensitive_head(tmp_path, precision)
    fewest = planted.fewest(nodes(planted, "MatMul"), 1, fp32=False)
    assert fewest == [("y",)]
    facts = check(planted, fewest, most_trials=8)
    assert kept(facts) == ["y"]
    # Seven layers of equal size, by the multiply-adds of which six are left.
    assert facts["low"] == {"precision": precision, "before": 1.0, "after": pytest.approx(6 / 7)}
    assert facts["kept"][0]["operations"] == pytest.approx(1 / 7, rel=0.1)


def test_what_leaves_fp16s_range_on_data_that_calibration_did_not_see_is_kept_in_fp32(tmp_path: Path) -> None:
    planted = beyond_fp16(tmp_path, Recipe(precision="fp16"))
    assert planted.fewest(nodes(planted), 1, fp32=True) == []
    assert planted.keeping(fp32=planted.guilty).facts["accepted"]
    facts = check(planted, [("square", "scaled")], most_trials=16)
    assert {one["kept"] for one in facts["kept"]} == {"fp32"}
    assert "NaN or infinities" in facts["kept"][0]["without"]["missed"]


def test_where_layers_in_fp16_are_not_enough_any_node_may_be_kept_in_fp32(tmp_path: Path) -> None:
    planted = beyond_fp16(tmp_path, quantized("int8"))
    assert not planted.keeping(layers=["*"]).facts["accepted"]
    facts = check(planted, [("square", "scaled")], most_trials=20)
    assert facts["keep"]["layers"] == []
    assert facts["wide"]["precision"] == "fp32"
    assert facts["low"]["after"] == pytest.approx(1.0)


def test_when_no_set_of_nodes_is_enough_it_says_so_with_the_numbers(tmp_path: Path) -> None:
    planted = replace(sensitive_head(tmp_path, "int8"), folder=tmp_path / "off", off=50.0)
    found = planted.repaired()
    assert not found.facts["met"]
    assert found.facts["why"].startswith("even with every node in fp32, case 'c")
    assert "cosine" in found.facts["why"]
    assert found.applied(planted.recipe) == planted.recipe
    [sentence] = sentences(found.facts)
    assert "no choice of nodes to keep wide can meet it" in sentence
    assert "even with every node in fp32" in sentence
