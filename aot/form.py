"""What an engine can be built from in several forms: which one, and the graph in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from aot.config import Precision
from aot.records import MODEL
from aot.toolchain import release

ATTENTION_TARGETS = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")
"""Where TensorRT-RTX 1.7.1 was seen to build the operator."""


@dataclass(frozen=True)
class Form:
    """attention: `decomposed` into two MatMuls and a Softmax, the `operator` Attention of opset 23, or nodes of the
    plugin aot::attention, whose `kernel` the engine launches: those called `sites`, the rest stays decomposed."""

    attention: Literal["decomposed", "operator", "kernel"] = "decomposed"
    sites: tuple[str, ...] = ()


def form_for(backend: str, version: str | None, target: str, precision: Precision) -> Form:
    """The form in which `backend` of that version gets a graph of `precision` for `target`.

    The operator, where it was seen to build; which nodes it fits, `passes/attention_operator.py` knows. TensorRT-RTX
    1.7.1 built it in FP16 and BF16 for each of ATTENTION_TARGETS: head sizes of 32 to 256, sizes static and dynamic,
    one query against many keys, without mask, causal, and with masks [b, 1, s, s], [b, 1, 1, s], [1, h, s, s] and
    [s, s]. It failed in FP32, with heads of 8, and refused a mask together with is_causal. INT8 and FP8 need the
    decomposed form, for Q/DQ goes on the two MatMuls; the parser of TensorRT 10.6 has no Attention; and onnxruntime
    1.32 takes no mask that is broadcast over the queries.

    A kernel is taken where one was compiled, which `stages/attention.py` decides.

    The form is decided for the build and not before: ranges are observed, FP32 islands placed and numbers compared on
    the decomposed graph, whose scores the operator would hide, and a prepared artifact can be finished by any backend.
    """
    operator = (
        backend == "tensorrt_rtx"
        and release(version) >= (1, 7)
        and target in ATTENTION_TARGETS
        and precision in ("fp16", "bf16")
    )
    return Form("operator" if operator else "decomposed")


@contextmanager
def formed(graph: Path, form: Form, folder: Path) -> Iterator[tuple[Path, int]]:
    """The final graph in that form, as a file, and how many nodes were made of attention.

    It is the file itself where the form changes nothing; else one below `folder` that is gone afterwards. Raises
    GraphError where a few of those nodes, run with what is around them, do not compute what stood in their place.
    """
    if form.attention == "decomposed":
        yield graph, 0
        return
    import onnx_ir as ir

    from aot.graph import run_passes
    from aot.graph.check import Check
    from aot.passes.attention_kernel import attention_kernel_of
    from aot.passes.attention_operator import attention_operator

    model = ir.load(graph)
    rewrite = attention_operator if form.attention == "operator" else attention_kernel_of(form.sites)
    (done,) = run_passes([rewrite], model, Check())
    if not done.sites:
        yield graph, 0
        return
    with TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as place:
        path = Path(place) / MODEL
        ir.save(model, path, external_data=f"{MODEL}.data")
        yield path, done.sites
