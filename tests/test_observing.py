"""Running a graph past the statistics: feature maps, batches of any length, several processes, values not finite."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnx.reference
import pytest

from aot.errors import CalibrationError, GraphError
from aot.observe import float_values
from aot.observing import Unfit, watch
from aot.observing_workers import share
from aot.statistics import Level, Statistics

# A convolution and its activation, a residual block, and a head.
NET = """
<ir_version: 10, opset_import: ["" : 20]>
g (float[B,3,H,W] x) => (float[B,4] y)
{ c1 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w1, b1)  r1 = Relu(c1)
  c2 = Conv<kernel_shape = [1, 1]>(r1, w2)  k2 = Clip(c2, zero, six)
  c3 = Conv<kernel_shape = [1, 1]>(k2, w3)  a = Add(c3, r1)  r2 = Relu(a)
  m = ReduceMean<keepdims = 0>(r2, axes)  y = MatMul(m, w4) }
"""
# An embedding, a linear block with a skip, and a norm: batches of varying length.
TOKENS = """
<ir_version: 10, opset_import: ["" : 20]>
g (int64[B,S] ids) => (float[B,S,16] y)
{ e = Gather(table, ids)  h = MatMul(e, wa)  r = Relu(h)  o = MatMul(r, wb)  s = Add(e, o)
  y = LayerNormalization(s, one, none) }
"""


def written(path: Path, text: str, constants: dict[str, np.ndarray]) -> Path:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    for node in model.graph.node:
        node.name = f"node_{node.output[0]}"
    onnx.save(onnx.shape_inference.infer_shapes(model, data_prop=True), path)
    return path


def net(folder: Path, size: int = 45) -> Path:
    rng = np.random.default_rng(0)
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 1, 1), "w3": (8, 8, 1, 1), "w4": (8, 4)}
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    bounds = {"zero": np.array(0, np.float32), "six": np.array(6, np.float32), "axes": np.array([2, 3])}
    return written(folder / "net.onnx", NET.replace("H,W", f"{size},{size}"), weights | bounds)


def tokens(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    shapes = {"table": (50, 16), "wa": (16, 32), "wb": (32, 16)}
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return written(
        folder / "tokens.onnx", TOKENS, weights | {"one": np.ones(16, np.float32), "none": np.zeros(16, np.float32)}
    )


def pictures(sizes: Sequence[int] = (3, 1, 2), size: int = 45) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(n, 3, size, size)).astype(np.float32)} for n in sizes]


def lengths() -> list[dict[str, Any]]:
    rng = np.random.default_rng(2)
    return [{"ids": rng.integers(0, 50, shape)} for shape in ((4, 9), (4, 12), (3, 31), (1, 5), (2, 17))]


def inside(model: Path, batch: dict[str, Any]) -> dict[str, np.ndarray]:
    """Every value in the graph, by ONNX's own reference implementation."""
    proto = onnx.load(model)
    names = [output for node in proto.graph.node for output in node.output]
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return dict(batch) | dict(zip(names, onnx.reference.ReferenceEvaluator(proto).run(None, batch), strict=True))


def watched(model: Path, batches: list[dict[str, Any]], level: Level = Level.WEIGHTED, **options: Any) -> Statistics:
    return watch(model, enumerate(batches), level, lambda number: None, **options)


def saved(folder: Path, batches: list[dict[str, Any]]) -> list[Path]:
    files = [folder / f"{number}.npz" for number in range(len(batches))]
    for path, batch in zip(files, batches, strict=True):
        np.savez(path, **batch)
    return files


def same(left: Statistics, right: Statistics) -> bool:
    a, b = left.arrays(), right.arrays()
    return list(a) == list(b) and all(np.array_equal(a[key], b[key]) for key in a)


