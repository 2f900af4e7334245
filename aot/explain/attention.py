"""Attention that an engine could launch as kernels: each place, and why it becomes one or stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from aot import backend as backends
from aot import content, toolchain
from aot.explain.findings import Remark
from aot.explain.ops import replacements
from aot.explain.targets import Wanted
from aot.plugins import header as headers
from aot.plugins.compiling import TARGETS
from aot.stages import attention as attentions

if TYPE_CHECKING:
    import onnx_ir as ir

    from aot.plan import Plan


def attention(model: ir.Model, plan: Plan, asked: Iterable[Wanted]) -> tuple[Remark, ...]:
    """What a build of the final graph would say of its attention, for every target; the graph is left as it is.

    Nothing is compiled, so a kernel that needs a size fixed which varies is taken for one that comes to be. A place
    that no measurement speaks of is named as well, with what would put a kernel there.
    """
    file = content.names("plugins", plan.project).get(attentions.NAME)
    if file is None or plan.attention == "never" or (plan.attention == "measured" and plan.precision == "fp32"):
        return ()
    header = headers.read(file)
    if header.qualified != attentions.QUALIFIED:
        return ()
    found: dict[Remark, None] = {}
    for one in asked:
        backend = backends.get(one.backend)
        if one.refused is not None:
            continue
        if backend.launches(backend.version()) is None:
            if plan.attention == "asked":
                found[_left(f"{backend.title} launches no kernels of plugins")] = None
            continue
        target = one.target or "any GPU"
        if one.target is not None and one.target not in TARGETS:
            found[_left(f"kernels are compiled for {', '.join(TARGETS)}, not for {one.target}")] = None
            continue
        gpu = toolchain.machine().gpu
        name = gpu.name if gpu is not None and gpu.target == one.target else None
        sites = attentions.of(model.clone(), header, plan, target, name, lambda nodes: [()] * len(nodes))
        why = "asked for" if plan.attention == "asked" else f"measured to be faster on {target}"
        places: list[Mapping[str, Any]] = sites.facts(why)["places"]
        if not places and plan.attention == "asked":
            found[_left("none was found in the graph")] = None
        found.update(dict.fromkeys(replacements(places)))
    return tuple(found)


def _left(why: str) -> Remark:
    return Remark("", attentions.NAME, "", "", f"attention stays two MatMuls and a Softmax: {why}")
