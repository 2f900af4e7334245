"""What Triton Inference Server refuses, written down again from its sources: the tests have no server.

core/src/model_config_utils.cc (NormalizeModelConfig, ValidateModelConfig, ValidateIOShape, ValidateInstanceGroup),
core/src/backend_model_instance.cc (GenerateWarmupData), core/src/sequence_batch_scheduler (GenerateInitialStateData),
and the backends' CompareDimsSupported. The configuration is parsed by the server's own schema, which tritonclient has.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

PAIRS = {"tensorrt": "tensorrt_plan", "onnxruntime": "onnxruntime_onnx", "python": ""}
BYTES = {"BOOL": 1, "INT8": 1, "UINT8": 1, "INT32": 4, "INT64": 8, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8}


def read(model: Path) -> Any:
    """The configuration of a model's folder, refused with AssertionError where the server would."""
    config = text_format.Parse((model / "config.pbtxt").read_text(), pb.ModelConfig())
    assert config.name == model.name
    assert PAIRS[config.backend] == config.platform
    assert config.max_batch_size >= 0
    assert config.input, "every request needs one"
    for io in (*config.input, *config.output):
        check_tensor(io, config.max_batch_size)
    check_scheduling(config, model)
    for group in config.instance_group:
        assert group.kind in (pb.ModelInstanceGroup.KIND_GPU, pb.ModelInstanceGroup.KIND_CPU)
        assert not group.gpus
        assert not group.profile or config.platform == "tensorrt_plan"
        assert all(int(profile) >= 0 for profile in group.profile)
    for sample in config.model_warmup:
        check_sample(sample, config, model)
    named = [config.default_model_filename, *config.cc_model_filenames.values()]
    assert all((model / "1" / name).is_file() for name in named)
    return config


def check_tensor(io: Any, max_batch_size: int) -> None:
    """ValidateIOShape."""
    assert io.name
    assert io.data_type != pb.TYPE_INVALID
    assert len(io.dims) > 0, "must specify 'dims'"
    assert all(size >= 1 or size == -1 for size in io.dims)
    if io.HasField("reshape"):
        assert io.reshape.shape or max_batch_size, "no scalars without a batch"
        assert all(size >= 1 or size == -1 for size in io.reshape.shape)
        assert prod(io.reshape.shape) == prod(io.dims)


def check_scheduling(config: Any, model: Path) -> None:
    """Preferred sizes, and how a sequence begins."""
    sizes = [*config.dynamic_batching.preferred_batch_size, *config.sequence_batching.oldest.preferred_batch_size]
    assert all(0 < size <= config.max_batch_size for size in sizes)
    assert sizes == sorted(set(sizes))
    names = {io.name for io in (*config.input, *config.output)}
    for state in config.sequence_batching.state:
        (start,) = state.initial_state
        assert not {state.input_name, state.output_name} & names
        assert start.name
        assert start.data_type == state.data_type
        assert list(start.dims) == list(state.dims)
        assert all(size >= 1 for size in start.dims)
        if start.WhichOneof("state_data") == "data_file":
            assert (model / "initial_state" / start.data_file).stat().st_size == bytes_of(start)


def check_sample(sample: Any, config: Any, model: Path) -> None:
    """A request for warm-up: it has every input, without the batch, which the server puts in front."""
    assert 1 <= sample.batch_size <= max(1, config.max_batch_size)
    inputs = {io.name: io for io in config.input}
    assert set(sample.inputs) == set(inputs)
    for name, one in sample.inputs.items():
        assert one.data_type == inputs[name].data_type
        assert fits(one.dims, inputs[name].dims)
        assert all(size >= 1 for size in one.dims)
        if one.WhichOneof("input_data_type") == "input_data_file":
            assert (model / "warmup" / one.input_data_file).stat().st_size >= bytes_of(one)


def bytes_of(tensor: Any) -> int:
    """The size of a tensor without dynamic sizes."""
    return BYTES[pb.DataType.Name(tensor.data_type).removeprefix("TYPE_")] * prod(tensor.dims)


def model_shape(io: Any, max_batch_size: int) -> list[int]:
    """The shape that the backend gives the model: what `reshape` says where there is one, and the batch in front."""
    dims = io.reshape.shape if io.HasField("reshape") else io.dims
    return [*([-1] if max_batch_size else []), *dims]


def fits(shape: Sequence[int], allowed: Sequence[int]) -> bool:
    """Whether sizes agree, -1 with any."""
    pairs = zip(shape, allowed, strict=False)
    return len(shape) == len(allowed) and all(-1 in pair or pair[0] == pair[1] for pair in pairs)


def joins(io: Any, network: Sequence[int | str], max_batch_size: int, *, exact: bool) -> bool:
    """CompareDimsSupported: whether a tensor of the network can be served so. exact: as onnxruntime wants outputs."""
    sizes = [size if isinstance(size, int) else -1 for size in network]
    if max_batch_size and sizes[:1] != [-1]:
        return False
    shape = model_shape(io, max_batch_size)
    return shape == sizes if exact else fits(shape, sizes)
