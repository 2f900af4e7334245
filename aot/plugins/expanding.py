"""What a backend gets in the place of plugins' nodes: calls of their kernels, or the bodies of their functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from aot.records import MODEL

if TYPE_CHECKING:
    from aot.backend import Backend
    from aot.runtime.kernels import Compiled


@contextmanager
def launched(graph: Path, backend: Backend, kernels: Mapping[str, Sequence[Compiled]], folder: Path) -> Iterator[Path]:
    """The graph as a file, nodes with kernels in the form in which the backend calls those.

    It is the file itself where there are none; else one below `folder` that is gone afterwards.
    """
    if not kernels:
        yield graph
        return
    with TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as place:
        yield backend.with_kernels(graph, kernels, Path(place))


@contextmanager
def expanded(graph: Path, ops: Collection[str], folder: Path) -> Iterator[Path]:
    """The graph as a file, calls of the functions named in `ops` replaced by their bodies.

    It is the file itself where there are none; else one below `folder` that is gone afterwards. Parsers of vendors take
    functions too, but go by name alone, and a plugin's function differs with attributes and ranks (`overload`).
    """
    if not ops:
        yield graph
        return
    import onnx_ir as ir
    from onnx_ir.passes import common

    from aot import origins

    model = ir.load(graph)
    known = origins.by_value(model)
    for function in model.functions.values():
        for node in function.all_nodes() if function.name in ops else ():
            node.name = f"{function.name}/{node.name or node.op_type}"  # so that a refusal names the plugin
            for key in (origins.MODULE, origins.SOURCE):
                node.metadata_props.pop(key, None)  # and the place where the model calls it
    domains = {function.domain for function in model.functions.values() if function.name in ops}
    common.InlinePass(lambda function: function.name in ops)(model)
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    for domain in domains - {node.domain for node in model.graph.all_nodes()}:
        model.opset_imports.pop(domain, None)
    common.NameFixPass()(model)
    origins.inherit(model, known)
    with TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as place:
        path = Path(place) / MODEL
        ir.save(model, path, external_data=f"{MODEL}.data")
        yield path
