"""Plugins in engines of TensorRT 10.9 to 11, held against NVIDIA's own code: see quick_host.py."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from aot.backends import _quick_plugin
from aot.plugins.compiling import compile_all, jobs
from aot.plugins.header import read
from aot.plugins.sizes import OPERATIONS, evaluate
from aot.runtime.kernels import Compiled
from tests.plugins import quick_host

pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence")  # in docstrings of NVIDIA's
ROOT = Path(__file__).parent.parent.parent
OLDEST = ROOT / "build" / "bindings" / "10.9" / "tensorrt_bindings"


def _installed() -> Path:
    """The bindings' wheel of this environment, which is not imported: that would need TensorRT's libraries."""
    spec = importlib.util.find_spec("tensorrt_bindings")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("tensorrt-cu13-bindings is not installed: make venv")
    return Path(next(iter(spec.submodule_search_locations)))


@pytest.fixture(params=["installed", pytest.param("10.9", marks=pytest.mark.slow)])
def trt(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """TensorRT's Python code of two versions: the newest, and 10.9, the first that has ahead-of-time plugins."""
    if request.param == "10.9" and not OLDEST.is_dir():
        pytest.skip(f"{OLDEST} is not there: make sweep puts it there")
    return quick_host.install(_installed() if request.param == "installed" else OLDEST, monkeypatch)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    """add_rms_norm for rows of 256 in FP16, in six configs of which each program takes its rows and ends."""
    header = read(ROOT / "plugins" / "add_rms_norm.py")
    (job,) = [job for job in jobs(header, "sm90", {"width": 256}) if job.dtypes[0] == "float16"]
    shapes = {"x": (None, None, 256), "residual": (None, None, 256), "weight": (256,)}
    return compile_all(header, [replace(job, shapes=shapes, config=index) for index in range(6)])


def graph(folder: Path, *names: str) -> Path:
    """Nodes of add_rms_norm, each with the function that says what it computes."""
    kind = TensorProto.FLOAT16
    nodes = [
        helper.make_node(
            "add_rms_norm", ["x", "r", "w"], [f"y_{n}", f"s_{n}"], n, domain="aot", overload="v1", eps=1e-6
        )
        for n in names
    ]
    body = [helper.make_node("Add", ["x", "residual"], ["s"]), helper.make_node("Mul", ["s", "weight"], ["y"])]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("aot", 1)]
    function = helper.make_function(
        "aot", "add_rms_norm", ["x", "residual", "weight"], ["y", "s"], body, opsets[:1], attributes=["eps"]
    )
    function.overload = "v1"
    values = {"x": ["batch", "length", 256], "r": ["batch", "length", 256], "w": [256]}
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in values.items()],
        [helper.make_tensor_value_info(f"y_{n}", kind, None) for n in names],
    )
    path = folder / "given.onnx"
    onnx.save(helper.make_model(made, opset_imports=opsets, functions=[function], ir_version=10), path)
    return path


INPUTS = [("HALF", (-1, -1, 256)), ("HALF", (-1, -1, 256)), ("HALF", (256,))]


def at(batch: int, length: int) -> quick_host.Sizes:
    return {(i, j): size for i in range(2) for j, size in enumerate((batch, length))}


