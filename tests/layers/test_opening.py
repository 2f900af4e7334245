"""Which graph stands for a side of the comparison."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from aot.errors import UsageError
from aot.layers.opening import graph_of
from aot.runners import Runnable
from tests.tiny import SPEC, Eager, Workshop


def side(shop: Workshop, route: str) -> Runnable:
    prepared = shop.prepared()
    prepared = replace(prepared, plan=replace(prepared.plan, route=route))  # type: ignore[arg-type]
    return Runnable("tiny.aot", "", SPEC, lambda: nullcontext(Eager().eager()), prepared)


def test_of_an_artifact_it_is_the_final_graph(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    one = side(shop, "onnx")
    assert graph_of(one, one, {}, shop.run) == (shop.graph().model, "final graph, fp32")


def test_an_artifact_without_a_graph_is_refused(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    one = side(shop, "torch-tensorrt")
    with pytest.raises(UsageError, match="holds a program of torch's, no graph") as caught:
        graph_of(one, one, {}, shop.run)
    assert caught.value.where == "tiny.aot"
    assert "leave --layers away" in (caught.value.fix or "")
