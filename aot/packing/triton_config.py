"""`config.pbtxt` of a model in Triton Inference Server.

Fields are those of https://github.com/triton-inference-server/common (protobuf/model_config.proto); what the server and
its backends demand of them is in core/src/model_config_utils.cc, tensorrt_backend/src/instance_state.cc and
onnxruntime_backend/src/onnxruntime.cc of the same organization, read in 2026.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from aot.errors import UsageError
from aot.packing.pbtxt import Message, Word
from aot.packing.triton_batch import Batch
from aot.runtime.interchange import bits
from aot.runtime.manifest import Engine, Manifest, Tensor

Backend = Literal["tensorrt", "onnxruntime", "python"]
PLATFORMS: Mapping[Backend, str] = {"tensorrt": "tensorrt_plan", "onnxruntime": "onnxruntime_onnx"}
FILES: Mapping[Backend, str] = {"tensorrt": "model.plan", "onnxruntime": "model.onnx", "python": "model.py"}
TYPES = {
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8",
    "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "float16": "FP16", "bfloat16": "BF16",
    "float32": "FP32", "float64": "FP64",
}  # fmt: skip
DELAY = 2000
"""Microseconds that a request waits for others at most; what `aot serve` waits unless told otherwise."""
SEQUENCES = 128
"""Sequences whose states Triton holds at once; more wait for one of them to end."""
LARGEST = 64 << 20
"""Bytes of an input of a request for warm-up, beyond which there is none."""


@dataclass(frozen=True)
class Config:
    """A `config.pbtxt`, and the files that it names: by name below the model's folder, their content."""

    message: Message
    files: Mapping[str, bytes]


def config_of(manifest: Manifest, name: str, backend: Backend, engines: Sequence[Engine], batch: Batch) -> Config:
    """The configuration of a model called `name`. Raises UsageError for a tensor or state that Triton cannot take."""
    fed = {state.output for state in manifest.states.values()}
    inputs = {key: one for key, one in manifest.inputs.items() if key not in manifest.states}
    outputs = {key: one for key, one in manifest.outputs.items() if key not in fed}
    if not inputs:
        raise _refused("a model without inputs", manifest.shown)
    files = dict[str, bytes]()
    message: dict[str, Any] = {"name": name, "backend": backend}
    if backend in PLATFORMS:
        message["platform"] = PLATFORMS[backend]
    message["default_model_filename"] = FILES[backend]
    if backend == "tensorrt" and len(engines) > 1:
        message |= _by_capability(engines)
    message["max_batch_size"] = batch.most
    message["input"] = [_tensor(key, one, batch, manifest) for key, one in inputs.items()]
    for one in message["input"] if backend == "tensorrt" else ():
        if any(one["name"] in engine.values for engine in engines):
            one["is_shape_tensor"] = True
    message["output"] = [_tensor(key, one, batch, manifest) for key, one in outputs.items()]
    message |= _scheduling(manifest, batch, files)
    gpu = any(one.target != "cpu" for one in engines)
    group: dict[str, Any] = {"count": 1, "kind": Word("KIND_GPU" if gpu else "KIND_CPU")}
    if backend == "tensorrt" and len(manifest.profiles) > 1:
        group["profile"] = [str(index) for index in range(len(manifest.profiles))]
    message["instance_group"] = [group]
    if not manifest.states:
        message["model_warmup"] = list(_warm_up(manifest, batch, message["input"], files))
    return Config({field: value for field, value in message.items() if value != []}, files)


def file_of(engine: Engine, engines: Sequence[Engine]) -> str:
    """An engine's file in the folder of its version."""
    return FILES["tensorrt"] if len(engines) == 1 else f"{engine.target}.plan"


def _by_capability(engines: Sequence[Engine]) -> Message:
    """Which file is for which GPU; for those that are not named, an engine for several kinds, if there is one."""
    wide = next((one for one in engines if one.hardware is not None), engines[0])
    named = [{"key": _capability(one.target), "value": file_of(one, engines)} for one in engines]
    return {"default_model_filename": file_of(wide, engines), "cc_model_filenames": named}


def _capability(target: str) -> str:
    """`8.9` of `sm89`, `12.0` of `sm120`."""
    digits = target.removeprefix("sm")
    return f"{digits[:-1]}.{digits[-1:]}"