def test_a_node_becomes_a_plugin_whose_tactics_are_the_kernels(
    trt: Any, kernels: list[Compiled], tmp_path: Path
) -> None:
    prepared = onnx.load(_quick_plugin.prepare(trt, graph(tmp_path, "norm"), {"norm": kernels}, tmp_path))
    assert not prepared.functions
    layer = quick_host.build(trt, prepared.graph, {"norm": INPUTS})["norm"]
    assert layer.types == ("HALF", "HALF")
    assert layer.shapes(at(3, 5)) == [(3, 5, 256), (3, 5, 256)]
    assert list(layer.tactics) == [1, 2, 3, 4, 5, 6]
    for tactic, kernel in zip(layer.tactics.values(), kernels, strict=True):
        rows, warps = kernel.config["rows"], kernel.config["num_warps"]
        assert tactic.code.decode() == kernel.code
        assert f".entry {tactic.name}(" in kernel.code
        assert tactic.block(at(3, 5)) == (32 * warps, 1, 1)
        assert tactic.grid(at(3, 5)) == (-(-15 // rows), 1, 1)
        assert tactic.grid(at(64, 512)) == (32768 // rows, 1, 1)
        assert tactic.scalars(at(3, 5)) == (15,)
        assert tactic.shared == kernel.shared


def test_what_tensorrt_passes_is_what_the_kernel_takes(trt: Any, kernels: list[Compiled], tmp_path: Path) -> None:
    """Pointers to inputs, then int32 scalars, then pointers to outputs, and nothing else."""
    prepared = onnx.load(_quick_plugin.prepare(trt, graph(tmp_path, "norm"), {"norm": kernels}, tmp_path))
    layer = quick_host.build(trt, prepared.graph, {"norm": INPUTS})["norm"]
    for tactic in layer.tactics.values():
        entry = re.search(rf"\.entry {tactic.name}\((.*?)\)", tactic.code.decode(), re.S)
        assert entry is not None
        passed = ["u64"] * len(INPUTS) + ["u32"] * len(tactic.scalars(at(1, 1))) + ["u64"] * len(layer.types)
        assert re.findall(r"\.param \.(\w+)", entry[1]) == passed


def test_nodes_with_equal_kernels_share_a_plugin_and_others_do_not(
    trt: Any, kernels: list[Compiled], tmp_path: Path
) -> None:
    """Also in a second build of the same process, where the first one's plugins are registered already."""
    given = {"a": kernels, "b": kernels, "c": kernels[:2]}
    for _ in range(2):
        prepared = onnx.load(_quick_plugin.prepare(trt, graph(tmp_path, *given), given, tmp_path))
        names = [node.op_type for node in prepared.graph.node]
        assert names[0] == names[1] != names[2]
        layers = quick_host.build(trt, prepared.graph, dict.fromkeys(given, INPUTS))
        assert [len(layer.tactics) for layer in layers.values()] == [6, 6, 2]
    assert len(trt.get_plugin_registry().creators) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda kernel: replace(kernel, code=kernel.code + "// another\n"),
        lambda kernel: replace(kernel, grid=(1, 1, 1)),
        lambda kernel: replace(kernel, threads=kernel.threads * 2),
        lambda kernel: replace(kernel, scalars={"rows": 1}),
    ],
    ids=["code", "grid", "threads", "scalars"],
)
def test_a_changed_kernel_is_another_plugin_for_the_timing_cache(
    kernels: list[Compiled], change: Callable[[Compiled], Compiled]
) -> None:
    name = _quick_plugin.plugin_name("add_rms_norm", kernels)
    assert name != _quick_plugin.plugin_name("add_rms_norm", [change(kernels[0]), *kernels[1:]])
    assert name == _quick_plugin.plugin_name("add_rms_norm", [replace(one, source="elsewhere") for one in kernels])


def test_nodes_without_kernels_keep_their_functions(trt: Any, kernels: list[Compiled], tmp_path: Path) -> None:
    prepared = onnx.load(_quick_plugin.prepare(trt, graph(tmp_path, "a", "b"), {"a": kernels}, tmp_path))
    assert [(node.op_type, node.overload) for node in prepared.graph.node][1] == ("add_rms_norm", "v1")
    assert [function.name for function in prepared.functions] == ["add_rms_norm"]


LEAVES = (["size", "x", 0], ["size", "x", 1], 3)


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_every_expression_of_sizes_is_computed_as_when_the_kernel_was_compiled(
    trt: Any, kernels: list[Compiled], tmp_path: Path, operation: str
) -> None:
    """Both ways round, with an integer on either side, and on top of another expression.

    Of the second plugin, because 10.9 keeps the first one's builder of expressions when it asks for types.
    """
    trees = [[operation, left, right] for left in LEAVES for right in LEAVES]
    trees += [["+", [operation, left, right], 1] for left in LEAVES for right in LEAVES]
    one = replace(
        kernels[0],
        inputs=("x",),
        dtypes=("float16",),
        output_dtypes=("float32",) * len(trees),
        outputs=tuple((tree,) for tree in trees),
        scalars={f"s{index}": tree for index, tree in enumerate(trees)},
    )
    given = {"first": [one], "second": [replace(one, entry="second")]}
    prepared = onnx.load(_quick_plugin.prepare(trt, graph(tmp_path, *given), given, tmp_path))
    layer = quick_host.build(trt, prepared.graph, {name: [("HALF", (-1, -1))] for name in given})["second"]
    for sizes in ((7, 2), (2, 7), (6, 3), (1, 1)):
        known = {(0, axis): size for axis, size in enumerate(sizes)}
        wanted = tuple(evaluate(tree, {"x": sizes}) for tree in trees)
        assert layer.tactics[1].scalars(known) == wanted
        assert layer.shapes(known) == [(size,) for size in wanted]


DTYPES = "float32 float16 bfloat16 float8_e4m3fn int8 uint8 int32 int64 bool"
DATA_TYPES = "FLOAT HALF BF16 FP8 INT8 UINT8 INT32 INT64 BOOL"


def test_every_dtype_of_plugins_is_one_of_tensorrt(trt: Any, kernels: list[Compiled], tmp_path: Path) -> None:
    dtypes = tuple(DTYPES.split())
    one = replace(
        kernels[0],
        inputs=dtypes,
        dtypes=dtypes,
        output_dtypes=dtypes,
        outputs=((),) * len(dtypes),
        grid=(1, 1, 1),
        scalars={},
    )
    prepared = onnx.load(_quick_plugin.prepare(trt, graph(tmp_path, "n"), {"n": [one]}, tmp_path))
    layer = quick_host.build(trt, prepared.graph, {"n": [(kind, (4,)) for kind in DATA_TYPES.split()]})["n"]
    assert layer.types == tuple(DATA_TYPES.split())
    assert layer.tactics[1].scalars({}) == ()


def test_inputs_may_be_called_as_arguments_of_tensorrts_own(trt: Any, kernels: list[Compiled], tmp_path: Path) -> None:
    """`outputs` and `tactic` are names that TensorRT gives arguments of its own."""
    one = replace(
        kernels[0], inputs=("outputs", "tactic", "stream"), outputs=((["size", "outputs", 0],),) * 2, grid=(1, 1, 1)
    )
    one = replace(one, scalars={"rows": ["size", "tactic", 1]})
    prepared = onnx.load(_quick_plugin.prepare(trt, graph(tmp_path, "n"), {"n": [one]}, tmp_path))
    layer = quick_host.build(trt, prepared.graph, {"n": INPUTS})["n"]
    assert layer.tactics[1].scalars(at(3, 5)) == (5,)
