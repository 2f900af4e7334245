"""What leaves a stripped plan, asked of a vendor's own parser: TensorRT-RTX's, which needs no GPU for that."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import tensorrt_rtx as trt

from aot.backends import _slim
from aot.config import EngineOptions
from aot.errors import EngineError
from aot.runtime import refit
from aot.runtime.log import make_log
from aot.stages.weights import leaving, write
from tests.backends import graphs

GRAPHS = {
    "MatMul": "g (float16[b, 4] x) => (float16[b, 3] y) { y = MatMul(x, w) }",
    "MatMul from the left": "g (float16[3, b] x) => (float16[4, b] y) { y = MatMul(w, x) }",
    "Gemm": "g (float16[b, 4] x) => (float16[b, 3] y) { y = Gemm(x, w, v3) }",
    "Gemm, transposed": "g (float16[b, 3] x) => (float16[b, 4] y) { y = Gemm<transB=1>(x, w, v4) }",
    "Add": "g (float16[b, 4] x) => (float16[b, 4] y) { y = Add(x, v4) }",
    "Sub": "g (float16[b, 4] x) => (float16[b, 4] y) { y = Sub(v4, x) }",
    "Mul": "g (float16[b, 4] x) => (float16[b, 4] y) { y = Mul(x, v4) }",
    "Div": "g (float16[b, 4] x) => (float16[b, 4] y) { y = Div(x, v4) }",
    "Gather": "g (int64[b] x) => (float16[b, 3] y) { y = Gather(w, x) }",
    "LayerNormalization": "g (float16[b, 4] x) => (float16[b, 4] y) { y = LayerNormalization(x, v4, u4) }",
    "InstanceNormalization": "g (float16[b, 4, 5] x) => (float16[b, 4, 5] y) { y = InstanceNormalization(x, v4, u4) }",
    "PRelu": "g (float16[b, 4] x) => (float16[b, 4] y) { y = PRelu(x, v4) }",
    "Conv": "g (float16[b, 3, 5, 5] x) => (float16[b, 4, 3, 3] y) { y = Conv(x, k, v4) }",
    "ConvTranspose": "g (float16[b, 4, 5, 5] x) => (float16[b, 3, 7, 7] y) { y = ConvTranspose(x, k, v3) }",
    "two readers": "g (float16[b, 4] x) => (float16[b, 4] y) { a = Add(x, v4)  y = Mul(a, v4) }",
}  # fmt: skip
WEIGHTS = {
    "w": np.arange(12, dtype=np.float16).reshape(4, 3),
    "k": np.arange(108, dtype=np.float16).reshape(4, 3, 3, 3),
    "v3": np.ones(3, np.float16),
    "v4": np.arange(1, 5, dtype=np.float16),
    "u4": np.full(4, 2, np.float16),
}


class Config:
    """An IBuilderConfig that only keeps the flags."""

    def __init__(self) -> None:
        self.flags: list[Any] = []

    def set_flag(self, flag: Any) -> None:
        self.flags.append(flag)


def parsed(path: Path) -> tuple[Any, list[Any]]:
    """The network that the vendor's parser makes of a file, and all that must live as long."""
    log = make_log(trt)
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    assert parser.parse_from_file(str(path)), log.errors
    return network, [log, builder, parser]


@pytest.mark.parametrize("name", GRAPHS)
def test_the_vendor_lets_every_weight_change_that_leaves(tmp_path: Path, name: str) -> None:
    text = GRAPHS[name]
    body = text[text.index("=>") :]
    read: dict[str, Any] = {key: value for key, value in WEIGHTS.items() if f"{key})" in body or f"{key}," in body}
    path = graphs.write(tmp_path / "model.onnx", text, **read)
    names = tuple(leaving(ir.load(path)))
    assert set(names) == set(read)
    network, _held = parsed(path)
    config = Config()
    job = SimpleNamespace(options=EngineOptions(strip=True), leaving=names, graph=path)
    _slim.configure(trt, network, config, job)  # type: ignore[arg-type]
    assert all(network.are_weights_marked_refittable(key) for key in names)
    assert config.flags == [trt.BuilderFlag.STRIP_PLAN, trt.BuilderFlag.REFIT_INDIVIDUAL]


def test_a_name_that_the_vendor_does_not_know_is_refused(tmp_path: Path) -> None:
    path = graphs.write(tmp_path / "model.onnx", GRAPHS["MatMul"], w=WEIGHTS["w"])
    network, _held = parsed(path)
    job = SimpleNamespace(options=EngineOptions(strip=True), leaving=("w", "other"), graph=path)
    with pytest.raises(EngineError, match="weight 'other' cannot leave the plan"):
        _slim.configure(trt, network, Config(), job)  # type: ignore[arg-type]


def test_the_vendor_reads_the_numbers_where_the_file_is_mapped(tmp_path: Path) -> None:
    """Odd counts of 16-bit elements behind 32-bit ones: each lies aligned, at the address that is computed."""
    arrays: dict[str, Any] = {
        "f": np.linspace(0, 1, 7, dtype=np.float32),
        "h": np.linspace(0, 1, 5).astype(np.float16),
        "b": np.linspace(0, 1, 9).astype(ml_dtypes.bfloat16),
    }
    path = tmp_path / refit.WEIGHTS
    write(path, {name: ir.tensor(array, name=name) for name, array in arrays.items()})
    held = refit.header(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        for name, array in arrays.items():
            one = held[name]
            assert one.start % array.itemsize == 0
            given = trt.Weights(
                getattr(trt.DataType, {"F32": "FLOAT", "F16": "HALF", "BF16": "BF16"}[one.dtype]),
                ctypes.addressof(first) + one.start,
                one.count,
            )
            assert (given.size, given.nbytes) == (array.size, array.nbytes)
            if name != "b":  # numpy has no name for it
                np.testing.assert_array_equal(given.numpy(), array)
        del first


def test_the_real_module_has_what_is_asked_of_it() -> None:
    """By the names of the newer API; those of 10.6 are in its bindings, too."""
    for kind, names in {
        trt.Refitter: ("get_all_weights", "get_missing_weights", "get_weights_prototype", "set_named_weights",
                       "refit_cuda_engine"),
        trt.BuilderFlag: ("STRIP_PLAN", "REFIT_INDIVIDUAL", "VERSION_COMPATIBLE", "EXCLUDE_LEAN_RUNTIME",
                          "ERROR_ON_TIMING_CACHE_MISS"),
        trt.HardwareCompatibilityLevel: ("AMPERE_PLUS", "SAME_COMPUTE_CAPABILITY"),
        trt.Runtime: ("engine_host_code_allowed",),
    }.items():  # fmt: skip
        assert all(hasattr(kind, name) for name in names)
