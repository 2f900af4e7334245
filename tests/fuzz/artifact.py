"""An artifact with something in every place, and all that reads one."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import aot
from aot import artifact
from aot.cli._main import call
from aot.config import Request
from aot.plan import decide_finish
from aot.report import page
from aot.runtime import manifest as runtime
from aot.runtime.files import MANIFEST, manifest_digest
from aot.stages.package import package, report_detail
from aot.stages.verify import verify_engine
from tests.report import samples
from tests.tiny import PLAN, Workshop

DIGEST = hashlib.sha256(b"").hexdigest()
KERNEL = {
    "plugin": "add_rms_norm", "target": "sm89", "entry": "k", "code": "", "threads": 128, "shared": 0, "registers": 8,
    "spilled": 0, "inputs": ["x"], "dtypes": ["float16"], "output_dtypes": ["float16"],
    "grid": [["ceil", ["size", "x", 0], 4], 1, 1], "scalars": {"n": ["size", "x", 1]}, "outputs": [[["size", "x", 0]]],
    "config": {"num_warps": 4}, "digest": DIGEST, "source": DIGEST,
}  # fmt: skip
FACTS = {
    "target": "sm89",
    "triton": "3.6.0",
    "kernels": [{"plugin": "add_rms_norm", "nodes": ["n"], "source": DIGEST, "digests": [DIGEST]}],
    "left": [{"op": "x::y", "plugin": "y", "nodes": ["m"], "why": "none"}],
    "attention": {"formed": ["n"], "left": [{"why": "its mask", "nodes": ["a"], "told": True}], "places": []},
}
PLACE = {"plugin": "swiglu", "node": "n", "replaced": True, "why": "asked for", "module": "m", "source": "m.py:1"}
NUMBERS = {"cosine": 0.99, "relative_l2": 0.1, "missed": None}
SEARCH = {
    "met": True, "why": "", "before": NUMBERS, "after": NUMBERS, "wide": NUMBERS, "trials": 3, "exhausted": False,
    "low": {"precision": "int8", "before": 0.9, "after": 0.8}, "keep": {"layers": ["n"], "fp32": []}, "candidates": 2,
    "kept": [{"node": "n", "op": "Conv", "module": "m", "source": "m.py:1", "was": "int8", "kept": "fp16",
              "operations": 0.1, "share": 0.5, "without": NUMBERS}],
}  # fmt: skip


def write(folder: Path, store: Path, *, candidates: bool = True) -> dict[str, Any]:
    """Write the artifact; return its manifest. Its candidates, kernels and search say what those of a build do."""
    shop = Workshop(store)
    prepared, plan = shop.prepared(), replace(PLAN, backend="onnxruntime", targets=("cpu",))
    engines = [shop.cpu_engine(), shop.engine("sm89")]
    reports = [verify_engine(shop.run, engine, prepared, plan) for engine in engines]
    package(shop.run, prepared, plan, engines, reports, folder)
    data: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    put(folder, data, "kernels/sm89/kernels.json", [{"nodes": ["n"], "kernels": [KERNEL]}])
    put(folder, data, "ranges/ranges.json", {"x": {"amax": 3.5, "low": -3.5, "high": 3.0, "calibrator": "max"}})
    put(folder, data, "search/layers.json", {"rows": [], "cases": 1})
    record = {"stage": "kernels", "key": DIGEST, "facts": FACTS}
    search = {"stage": "repair", "key": DIGEST, "facts": SEARCH}
    candidate = {**data["records"], "plan": {**data["plan"], "precision": "fp16"}, "replaced": [PLACE], "kernels": []}
    del candidate["references"]
    for name in ("graph/model.onnx", "ranges/ranges.json", "checked/report.json"):
        copy(folder, data, name, f"candidates/fp16/{name}")
    data |= {"kernels": [record], "replaced": [PLACE], "candidates": [candidate]}
    data["records"]["search"] = search
    one = {"precision": "fp16", "out": None, "cosine": 0.99, "relative_l2": 0.01, "ms": [0.1]}
    data["choice"] = {
        "precision": None if candidates else "fp32",
        "reason": "",
        "margin": 0.03,
        "on": None,
        "sizes": [{"batch": 2}],
        "candidates": [one],
    }
    if not candidates:
        data["candidates"] = []
        data["files"] = {name: file for name, file in data["files"].items() if not name.startswith("candidates/")}
        shutil.rmtree(folder / "candidates")
    seal(folder, data)
    return data


def put(folder: Path, data: dict[str, Any], name: str, content: Any) -> None:
    """Write a file of the artifact and list it. content: plain data, or bytes as they are."""
    stored = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(stored)
    data["files"][name] = {"bytes": len(stored), "sha256": hashlib.sha256(stored).hexdigest()}


def copy(folder: Path, data: dict[str, Any], source: str, target: str) -> None:
    """List a copy of a file under another name."""
    put(folder, data, target, (folder / source).read_bytes())


def seal(folder: Path, data: Any) -> None:
    """Write a manifest whose digest fits, as whoever forges one would."""
    if isinstance(data, dict):
        with contextlib.suppress(RecursionError):
            data = {**data, "digest": manifest_digest(data)}
    (folder / MANIFEST).write_text(json.dumps(data))


def read_all(folder: Path) -> None:
    """Everything that is read of an artifact: inspected, loaded to be run, run, and loaded to be finished.

    Raises AotError, and whatever else is a bug.
    """
    refusals: list[aot.AotError] = []
    for use in (_inspected, _run, _finished):
        try:
            use(folder)
        except aot.AotError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]


def _inspected(folder: Path) -> None:
    command("inspect", str(folder), "--nodes")
    command("inspect", str(folder), "--json")


def command(*arguments: str) -> None:
    """Call the command line; raise AotError where it refuses, AssertionError where it fails otherwise."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = call(arguments)
    assert code in (0, 1, 2), err.getvalue()
    if code == 2:
        raise aot.AotError(err.getvalue())


def finish(folder: Path) -> None:
    """Build an engine of it, and a page of its report. Raises AotError, and whatever else is a bug."""
    out = folder.with_name("finished.aot")
    shutil.rmtree(out, ignore_errors=True)
    command("build", str(folder), "--backend", "onnxruntime", "--target", "cpu", "-o", str(out))
    page(samples.bench(), folder)


def _run(folder: Path) -> None:
    runtime.read(str(folder))
    with aot.load(folder, engine="cpu") as session:
        sizes = {dim: bounds[0] for dim, bounds in session.manifest.dims.items()}
        shapes = {name: [sizes.get(str(s), s) for s in one.shape] for name, one in session.inputs.items()}
        if all(np.prod([int(size) for size in shape]) < 1 << 20 for shape in shapes.values()):
            session({name: np.zeros(shape, session.inputs[name].dtype) for name, shape in shapes.items()})


def _finished(folder: Path) -> None:
    prepared = artifact.load(str(folder))
    for one in (prepared, *prepared.candidates):
        one.ranges.amax(), one.ranges.extremes()
        for kernels in one.kernels:
            for nodes in kernels.by_node().values():
                for kernel in nodes:
                    kernel.launched([[4, 4]] * len(kernel.inputs))
        decide_finish(Request(model=str(folder), targets=("cpu",), backend="onnxruntime"), one)
    for case in prepared.references.cases():
        assert isinstance(case.inputs, Mapping)
    for engine, report in prepared.engines:
        assert os.path.isfile(engine.plan)
        report_detail(report, engine.target)
