"""What the benchmark of plugins measures: sizes that the plugins take, peers that compute the same; and its page."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

from aot import toolchain
from aot.plugins import _launching, _tuner
from aot.plugins import cases as aot_cases
from aot.plugins._trying import compared, referred, sampled
from aot.plugins.header import read
from aot.plugins.loading import Plugin, find, load
from plugins import cases, measure, page
from tests.plugins.projects import write

PACK = sorted(file.stem for file in (Path(__file__).resolve().parent.parent / "plugins").glob("[a-z]*.py"))
MEASURED = [name for name in PACK if name in cases.CASES]
SMALL: dict[str, dict[str, Any]] = {
    "attention": {"batch": 2, "queries": 5, "keys": 5, "width": 32, "kv_width": 16, "heads": 4, "causal": True},
    "ms_deform_attn": {"batch": 1, "queries": 3, "heads": 2, "width": 4, "levels": 4, "points": 2, "positions": 17821},
    "deform_conv2d": {"out_height": 9, "out_width": 7},
    "scatter_reduce": {"edges": 50, "width": 3, "nodes": 7, "features": 3},
}  # fmt: skip
"""Sizes to compare at, where those of the check do not fit together for the peer."""


def plugin(name: str) -> Plugin:
    return find(name, None)


@pytest.mark.parametrize("name", MEASURED)
def test_every_plugin_has_three_sizes_that_it_takes(name: str) -> None:
    one = plugin(name)
    op = cases.CASES[name]
    assert len(op.sizes) == 3
    elements = []
    for sizes in op.sizes:
        case = measure.Case(one, op, sizes)
        shapes = case.trial.shapes
        for config in one.configs:
            assert one.launch(shapes, case.trial.attributes, config).grid[0] > 0
        outputs = one.outputs(shapes, case.trial.attributes)
        elements.append(sum(torch.Size(shape).numel() for shape in (*shapes.values(), *outputs)))
    assert elements == sorted(elements)
    assert elements[-1] < 2**30


@pytest.mark.parametrize("name", [name for name in MEASURED if cases.CASES[name].eager or cases.CASES[name].peers])
def test_what_a_plugin_is_measured_against_computes_its_reference(name: str) -> None:
    if name in {"deform_conv2d", "nms"}:
        pytest.importorskip("torchvision", reason="torchvision, the peer, is not installed")
    one, op = plugin(name), cases.CASES[name]
    sizes, attributes = aot_cases.base(one)
    sizes = {**sizes, **SMALL.get(name, {})}
    attributes = {key: sizes.get(key, value) for key, value in attributes.items()}
    chosen = {kind: "float32" if "float32" in dtypes else dtypes[0] for kind, dtypes in one.schema.types.items()}
    trial = aot_cases.Trial(aot_cases.shapes(one, sizes), chosen, attributes)
    inputs = sampled(one, trial, "cpu", op.sample)
    if name == "nms":
        inputs["scores"] = torch.rand(inputs["scores"].shape)  # no two are equal: among those the order is free
    wanted = referred(one, inputs, attributes)
    functions = {"eager": op.eager, **op.peers} if op.eager else op.peers
    for tool, function in functions.items():
        made = function(*inputs.values(), *attributes.values())
        for got, right in zip(made if isinstance(made, tuple) else (made,), wanted, strict=True):
            assert got.shape == right.shape, tool
            assert compared(got.to(right.dtype), right) == (pytest.approx(0.0, abs=5e-5), None), tool


@pytest.mark.parametrize("name", MEASURED)
def test_inputs_are_the_same_each_time_they_are_made_and_nobody_elses_random_numbers_change(name: str) -> None:
    one, op = plugin(name), cases.CASES[name]
    sizes, attributes = aot_cases.base(one)
    chosen = next(iter(one.schema.combinations()))
    trial = aot_cases.Trial(aot_cases.shapes(one, {**sizes, **SMALL.get(name, {})}), chosen, attributes)
    for sample in (op.sample, None):
        before = torch.get_rng_state()
        first = sampled(one, trial, "cpu", sample)
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(3)
        second = sampled(one, trial, "cpu", sample)
        for key, tensor in first.items():
            assert torch.equal(tensor.float(), second[key].float()), key


def test_sizes_of_a_plugin_without_a_case_follow_from_its_shapes(tmp_path: Path) -> None:
    one = load(write(tmp_path, "triple"))
    found = measure.derived(one, ["..."])
    assert [sizes["width"] for sizes in found] == [256] * 3  # a constant of the kernel
    assert [sizes["..."][0] * 256 for sizes in found] == [elements + 256 for elements in measure.DERIVED]


SCRIPT = Path(measure.__file__).parent.parent / "plugins.py"


def script() -> Any:
    """benchmarks/plugins.py, which as a module would be the package of that name."""
    spec = importlib.util.spec_from_file_location("benchmark_of_plugins", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


class Compiled:
    """Launches that compute the first output as the second of two configs does: in half of the time."""

    def __init__(self, *_: Any) -> None: ...

    def begin(self, *_: Any) -> None: ...

    def compiled(self, plugin: Plugin, trial: Any, vary: Any, config: Any, timeout: Any = None) -> Any:
        return config

    def bound(self, made: Any, inputs: Any, outputs: Any) -> Any:
        return lambda: outputs[0].copy_(inputs[0] * 3)


def test_each_size_has_a_row_for_every_tool_and_an_entry_with_the_engines_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = ('CONFIGS = [{"block": 16, "num_warps": 1}]', 'CONFIGS = [{"block": 16}, {"block": 64}]')
    file = write(tmp_path, "triple", ("float32 float16", "float32"), two)

    class Engine:
        def __init__(self, plan: Path, inputs: Any, outputs: Any) -> None:
            self.made = [inputs["x"] * 3]

        def run(self) -> None: ...

    def broken(x: Any, shift: float) -> Any:
        raise RuntimeError("no kernel")

    def in_turns(runs: Any, seconds: float = 0.0, hopeless: float = 0.0) -> list[list[float]]:
        for one in runs:
            one()
        return [[float(place)] * 15 for place in range(len(runs), 0, -1)]

    machine = toolchain.Machine(toolchain.Gpu("NVIDIA H200", "sm90", 1), "580", "cpu")
    monkeypatch.setattr(toolchain, "machine", lambda: machine)
    monkeypatch.setattr(_launching, "DEVICE", "cpu")
    for name, stub in (("Compilers", Compiled), ("Launcher", Compiled), ("Running", Engine), ("in_turns", in_turns)):
        monkeypatch.setattr(measure, name, stub)
    monkeypatch.setattr(_tuner, "in_turns", in_turns)
    monkeypatch.setattr(_tuner, "waited", lambda launch: launch())
    monkeypatch.setattr(measure, "replayed", lambda run: (run, "graph"))
    op = cases.Op(sizes=[{"...": (2,), "width": 8}], peers={"x3": lambda x, shift: x * 3, "broken": broken})
    monkeypatch.setitem(cases.CASES, "triple", op)
    (tmp_path / "triple-0.plan").write_bytes(b"plan")

    found = measure.Bench(file).measured(tmp_path, 60.0)

    by_tool = {one["tool"]: one for one in found["rows"]}
    assert {tool: one.get("ms") for tool, one in by_tool.items()} == {
        "aot": 5.0, "copy": 4.0, "eager": 3.0, "x3": 2.0, "tensorrt": 1.0, "broken": None,
    }  # fmt: skip
    assert by_tool["aot"]["config"] == {"block": 64}
    assert by_tool["aot"]["bytes"] == 2 * 2 * 8 * 4
    assert by_tool["aot"]["gb_per_s"] == round(128 / 5.0 / 1e6, 1)
    assert [one["error"] for one in found["rows"] if "ms" in one] == [0.0, None, 0.0, 0.0, 0.0]
    assert by_tool["broken"]["reason"] == "RuntimeError: no kernel"
    (entry,) = found["entries"]
    assert (entry["ms"], entry["expanded_ms"], entry["tried"]) == (5.0, 1.0, 2)
    assert entry["bucket"] == {"...": 2, "width": 8}
    late = measure.Bench(file).measured(tmp_path, 0.0)
    assert [(one["tool"], one["reason"]) for one in late["rows"]] == [("aot", "no time was left")]


def test_rows_are_written_as_they_come_and_what_fails_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = script()
    written: list[list[dict[str, Any]]] = []
    monkeypatch.setattr(module, "write", lambda name, rows: written.append(list(rows)))
    monkeypatch.setattr(module.page, "kept", lambda name: [row("aot", 1.0), row("aot", 9.0, plugin="rotary")])
    headers = [read_of(name) for name in ("attention", "rotary", "swiglu")]

    class Stub:
        def __init__(self, gpu: int, daemon: bool = True) -> None:
            self.file = Path()

        def call(self, function: Any, arguments: Any, timeout: float) -> Any:
            if function is measure.roofline:
                return [ROWS[0]]
            self.file = arguments[0] if function is not measure.measure else self.file
            name = self.file.stem
            if function is measure.engines:
                return {0: None, 1: "RuntimeError: not parsed"}
            if name == "attention":
                raise RuntimeError("the process ended: SIGSEGV")
            if function is measure.prepare:
                return []
            if name == "swiglu":
                raise RuntimeError("not done after 60 s")
            return {"rows": [row("aot", 0.5, plugin=name)], "entries": []}

        def close(self) -> None: ...

    class Options:
        name, gpus, seconds, timeout, engines, tune, budget = "plugins", 2, 1.0, 1.0, True, True, None

    assert not module.measure(headers, Options, Stub)
    assert len(written) == 3
    said = {(one["plugin"], one["tool"], one.get("reason"), one.get("ms")) for one in written[-1]}
    assert said == {
        ("roofline", "copy", None, 2.0),
        ("norm", "aot", None, 1.0),  # kept from before
        ("attention", "aot", "the process ended: SIGSEGV", None),
        ("swiglu", "aot", "not done after 60 s", None),
        ("swiglu", "tensorrt", "RuntimeError: not parsed", None),
        ("rotary", "aot", None, 0.5),
        ("rotary", "tensorrt", "RuntimeError: not parsed", None),
    }


def test_a_budget_that_is_over_leaves_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script()
    monkeypatch.setattr(module, "write", lambda name, rows: pytest.fail("nothing was measured"))
    before = [row("aot", 9.0, plugin="rotary")]
    monkeypatch.setattr(module.page, "kept", lambda name: before)

    class Slow:
        def __init__(self, gpu: int, daemon: bool = True) -> None: ...

        def call(self, function: Any, arguments: Any, timeout: float) -> Any:
            assert function is not measure.measure
            time.sleep(0.02)
            return []

        def close(self) -> None: ...

    class Options:
        name, gpus, seconds, timeout, engines, tune, budget = "plugins", 1, 1.0, 1.0, False, False, 0.01

    assert not module.measure([read_of("rotary")], Options, Slow)
    assert before == [row("aot", 9.0, plugin="rotary")]
    assert "no time was left for rotary" in capsys.readouterr().err


STOPPED = """
import importlib.util, os, signal, sys, time
sys.path.insert(0, {folder!r})
spec = importlib.util.spec_from_file_location("benchmark_of_plugins", {script!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
with module.WRITING:
    module.stopped()
    time.sleep(0.3)
    print("whole", flush=True)
time.sleep(60)
"""


def test_a_signal_waits_for_what_is_being_written() -> None:
    program = STOPPED.format(folder=str(SCRIPT.parent), script=str(SCRIPT))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout) == (143, "whole\n"), done.stderr


def read_of(name: str) -> Any:
    return read(Path(__file__).resolve().parent.parent / "plugins" / f"{name}.py")


def row(tool: str, ms: float, **more: Any) -> dict[str, Any]:
    about = {"plugin": "norm", "sizes": {"...": [8, 4], "width": 64}, "dtypes": "bfloat16", "derived": False}
    return {**about, "tool": tool, "ms": ms, "error": 0.004, "gb_per_s": 2000.0, **more}


ROWS: list[dict[str, Any]] = [
    {"plugin": "roofline", "tool": "copy", "ms": 2.0, "gb_per_s": 4000.0},
    {"plugin": "roofline", "tool": "bfloat16", "ms": 2.0, "tflops": 800.0},
    row("aot", 0.5, config={"num_warps": 4}),
    row("copy", 0.4),
    row("eager", 2.0),
    row("compile", 0.6),
    row("F.norm", 1.0),
    {**row("compile-max-autotune", 0.0), "reason": "TimeoutError: not compiled in the time that there was"},
    row("aot", 0.25, plugin="gemm", tflops=400.0),
    {"plugin": "broken", "tool": "aot", "reason": "plugin broken: no config runs"},
]
for held in ROWS:
    if "reason" in held:
        held.pop("ms", None)


def test_the_table_says_what_is_faster_how_near_to_the_limit_and_what_failed() -> None:
    lines = page.text(ROWS).splitlines()
    assert lines[2:5] == [
        "| norm | ...=8x4 width=64 | bfloat16 | 0.5000 | 2000 GB/s, 50% | 2.0000 (4.00x) | 0.6000 (1.20x) | - | - | "
        "F.norm 1.0000 (2.00x) | 4e-03 |",
        "| gemm | ...=8x4 width=64 | bfloat16 | 0.2500 | 400 TFLOP/s, 50% | - | - | - | - | - | 4e-03 |",
        "| broken |  |  | - | - | - | - | - | - | - | - |",
    ]
    assert lines[-2:] == [
        "- norm ...=8x4 width=64, compile-max-autotune: TimeoutError: not compiled in the time that there was",
        "- broken , aot: plugin broken: no config runs",
    ]


def test_the_table_takes_the_place_of_the_one_before() -> None:
    once = page.into(f"# Page\n\n{page.START}\nold\n{page.END}\n\nafter\n", ROWS)
    assert "old" not in once
    assert once.startswith("# Page\n\n<!-- plugins")
    assert once.endswith(f"{page.END}\n\nafter\n")
    assert page.into(once, ROWS) == once
