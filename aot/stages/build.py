"""The engine: one for each target, from the final graph."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from aot import backend as backends
from aot import content, routes, toolchain
from aot.backend import Job
from aot.declaration import ModelSpec
from aot.errors import GraphError, TargetError
from aot.form import Form, form_for, formed
from aot.plan import Plan
from aot.plugins.expanding import expanded, launched
from aot.profile import as_json
from aot.records import KERNELS, Engine, Kernels, QuantizedGraph
from aot.run import Run
from aot.runtime.kernels import LAUNCHED
from aot.stages.attention import formed_by, formed_in
from aot.stages.kernels import custom_ops, functions_of
from aot.stages.program import convert
from aot.stages.weights import strip
from aot.store import sha256
from aot.timing_cache import TimingCaches

# Domains whose ops a backend has without any plugin of ours.
_VENDOR_DOMAINS = {"onnxruntime": ("com.microsoft", "com.microsoft.nchwc"), "tensorrt": ("TRT",), "tensorrt_rtx": ()}


def build_engine(
    run: Run, final: QuantizedGraph, spec: ModelSpec, plan: Plan, target: str, kernels: Kernels | None = None
) -> Engine:
    """Build the engine for one target. facts: see records.Engine, and timing_cache, plugins (name -> SHA-256),
    attention_operators (how many nodes the form made of attention), attention_kernels (how many of these are launched,
    where kernels of attention were looked for), expanded (ops whose functions took their place),
    kernels (those that it launches: see records.Kernels, with target and needs_python).

    kernels: of the graph's plugins for this target; a backend that launches none leaves them alone.

    Raises GraphError for a node that the backend does not take, before the long work; EngineError where the
    vendor's builder refuses after all.
    """
    assert plan.backend is not None
    backend = backends.get(plan.backend)
    machine = toolchain.machine()
    through_onnx = plan.route == routes.ONNX
    plugins = _plugins(run, final, plan, backend.name) if through_onnx else {}
    launching = backend.launches(backend.version())
    kernels = None if launching is None else kernels
    functions = _expanded(run, final, backend.name, kernels) if through_onnx else []
    sites = formed_by(kernels, plan)
    if kernels is not None and sites:
        plugins |= {"attention": next(one["source"] for one in kernels.facts["kernels"] if sites[0] in one["nodes"])}
    form = Form("kernel", sites) if sites else form_for(backend.name, backend.version(), target, plan.precision)
    # Kernels are launched by the nodes that attention becomes; the operator may be made of attention in functions.
    early, late = (form, Form()) if sites else (Form(), form)
    if kernels is not None and plan.engine.hardware_compatible == "ampere_plus":
        raise TargetError(
            f"kernels of plugins are compiled for {target} alone, and a plan with them runs on no other GPU",
            where="engine option hardware_compatible",
            fix="--no-plugins, or leave --hardware-compatible away",
        )
    stripped = strip(run, final) if plan.engine.strip else None
    leaving = () if stripped is None else tuple(stripped.facts["names"])
    timings = run.ledger.cache(target)
    # Kernels are timed on one GPU under one driver, and the engine holds what was best there.
    timed = {"gpu": machine.gpu.name, "driver": machine.driver} if backend.name == "tensorrt" and machine.gpu else None

    def make(folder: Path) -> Mapping[str, Any]:
        file = folder / f"{target}{backend.suffix}"
        job = Job(final.model, spec, plan.precision, plan.profiles, target, plan.engine, leaving, timings)
        if through_onnx:
            caches = TimingCaches(run.store) if plan.engine.timing_cache else None
            with (
                formed(final.model, early, folder) as (whole, attentions),
                launched(whole, backend, kernels.by_node() if kernels else {}, folder) as called,
                expanded(called, functions, folder) as plain,
                formed(plain, late, folder) as (graph, operators),
            ):
                backend.check_graph(graph)
                built = backend.build(replace(job, graph=graph), file, caches, run.progress)
            if kernels and launching == "python":
                shutil.copy(kernels.path / KERNELS, file.with_suffix(LAUNCHED))
            facts = {**built, "attention_operators": operators}
            if kernels and "attention" in kernels.facts:
                facts["attention_kernels"] = attentions
        else:
            facts = dict(convert(job, file))
        return {
            "target": target,
            "route": plan.route,
            "backend": backend.name,
            "version": backend.version(),
            "file": file.name,
            "bytes": file.stat().st_size,
            "sha256": sha256(file),
            "plugins": plugins,
            **({"expanded": functions} if functions else {}),
            **({"kernels": _launched(kernels, plan, launching == "python")} if kernels else {}),
            **facts,
        }

    engine = run.stage(
        Engine,
        "build",
        make,
        config={
            "target": target,
            "route": plan.route,
            "backend": backend.name,
            "version": backend.version(),
            "form": asdict(form),
            "profiles": as_json(plan.profiles),
            "inputs": spec.to_json()["inputs"],
            "engine": plan.engine.model_dump(mode="json"),
            "plugins": plugins,
            "timed": timed,
            "locked": None if timings is None else hashlib.sha256(timings).hexdigest(),
        },
        # A stripped plan depends on the graph without the values of its weights.
        inputs=[
            final if stripped is None else str(stripped.facts["rest"]),
            *(() if kernels is None else (kernels,)),
        ],
        tools=() if through_onnx else ("torch", routes.TORCH_TENSORRT),
        label=f"build {target}",
    )
    return engine if stripped is None else replace(engine, weighed=stripped)


def _plugins(run: Run, final: QuantizedGraph, plan: Plan, backend: str) -> dict[str, str]:
    """The plugins that the graph uses: name -> SHA-256 of the file.

    Raises GraphError for an op that is neither ONNX's, nor the vendor's, nor a function of the model, nor a plugin.
    """
    files = content.names("plugins", plan.project)
    digests: dict[str, str] = {}
    for op in custom_ops(run, final):
        file = files.get(op["op_type"])
        if file is not None:
            digests[op["op_type"]] = sha256(file)
        elif not op["function"] and op["domain"] not in _VENDOR_DOMAINS[backend]:
            raise GraphError(
                f"nothing implements the op {op['domain']}::{op['op_type']}",
                where=op["where"],
                fix=f"write plugins/{op['op_type']}.py, or give the model a local function of that name",
            )
    return digests


def _expanded(run: Run, final: QuantizedGraph, backend: str, kernels: Kernels | None) -> list[str]:
    """The ops whose functions take the place of nodes without these kernels."""
    served: Counter[str] = Counter()
    formed = set(formed_in(kernels))  # these are not nodes of the final graph
    for one in kernels.facts["kernels"] if kernels is not None else ():
        served[one["plugin"]] += len(set(one["nodes"]) - formed)
    return functions_of(run, final, backend, served)


def _launched(kernels: Kernels, plan: Plan, python: bool) -> list[dict[str, Any]]:
    unused = set(formed_in(kernels)) - set(formed_by(kernels, plan))
    groups = [
        {**one, "nodes": [node for node in one["nodes"] if node not in unused]} for one in kernels.facts["kernels"]
    ]
    return [{**one, "target": kernels.target, "needs_python": python} for one in groups if one["nodes"]]
