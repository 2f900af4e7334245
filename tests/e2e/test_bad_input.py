"""What a user can get wrong: one message that says what, where and how to put it right; exit code 2; no traceback."""

from __future__ import annotations

import json
import shutil
import signal
import textwrap
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.harness import DIM, Aot, Here, Outcome, write_mlp

CPU = ("--backend", "onnxruntime", "--precision", "fp32")


def assert_refused(outcome: Outcome, *words: str) -> None:
    said = " ".join(outcome.err.split())
    assert outcome.code == 2, outcome.err
    assert "Traceback" not in said
    for word in words:
        assert word in said, f"{word!r} is not in: {outcome.err}"


def write(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text))
    return path


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory, mlp_onnx: Path) -> Here:
    """A folder with a finished `mlp.aot`, and a store that knows the model, so that a refusal takes no time."""
    base = tmp_path_factory.mktemp("warm")
    aot = Here(base, base / "store")
    outcome = aot("build", mlp_onnx, *DIM, *CPU, "-o", "mlp.aot")
    assert outcome.code == 0, outcome.err
    return aot


# Names and files on the command line.


def test_a_missing_file(aot: Aot) -> None:
    assert_refused(aot("build", "nowhere.py"), "nowhere.py", "fix:")


def test_a_form_that_is_no_model(here: Here) -> None:
    write(here.folder / "weights.txt", "1 2 3")
    assert_refused(here("build", "weights.txt"), "weights.txt", ".onnx", "fix:")


def test_a_syntax_error_names_the_line(here: Here) -> None:
    write(here.folder / "model.py", "import aot\n\ndef model(:\n    pass\n")
    assert_refused(here("build", "model.py"), "model.py", "3", "syntax")


def test_a_file_without_a_model(here: Here) -> None:
    write(here.folder / "model.py", "x = 1\n")
    assert_refused(here("build", "model.py"), "model.py", "@aot.model")


def test_two_models_without_a_choice(here: Here) -> None:
    write(
        here.folder / "model.py",
        """
        import aot

        @aot.model(inputs={"x": aot.Input([1])})
        def left(): ...

        @aot.model(inputs={"x": aot.Input([1])})
        def right(): ...
        """,
    )
    assert_refused(here("build", "model.py"), "left", "right", "model.py:")


def test_a_dim_without_bounds(here: Here) -> None:
    write(here.folder / "model.py", "import aot\nbatch = aot.Dim('batch', min=1)\n")
    assert_refused(here("build", "model.py"), "batch", "max", "fix:")


@pytest.mark.parametrize(
    ("option", "wrong", "nearest"),
    [
        ("--precision", "fp9", "fp8"),
        ("--backend", "onnxruntim", "onnxruntime"),
        ("--target", "sm_89", "sm89"),
        ("--profile", "defalt", "default"),
        ("--calibration", "int88", "int8"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(
    warm: Here, mlp_onnx: Path, option: str, wrong: str, nearest: str
) -> None:
    assert_refused(warm("build", mlp_onnx, *DIM, option, wrong), wrong, f"'{nearest}'")


def test_a_dynamic_dimension_of_an_onnx_file_without_bounds(warm: Here, mlp_onnx: Path) -> None:
    assert_refused(warm("build", mlp_onnx, *CPU), "batch", "'x'", "--dim batch=")


def test_a_recipe_that_contradicts_the_precision(warm: Here, mlp_onnx: Path) -> None:
    assert_refused(warm("build", mlp_onnx, *DIM, "--precision", "fp8", "--calibration", "int8"), "fp8", "int8")


def test_a_setting_that_does_not_exist(warm: Here, mlp_onnx: Path) -> None:
    recipe = write(warm.folder / "mine.yaml", "precision: int8\nplacment: {}\n")
    assert_refused(warm("build", mlp_onnx, *DIM, "--calibration", recipe), "placment", "'placement'", "mine.yaml")


def test_a_profile_with_its_optimum_above_its_maximum(warm: Here, mlp_onnx: Path) -> None:
    profile = write(warm.folder / "mine.yaml", "profiles:\n  - {batch: [1, 16, 8]}\n")
    assert_refused(warm("build", mlp_onnx, *DIM, "--profile", profile, *CPU), "batch", "16", "8", "fix:")


def test_fp8_for_a_gpu_without_fp8(warm: Here, mlp_onnx: Path) -> None:
    assert_refused(warm("build", mlp_onnx, *DIM, "--precision", "fp8", "--target", "sm80"), "sm80", "sm89", "fix:")


def test_tensorrt_without_a_gpu(warm: Here, mlp_onnx: Path) -> None:
    assert_refused(
        warm("build", mlp_onnx, *DIM, "--precision", "fp16", "--backend", "tensorrt"), "tensorrt", "--until graph"
    )


# The graph.


def save(path: Path, nodes: list[object], output: tuple[str, int, list[object]], **weights: np.ndarray) -> Path:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info(*output)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def test_an_op_that_the_target_lacks_is_named_before_the_build(here: Here) -> None:
    from onnx import TensorProto, helper

    nodes: list[object] = [helper.make_node("NonZero", ["x"], ["y"], name="find")]
    save(here.folder / "find.onnx", nodes, ("y", TensorProto.INT64, [2, "n"]))
    outcome = here("build", "find.onnx", "--precision", "fp32", "--target", "sm89")
    assert_refused(outcome, "NonZero", "find", "fix:")


def test_weights_that_are_not_numbers(here: Here) -> None:
    from onnx import TensorProto, helper

    w = np.ones((8, 8), np.float32)
    w[3, 3] = np.nan
    nodes: list[object] = [helper.make_node("MatMul", ["x", "w"], ["y"], name="project")]
    save(here.folder / "nan.onnx", nodes, ("y", TensorProto.FLOAT, [4, 8]), w=w)
    assert_refused(here("build", "nan.onnx", *CPU), "NaN", "'w'")


def test_a_file_that_is_not_onnx(here: Here) -> None:
    (here.folder / "broken.onnx").write_bytes(b"\x00\x01not a graph")
    assert_refused(here("build", "broken.onnx", *CPU), "broken.onnx")


def test_a_dim_that_the_export_specialises(here: Here) -> None:
    write(
        here.folder / "model.py",
        """
        import aot
        import torch

        batch = aot.Dim("batch", min=1, max=8)

        class Fixed(torch.nn.Module):
            def forward(self, x):
                return x + torch.ones(4, 1)

        @aot.model(inputs={"x": aot.Input([batch, 8])})
        def fixed():
            return Fixed()
        """,
    )
    assert_refused(here("build", "model.py", *CPU), "batch", "4", "fix:")


# Calibration data. The model is exported once; only the data differ.


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Here:
    base = tmp_path_factory.mktemp("calibration")
    return Here(write_mlp(base / "project"), base / "store")


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (np.zeros((2, 4, 32), np.float64), ["'x'", "float64", "float32"]),
        (np.zeros((2, 4, 31), np.float32), ["'x'", "31", "32"]),
        (np.zeros((0, 4, 32), np.float32), ["no ", "mlp"]),
        (np.full((2, 4, 32), np.nan, np.float32), ["'x'", "NaN"]),
    ],
    ids=["dtype", "shape", "empty", "nan"],
)
def test_calibration_data_that_cannot_be_used(project: Here, samples: np.ndarray, words: list[str]) -> None:
    np.savez(project.folder / "samples.npz", x=samples)
    assert_refused(project("build", "model.py", "--precision", "int8", "--backend", "onnxruntime"), *words)


# Artifacts.


@pytest.fixture
def copy(warm: Here, here: Here) -> Path:
    """An artifact that a test may damage."""
    return Path(shutil.copytree(warm.folder / "mlp.aot", here.folder / "mlp.aot"))


@pytest.mark.parametrize("command", ["run", "inspect", "build"])
@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 99}'], ids=["empty", "cut", "list", "newer"])
def test_a_corrupt_manifest(here: Here, copy: Path, command: str, text: str) -> None:
    (copy / "manifest.json").write_text(text)
    assert_refused(here(command, "mlp.aot"), "manifest")


