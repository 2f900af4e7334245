"""The same graphs with attention as kernels of the plugin aot::attention, which travel beside the graph."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from _engine import KERNELS, strip

SUFFIX = "-attention"
TARGET = "sm90"
"""What the kernels are compiled for."""


def write(graph: Path, target: Path) -> str:
    """Write the final graph `graph` in that form to `target`, without its large weights, and the kernels beside it;
    says how many there are, and why others are not."""
    import onnx_ir as ir

    from aot import content
    from aot.plugins.header import read
    from aot.stages.attention import forming
    from aot.stages.kernels import compiled

    header = read(content.names("plugins")["attention"])
    model = ir.load(graph)
    compile_here = partial(compiled, header, target=TARGET, gpu=None, project=None)
    found = forming(model, header, lambda node: None, compile_here)
    whole = graph.with_name("formed.onnx")
    ir.save(model, whole, external_data="formed.onnx.data")
    strip(whole, target)
    whole.with_suffix(".onnx.data").unlink()
    groups: dict[str, list[str]] = {}
    for node, made in found.made:
        groups.setdefault(json.dumps([one.to_json() for one in made]), []).append(node.name)
    alike = [{"nodes": nodes, "kernels": json.loads(kernels)} for kernels, nodes in groups.items()]
    target.with_suffix(KERNELS).write_text(json.dumps(alike))
    left = "".join(f"; {len(nodes)} stay: {why}" for why, nodes in found.left.items())
    return f"{len(found.made)} attentions are kernels{left}"
