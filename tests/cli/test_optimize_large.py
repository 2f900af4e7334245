"""Weights beside the file stay there: 4 GiB of them are optimized in little more memory than they take."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

SIZE = 4096
EACH = SIZE * SIZE * 4


def large(folder: Path, weights: int, files: int) -> Path:
    """Products with `weights` matrices of 64 MiB each, which lie in turn in `files` files."""
    block = (np.random.default_rng(0).standard_normal((SIZE, SIZE)) / 64).astype(np.float32)
    nodes, tensors, value = [], [], "x"
    for index in range(weights):
        name = f"w{index % files}.bin"
        with open(folder / name, "ab") as file:
            block[0, 0] = index  # no two are equal
            tensor = TensorProto(name=f"w{index}", data_type=TensorProto.FLOAT, dims=[SIZE, SIZE])
            tensor.data_location = TensorProto.EXTERNAL
            for key, said in (("location", name), ("offset", file.tell()), ("length", EACH)):
                tensor.external_data.add(key=key, value=str(said))
            file.write(block.tobytes())
        tensors.append(tensor)
        nodes += [
            helper.make_node("MatMul", [value, f"w{index}"], [f"p{index}"]),
            helper.make_node("Identity", [f"p{index}"], [f"i{index}"]),
            helper.make_node("Tanh", [f"i{index}"], [f"t{index}"]),
        ]
        value = f"t{index}"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", SIZE]) for name in ("x", value)]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), folder / "in.onnx")
    return folder / "in.onnx"


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that is gone at once: pytest keeps the last three of its own."""
    with TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.slow
@pytest.mark.parametrize("files", [1, 2])
def test_4_gib_of_weights_take_no_more_than_1_2_times_their_size(files: int, folder: Path) -> None:
    """The peak is that of the process: its own memory, and the pages of mapped files that it holds."""
    source, target = large(folder, 64, files), folder / "out.onnx"
    command = [sys.executable, "-m", "aot", "optimize", str(source), str(target), "--json"]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert found["nodes"] == {"before": 192, "after": 128}
    assert found["peak_bytes"] < 1.2 * 64 * EACH
    written = onnx.load(target, load_external_data=False).graph.initializer
    with open(folder / "out.onnx.data", "rb") as file:
        for tensor in (written[0], written[-1]):
            place = {item.key: item.value for item in tensor.external_data}
            file.seek(int(place["offset"]))
            assert np.frombuffer(file.read(4), np.float32)[0] == int(tensor.name[1:])


@pytest.mark.slow
def test_the_surgery_of_a_build_takes_no_more_either(folder: Path) -> None:
    source = large(folder, 64, 2)
    (folder / "out").mkdir()
    script = (
        "import pathlib, resource, sys; from aot.stages.surgery import rewrite;"
        "rewrite(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), narrow=True);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024))"
    )
    command = [sys.executable, "-c", script, str(source), str(folder / "out")]
    peak = int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert peak < 1.2 * 64 * EACH


@pytest.mark.slow
def test_more_than_2_gib_are_quantized(folder: Path) -> None:
    """Their weights take a fourth of the size; FP32 on both sides of what is compared lies beside its file."""
    source, target = large(folder, 36, 1), folder / "out.onnx"
    x = np.random.default_rng(1).standard_normal((8, SIZE)).astype(np.float32)
    np.savez(folder / "data.npz", x=x)
    command = [sys.executable, "-m", "aot", "quantize", str(source), str(target), "--json"]
    command += ["--data", str(folder / "data.npz")]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert found["quantized"]["ops"] == {"MatMul": 36}
    assert 0.9 < found["cosine"] < 1
    assert 0.25 * 36 * EACH < (folder / "out.onnx.data").stat().st_size < 0.26 * 36 * EACH
