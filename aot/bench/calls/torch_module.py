"""The model in PyTorch: eager, compiled by `torch.compile` in a mode of it, or by Torch-TensorRT."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from aot.bench.contender import Call, Contender, Job
from aot.bench.tools import COMPILED, REFERENCE, TORCH_TENSORRT
from aot.errors import TargetError

if TYPE_CHECKING:
    import torch

    from aot.arrays import Arrays
    from aot.frontend.eager import Eager

_DTYPES = {"fp16": "float16", "bf16": "bfloat16"}


def make(job: Job) -> TorchModule:
    """See `tools.make`."""
    import torch

    if job.gpu and not torch.cuda.is_available():
        raise TargetError(
            f"torch {torch.__version__} sees no GPU", fix="install a build of torch for this driver's CUDA"
        )
    torch.set_num_threads(job.threads)
    if job.tool == TORCH_TENSORRT:
        import torch_tensorrt  # noqa: F401  registers itself with torch.compile
    if job.tool == REFERENCE:
        torch.backends.cudnn.allow_tf32 = False  # everywhere else torch has it off itself
    return TorchModule(job)


class TorchModule(Contender):
    """The module, all of it in one floating-point dtype, in inference mode.

    Compiled with `dynamic=False`, for the sizes at hand alone: the fastest that each mode has.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.precision = job.precision

    def load(self) -> None:
        """Build the module with its weights, and bring it to the GPU."""
        import torch

        from aot.config import Request
        from aot.frontend.eager import Eager
        from aot.progress import Silent
        from aot.run import Run
        from aot.source import open_source
        from aot.store import Store

        source = open_source(Request(model=self._job.source, dims=dict(self._job.dims)), Run(Store(), Silent()))
        eager = source.eager()
        assert isinstance(eager, Eager)
        self._spec, self._eager = source.spec, eager
        self._device = torch.device("cuda" if self._job.gpu else "cpu")
        wanted = "float32" if self._job.tool == REFERENCE else _DTYPES.get(self._job.precision)
        self._dtype = getattr(torch, wanted) if wanted else None
        module = eager.module.to(self._device)
        self._module = module if self._dtype is None else module.to(self._dtype)
        self.precision = _precision(self._module) or self.precision
        self._run = self._compiled()
        where = "cuda" if self._job.gpu else "cpu"
        self.label = f"{self._job.tool.replace('-', ' ', 1)} (torch {torch.__version__}, {where})"
        torch.autograd.grad_mode.inference_mode().__enter__()  # for the rest of the process

    def _compiled(self) -> Callable[..., Any]:
        import torch

        if self._job.tool in COMPILED:
            mode = COMPILED[self._job.tool]
            compiled: Callable[..., Any] = torch.compile(self._module, mode=mode, dynamic=False)
            return compiled
        if self._job.tool == TORCH_TENSORRT:
            return torch.compile(self._module, backend="torch_tensorrt", dynamic=False)
        return self._module

    def place(self, inputs: Mapping[str, Any]) -> Call:
        """Tensors on the device, floating-point ones in the module's dtype."""
        from aot.frontend.eager import tensor

        given = {name: self._placed(tensor(inputs[name])) for name in self._spec.inputs}
        return _Called(self._eager, self._run, given, synchronize=self._job.gpu)

    def _placed(self, value: torch.Tensor) -> torch.Tensor:
        value = value.to(self._device)
        return value.to(self._dtype) if self._dtype is not None and value.is_floating_point() else value


def _precision(module: torch.nn.Module) -> str | None:
    """Of its weights: those of the first floating-point parameter; None where it has none."""
    names = {"torch.float32": "fp32", **{f"torch.{dtype}": name for name, dtype in _DTYPES.items()}}
    return next((names.get(str(one.dtype)) for one in module.parameters() if one.is_floating_point()), None)


class _Called(Call):
    """One call of the module. How forward takes its tensors is settled before; it keeps its states itself, as it
    would for anybody."""

    def __init__(
        self, eager: Eager, run: Callable[..., Any], given: Mapping[str, torch.Tensor], synchronize: bool
    ) -> None:
        import torch

        self._eager, self._run, self._given = eager, run, given
        self._positional, self._named = eager.arguments(given)
        self._result: Any = None
        self._wait: Callable[[], None] = torch.cuda.synchronize if synchronize else lambda: None
        self._states = self._placed()
        self._states.__enter__()

    def _placed(self) -> AbstractContextManager[list[Any]]:
        from aot.frontend import state

        return state.placed(self._eager.module, self._eager.spec.kept, self._given)

    def enqueue(self) -> None:
        self._result = self._run(*self._positional, **self._named)

    def synchronize(self) -> None:
        self._wait()

    def outputs(self) -> Arrays:
        """With states: of one more run, from those given."""
        from aot import batches
        from aot.frontend.eager import named_outputs

        result = self._result
        if self._eager.spec.kept:
            with self._placed() as states:
                result = self._run(*self._positional, **self._named), states
        found = named_outputs(result, self._eager.spec, self._eager.owner)
        return {name: batches.array(value) for name, value in found.items()}
