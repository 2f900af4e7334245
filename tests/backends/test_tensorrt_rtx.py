"""TensorRT-RTX for real: it builds here without a GPU. What it refuses is refused before the long work."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.backend import Job, get
from aot.backends import tensorrt_rtx
from aot.config import EngineOptions
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import EngineError, GraphError, ProfileError, TargetError
from aot.progress import Silent
from aot.toolchain import Gpu, Machine
from tests.backends.graphs import write

trt = pytest.importorskip("tensorrt_rtx")
batch = Dim("batch", min=1, opt=4, max=8)
SPEC = ModelSpec("m", {"x": Input([batch, 64])})
PROFILE = {"batch": (1, 4, 8)}
CPU_ONLY = Machine(None, None, "a CPU")
RTX = get("tensorrt_rtx")
WEIGHT = np.linspace(-1, 1, 64 * 64).reshape(64, 64)


def built(graph: Path, spec: ModelSpec = SPEC, target: str = "sm89", profiles: Any = (PROFILE,)) -> bytes:
    plan = graph.with_name(f"{target}.plan")
    facts = RTX.build(Job(graph, spec, "fp16", profiles, target, EngineOptions()), plan, None, Silent())
    assert facts["origin"] is None
    assert facts["timing_cache"] == "does not apply"
    assert facts["builder_seconds"] > 0
    return plan.read_bytes()


def matmul(folder: Path, dtype: str = "float") -> Path:
    import ml_dtypes

    kind = {"float": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    text = f"g ({dtype}[b, 64] x) => ({dtype}[b, 64] y) {{ h = MatMul(x, w)  y = Relu(h) }}"
    return write(folder / f"{dtype}.onnx", text, w=WEIGHT.astype(kind))


def quantized(folder: Path, kind: str) -> Path:
    import ml_dtypes

    zero = np.zeros((), {"int8": np.int8, "float8e4m3fn": ml_dtypes.float8_e4m3fn}[kind])
    text = """g (float16[b, 64] x) => (float16[b, 64] y) {
        xq = QuantizeLinear(x, s, z)  xd = DequantizeLinear(xq, s, z)
        wq = QuantizeLinear(w, s, z)  wd = DequantizeLinear(wq, s, z)
        y = MatMul(xd, wd) }"""
    half = WEIGHT.astype(np.float16)
    return write(folder / f"{kind}.onnx", text, w=half, s=np.array(0.05, np.float16), z=zero)


def test_the_targets_are_those_of_the_module() -> None:
    enum = {name.lower() for name in trt.ComputeCapability.__members__ if name.startswith("SM")}
    assert enum == set(tensorrt_rtx.TARGETS)


@pytest.mark.parametrize("target", tensorrt_rtx.TARGETS)
def test_every_target_builds_without_a_gpu(tmp_path: Path, target: str) -> None:
    assert len(built(matmul(tmp_path, "float16"), target=target)) > 1000


@pytest.mark.parametrize("kind", ["float", "bfloat16", "int8", "float8e4m3fn"])
def test_every_precision_builds(tmp_path: Path, kind: str) -> None:
    graph = quantized(tmp_path, kind) if "8" in kind else matmul(tmp_path, kind)
    assert len(built(graph)) > 1000


def test_weights_beside_the_graph_are_found(tmp_path: Path) -> None:
    import onnx

    graph = tmp_path / "model.onnx"
    onnx.save(onnx.load(str(matmul(tmp_path))), str(graph), save_as_external_data=True, location="model.onnx.data",
              size_threshold=0)  # fmt: skip
    assert (tmp_path / "model.onnx.data").stat().st_size >= 64 * 64 * 4
    assert len(built(graph)) > 64 * 64 * 4


def test_several_profiles_in_one_engine(tmp_path: Path) -> None:
    built(matmul(tmp_path), profiles=({"batch": (1, 1, 2)}, {"batch": (2, 4, 8)}))


def test_values_that_decide_shapes_are_profiled(tmp_path: Path) -> None:
    """Case C35: without their bounds the input is named; with them the engine builds."""
    text = """g (float[1, 1, 8, 8] x, int64[2] hw) => (float[1, 1, h, w] y) <int64[2] front = {1, 1}> {
        size = Concat<axis = 0>(front, hw)
        y = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(x, , , size) }"""
    graph = write(tmp_path / "m.onnx", text)
    image = Input([1, 1, 8, 8])
    built(graph, ModelSpec("m", {"x": image, "hw": Input([2], "int64", low=2, high=65)}), profiles=({},))
    with pytest.raises(ProfileError, match="values of input 'hw' decide shapes"):
        built(graph, ModelSpec("m", {"x": image, "hw": Input([2], "int64")}), profiles=({},))


@pytest.mark.parametrize(
    ("text", "op", "node", "fix"),
    [
        ("g (float[b, 64] x) => (int64[2, n] y) { r = Relu(x)  y = NonZero(r) }", "NonZero", "n1", "torch.where"),
        ("g (float[b, 64] x) => (float[n] y) { y = Unique(x) }", "Unique", "n0", "before or after the engine"),
        (
            "g (float[b, 64] x) => (uint8[b, 64] y) { y, s, z = DynamicQuantizeLinear(x) }",
            "DynamicQuantizeLinear",
            "n0",
            "from the float model",
        ),
        ("g (float[b, 64] x) => (float[b, 64] y) { y = own.Twist(x) }", "Twist", "n0", "plugins/Twist.py"),
    ],
)
def test_an_op_it_lacks_is_named_before_the_build(tmp_path: Path, text: str, op: str, node: str, fix: str) -> None:
    with pytest.raises(GraphError, match=f"TensorRT-RTX .* does not take {op}") as caught:
        RTX.check_graph(write(tmp_path / "m.onnx", text))
    assert caught.value.where is not None
    assert caught.value.where.startswith(f"node '{node}'")
    assert fix in str(caught.value.fix)


def test_fp32_attention_is_refused_and_fp16_attention_builds(tmp_path: Path) -> None:
    def attention(dtype: str) -> Path:
        io = ", ".join(f"{dtype}[b, 2, 16, 32] {name}" for name in "qkv")
        text = f"g ({io}) => ({dtype}[b, 2, 16, 32] y) {{ y = Attention(q, k, v) }}"
        return write(tmp_path / f"{dtype}.onnx", text, opset=23)

    with pytest.raises(GraphError, match="no FP32 kernel for the ONNX op Attention") as caught:
        RTX.check_graph(attention("float"))
    assert caught.value.where == "node 'n0' (Attention)"
    RTX.check_graph(attention("float16"))
    head = Input([batch, 2, 16, 32], "float16")
    built(attention("float16"), ModelSpec("m", {"q": head, "k": head, "v": head}))


@pytest.mark.parametrize(
    ("precision", "target", "says"),
    [
        ("fp8", "sm86", "sm86 has no FP8: it begins with sm89"),
        ("bf16", "sm75", "sm75 has no BF16: it begins with sm80"),
        ("fp16", "sm90", "does not build for sm90"),
        ("fp16", "cpu", "does not build for cpu"),
    ],
)
def test_what_a_target_lacks_is_refused_with_the_way_out(precision: Any, target: str, says: str) -> None:
    with pytest.raises(TargetError, match=says) as caught:
        RTX.check(precision, target, CPU_ONLY)
    assert caught.value.fix


@pytest.mark.parametrize(("kind", "target"), [("float8e4m3fn", "sm86"), ("bfloat16", "sm75")])
def test_the_builder_agrees_with_what_the_check_refuses(tmp_path: Path, kind: str, target: str) -> None:
    """The refusal above is a fact of the hardware: asked all the same, the builder says so, and we pass it on."""
    graph = quantized(tmp_path, kind) if "8" in kind else matmul(tmp_path, kind)
    with pytest.raises(EngineError, match="HW-specific datatypes") as caught:
        built(graph, target=target)
    assert "choose a precision that the target has" in str(caught.value.fix)


def test_what_only_the_builder_checks_is_refused_before_it_is_asked(tmp_path: Path) -> None:
    """TopK takes k up to 3840; the parser lets more pass. Asked all the same, the builder's late no names the node."""
    text = "g (float[b, 5000] x) => (float[b, 4000] y, int64[b, 4000] i) <int64[1] k = {4000}> { y, i = TopK(x, k) }"
    graph = write(tmp_path / "m.onnx", text)
    with pytest.raises(GraphError, match="does not take TopK: k is 4000, and 3840 is the most"):
        RTX.check_graph(graph)
    with pytest.raises(EngineError, match="K exceeds the maximum value allowed") as caught:
        built(graph, ModelSpec("m", {"x": Input([batch, 5000])}))
    assert caught.value.where == "node 'n0' (TopK)"


