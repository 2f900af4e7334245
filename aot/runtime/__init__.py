"""What runs where an engine is deployed: numpy, cuda-bindings and TensorRT's runtime, or onnxruntime; no torch.

load -> Session     `aot.load("x.aot")`: docs/runtime.md says how it is used
manifest.py         what an artifact is to someone who runs it; files.py: its files, unpacked and checked
loading.py          which of its engines runs here, and why the others do not

session.py          calls, whatever runs them; state.py: what is fed back; pending.py: calls that are not over
calls.py            from what is given to a call that is checked, by signature.py: dtypes, shapes, profiles
interchange.py      numpy, torch, CuPy, and back; dlpack.py: whatever else speaks DLPack or the array interface

executor.py         what runs a call
onnxruntime.py      on the CPU; sessions.py: with the same options as everywhere in aot
tensorrt.py         on a GPU: a plan (plan.py), and a pool (pool.py) of lanes (lanes.py) that calls take turns on,
                    each a stream with memory (staging.py), CUDA graphs (graphs.py), and states (kept.py);
                    started.py: what becomes of a call that is enqueued

cuda.py             the calls of the driver that all this needs
driver.py           kernels as PTX; kernels.py: as they travel; plugin_v3.py: in engines of TensorRT 10.6 to 10.8
vendors.py, log.py  TensorRT and TensorRT-RTX, and what they say
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aot.runtime.loading import load
    from aot.runtime.manifest import Tensor
    from aot.runtime.pending import Pending
    from aot.runtime.session import Bound, Session
    from aot.runtime.state import Stream

__all__ = ["Bound", "Pending", "Session", "Stream", "Tensor", "load"]
_HOMES = {
    "load": "loading", "Session": "session", "Bound": "session", "Pending": "pending", "Stream": "state",
    "Tensor": "manifest",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """The public names, each imported when it is asked for: a build that needs one kernel does not pay for numpy."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
