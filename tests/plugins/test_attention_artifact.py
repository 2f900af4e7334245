"""Attention as kernels from an ONNX file to the artifact and on: what the build, the manifest and `aot inspect` say.

Kernels are made up, for what the compiler does with them is not the point; engines are those of a stand-in for
TensorRT 10.6.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

from aot import toolchain
from aot.artifact import load, read_manifest
from aot.cli import _main as cli
from aot.plugins.compiling import Job
from aot.plugins.header import Header
from aot.runtime.kernels import Compiled
from aot.stages import kernels as stage
from tests.passes.test_attention_kernel import CONSTANTS, JOINED, SEPARATE
from tests.passes.test_limits import HEAD

NODE = "o_attention"
TENSORRT = ("--backend", "tensorrt", "--target", "sm90")
STAYS = "attention stays two MatMuls and a Softmax"
MASKED_BY_QUERY = "its mask is not one of keys, [batch, 1, 1, keys]"
MODEL = (
    "(float[B,S,32] x, float[B,S,32] z, float[B,S,32] w, float[B,1,Q,S] m) => (float[B,S,32] y)"
    + CONSTANTS.replace("float16 scale = {13312}", "float scale = {0.25}")
    + "{"
    + SEPARATE
    + " q = Mul(qt, scale)  a = MatMul(q, k)  b = Add(a, m)  p = Softmax(b)  o = MatMul(p, v) "
    + JOINED
    + "}"
)


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(job: Job) -> Compiled:
        return Compiled(
            "aot::attention", job.target, "kernel", "code", 128, 0, 8, 0, ("q", "k", "v", "mask"), job.dtypes,
            job.dtypes[:1], (["size", "q", 1], 1, 1), {}, ([["size", "q", 0], ["size", "q", 1], 32],), {},
            hashlib.sha256(b"code").hexdigest(), "5" * 64,
        )  # fmt: skip

    def compile_each(header: Header, wanted: Sequence[Job]) -> list[tuple[Compiled, ...]]:
        return [(compiled(job),) for job in wanted]

    monkeypatch.setattr(stage, "compile_each", compile_each)


def written(folder: Path, mask: str = "float[B,1,1,S] m") -> Path:
    model = onnx.parser.parse_model(HEAD + MODEL.replace("float[B,1,Q,S] m", mask))
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.call([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def prepared(folder: Path, capsys: pytest.CaptureFixture[str], *options: str, mask: str = "float[B,1,1,S] m") -> Any:
    dims = ("--dim", "B=1:2:4", "--dim", "S=1:8:16")
    common = ("--precision", "fp16", "--until", "graph", "-o", str(folder / "m.aot"))
    return called(capsys, "build", str(written(folder, mask)), *common, *dims, *options)


def told(capsys: pytest.CaptureFixture[str], artifact: Path) -> str:
    assert cli.call(["inspect", str(artifact)]) == 0
    return capsys.readouterr().out


def test_what_became_a_kernel_is_in_the_manifest_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = prepared(tmp_path, capsys, "--target", "sm90", "--plugin", "attention")
    (place,) = found["replaced"]
    assert (place["plugin"], place["node"], place["replaced"], place["why"]) == ("attention", NODE, True, "asked for")
    assert read_manifest(tmp_path / "m.aot").replaced == [place]
    assert load(str(tmp_path / "m.aot")).replaced == (place,)
    lines = [line.split() for line in told(capsys, tmp_path / "m.aot").splitlines()]
    assert ["attention", "takes", "1", "place", "that", "the", "model", "writes", "out:", "asked", "for"] in lines
    assert ["aot::attention", "for", "sm90", "1", "node,", "kernel", "5694d08a2e53"] in lines


def test_what_stays_is_told_by_the_build_its_result_and_inspect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = prepared(tmp_path, capsys, "--target", "sm90", "--plugin", "attention", mask="float[B,1,S,S] m")
    warning = f"{STAYS} in 1 place on sm90: {MASKED_BY_QUERY}"
    assert warning in found["warnings"]
    lines = [line.split() for line in told(capsys, tmp_path / "m.aot").splitlines()]
    assert f"attention for sm90 1 stays two MatMuls and a Softmax: {MASKED_BY_QUERY}".split() in lines
    data = called(capsys, "inspect", str(tmp_path / "m.aot"))
    assert [(one["replaced"], one["why"]) for one in data["replaced"]] == [(False, MASKED_BY_QUERY)]


class TestAnArtifactThatLacksThoseKernels:
    """Prepared without --plugin attention; it is asked for by the second half."""

    @pytest.fixture
    def artifact(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
        found = prepared(tmp_path, capsys, "--target", "sm90")
        assert found["replaced"] == []
        return str(tmp_path / "m.aot")

    def test_they_are_compiled_where_triton_is(self, artifact: str, capsys: pytest.CaptureFixture[str]) -> None:
        options = ("--until", "graph", "--target", "sm90", "--plugin", "attention", "-o", artifact)
        found = called(capsys, "build", artifact, *options)
        assert [(one["node"], one["replaced"]) for one in found["replaced"]] == [(NODE, True)]
        (kernels,) = load(artifact).kernels
        assert kernels.facts["attention"]["formed"] == [NODE]
        assert list(kernels.by_node()) == [NODE]

        found = called(capsys, "build", artifact, *options)  # once is enough: places are not told twice
        assert [(one["node"], one["replaced"]) for one in found["replaced"]] == [(NODE, True)]

    def test_without_triton_it_is_said_what_is_missing(
        self, artifact: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known = toolchain.version
        monkeypatch.setattr(toolchain, "version", lambda name: None if name == "triton" else known(name))
        options = ("--until", "graph", "--target", "sm90", "--plugin", "attention", "-o", artifact)
        found = called(capsys, "build", artifact, *options)
        (warning,) = [one for one in found["warnings"] if one.startswith(STAYS)]
        assert warning.startswith(f"{STAYS} on sm90: triton, which compiles its kernel, is not installed: pip install")
        assert load(artifact).kernels == ()


def test_explain_says_what_a_build_would_make_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each place, and the reason where it stays; nothing is compiled."""
    dims = ("--dim", "B=1:2:4", "--dim", "S=1:8:16")

    def remarks(*options: str, mask: str = "float[B,1,1,S] m") -> list[tuple[str, str]]:
        asked = ("--precision", "fp16", *dims, *(options if "--backend" in options else (*TENSORRT, *options)))
        found = called(capsys, "explain", str(written(tmp_path, mask)), *asked)
        return [(one["node"], one["note"]) for one in found["remarks"] if one["op"] == "attention"]

    takes, stays = "takes the place of what the model computes", "does not take the place of what the model computes"
    assert remarks("--plugin", "attention") == [(NODE, f"{takes}: asked for")]
    assert remarks() == [(NODE, f"{stays}: not measured on sm90 at these sizes: aot plugin tune attention")]
    assert remarks("--no-plugins") == []
    assert remarks("--plugin", "attention", mask="float[B,1,S,S] m") == [("o", f"{stays}: {MASKED_BY_QUERY}")]
    rtx = ("--backend", "tensorrt_rtx", "--target", "sm89", "--plugin", "attention")
    assert remarks(*rtx)[-1] == ("", f"{STAYS}: TensorRT-RTX launches no kernels of plugins")
