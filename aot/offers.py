"""Which options of an engine a backend has, from which release on, and why it lacks the others: all as data.

Sources: NvInfer.h of TensorRT 10.6 to 11.1 (`BuilderFlag`, `HardwareCompatibilityLevel`), and builds with TensorRT-RTX
1.7.1 on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aot import routes
from aot.config import QUANTIZED, EngineOptions, Precision, Request, Route, parse
from aot.errors import TargetError
from aot.toolchain import release


@dataclass(frozen=True)
class Offer:
    """since: the first release that has the option; None: none has, for the reason `why`. fix: the way out."""

    since: tuple[int, int] | None
    why: str = ""
    fix: str = "leave it away"


_TENSORRT = "--backend tensorrt, on the GPU that it is for"
OFFERS: Mapping[str, Mapping[str, Offer]] = {
    "tensorrt": {
        "strip": Offer((10, 6)),
        "version_compatible": Offer((10, 6)),
        "hardware_compatible=ampere_plus": Offer((10, 6)),
        "hardware_compatible=same_compute_capability": Offer(
            (10, 9), fix="leave it away: engines of earlier releases run on every GPU of their compute capability"
        ),
    },
    "tensorrt_rtx": {
        "strip": Offer(None, "its builder makes plans to be refitted only where a GPU is", _TENSORRT),
        "version_compatible": Offer(None, "it needs a lean library that the wheel lacks", _TENSORRT),
        "hardware_compatible=ampere_plus": Offer(None, "its builder ignores the level", "name every target: --target"),
        "hardware_compatible=same_compute_capability": Offer(
            None, "its engines run on every GPU of their compute capability as they are"
        ),
    },
    "onnxruntime": {
        option: Offer(None, "its engine is an ONNX file")
        for option in (
            "strip",
            "version_compatible",
            "hardware_compatible=ampere_plus",
            "hardware_compatible=same_compute_capability",
        )
    },
}


def asked(options: EngineOptions) -> Iterator[str]:
    """The names in OFFERS of what the options ask for."""
    if options.strip:
        yield "strip"
    if options.version_compatible:
        yield "version_compatible"
    if options.hardware_compatible is not None:
        yield f"hardware_compatible={options.hardware_compatible}"


def engine_options(base: EngineOptions, request: Request) -> EngineOptions:
    """Those of a profile file, with what the command line says in their place."""
    return parse(EngineOptions, {**base.model_dump(), **request.engine}, "the command line") if request.engine else base


def check(options: EngineOptions, precision: Precision, backend: str | None, route: Route) -> None:
    """Raise TargetError for the first option that the backend, as it is installed, lacks, or has not in that precision.

    backend None: nothing is built here, and where something is, it is asked again.
    """
    if backend is None:
        return
    from aot import backend as backends

    vendor = backends.get(backend)
    if route == routes.TORCH_TENSORRT and any(asked(options)):
        raise TargetError(
            f"the route {route} does not build with {next(asked(options))}",
            where=f"--route {route}",
            fix="leave one of the two away",
        )
    _check(options, precision, backend, vendor.title, vendor.version())


def _check(options: EngineOptions, precision: Precision, backend: str, title: str, version: str | None) -> None:
    """See `check`. version None: it is not installed, which is another error's business."""
    for name in asked(options):
        offer, where = OFFERS[backend][name], f"engine option {name}, --backend {backend}"
        if offer.since is None:
            raise TargetError(f"{title} does not build with {name}: {offer.why}", where=where, fix=offer.fix)
        if version is not None and release(version) < offer.since:
            since = ".".join(map(str, offer.since))
            raise TargetError(f"{title} {version} lacks {name}, which came with {since}", where=where, fix=offer.fix)
    if options.strip and precision in QUANTIZED:
        raise TargetError(
            f"the weights of {precision} layers cannot be put in later: they are folded with their scales",
            where="engine option strip",
            fix="--precision fp16, bf16 or fp32, or leave --strip away",
        )
    if options.hardware_compatible == "ampere_plus" and precision == "fp8":
        raise TargetError(
            "FP8 and ampere_plus exclude each other: GPUs before compute capability 8.9 have no FP8",
            where="engine option hardware_compatible",
            fix="--precision int8, or leave --hardware-compatible away",
        )