def _tensor(name: str, tensor: Tensor, batch: Batch, manifest: Manifest) -> Message:
    """An input or output. `dims` may not be empty: a scalar of every row has one, which the reshape takes away."""
    dims = _dims(tensor, batch)
    if 0 in dims:
        raise _refused(f"'{name}' {tensor}, which holds nothing", manifest.shown)
    if dims or not batch.most:  # one without axes, and no batch: [1], and the backend knows that it is a scalar
        return {"name": name, "data_type": _type(name, tensor, manifest), "dims": dims or [1]}
    return {"name": name, "data_type": _type(name, tensor, manifest), "dims": [1], "reshape": {"shape": []}}


def _dims(tensor: Tensor, batch: Batch) -> list[int]:
    return [size if isinstance(size, int) else -1 for size in tensor.shape[1 if batch.most else 0 :]]


def _type(name: str, tensor: Tensor, manifest: Manifest) -> Word:
    if tensor.dtype not in TYPES:
        raise _refused(f"'{name}' in {tensor.dtype}", manifest.shown)
    return Word(f"TYPE_{TYPES[tensor.dtype]}")


def _scheduling(manifest: Manifest, batch: Batch, files: dict[str, bytes]) -> Message:
    """Batches across requests; of a model with states across sequences, whose states Triton keeps."""
    waiting: dict[str, Any] = {}
    if batch.most > 1:
        waiting = {"preferred_batch_size": list(batch.preferred), "max_queue_delay_microseconds": DELAY}
    if not manifest.states:
        return {"dynamic_batching": waiting} if waiting else {}
    states = [_state(name, batch, manifest, files) for name in manifest.states]
    return {"sequence_batching": {"oldest": {"max_candidate_sequences": SEQUENCES, **waiting}, "state": states}}


def _state(name: str, batch: Batch, manifest: Manifest, files: dict[str, bytes]) -> Message:
    """A state, and what it is before the first request of a sequence."""
    tensor, state = manifest.inputs[name], manifest.states[name]
    dims = _dims(tensor, batch)
    if not dims or min(dims) < 1:
        raise UsageError(
            f"Triton cannot begin a sequence with the state '{name}' {tensor}: it wants sizes that are fixed, and one "
            "at least beside the batch",
            where=manifest.shown,
            fix="serve it with `aot serve`, where clients send and receive the states",
        )
    kind = _type(name, tensor, manifest)
    start: dict[str, Any] = {"name": "start", "data_type": kind, "dims": dims}
    if any(state.initial):
        file = f"initial_state/{list(manifest.states).index(name)}"
        size = prod(dims) * bits(tensor.dtype).itemsize
        files[file] = state.initial if len(state.initial) == size else state.initial * prod(dims)
        start["data_file"] = file.rpartition("/")[2]
    else:
        start["zero_data"] = True
    return {
        "input_name": name,
        "output_name": state.output,
        "data_type": kind,
        "dims": dims,
        "initial_state": [start],
    }


def _warm_up(
    manifest: Manifest, batch: Batch, inputs: Sequence[Mapping[str, Any]], files: dict[str, bytes]
) -> Iterator[Message]:
    """A request for every profile, at its optimum: zeros, or the least value where an input declares one above that.

    Triton sends `batch_size` requests of one row each, as one batch.
    """
    for index, profile in enumerate(manifest.profiles):
        given = list[Message]()
        for place, one in enumerate(inputs):
            name = str(one["name"])
            tensor = manifest.inputs[name]
            shape = [size if isinstance(size, int) else profile[size][1] for size in tensor.shape]
            rows = shape[0] if batch.most and shape else 1
            dims = (shape[1:] if batch.most else shape) or [1]
            content = _content(prod(dims), bits(tensor.dtype), manifest.lows.get(name, 0))
            if 0 in shape or content is None:
                break
            value: dict[str, Any] = {"data_type": one["data_type"], "dims": dims}
            if content:
                file = f"{place}-{index}"
                files[f"warmup/{file}"] = content
                value["input_data_file"] = file
            else:
                value["zero_data"] = True
            given.append({"key": name, "value": value})
        else:
            size = min(rows, batch.most) if batch.most else 1
            yield {"name": f"optimum of profile {index}", "batch_size": size, "inputs": given}


def _content(count: int, dtype: Any, low: int) -> bytes | None:
    """The bytes of an input; empty for zeros, None where there would be too many."""
    import numpy as np

    if low <= 0:
        return b""
    return None if count * dtype.itemsize > LARGEST else np.full(count, low, dtype).tobytes()


def _refused(what: str, where: str) -> UsageError:
    return UsageError(f"Triton has no {what}", where=where, fix="serve it with `aot serve`, or pack it with --image")
