"""What a second build does: nothing where nothing changed, else exactly what depends on the change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.harness import DIM, Aot, Here, Outcome, write_mlp
from tests.plugins.projects import write

BUILD = ("build", "model.py", "--calibration", "mine", "--profile", "mine", "--backend", "onnxruntime", "--json")

# What hangs on what, downstream: a change upstream reaches every stage after it.
ENGINE = {"build cpu", "verify cpu", "package"}
JUDGED = {"verify", *ENGINE}
QUANTIZED = {"quantize", *JUDGED}
CALIBRATED = {"calibrate", *QUANTIZED}
OBSERVED = {"observe", *CALIBRATED}
MODEL = {"export", "verify export", "surgery", "reference", *OBSERVED}
DATA = {"collect", "reference", "verify export", *OBSERVED}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Here:
    """The project, built once; each test changes one thing and puts it back."""
    base = tmp_path_factory.mktemp("rebuild")
    aot = Here(write_mlp(base / "project"), base / "store")
    first = aot(*BUILD)
    assert first.code == 0, first.err
    assert first.worked_on == MODEL | DATA | {"load"}
    assert set(first.json["verification"]["graph"]["metric"]) == {"eager", "graph", "drop"}
    return aot


@contextmanager
def changed(path: Path, content: bytes) -> Iterator[None]:
    before = path.read_bytes()
    assert content != before
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def rebuild(aot: Here, before: str = "") -> Outcome:
    """In a process of its own where something has to run before."""
    outcome = Aot(aot.folder, aot.store)(*BUILD, before=before) if before else aot(*BUILD)
    assert outcome.code == 0, outcome.err
    return outcome


def rebuilt(aot: Here, before: str = "") -> set[str]:
    """The stages that ran. Loading the declaration is how a change is found, not a stage with a result."""
    return rebuild(aot, before).worked_on - {"load"}


def edited(path: Path, old: str, new: str) -> bytes:
    text = path.read_text()
    assert old in text
    return text.replace(old, new).encode()


def test_an_unchanged_rebuild_runs_no_stage_and_imports_nothing_heavy(built: Here) -> None:
    rebuild(built)
    says = "import atexit, sys; atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))"
    outcome = rebuild(built, before=says)
    assert outcome.worked_on == set()
    loaded = set(outcome.err.split())
    assert "aot.pipeline" in loaded
    assert not loaded & {"torch", "onnx", "onnx_ir", "onnxscript", "onnxruntime", "polygraphy", "model", "layers"}


def test_a_touched_but_equal_file_rebuilds_nothing(built: Here) -> None:
    path = built.folder / "weights.npz"
    path.write_bytes(path.read_bytes())
    assert rebuilt(built) == set()


def test_other_weights_rebuild_all_but_the_data(built: Here) -> None:
    path = built.folder / "weights.npz"
    weights = dict(np.load(path))
    weights["first.bias"] += 1
    old = path.read_bytes()
    np.savez(path, **weights)
    new = path.read_bytes()
    path.write_bytes(old)
    with changed(path, new):
        assert rebuilt(built) == MODEL


def test_a_changed_local_module_rebuilds_all_but_the_data(built: Here) -> None:
    path = built.folder / "layers.py"
    with changed(path, edited(path, "torch.relu", "torch.sigmoid")):
        assert rebuilt(built) == MODEL


def test_other_calibration_data_does_not_export_again(built: Here) -> None:
    path = built.folder / "samples.npz"
    samples = np.load(path)["x"]
    old = path.read_bytes()
    np.savez(path, x=samples * 2)
    new = path.read_bytes()
    path.write_bytes(old)
    with changed(path, new):
        assert rebuilt(built) == DATA


def test_a_changed_placement_quantizes_again_from_the_same_ranges(built: Here) -> None:
    path = built.folder / "calib/mine.yaml"
    with changed(path, edited(path, "min_channels: 8", "min_channels: 32")):
        assert rebuilt(built) == QUANTIZED


def test_a_changed_profile_builds_the_engine_again(built: Here) -> None:
    path = built.folder / "profiles/mine.yaml"
    with changed(path, edited(path, "optimization_level: 1", "optimization_level: 2")):
        assert rebuilt(built) == ENGINE


def test_another_version_of_a_tool_rebuilds_the_stages_that_use_it(built: Here) -> None:
    upgraded = (
        "import importlib.metadata as m; real = m.version\n"
        "m.version = lambda name: '99.0' if name == 'onnxruntime' else real(name)"
    )
    assert rebuilt(built, before=upgraded) == OBSERVED | {"verify export"}
    assert rebuilt(built) <= {"package"}


def test_a_changed_plugin_of_the_graph_and_fresh_build_all_but_the_data_and_all(here: Here) -> None:
    """An op of the graph whose plugin is a file of the project: its function in the graph is made of the reference.

    `--fresh` does every stage again, whatever the store holds.
    """
    import onnx

    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 20, "mine" : 1]>
        main (float[batch, 8] x) => (float[batch, 8] y) { r = Relu (x)  y = mine.triple (r) }
        <domain: "mine", opset_import: ["" : 20]>
        triple (a) => (b) { three = Constant <value: tensor = float {3.0}> ()  b = Mul (a, three) }
    """)
    onnx.save(model, here.folder / "tripled.onnx")
    plugin = write(here.folder)
    build = ("build", "tripled.onnx", *DIM, "--precision", "fp32", "--backend", "onnxruntime", "--json")
    first = here(*build)
    assert first.code == 0, first.err
    plugin.write_text(f"{plugin.read_text()}# changed\n")
    assert here(*build).worked_on == MODEL - {"observe"}  # in FP32 there is nothing to observe
    fresh = here(*build, "--fresh")
    assert fresh.worked_on == {stage["name"] for stage in fresh.json["stages"]} - {"package"}
