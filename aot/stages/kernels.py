"""Stage: the kernels of a graph's plugins for one target, as PTX, which travel with the graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot import backend as backends
from aot import content, routes, toolchain
from aot.plugins import header as headers
from aot.plugins import tuned
from aot.plugins.checking import check, devices
from aot.plugins.compiling import TARGETS, Job, compile_each
from aot.plugins.header import Header
from aot.plugins.nodes import PluginNode, plugin_nodes
from aot.plugins.ptx import SHARED
from aot.plugins.schema import NODE_TYPES
from aot.plugins.sizes import Varies
from aot.profile import as_json
from aot.records import KERNELS, Kernels, QuantizedGraph
from aot.run import Run
from aot.runtime.kernels import Compiled
from aot.stages import attention as attentions
from aot.store import digest, sha256

if TYPE_CHECKING:
    from aot.artifact import Prepared
    from aot.plan import Plan

Made = tuple[Compiled, ...] | str
"""The kernels of a node, one for each way to run it; or why it has none."""
Warn = Callable[[str], None]


def carrying(run: Run, prepared: Prepared, plan: Plan) -> Prepared:
    """What was prepared, with the kernels that its engines launch; without engines, that those will launch which are
    built from it elsewhere. What is left without a kernel is told, and kept with the result."""
    told: list[str] = []

    def warn(message: str) -> None:
        told.append(message)
        run.progress.warn(message)

    backend = backends.get(plan.backend or "tensorrt")
    if plan.route != routes.ONNX or backend.launches(backend.version()) is None:
        functions = functions_of(run, prepared.final, backend.name) if plan.route == routes.ONNX else []
        if functions:
            became = "; ".join(f"{name} became the ops of its reference" for name in functions)
            warn(f"{backend.title} launches no kernels of plugins yet: {became}")
        if plan.attention == "asked":
            warn(f"{backend.title} launches no kernels of plugins, so attention stays as it is")
        return replace(prepared, notices=tuple(told))
    targets = plan.targets or plan.meant or ()
    held = {one.target: one for one in prepared.kernels}
    for target in targets:
        found = kernels(run, prepared.final, plan, target, prepared.kernels, warn)
        if found is not None:
            held[target] = found
    ops = [op["op_type"] for op in custom_ops(run, prepared.final) if op["plugin"]]
    for message in _hiding(ops, plan.project):
        warn(message)
    if plan.attention == "asked":
        ops.append(attentions.NAME)
    if ops and not targets and not held and plan.meant is not None:
        warn(
            f"no target was named, so no kernel of {', '.join(ops)} was compiled: --target sm89, say, takes one "
            "along; without, the machine that builds the engine needs triton and the plugins' files"
        )
    places = attentions.places(tuple(held.values()), plan)
    others = [one for one in prepared.replaced if one["plugin"] != attentions.NAME]
    return replace(prepared, kernels=tuple(held.values()), replaced=(*others, *places), notices=tuple(told))


def _hiding(ops: Sequence[str], project: Path | None) -> list[str]:
    """The project's plugins that stand in the place of built-in ones, as sentences."""
    shipped, here = content.names("plugins"), content.names("plugins", project)
    return [
        f"{op} is the plugin of {here[op]}, which hides the built-in one; another name keeps both"
        for op in ops
        if op in shipped and here[op] != shipped[op]
    ]


def kernels(
    run: Run,
    final: QuantizedGraph,
    plan: Plan,
    target: str,
    carried: Sequence[Kernels] = (),
    warn: Warn | None = None,
) -> Kernels | None:
    """The kernels of every node that can have one; None where none can, or the graph has no plugins.

    carried: those that an artifact brought along, which are taken as they are: neither triton nor the plugins' files
    are needed for them. What is left without a kernel is told to `warn`, by default the run's progress, with the reason
    and what to do. Raises PluginError for what is the plugin's own fault.
    """
    warn = warn or run.progress.warn
    ops = [op["op_type"] for op in custom_ops(run, final) if op["plugin"]]
    found = next((one for one in carried if one.target == target), None)
    if found is None or _lacks_attention(found, plan, ops):
        attention = attentions.wanted(plan, target)
        if ops or attention is not None:
            found = _compiled(run, final, plan, target, ops, attention, warn) or found
    if found is None:
        return None
    for one in found.left:
        _tell(warn, one["op"], target, one["why"])
    known = found.facts.get("attention", {"formed": [], "left": []})
    for one in known["left"]:
        if one["told"] and plan.attention != "never":
            _tell_attention(warn, target, one["why"], len(one["nodes"]))
    if plan.attention == "asked" and not known["formed"] and not known["left"]:
        _tell_attention(warn, target, "none was found in the graph, or no kernel of it was brought along", 0)
    return found if ops or known["formed"] or plan.attention == "asked" else None


