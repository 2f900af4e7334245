"""Which plugins an export looks for, and in whose place an op is put: what was asked for, and what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from aot import plan as plans
from aot import toolchain
from aot.backends.onnxruntime import BACKEND as ONNXRUNTIME
from aot.backends.tensorrt import BACKEND as TENSORRT
from aot.cli import _main as cli
from aot.config import Patterns, Request
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import UsageError
from aot.plan import Plan
from aot.plugins import tuned
from aot.plugins.header import Header, read
from aot.plugins.replacing import NOTHING, Replacing, decided
from aot.toolchain import Gpu, Machine
from tests.plugins.projects import line_of, write

PATTERN = """

def tripled(x, shift):
    return x * 3.0 + shift


PATTERNS = [tripled]
"""
HALF = ("float16",)


def plugin(folder: Path) -> Header:
    """`triple`, which says what it replaces."""
    file = write(folder)
    file.write_text(file.read_text() + PATTERN)
    return read(file)


def measured(header: Header, folder: Path, ms: float, expanded_ms: float | None, width: int = 64) -> None:
    """As if 32 rows of this width had been timed on an H200 in FP16."""
    shapes = {"x": (32, width)}
    tuned.write(
        header,
        folder / "plugins",
        [
            tuned.Entry(
                gpu="NVIDIA H200",
                target="sm90",
                dtypes=HALF,
                bucket={"...": 32, "width": width},
                config={"block": 16, "num_warps": 1},
                ms=ms,
                tried=1,
                measured=10,
                shapes=shapes,
                source=tuned.source(header),
                date="2026-01-01",
                driver=None,
                triton=None,
                expanded_ms=expanded_ms,
            )
        ],
    )


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "machine", lambda: Machine(Gpu("NVIDIA H200", "sm90", 1), "580", "a CPU"))


def planned(folder: Path, precision: str = "fp16", backend: str = "tensorrt", target: str = "sm90") -> Plan:
    spec = ModelSpec("model", {"x": Input([Dim("batch", min=1, opt=2, max=4), 64])})
    request = Request(model="model.py", precision=precision, until="graph")  # type: ignore[arg-type]
    found = plans.decide(request, plans.choose(request, folder), spec)
    return replace(found, backend=backend, targets=(target,))


def test_by_default_only_what_was_measured_with_and_without(tmp_path: Path, h200: None) -> None:
    header = plugin(tmp_path)
    assert decided(Patterns(), planned(tmp_path)) == NOTHING
    measured(header, tmp_path, 1.0, None)  # tuned, and never compared with what it replaces
    assert decided(Patterns(), planned(tmp_path)) == NOTHING
    measured(header, tmp_path, 1.0, 2.0)
    found = decided(Patterns(), planned(tmp_path))
    assert (found.asked, found.measured, found.target, found.gpu) == ((), ("triple",), "sm90", "NVIDIA H200")
    assert decided(Patterns(measured=False), planned(tmp_path)) == NOTHING


def test_measurements_count_where_kernels_are_launched_alone(tmp_path: Path, h200: None) -> None:
    measured(plugin(tmp_path), tmp_path, 1.0, 2.0)
    assert TENSORRT.launches(None) is not None
    assert ONNXRUNTIME.launches(None) is None
    assert decided(Patterns(), planned(tmp_path, backend="onnxruntime", target="cpu")) == NOTHING
    assert decided(Patterns(), planned(tmp_path, target="sm89")) == NOTHING
    asked = decided(Patterns(plugins=("triple",)), planned(tmp_path, backend="onnxruntime", target="cpu"))
    assert (asked.asked, asked.measured) == (("triple",), ())


def test_the_key_changes_with_all_that_the_answer_depends_on(tmp_path: Path, h200: None) -> None:
    header = plugin(tmp_path)
    seen = []
    for ms, precision in ((1.0, "fp16"), (3.0, "fp16"), (3.0, "bf16")):
        measured(header, tmp_path, ms, 2.0)
        seen.append(decided(Patterns(), planned(tmp_path, precision)).to_json())
    header.file.write_text(header.file.read_text() + "# changed\n")
    measured(read(header.file), tmp_path, 3.0, 2.0)
    seen.append(decided(Patterns(), planned(tmp_path, "bf16")).to_json())
    assert len({json.dumps(one, sort_keys=True) for one in seen}) == 4
    assert seen[1]["compute"] == "float16"
    assert seen[2]["compute"] == "bfloat16"


@pytest.mark.parametrize(
    ("ms", "width", "taken", "why"),
    [
        (1.0, 64, True, "measured to be faster than what it replaces on sm90"),
        (3.0, 64, False, "measured to be no faster than what it replaces on sm90"),
        (1.0, 256, False, "not measured on sm90 at these sizes: aot plugin tune triple"),
    ],
)
def test_a_measurement_decides(tmp_path: Path, ms: float, width: int, taken: bool, why: str) -> None:
    """The model is exported in FP32 and will compute in FP16, which is what was measured."""
    header = plugin(tmp_path)
    measured(header, tmp_path, ms, 2.0)
    looking = Replacing(measured=("triple",), target="sm90", compute="float16")
    assert looking.judged(header, ("float32",), {"x": (None, width)}, tmp_path) == (taken, why)
    asked = replace(looking, asked=("triple",))
    assert asked.judged(header, ("float32",), {"x": (None, width)}, tmp_path) == (True, "asked for")


def test_integers_keep_their_dtype_and_floats_get_one_that_the_plugin_takes(tmp_path: Path) -> None:
    header = plugin(tmp_path)
    looking = Replacing(compute="bfloat16")
    assert looking.computed(header, ("float32",)) == ("float32",)  # of float32 and float16, none is bfloat16
    assert replace(looking, compute="float16").computed(header, ("float32",)) == HALF


def test_what_cannot_be_asked_for(tmp_path: Path) -> None:
    file = write(tmp_path)
    with pytest.raises(UsageError, match="does not say what it replaces") as refused:
        decided(Patterns(plugins=("triple",)), planned(tmp_path))
    assert refused.value.where == str(file)
    with pytest.raises(UsageError, match="tripel"):
        decided(Patterns(plugins=("tripel",)), planned(tmp_path))


MODEL = """
import aot, torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.layer(x) * 3.0 + 0.5)