def test_every_node_that_is_refused_is_found(tmp_path: Path) -> None:
    """The parser stops at the first."""
    text = """g (float[b, 64, 64] x) => (float[b] y, int64[3, n] z, float[b] s) {
        r = Relu(x)  z = NonZero(r)  t = Det(r)  u = Tanh(t)  y = own.Twist(u)  s = Sin(u) }"""
    found = RTX.unsupported(write(tmp_path / "m.onnx", text))
    assert [(one.node, one.op) for one in found] == [("n1", "NonZero"), ("n2", "Det"), ("n4", "Twist")]
    assert RTX.judge() == "parser"


def test_a_file_that_is_no_onnx_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x00garbage")
    with pytest.raises(GraphError, match="not an ONNX file"):
        RTX.check_graph(tmp_path / "m.onnx")


def test_progress_rises_and_ctrl_c_ends_the_build(tmp_path: Path) -> None:
    """A real build, interrupted at its first report: it ends early, and nothing of it goes on."""
    layers = 300
    body = " ".join(f"a{n} = MatMul({'x' if n == 0 else f'r{n - 1}'}, w)  r{n} = Tanh(a{n})" for n in range(layers))
    text = f"g (float16[b, 64] x) => (float16[b, 64] y) {{ {body} y = Relu(r{layers - 1}) }}"
    graph = write(tmp_path / "m.onnx", text, w=WEIGHT.astype(np.float16))

    class Seen(Silent):
        steps: list[tuple[int, int]]

        def step(self, done: int, total: int, what: str = "") -> None:
            self.steps.append((done, total))
            if self.stop:
                raise KeyboardInterrupt

    def run(stop: bool) -> Seen:
        progress = Seen()
        progress.steps, progress.stop = [], stop  # type: ignore[attr-defined]
        job = Job(graph, SPEC, "fp16", (PROFILE,), "sm89", EngineOptions())
        if stop:
            with pytest.raises(KeyboardInterrupt):
                RTX.build(job, tmp_path / "e.plan", None, progress)
        else:
            RTX.build(job, tmp_path / "e.plan", None, progress)
        return progress

    progress = run(stop=False)
    assert progress.steps == sorted(progress.steps)
    assert all(total == 1000 for _, total in progress.steps)
    (tmp_path / "e.plan").unlink()
    assert len(run(stop=True).steps) == 1 < len(progress.steps)
    assert not (tmp_path / "e.plan").exists()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("builder")]


def test_can_run_says_why_not() -> None:
    ada, hopper = Machine(Gpu("L4", "sm89", 1), "1", ""), Machine(Gpu("H200", "sm90", 1), "1", "")
    assert RTX.can_run("sm89", ada) is None
    assert RTX.can_run("sm89", CPU_ONLY) == "no GPU on this machine"
    assert RTX.can_run("sm120", ada) == "it is for sm120 and this machine has sm89"
    assert RTX.can_run("sm89", hopper) == "TensorRT-RTX does not run on sm90"