def test_a_damaged_file_is_named(here: Here, copy: Path) -> None:
    graph = copy / "graph/model.onnx"
    content = bytearray(graph.read_bytes())
    content[len(content) // 2] ^= 0xFF
    graph.write_bytes(bytes(content))
    assert_refused(here("build", "mlp.aot"), "graph/model.onnx")


def test_an_engine_for_another_gpu_is_not_run(warm: Here, mlp_onnx: Path) -> None:
    built = warm("build", mlp_onnx, *DIM, "--precision", "fp16", "--target", "sm89", "-o", "rtx.aot", "--json")
    assert built.code == 0, built.err
    assert built.json["verification"]["engine"]["ran"] is False
    assert_refused(warm("run", "rtx.aot", "--engine", "sm89"), "sm89")


def test_finishing_under_another_precision(warm: Here, mlp_onnx: Path) -> None:
    assert warm("build", mlp_onnx, *DIM, "--precision", "fp16", "--until", "graph", "-o", "half.aot").code == 0
    assert_refused(warm("build", "half.aot", "--precision", "fp8", "--target", "sm89"), "fp16", "fp8")


# The disk and the keyboard.


def test_a_store_that_cannot_be_written(here: Here, mlp_onnx: Path) -> None:
    here.store.write_text("a file where the folder should be")
    assert_refused(here("build", mlp_onnx, *DIM, *CPU), str(here.store), "XDG_CACHE_HOME")


def test_a_full_disk(aot: Aot, here: Here, mlp_onnx: Path) -> None:
    """A limit on the size of files stands in for the disk: a write beyond it fails as one to a full disk does."""
    full = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY))"
    )
    assert_refused(aot("build", mlp_onnx, *DIM, *CPU, before=full), str(aot.store))
    assert not list(aot.folder.glob("*.aot"))
    assert here("build", mlp_onnx, *DIM, *CPU).code == 0


def test_an_output_that_is_no_artifact_is_not_overwritten(warm: Here, mlp_onnx: Path) -> None:
    precious = warm.folder / "results"
    precious.mkdir()
    (precious / "thesis.txt").write_text("keep me")
    assert_refused(warm("build", mlp_onnx, *DIM, *CPU, "-o", "results"), "results")
    assert (precious / "thesis.txt").read_text() == "keep me"


def test_an_interrupt_says_so_and_leaves_nothing_half_made(aot: Aot, here: Here, mlp_onnx: Path) -> None:
    process = aot.start("build", mlp_onnx, *DIM, *CPU)
    assert process.stderr is not None
    said = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130, said + rest
    assert "Traceback" not in said + rest
    assert "interrupted" in rest.lower()
    assert not list(aot.folder.glob("*.aot"))
    assert here("build", mlp_onnx, *DIM, *CPU).code == 0


def test_json_mode_keeps_standard_output_to_one_object(warm: Here, mlp_onnx: Path) -> None:
    refused = warm("build", mlp_onnx, *DIM, "--precision", "fp9", "--json")
    assert refused.code == 2
    assert json.loads(refused.out)["error"]["what"] == "unknown precision 'fp9'"
