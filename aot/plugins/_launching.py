"""Kernels compiled, loaded and launched on this machine's GPU, on tensors of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aot.plugins import cases
from aot.plugins._trying import symbolic
from aot.plugins._workers import Compilers
from aot.plugins.compiling import Job
from aot.plugins.loading import Plugin
from aot.plugins.sizes import Size
from aot.runtime.driver import Kernel
from aot.runtime.kernels import Compiled

if TYPE_CHECKING:
    import torch


DEVICE = "cuda"
"""Where tensors lie, as torch calls it."""


class Stopped(Exception):
    """CUDA says that a kernel failed while it ran; nothing more runs in this process."""


class Launcher:
    """Compiles kernels for one target as an engine gets them whose sizes vary wherever they may; loads each once."""

    def __init__(self, compilers: Compilers, target: str) -> None:
        self._compilers = compilers
        self._target = target
        self._loaded: dict[str, Kernel] = {}

    def begin(self, plugin: Plugin, trial: cases.Trial, vary: Sequence[str], config: Mapping[str, Any]) -> None:
        """Have the kernel of a run compiled. Raises PluginError where a compiler has ended."""
        self._compilers.begin(plugin, self._job(plugin, trial, vary), config)

    def compiled(
        self,
        plugin: Plugin,
        trial: cases.Trial,
        vary: Sequence[str],
        config: Mapping[str, Any],
        timeout: float | None = None,
    ) -> Compiled:
        """The kernel of a run, waited for, at most `timeout` seconds. Raises PluginError where there is none then."""
        return self._compilers.result(plugin, self._job(plugin, trial, vary), config, timeout)

    def _job(self, plugin: Plugin, trial: cases.Trial, vary: Sequence[str]) -> Job:
        free = symbolic(plugin, trial.shapes, vary)
        shapes = {name: tuple(None if isinstance(size, Size) else size for size in free[name]) for name in free}
        return Job(
            self._target,
            shapes,
            plugin.schema.dtypes(plugin.schema.inputs, trial.chosen),
            dict(trial.attributes),
        )

    def bound(
        self, made: Compiled, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> Callable[[], None]:
        """A launch on these tensors and torch's current stream. Raises EngineError, now or then, as the driver does."""
        import torch

        grid, scalars = made.launched([tuple(tensor.shape) for tensor in inputs])
        if made.digest not in self._loaded:
            self._loaded[made.digest] = Kernel.load(made.code, made.entry, made.shared)
        kernel = self._loaded[made.digest]
        x, y, z = grid
        arguments = [*(one.data_ptr() for one in inputs), *scalars, *(one.data_ptr() for one in outputs)]
        cuda: Any = torch.cuda

        def launch() -> None:
            kernel.launch((x, y, z), made.threads, arguments, cuda.current_stream().cuda_stream)

        return launch


def waited(launch: Callable[[], None]) -> None:
    """Launch and wait. Raises EngineError where the driver refuses, Stopped where the kernel fails."""
    import torch

    cuda: Any = torch.cuda
    cuda.synchronize()
    launch()
    try:
        cuda.synchronize()
    except RuntimeError as error:
        raise Stopped(str(error).splitlines()[0]) from error
