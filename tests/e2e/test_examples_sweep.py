"""Every example in every precision: a minute or two each, so in `make sweep` and not in `make test`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.harness import Aot

ROOT = Path(__file__).parent.parent.parent
# The least cosine to eager, over held-out data and over the sizes of profiles/verify.yaml.
FLOORS = {
    "minilm": {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.995, "fp8": 0.99, "int8": 0.95},
    "mobilenet": {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.995, "fp8": 0.98, "int8": 0.90},
}


@pytest.fixture(scope="module", params=FLOORS)
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Aot]:
    """One folder and one store a model, so that it is exported once."""
    base = tmp_path_factory.mktemp(request.param)
    shutil.copytree(ROOT / "examples" / request.param, base / "project")
    return request.param, Aot(base / "project", base / "store")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "fp8", "int8"])
def test_an_example_builds_and_keeps_its_answers(example: tuple[str, Aot], precision: str) -> None:
    name, aot = example
    done = aot("build", "model.py", "--precision", precision, "--target", "sm89", "--profile", "verify", "--json")
    assert done.code == 0, done.err
    (engine,) = done.json["engines"]
    assert engine["bytes"] > 1_000_000
    assert done.json["verification"]["graph"]["cases"] >= 8
    assert done.json["verification"]["graph"]["cosine"] >= FLOORS[name][precision]
    assert (done.json["quantized"]["qdq"] > 0) == (precision in ("int8", "fp8"))