@aot.model(inputs={"x": aot.Input([aot.Dim("batch", min=1, opt=3, max=8), 8])})
def net():
    torch.manual_seed(0)
    return Net()
"""


def test_a_build_that_asks_for_a_plugin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin(tmp_path)
    model = tmp_path / "model.py"
    model.write_text(MODEL)
    line = line_of(model, "return torch.tanh").removeprefix(f"{tmp_path}/")
    command = ["build", str(model), "--until", "graph", "-o", str(tmp_path / "net.aot"), "--json"]
    assert cli.call([*command, "--plugin", "triple"]) == 0
    found = json.loads(capsys.readouterr().out)
    place = {"plugin": "triple", "replaced": True, "why": "asked for", "module": "", "source": line}
    assert [{name: one[name] for name in place} for one in found["replaced"]] == [place]
    assert found["verification"]["graph"]["cosine"] > 0.99999

    assert cli.call([*command, "--plugin", "triple", "--plugin", "rotary"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "rotary replaces nothing: no pattern of it occurs in the model" in found["warnings"]

    assert cli.call(command) == 0
    assert json.loads(capsys.readouterr().out)["replaced"] == []

    assert cli.call(["explain", str(model), "--backend", "onnxruntime", "--plugin", "triple", "--json"]) == 0
    (remark,) = json.loads(capsys.readouterr().out)["remarks"]
    assert (remark["op"], remark["source"]) == ("triple", line)
    assert remark["note"] == "takes the place of what the model computes: asked for"


def test_options_that_contradict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    command = ["build", str(tmp_path / "model.py"), "--plugin", "rotary"]
    assert cli.call([*command, "--no-plugins"]) == 2
    assert "--no-plugins contradicts --plugin rotary" in capsys.readouterr().err
    assert cli.call([*command, "--route", "torch-tensorrt", "--precision", "fp16"]) == 2
    assert "the route torch-tensorrt launches no kernels of plugins" in capsys.readouterr().err
