"""Artifacts prepared on a machine without a GPU, finished here: no torch, no source of the model.

`AOT_PREPARED` names a folder of prepared artifacts called MODEL-PRECISION.aot or .tar, as
`aot build MODEL --precision PRECISION --until graph --profile verify` writes them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.e2e.harness import Aot

# The least cosine of the engine to eager on real inputs.
FLOORS = {
    "minilm-fp32": 0.9999,
    "minilm-fp16": 0.999,
    "minilm-int8": 0.95,
    "minilm-fp8": 0.99,
    "mobilenet-fp32": 0.9999,
    "mobilenet-fp16": 0.999,
    "mobilenet-int8": 0.90,
    "mobilenet-fp8": 0.98,
}
FOLDER = os.environ.get("AOT_PREPARED")
NO_TORCH = "import sys; sys.modules['torch'] = None"


@pytest.mark.skipif(FOLDER is None, reason="AOT_PREPARED names no folder of prepared artifacts")
@pytest.mark.parametrize("name", FLOORS)
def test_a_prepared_artifact_is_finished_without_torch(aot: Aot, name: str) -> None:
    found = [path for path in Path(str(FOLDER)).glob(f"{name}.*") if path.suffix in (".aot", ".tar")]
    if not found:
        pytest.skip(f"{FOLDER} holds no {name}")
    prepared = aot.folder / found[0].name
    if found[0].is_dir():
        shutil.copytree(found[0], prepared)
    else:
        shutil.copy(found[0], prepared)
    outcome = aot("build", prepared.name, "--json", before=NO_TORCH)
    assert outcome.code == 0, outcome.err
    engine = outcome.json["verification"]["engine"]
    assert engine["ran"] is True
    assert engine["cosine"] >= FLOORS[name]
