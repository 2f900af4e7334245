"""The runtime on this GPU: numbers, kinds of arrays, CUDA graphs, states, threads and memory.

What it adds to a launch, and how fast the first call is, `benchmarks/runtime.py` measures.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot as package
from aot.errors import EngineError, InputError
from aot.runtime import Session
from tests.e2e.harness import DIM, Aot

WIDTH = 32
LARGEST = 8
STATEFUL = """
import aot, torch

batch = aot.Dim("batch", min=1, opt=2, max=4)

class Keeps(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 8))

    def forward(self, x):
        self.total = self.total + x.sum(0, keepdim=True)
        return x * 2 + self.total

@aot.model(inputs={"x": aot.Input([batch, 8])}, outputs=["y"], states=["total"])
def keeps():
    return Keeps().eval()
"""


@pytest.fixture(scope="module")
def artifact(aot: Aot) -> Path:
    """An MLP with one profile, in FP16."""
    done = aot("build", "mlp.onnx", *DIM, "--backend", "tensorrt", "--precision", "fp16", "-o", "runtime.aot", "--json")
    assert done.code == 0, done.err
    return aot.folder / "runtime.aot"


@pytest.fixture(scope="module")
def session(artifact: Path) -> Iterator[Session]:
    with package.load(artifact) as session:
        assert session.label.startswith("engine sm")
        yield session


@pytest.fixture(scope="module")
def graph(artifact: Path) -> Iterator[Session]:
    """The same model on onnxruntime."""
    with package.load(artifact, engine="cpu") as session:
        yield session


def rows(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)


def close(got: Any, expected: Any) -> None:
    expected = np.asarray(expected)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=0, atol=2e-2 * np.abs(expected).max())


def test_numbers_are_those_of_the_graph_at_every_size(session: Session, graph: Session) -> None:
    for _ in range(3):  # plain, captured, launched
        for size in range(1, LARGEST + 1):
            close(session(x=rows(size, size))["y"], graph(x=rows(size, size))["y"])


def test_a_graph_launch_gives_the_bits_of_a_plain_run(artifact: Path) -> None:
    with package.load(artifact) as session:
        first = [session(x=rows(size))["y"] for size in (1, 5, 8)]
        for _ in range(4):
            for size, expected in zip((1, 5, 8), first, strict=True):
                np.testing.assert_array_equal(session(x=rows(size))["y"], expected)
        (lane,) = session._executor._pool.lanes  # type: ignore[attr-defined]
        assert lane.captured == 3


def test_torch_tensors_on_the_gpu_and_the_cpu(session: Session, graph: Session) -> None:
    torch = pytest.importorskip("torch")
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            for seed in range(20):
                x = torch.from_numpy(rows(4, seed)).cuda(non_blocking=True)
                y = session(x=x)["y"] + 1  # the next kernel of the same stream, nobody waited
                assert y.is_cuda
                close(y.cpu() - 1, graph(x=rows(4, seed))["y"])
    on_cpu = session(x=torch.from_numpy(rows(3)))["y"]
    assert on_cpu.device.type == "cpu"
    close(on_cpu, graph(x=rows(3))["y"])
    scattered = torch.from_numpy(rows(WIDTH)).cuda().T[:4]
    close(session(x=scattered)["y"].cpu(), graph(x=rows(WIDTH).T[:4])["y"])
    unaligned = torch.from_numpy(rows(5)).cuda().reshape(-1)[1 : 1 + 4 * WIDTH].reshape(4, WIDTH)
    close(session(x=unaligned)["y"].cpu(), graph(x=rows(5).reshape(-1)[1 : 1 + 4 * WIDTH].reshape(4, WIDTH))["y"])


def test_cupy_arrays(session: Session, graph: Session) -> None:
    cupy = pytest.importorskip("cupy")
    for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
        with stream:
            for seed in range(20):
                y = session(x=cupy.asarray(rows(2, seed)))["y"] + 1
                assert isinstance(y, cupy.ndarray)
                close(y.get() - 1, graph(x=rows(2, seed))["y"])


def test_a_library_that_is_known_by_dlpack_alone(session: Session, graph: Session) -> None:
    torch = pytest.importorskip("torch")

    class Foreign:
        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def __dlpack__(self, stream: int | None = None) -> Any:
            return self.tensor.__dlpack__(stream=stream)

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

    for seed in range(10):
        got = session(x=Foreign(torch.from_numpy(rows(3, seed)).cuda()))["y"]
        close(torch.from_dlpack(got).cpu(), graph(x=rows(3, seed))["y"])


def test_what_is_refused_leaves_the_session_whole(session: Session, graph: Session) -> None:
    for wrong in (rows(LARGEST + 1), rows(2)[:, 1:], rows(2).astype(np.float64)):
        with pytest.raises(InputError):
            session(x=wrong)
    close(session(x=rows(2))["y"], graph(x=rows(2))["y"])


def test_bound_calls_and_calls_that_were_submitted(session: Session, graph: Session) -> None:
    with session.bound(x=rows(4)) as bound:
        for _ in range(100):
            bound.run()
        close(bound.outputs()["y"], graph(x=rows(4))["y"])
    pending = [session.submit(x=rows(1 + seed % LARGEST, seed)) for seed in range(40)]
    for seed, call in enumerate(pending):
        close(call.result()["y"], graph(x=rows(1 + seed % LARGEST, seed))["y"])


def free_memory() -> int:
    """Bytes of the GPU that are free."""
    from cuda.bindings import driver

    status, free, _ = driver.cuMemGetInfo()
    assert not status
    return int(free)


def test_eight_threads_ten_thousand_calls_no_growth(artifact: Path, graph: Session) -> None:
    expected = {size: graph(x=rows(size, size))["y"] for size in range(1, LARGEST + 1)}
    wrong: list[Any] = []
    done: list[int] = []
    with package.load(artifact, contexts=4) as session:

        def work(seed: int) -> None:
            random = np.random.default_rng(seed)
            for _ in range(1250):
                size = int(random.integers(1, LARGEST + 1))
                got = session(x=rows(size, size))["y"]
                if np.abs(got - expected[size]).max() > 2e-2 * np.abs(expected[size]).max():
                    wrong.append((seed, size))
            done.append(seed)

        def hammer() -> None:
            workers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

        session.warm_up(*({"batch": size} for size in range(1, LARGEST + 1)), callers=4)
        with session._executor._gpu:  # type: ignore[attr-defined]
            before, memory = free_memory(), session.memory()
            hammer()
            assert session.memory() == memory
            assert before - free_memory() <= 2 << 20  # what the driver itself keeps in pages of 2 MiB
    assert wrong == []
    assert len(done) == 8


def test_states_stay_on_the_gpu(aot: Aot) -> None:
    (aot.folder / "keeps.py").write_text(STATEFUL)
    done = aot("build", "keeps.py", "--backend", "tensorrt", "--precision", "fp32", "-o", "keeps.aot", "--json")
    assert done.code == 0, done.err
    with package.load(aot.folder / "keeps.aot") as session:
        other = session.stream()
        total, elsewhere = np.zeros((1, 8), np.float32), np.zeros((1, 8), np.float32)
        for seed in range(12):
            x = np.random.default_rng(seed).standard_normal((1 + seed % 4, 8)).astype(np.float32)
            total += x.sum(0, keepdims=True)
            np.testing.assert_allclose(session(x=x)["y"], x * 2 + total, rtol=1e-4, atol=1e-4)
            elsewhere += (x + 1).sum(0, keepdims=True)
            np.testing.assert_allclose(other(x=x + 1)["y"], (x + 1) * 2 + elsewhere, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(session.state()["state_total"], total, rtol=1e-4, atol=1e-4)
        session.reset()
        np.testing.assert_allclose(session(x=x)["y"], x * 2 + x.sum(0, keepdims=True), rtol=1e-4, atol=1e-4)
        other.close()


def test_torch_is_not_in_the_process(artifact: Path) -> None:
    script = (
        "import sys, json, numpy as np, aot\n"
        f"s = aot.load({str(artifact)!r}); s(x=np.zeros((2, {WIDTH}), np.float32)); s.close()\n"
        "print(json.dumps([s.label, [n for n in ('torch', 'onnx', 'pydantic', 'polygraphy') if n in sys.modules]]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    label, foreign = json.loads(done.stdout)
    assert label.startswith("engine sm")
    assert foreign == []


def test_a_plan_that_is_none(artifact: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy.aot"
    shutil.copytree(artifact, copy)
    (plan,) = (copy / "engines").glob("*.plan")
    plan.write_bytes(plan.read_bytes()[:1000])
    with pytest.raises(EngineError, match="cannot load the engine"):
        package.load(copy, verify=False)
