"""A model repository of Triton Inference Server: https://github.com/triton-inference-server/server (docs/user_guide).

    NAME/config.pbtxt       shapes, batches, profiles, states, warm-up (triton_config.py, triton_batch.py)
    NAME/1/model.plan       an engine of TensorRT; of several, TARGET.plan each, which the GPU decides between
    NAME/1/model.onnx       the final graph, where the artifact has no engine: onnxruntime, on the CPU
    NAME/1/model.py         where an engine needs Python (triton_model.py): with the artifact and the runtime's wheel
    NAME/warmup, NAME/initial_state     what the configuration reads

Other models in the repository are left as they are.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from aot.errors import UsageError
from aot.packing import pbtxt, wheel
from aot.packing.engines import chosen
from aot.packing.output import check_place, replacing
from aot.packing.tar import names
from aot.packing.triton_batch import batch_of
from aot.packing.triton_config import FILES, Backend, config_of, file_of
from aot.runtime import manifest as manifests
from aot.runtime import sessions
from aot.runtime.kernels import LAUNCHED
from aot.runtime.manifest import GRAPH, Engine, Manifest, Tensor

KIND = "a model of a Triton repository"
CONFIG = "config.pbtxt"


def check(
    artifact: Path, to: Path, *, overwrite: bool = False, engine: str | None = None, name: str | None = None
) -> Path:
    """What `write` would put there. Raises UsageError where it is there already and must not be replaced, for a name
    that no folder has, and where no engine can be chosen."""
    manifest = manifests.read(str(artifact))
    chosen(manifest, engine)
    place = to / name_of(manifest, name)
    check_place(place, KIND, _is_model, overwrite=overwrite)
    return place


def write(
    artifact: Path, to: Path, *, overwrite: bool = False, engine: str | None = None, name: str | None = None
) -> list[Path]:
    """Write the artifact as a model of the repository `to`.

    engine: which one, where the artifact has several (see `engines.chosen`). name: see `name_of`. Raises UsageError
    where Triton cannot serve the model, where `to` cannot be written, or has the model already and must not lose it.
    """
    manifest = manifests.read(str(artifact))
    engines = chosen(manifest, engine)
    backend, why = _backend(manifest, engines)
    batch = batch_of(manifest)
    name = name_of(manifest, name)
    config = config_of(manifest, name, backend, engines, batch)
    message = dict(config.message)
    if backend == "python" and engine is not None:
        message["parameters"] = [{"key": "engine", "value": {"string_value": engine}}]
    notes = [f"{manifest.name}, {manifest.precision}: {why}", *batch.notes, *_notes(engines, backend)]
    with replacing(to / name, KIND, _is_model, overwrite=overwrite) as new:
        version = new / "1"
        version.mkdir(parents=True)
        (new / CONFIG).write_text(pbtxt.text(message, notes))
        for file, content in config.files.items():
            (new / file).parent.mkdir(exist_ok=True)
            (new / file).write_bytes(content)
        if backend == "python":
            shutil.copyfile(Path(__file__).with_name("triton_model.py"), version / FILES["python"])
            wheel.write(version)
        for source, copy in _files(manifest, engines, backend).items():
            (version / copy).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(artifact / source, version / copy)
    return sorted(path for path in (to / name).rglob("*") if path.is_file())


def name_of(manifest: Manifest, asked: str | None = None) -> str:
    """The model's name, which is a folder's: the one asked for, else the artifact's own, with `_` for what a path or an
    address cannot hold. Raises UsageError for one asked for that holds such."""
    if asked is not None:
        if not re.fullmatch(r"(?!\.)[A-Za-z0-9_.-]{1,200}", asked):
            raise UsageError(
                f"no model can be called {asked!a}", where="--name", fix="take letters, digits, '_', '-' and '.'"
            )
        return asked
    return re.sub(r"[^A-Za-z0-9_.-]|^\.+", "_", manifest.name) or "model"


def _backend(manifest: Manifest, engines: Sequence[Engine]) -> tuple[Backend, str]:
    """Which backend runs the model, and why. Raises UsageError for what none can."""
    if not engines or engines[0].backend == sessions.NAME:
        return "onnxruntime", "the final graph, on the CPU" if not engines else "its engine for the CPU"
    said = ", ".join(f"{one.backend} {one.version} for {one.target}" for one in engines)
    reason = _needs_python(manifest, engines)
    if reason is None:
        return "tensorrt", said
    narrow = next((key for key, one in _tensors(manifest).items() if one.dtype == "bfloat16"), None)
    lacks = next((f"states, such as '{key}'" for key in manifest.states), None)
    if narrow is not None:
        lacks = f"tensors in bfloat16, such as '{narrow}'"
    if lacks is not None:
        raise UsageError(
            f"the engine needs Triton's Python backend ({reason}), which has no {lacks}",
            where=manifest.shown,
            fix="serve it with `aot serve`, or pack it with --image",
        )
    return "python", f"{said}, in Python: {reason}"


def _needs_python(manifest: Manifest, engines: Sequence[Engine]) -> str | None:
    """Why an engine cannot be loaded by the TensorRT backend, None where it can."""
    for one in engines:
        if one.backend != "tensorrt":
            return "Triton has no backend for TensorRT-RTX"
        if str(Path(one.file).with_suffix(LAUNCHED)) in manifest.files:
            return "the kernels of plugins are launched from there"
        if one.weights is not None:
            return "the engine is stripped, and takes its weights there"
    scalar = next((key for key, one in _tensors(manifest).items() if not one.shape), None)
    return None if scalar is None else f"the TensorRT backend has no tensors without axes, such as '{scalar}'"


def _tensors(manifest: Manifest) -> Mapping[str, Tensor]:
    return {**manifest.inputs, **manifest.outputs}


def _notes(engines: Sequence[Engine], backend: Backend) -> list[str]:
    """What the server needs."""
    if backend == "python":
        one = engines[0]
        return [f"The server's Python environment needs numpy, cuda-bindings and {one.backend} {one.version}."]
    if backend != "tensorrt":
        return []
    if all(one.compatible is not None for one in engines):
        return ["Start the server with --backend-config=tensorrt,version-compatible=true."]
    return [f"The server has to have TensorRT {engines[0].version}."]


def _files(manifest: Manifest, engines: Sequence[Engine], backend: Backend) -> Mapping[str, str]:
    """What is copied into the version's folder, and as what."""
    if backend == "python":
        return {name: f"artifact/{name}" for name in names(manifest.folder)}
    if backend == "tensorrt":
        return {one.file: file_of(one, engines) for one in engines}
    if engines:
        return {engines[0].file: FILES["onnxruntime"]}
    # Weights that lie beside the graph keep the names by which it refers to them.
    folder = GRAPH.rpartition("/")[0]
    return {name: name.removeprefix(f"{folder}/") for name in manifest.files if name.startswith(f"{folder}/")}


def _is_model(path: Path) -> bool:
    return (path / CONFIG).is_file()