def _lacks_attention(carried: Kernels, plan: Plan, ops: Sequence[str]) -> bool:
    """Whether attention is asked for now, was not when the kernels were compiled, and all can be compiled here."""
    here = content.names("plugins", plan.project)
    able = toolchain.version("triton") is not None and all(op in here for op in ops)
    return plan.attention == "asked" and "attention" not in carried.facts and able


def _compiled(
    run: Run,
    final: QuantizedGraph,
    plan: Plan,
    target: str,
    ops: Sequence[str],
    attention: Header | None,
    warn: Warn,
) -> Kernels | None:
    files = content.names("plugins", plan.project)
    here = {op: headers.read(files[op]) for op in ops if op in files}
    lacking = None
    if target not in TARGETS:
        lacking = f"kernels are compiled for {', '.join(TARGETS)} alone"
    elif toolchain.version("triton") is None:
        lacking = (
            "triton, which compiles its kernel, is not installed: pip install 'aot-engine[plugins]', or finish an "
            f"artifact that was prepared with --until graph --target {target}"
        )
    for op in ops:
        why = lacking or (None if op in here else f"plugins/{op}.py is not here")
        if why is not None:
            _tell(warn, op, target, why)
    if lacking and attention is not None and plan.attention == "asked":
        _tell_attention(warn, target, lacking, 0)
    if lacking or not (here or attention):
        return None
    gpu = toolchain.machine().gpu
    # Several products have one target, and the fastest config may differ between them.
    name = gpu.name if gpu is not None and gpu.target == target else None
    used = {**here, **({attention.name: attention} if attention is not None else {})}
    for header in used.values():
        for stale in tuned.entries(header, plan.project)[1]:
            warn(stale)

    def make(folder: Path) -> Mapping[str, Any]:
        import onnx_ir as ir

        for header in here.values():
            if not header.file.is_relative_to(content.BUILTIN.resolve()):  # the built-in ones are checked as they ship
                _check(run, header)
        model = ir.load(final.model)
        made: list[tuple[PluginNode, Made]] = []
        for header in here.values():
            nodes = plugin_nodes(model, header)
            made += zip(nodes, compiled(header, nodes, target, name, plan.project), strict=True)
        facts = {}
        if attention is not None:
            compile_here = partial(compiled, attention, target=target, gpu=name, project=plan.project)
            formed = attentions.of(model, attention, plan, target, name, compile_here)
            made += formed.made
            asked = plan.attention == "asked"
            facts["attention"] = formed.facts("asked for" if asked else f"measured to be faster on {target}")
        return {**_written(folder, target, made, {op: one.qualified for op, one in used.items()}), **facts}

    return run.stage(
        Kernels,
        "kernels",
        make,
        config={
            "target": target,
            "gpu": name,
            "plugins": {op: _digests(header, plan.project) for op, header in used.items()},
            **({"attention": plan.attention} if attention is not None else {}),
            **({"profiles": as_json(plan.profiles)} if attention is not None and plan.attention == "measured" else {}),
        },
        inputs=[final],
        tools=("triton",),
        label=f"kernels {target}",
    )


def _check(run: Run, header: Header) -> None:
    """Hold the kernel against its reference, once for each content of the plugin: on the interpreter, and on this
    machine's GPU if kernels are compiled for it. Raises PluginError where it computes something else."""
    key = digest([toolchain.own_digest(), toolchain.version("triton"), _digests(header, None)])
    for device in devices("auto", toolchain.machine().gpu):
        name = f"{device}-{key}"
        if run.store.recall("plugin-checks", name) is not None:
            continue
        (found,) = check([header], lambda name, done, total: run.progress.step(done, total, f"check {name}"), device)
        if not found.passed:
            case = next(iter(found.failed), None)
            said = f": {case.failures[0]} ({case.what})" if case is not None else ""
            raise header.error(
                f"the kernel does not compute what reference does, in {len(found.failed)} of {found.total} cases{said}",
                "kernel",
                f"aot plugin check {header.name} shows them",
            )
        run.store.remember("plugin-checks", name, {"cases": found.total})


def _digests(header: Header, project: Path | None) -> list[str]:
    """SHA-256 of all that a kernel is made from: the plugin's file, the helpers that it imports, what tuning found."""
    files = [*tuned.written_in(header), tuned.file_of(header.name, header.file.parent)]
    if project is not None:
        files.append(tuned.file_of(header.name, project / "plugins"))
    return [sha256(file) for file in files if file.is_file()]


