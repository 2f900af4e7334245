"""What is known of a backend, against the vendor's own parser and builder, on the node models that come with onnx.

Every model is tried twice: as it is, and with all inputs but the first as constants, which is how models use most ops.
Beside it, tiny graphs of the rules that those models do not reach.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.numpy_helper import from_array

from aot.backends import _operators
from tests.backends.graphs import write

trt = pytest.importorskip("tensorrt_rtx")
INT8 = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.int8)


class Vendor:
    """The vendor's parser and builder, without anything of ours."""

    def __init__(self) -> None:
        class Log(trt.ILogger):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, message: str) -> None: ...

        self.log = Log()
        self.builder = trt.Builder(self.log)

    def takes(self, path: Path, values: dict[str, Any]) -> tuple[bool, bool]:
        """Whether it parses, and whether it builds; `values` are what shape inputs hold."""
        network = self.builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, self.log)
        if not parser.parse_from_file(str(path)):
            return False, False
        config = self.builder.create_builder_config()
        config.builder_optimization_level = 0
        config.num_compute_capabilities = 1
        config.set_compute_capability(trt.ComputeCapability.SM89, 0)
        profile, needed = self.builder.create_optimization_profile(), False
        for index in range(network.num_inputs):
            tensor = network.get_input(index)
            given = values.get(tensor.name)
            if tensor.is_shape_tensor and given is not None:
                numbers = [int(number) for number in np.asarray(given).reshape(-1)]
                profile.set_shape_input(tensor.name, numbers, numbers, numbers)
                needed = True
            elif -1 in tuple(tensor.shape):
                shape = given.shape if given is not None else tuple(3 if size < 0 else size for size in tensor.shape)
                profile.set_shape(tensor.name, shape, shape, shape)
                needed = True
        if needed:
            config.add_optimization_profile(profile)
        return True, self.builder.build_serialized_network(network, config) is not None


@pytest.fixture(scope="module")
def vendor() -> Vendor:
    return Vendor()


def constants(text: str) -> dict[str, Any]:
    """What the graph calls `c`."""
    return {"c": INT8} if re.search(r"\bc\b", text) else {}


def late(path: Path) -> list[str]:
    return [one.reason for one in _operators.unsupported(ir.load(path), "tensorrt_rtx", parsed=True)]


@pytest.mark.parametrize(
    ("text", "opset"),
    [
        (
            "g (float[4, 5000] x) => (float[4, 3841] y, int64[4, 3841] i) <int64[1] k = {3841}> { y, i = TopK(x, k) }",
            20,
        ),
        ("g (float[2, 4] x) => (float[2, 4] y) { d = Cast<to = 1>(c)  y = Add(x, d) }", 20),
        ("g (int64[3] x) => (float[3, 4] y) <float s = {0.5}> { q = Gather(c, x)  y = DequantizeLinear(q, s) }", 20),
        ("g (int8[2, 4] x) => (bool[2, 4] y) { y = Equal(x, c) }", 20),
        (
            "g (float[1, 9, 4] b, float[1, 2, 9] s) => (int64[n, 3] y) { y = NonMaxSuppression(b, s) }",
            20,
        ),
        (
            """g (bool b, float[1, 4] x) => (float y) <int64[1] a = {0}> { y = If(b) <
                then_branch = t () => (float[1, 4] l) { l = Relu(x) },
                else_branch = e () => (float[4] r) { r = Squeeze(x, a) }> }""",
            20,
        ),
        ("g (float[b, 2, 16, 32] q, float[b, 2, 16, 32] k) => (float[b, 2, 16, 32] y) { y = Attention(q, k, k) }", 23),
        (
            "g (float16[2, 2, 16, 8] q, float16[2, 2, 16, 8] k) => (float16[2, 2, 16, 8] y) { y = Attention(q, k, k) }",
            23,
        ),
        ("g (float[2, 4] x) => (float8e4m3fn[2, 4] y) { y = Cast<to = 17>(x) }", 20),
        ("g (float8e4m3fn[2, 4] x) => (float[2, 4] y) { y = Cast<to = 1>(x) }", 20),
    ],
)
def test_what_is_refused_after_the_parser_does_not_build(tmp_path: Path, vendor: Vendor, text: str, opset: int) -> None:
    path = write(tmp_path / "m.onnx", text, opset=opset, **constants(text))
    assert late(path)
    parsed, builds = vendor.takes(path, {})
    assert parsed, "the parser refuses it by now: no rule is needed"
    assert not builds


