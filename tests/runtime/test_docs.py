"""docs/runtime.md: its examples run, top to bottom, and print what they say."""

from __future__ import annotations

import base64
import contextlib
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime import artifacts


def write_artifacts(folder: Path) -> None:
    """The two models that the page speaks of."""
    weight = np.random.default_rng(0).standard_normal((128, 10)).astype(np.float32)
    artifacts.write(
        folder / "classifier.aot",
        f"""<ir_version: 10, opset_import: ["": 20]>
        classifier (float[batch, 128] input) => (float[batch, 10] logits)
        <float[128, 10] w = {{{", ".join(map(str, weight.ravel().tolist()))}}}> {{ logits = MatMul(input, w) }}""",
        inputs={"input": ("float32", ["batch", 128])},
        outputs={"logits": ("float32", ["batch", 10])},
        profiles=[{"batch": [1, 8, 64]}],
        precision="fp16",
    )
    tensor = ("float32", [1, 4])
    zero = base64.b64encode(bytes(4)).decode()
    artifacts.write(
        folder / "decoder.aot",
        """<ir_version: 10, opset_import: ["": 20]>
        decoder (float[1, 4] x, float[1, 4] state_total) => (float[1, 4] y, float[1, 4] state_total_out)
        { state_total_out = Add(state_total, x)  y = Neg(state_total_out) }""",
        inputs={"x": tensor, "state_total": tensor},
        outputs={"y": tensor, "state_total_out": tensor},
        profiles=[{}],
        states={"state_total": {"path": "total", "output": "state_total_out", "initial": zero}},
    )


def test_every_example_runs(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (root / "docs/runtime.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(examples) == 9
    write_artifacts(tmp_path)
    monkeypatch.chdir(tmp_path)
    seen: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for example in examples:
            exec(example, seen)
    label, inputs, *refused = printed.getvalue().splitlines()
    assert re.fullmatch(r"final graph, fp16 \(onnxruntime [\d.]+, cpu\)", label)
    assert f"# {inputs}\n" in page
    assert "\n".join(f"# {line}" for line in refused) in page
    np.testing.assert_array_equal(seen["first"], -np.ones((1, 4)))
    np.testing.assert_array_equal(seen["second"], -2 * np.ones((1, 4)))
    np.testing.assert_array_equal(seen["again"]["y"], -2 * np.ones((1, 4)))
    assert seen["logits"].shape == (8, 10)
