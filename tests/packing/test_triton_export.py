"""A model from torch to a Triton repository: two batched inputs of different rank, one output of scalars a row.

The server's part is played with the configuration alone: clients' shapes, the reshape, the join, and back.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.e2e.harness import Here
from tests.packing import triton_server as server

MODEL = """
import aot
import torch

B, T = aot.Dim("B", min=1, opt=4, max=16), aot.Dim("T", min=4, opt=100, max=300)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv1d(8, 4, 3, padding=1)

    def forward(self, audio, length):
        y = self.conv(audio)
        mask = torch.arange(y.shape[2]) < length[:, None]
        return (y * mask[:, None]).sum(2), length.float() * 2


def inputs(batch, time):
    return {"audio": aot.Input([batch, 8, time]), "length": aot.Input([batch], "int64", low=1, high=5)}


@aot.model(inputs=inputs(B, T), outputs=["pooled", "twice"])
def dynamic():
    return Net().eval()


@aot.model(inputs=inputs(1, 20), outputs=["pooled", "twice"])
def static():
    return Net().eval()
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with both models, as onnxruntime serves them."""
    folder = tmp_path_factory.mktemp("c51")
    (folder / "model.py").write_text(MODEL)
    aot = Here(folder, folder / "store")
    for name in ("dynamic", "static"):
        build = aot("build", f"model.py:{name}", "--precision", "fp32", "--until", "graph", "-o", f"{name}.aot")
        assert build.code == 0, build.err
        packed = aot("pack", f"{name}.aot", "--triton", "models")
        assert packed.code == 0, packed.err
    return folder / "models"


def session(model: Path) -> Any:
    return ort.InferenceSession(model / "1/model.onnx", providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(("name", "most"), [("dynamic", 16), ("static", 0)])
def test_every_shape_is_the_networks(models: Path, name: str, most: int) -> None:
    config, network = server.read(models / name), session(models / name)
    assert config.max_batch_size == most
    for given, io in zip(network.get_inputs(), config.input, strict=True):
        assert given.name == io.name
        assert server.joins(io, given.shape, most, exact=False)
    for made, io in zip(network.get_outputs(), config.output, strict=True):
        assert made.name == io.name
        assert server.joins(io, made.shape, most, exact=True)


def test_clients_send_an_axis_for_scalars_and_get_one_back(models: Path) -> None:
    config = server.read(models / "dynamic")
    dims = {io.name: (list(io.dims), list(io.reshape.shape), io.HasField("reshape")) for io in config.input}
    assert dims == {"audio": ([8, -1], [], False), "length": ([1], [], True)}
    dims = {io.name: (list(io.dims), list(io.reshape.shape), io.HasField("reshape")) for io in config.output}
    assert dims == {"pooled": ([4], [], False), "twice": ([1], [], True)}


def test_requests_that_are_joined_get_what_each_gets_alone(models: Path) -> None:
    config, network = server.read(models / "dynamic"), session(models / "dynamic")
    random = np.random.default_rng(0)

    def request(rows: int) -> dict[str, Any]:
        return {
            "audio": random.normal(size=(rows, 8, 33)).astype(np.float32),
            "length": random.integers(1, 33, (rows, 1)),  # as clients send it
        }

    def served(requests: list[dict[str, Any]]) -> dict[str, Any]:
        joined = {io.name: np.concatenate([one[io.name] for one in requests]) for io in config.input}
        for io in config.input:
            if io.HasField("reshape"):
                assert prod(io.dims) == 1
                joined[io.name] = joined[io.name].reshape(len(joined[io.name]), *io.reshape.shape)
        return dict(zip((io.name for io in config.output), network.run(None, joined), strict=True))

    requests = [request(rows) for rows in (1, 3, 12)]
    together, alone = served(requests), [served([one]) for one in requests]
    for name, values in together.items():
        np.testing.assert_allclose(values, np.concatenate([one[name] for one in alone]), rtol=1e-5, atol=1e-5)
    assert together["twice"].shape == (16,)
    np.testing.assert_array_equal(together["twice"][:1], 2.0 * requests[0]["length"][0])