def test_extremes_of_a_convolutional_net_are_exact(tmp_path: Path) -> None:
    model, batches = net(tmp_path), pictures()
    found = watched(model, batches)
    everything = [inside(model, batch) for batch in batches]
    # What is cut off has the range of what is left.
    home = {"c1": "r1", "c2": "k2", "a": "r2"}
    for name in ("x", "c1", "r1", "c2", "k2", "c3", "a", "r2", "m", "y"):
        expected = max(float(np.abs(values[home.get(name, name)]).max()) for values in everything)
        assert found[name].amax == pytest.approx(expected, rel=1e-5), name


def test_counts_of_a_feature_map_are_those_of_a_lattice_of_each_sample(tmp_path: Path) -> None:
    model, batches = net(tmp_path), pictures()
    observed = float_values(model)
    found = watched(model, batches)
    for name in ("r1", "k2", "x"):
        step = observed.lattice.get(name, 1)
        places = len(range(0, 45, step)) ** 2
        tensor = found[name]
        assert tensor.histogram is not None
        channels = 3 if name == "x" else 8
        assert tensor.histogram.total == 6 * channels * places
        assert tensor.count == 6 * channels * 45 * 45


def test_large_maps_are_thinned_and_small_ones_are_not(tmp_path: Path) -> None:
    model = net(tmp_path, size=225)
    observed = float_values(model)
    assert observed.lattice["r1"] > 1
    assert observed.lattice["r1"] % 2 == 1
    (batch,) = pictures((1,), 225)
    step = observed.lattice["r1"]
    expected = inside(model, batch)["r1"][:, :, ::step, ::step]
    tensor = watched(model, [batch])["r1"]
    assert tensor.histogram is not None
    assert tensor.histogram.total == expected.size
    assert tensor.histogram.counts[0] == pytest.approx(np.count_nonzero(expected == 0), abs=2)
    assert "r1" not in float_values(net(tmp_path, size=14)).lattice


@pytest.mark.parametrize("memory", [1, 1 << 30])
def test_varying_lengths_are_all_seen(tmp_path: Path, memory: int) -> None:
    model, batches = tokens(tmp_path), lengths()
    found = watched(model, batches, Level.CHANNELS, memory=memory)
    everything = [inside(model, batch) for batch in batches]
    for name in ("e", "r", "o", "s", "y"):
        assert found[name].amax == pytest.approx(max(float(np.abs(v[name]).max()) for v in everything), rel=1e-5)
        assert found[name].count == sum(values[name].size for values in everything)
    channels = found["e"].channels
    assert channels is not None
    rows = np.concatenate([values["e"].reshape(-1, 16) for values in everything]).astype(np.float64)
    np.testing.assert_allclose(channels.mean, rows.mean(axis=0), atol=1e-6)
    np.testing.assert_array_equal(channels.amax, np.abs(rows).max(axis=0))


@pytest.mark.parametrize("threads", [2, 5])
def test_parts_that_run_side_by_side_are_counted_as_one_after_the_other(tmp_path: Path, threads: int) -> None:
    """Many small parts of the same shapes, so that two threads want to count the same value at once."""
    model, batches = tokens(tmp_path), lengths() * 12
    alone = watched(model, batches, Level.PRODUCTS, threads=1, memory=1)
    told: list[int] = []
    found = watch(model, enumerate(batches), Level.PRODUCTS, told.append, memory=1, threads=threads)
    assert same(found, alone)
    assert told == list(range(len(batches)))


def test_gains_are_left_out_where_nobody_wants_them(tmp_path: Path) -> None:
    model = net(tmp_path)
    whole, without = float_values(model), float_values(model, gains=False)
    assert without.values == whole.values
    assert {name: reading.axis for name, reading in without.readings.items()} == {
        name: reading.axis for name, reading in whole.readings.items()
    }
    assert whole.readings["r1"].gain is not None
    assert all(reading.gain is None for reading in without.readings.values())