@pytest.mark.parametrize(
    ("text", "opset"),
    [
        ("g (float[4, 5000] x) => (float[4, n] y, int64[4, n] i) <int64[1] k = {3840}> { y, i = TopK(x, k) }", 20),
        ("g (float[2, 4] x) => (float[2, 4] y) <float s = {0.5}> { d = DequantizeLinear(c, s)  y = Add(x, d) }", 20),
        ("g (int8[2, 4] x) => (int8[2, 4] y) { y = Add(x, x) }", 20),
        (
            """g (bool b, float[4] x) => (float[n] y) <int64[1] a = {0}, int64[1] z = {2}> { y = If(b) <
                then_branch = t () => (float[4] l) { l = Relu(x) },
                else_branch = e () => (float[2] r) { r = Slice(x, a, z) }> }""",
            20,
        ),
        ("g (float[2, 2, 1, 8] q, float[2, 2, 16, 8] k) => (float[2, 2, 1, 8] y) { y = Attention(q, k, k) }", 23),
        ("g (float16[b, 2, n, 16] q, float16[b, 2, n, 16] k) => (float16[b, 2, n, p] y) {y = Attention(q, k, k)}", 23),
        (
            """g (float[2, 16, 64] q, float[2, 16, 64] k, float[2, 16, 64] v) => (float[2, 16, 64] y) {
                y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v) }""",
            23,
        ),
    ],
)  # fmt: skip
def test_what_lies_just_beside_a_rule_builds(tmp_path: Path, vendor: Vendor, text: str, opset: int) -> None:
    path = write(tmp_path / "m.onnx", text, opset=opset, **constants(text))
    assert not late(path)
    assert vendor.takes(path, {}) == (True, True)


def node_models(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each model and the values of its inputs."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflow in the vendor-neutral reference
        cases = list(collect_testcases(None))
    for case in cases:
        if case.model is None or not case.data_sets:
            continue
        given = case.data_sets[0][0]
        names = [value.name for value in case.model.graph.input]
        values = {name: value for name, value in zip(names, given, strict=False) if isinstance(value, np.ndarray)}
        path = folder / f"{case.name}.onnx"
        onnx.save(case.model, str(path))
        yield path, values
        if len(names) > 1 and len(values) == len(names):
            constants = onnx.ModelProto.FromString(case.model.SerializeToString())
            constants.graph.initializer.extend(from_array(values[name], name) for name in names[1:])
            del constants.graph.input[1:]
            path = folder / f"{case.name}.constants.onnx"
            onnx.save(constants, str(path))
            yield path, values


@pytest.mark.slow
def test_predictions_hold_for_the_node_models_of_onnx(tmp_path: Path, vendor: Vendor) -> None:
    """No rule that is asked before every build refuses what builds. The table, which is asked where no parser can be,
    agrees with the vendor on at least 93 of 100 models, and refuses hardly any that builds."""
    wrong, too_strict, agreed, total = [], [], 0, 0
    for path, values in node_models(tmp_path):
        _, builds = vendor.takes(path, values)
        model = ir.load(path)
        if builds and _operators.unsupported(model, "tensorrt_rtx", parsed=True):
            wrong.append(path.name)
        refused = bool(_operators.unsupported(model, "tensorrt_rtx", parsed=False))
        agreed += refused != builds
        total += 1
        if builds and refused:
            too_strict.append(path.name)
    assert wrong == []
    assert total > 2000
    assert len(too_strict) <= total // 500, too_strict
    assert agreed / total >= 0.93