def compiled(
    header: Header, nodes: Sequence[PluginNode], target: str, gpu: str | None, project: Path | None
) -> list[Made]:
    """What the nodes of one plugin get, `target` and `gpu` as in a stage: one compilation for all that are alike."""
    jobs: dict[Any, Job] = {}
    for node in nodes:
        call = node.call
        if call is not None and call.key not in jobs:
            config = tuned.best(header, target, call.dtypes, call.shapes, gpu=gpu, project=project)
            jobs[call.key] = Job(target, call.shapes, call.dtypes, call.attributes, config)
    found = compile_each(header, list(jobs.values())) if jobs else []
    made = {key: _fitting(each, target) for key, each in zip(jobs, found, strict=True)}
    return [f"{node.why} ({node.where})" if node.call is None else made[node.call.key] for node in nodes]


def _fitting(found: tuple[Compiled, ...] | Varies, target: str) -> Made:
    """The kernels whose shared memory the target has."""
    if isinstance(found, Varies):
        return f"{found.what}; {found.fix}" if found.fix else found.what
    limit = SHARED[int(target.removeprefix("sm"))]
    fitting: dict[str, Compiled] = {}
    for kernel in found:
        if kernel.shared <= limit << 10:
            # Configs may come to one and the same kernel, which need not be timed twice.
            fitting.setdefault(json.dumps({**kernel.to_json(), "config": None}), kernel)
    if fitting:
        return tuple(fitting.values())
    least = min(kernel.shared for kernel in found)
    return f"its kernel takes {least >> 10} KiB of shared memory at the least, and a program has {limit}"


def _written(
    folder: Path, target: str, made: Sequence[tuple[PluginNode, Made]], qualified: Mapping[str, str]
) -> Mapping[str, Any]:
    """Write `kernels.json`; return the stage's facts."""
    groups: dict[tuple[str, ...], tuple[list[str], Sequence[Compiled]]] = {}
    left: dict[tuple[str, str], list[str]] = {}
    for node, kernels in made:
        if isinstance(kernels, str):
            left.setdefault((node.op, kernels), []).append(node.name)
        else:
            # Two calls may come to the same text, and be launched in two ways.
            key = tuple(json.dumps(kernel.to_json(), sort_keys=True) for kernel in kernels)
            groups.setdefault(key, ([], kernels))[0].append(node.name)
    (folder / KERNELS).write_text(
        json.dumps([{"nodes": nodes, "kernels": [one.to_json() for one in found]} for nodes, found in groups.values()])
    )
    return {
        "target": target,
        "triton": toolchain.version("triton"),
        "kernels": [
            {
                "plugin": found[0].plugin,
                "nodes": nodes,
                "source": found[0].source,
                "digests": [kernel.digest for kernel in found],
            }
            for nodes, found in groups.values()
        ],
        "left": [{"op": op, "plugin": qualified[op], "nodes": nodes, "why": why} for (op, why), nodes in left.items()],
    }


def _tell(warn: Warn, op: str, target: str, why: str) -> None:
    warn(f"{op} runs as the ops of its reference on {target}: {why}")


def _tell_attention(warn: Warn, target: str, why: str, places: int) -> None:
    where = f" in {places} place{'s' * (places > 1)}" if places else ""
    warn(f"attention stays two MatMuls and a Softmax{where} on {target}: {why}")


def functions_of(run: Run, final: QuantizedGraph, backend: str, served: Mapping[str, int] | None = None) -> list[str]:
    """The ops with nodes whose functions take their place: all that have one and no kernel, but on onnxruntime, which
    runs functions itself. served: `domain::op` -> how many of its nodes have a kernel."""
    if backend == "onnxruntime":
        return []
    having = served or {}
    ops = [op for op in custom_ops(run, final) if op["function"]]
    return sorted(op["op_type"] for op in ops if op["nodes"] > having.get(f"{op['domain']}::{op['op_type']}", 0))


def custom_ops(run: Run, final: QuantizedGraph) -> list[dict[str, Any]]:
    """Every op outside the ONNX domains: {domain, op_type, nodes (how many), function (model-local?), plugin (made from
    one?), where}, each once.

    Remembered by the graph's key, so that an unchanged rebuild reads no graph.
    """
    known = run.store.recall("graph-ops", final.key)
    if known is not None:
        return list(known["ops"])
    from aot.backends import _graph

    model = _graph.load_structure(final.model)
    functions = {(function.domain, function.name) for function in model.functions}
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for node in _graph.nodes(model.graph):
        if node.domain in _graph.ONNX_DOMAINS:
            continue
        op = (node.domain, node.op_type)
        if op not in found:
            found[op] = {
                "domain": node.domain,
                "op_type": node.op_type,
                "nodes": 0,
                "function": op in functions,
                "plugin": any(item.key == NODE_TYPES for item in node.metadata_props),
                "where": _graph.describe(node),
            }
        found[op]["nodes"] += 1
    run.store.remember("graph-ops", final.key, {"ops": list(found.values())})
    return list(found.values())
