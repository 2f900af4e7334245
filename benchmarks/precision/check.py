"""Building the prepared graphs without any GPU: TensorRT-RTX takes the same networks as TensorRT.

It finds graphs that do not parse and networks that no kernel fits; what TensorRT makes of them is seen on a GPU.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from _engine import make_noise

from precision.prepare import CELLS

TARGET = "sm120"


def check(folder: Path, models: Sequence[str], recipes: Sequence[str]) -> bool:
    """Print one line a graph, built at the model's first size of CELLS. Returns whether all were built."""
    from surgery.models import MODELS as SOURCES

    from aot import backend as backends
    from aot.backend import Job
    from aot.config import EngineOptions
    from aot.declaration import ModelSpec
    from aot.errors import AotError
    from aot.progress import Silent

    backend = backends.get("tensorrt_rtx")
    fine = True
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        make_noise(work)
        for model in models:
            dims = next(cell.dims for cell in CELLS if cell.model == model)
            spec = ModelSpec(model, SOURCES[model].inputs)
            for recipe in recipes:
                graph = Path(shutil.copy(folder / f"{model}.{recipe}.onnx", work))
                started = time.perf_counter()
                try:
                    backend.check_graph(graph)
                    job = Job(graph, spec, "fp16", [dims], TARGET, EngineOptions())
                    backend.build(job, work / "engine.plan", None, Silent())
                    said = f"built in {time.perf_counter() - started:.1f} s"
                except AotError as error:
                    fine, said = False, f"{error.what} [{error.where}]"
                print(f"{graph.name}: {said}", flush=True)
    return fine