def test_several_processes_see_what_one_sees(tmp_path: Path) -> None:
    model, batches = net(tmp_path), pictures((1, 2, 1, 1))
    told: list[int] = []
    found = share(model, saved(tmp_path, batches), Level.CHANNELS, 3, told.append)
    assert same(found, watched(model, batches, Level.CHANNELS, threads=1))
    assert told == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("bad", "first"), [({3: np.nan, 5: np.inf}, 3), ({4: -np.inf, 3: np.nan}, 3), ({5: np.nan}, 5)]
)
def test_data_that_is_not_finite_is_named_with_its_first_batch(
    tmp_path: Path, bad: dict[int, float], first: int
) -> None:
    batches = spoiled(bad)
    with pytest.raises(Unfit) as caught:
        watched(net(tmp_path), batches)
    assert f"value 'x' is NaN or infinite on calibration batch {first}" in str(caught.value)
    assert caught.value.where == "input 'x'"


def test_several_processes_name_the_batch_that_one_would(tmp_path: Path) -> None:
    files = saved(tmp_path, spoiled({4: -np.inf, 3: np.nan}))
    with pytest.raises(Unfit, match="value 'x' is NaN or infinite on calibration batch 3"):
        share(net(tmp_path), files, Level.EXTREMES, 2, lambda count: None)


def spoiled(bad: dict[int, float]) -> list[dict[str, Any]]:
    batches = pictures((1,) * 8)
    for number, value in bad.items():
        batches[number]["x"][0, 1, 2, 3] = value
    return batches


@pytest.mark.parametrize("weight", ["w1", "w3"])
def test_a_layer_that_makes_nan_is_named_though_an_activation_hides_it(tmp_path: Path, weight: str) -> None:
    model = onnx.load(net(tmp_path))
    tensor = next(t for t in model.graph.initializer if t.name == weight)
    array = onnx.numpy_helper.to_array(tensor).copy()
    array[0, 0] = np.nan
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, weight))
    onnx.save(model, tmp_path / "bad.onnx")
    with pytest.raises(Unfit, match=f"value 'c{weight[1]}' is NaN or infinite on calibration batch 0"):
        watched(tmp_path / "bad.onnx", pictures())


def test_a_process_that_dies_is_one_clear_error(tmp_path: Path) -> None:
    model, files = net(tmp_path), saved(tmp_path, pictures((1, 1, 1)))

    def kill(count: int) -> None:
        import multiprocessing

        for process in multiprocessing.active_children():
            os.kill(process.pid or 0, signal.SIGKILL)

    with pytest.raises(CalibrationError, match=r"ended by itself \(exit code -9\)") as caught:
        share(model, files, Level.EXTREMES, 2, kill)
    assert "of 2, batch" in str(caught.value.where)


def test_an_error_of_a_process_is_that_of_the_build(tmp_path: Path) -> None:
    model, files = net(tmp_path), saved(tmp_path, pictures((1, 1)))
    model.write_bytes(model.read_bytes().replace(b"ReduceMean", b"ReduceMoon"))
    with pytest.raises(GraphError, match="ReduceMoon"):
        share(model, files, Level.EXTREMES, 2, lambda count: None)


def test_an_interrupt_leaves_no_process_and_no_traceback_of_one(tmp_path: Path) -> None:
    model, files = net(tmp_path), saved(tmp_path, pictures((1,) * 40))
    script = f"""
        import multiprocessing, os, signal
        from pathlib import Path
        from aot.observing_workers import share
        from aot.statistics import Level

        def interrupt(count):
            os.killpg(os.getpgrp(), signal.SIGINT)

        if __name__ == "__main__":
            files = [Path(name) for name in {[str(path) for path in files]!r}]
            try:
                share(Path({str(model)!r}), files, Level.EXTREMES, 2, interrupt)
            except KeyboardInterrupt:
                print("interrupted", len(multiprocessing.active_children()))
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, start_new_session=True, timeout=120)
    assert done.stdout == "interrupted 0\n"
    assert done.stderr == ""
