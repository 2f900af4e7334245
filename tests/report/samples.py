"""The data of a report and of a benchmark, small and complete, to draw pages from."""

from __future__ import annotations

from typing import Any

H200 = {"gpu": {"name": "NVIDIA H200", "target": "sm90", "memory": 150754820096}, "driver": "580.65.06", "cpu": "a CPU"}
VERSIONS = {"aot": "0.2.0", "torch": "2.11.0", "tensorrt": "10.6.0", "onnxruntime": "1.32.0"}
COUNTERS = ("p90_ms", "p99_ms", "first_ms", "throughput", "launches", "gpu_bytes", "host_bytes", "energy_mj")


def row(tool: str, precision: str, p50: float | None, batch: int, **more: Any) -> dict[str, Any]:
    """One contender at one size, as `aot bench --json` has it; what is not given is null."""
    known = dict.fromkeys((*COUNTERS, "cosine", "relative_l2", "reason"))
    sizes = {"batch": batch, **more.pop("sizes", {})}
    return {
        "tool": tool,
        "label": tool,
        "precision": precision,
        "sizes": sizes,
        "runs": 200,
        "p50_ms": p50,
        **known,
        **more,
    }


def bench() -> dict[str, Any]:
    """aot, eager and two modes of torch.compile at three batches; Torch-TensorRT is not installed."""
    found = []
    for batch, times in {1: (0.41, 5.1, 2.9, 1.1), 8: (0.62, 4.7, 5.0, 1.0), 64: (2.6, 4.9, 4.1, 3.65)}.items():
        tools = (("aot", "fp8"), ("eager", "fp16"), ("compile-default", "fp16"), ("compile-max-autotune", "fp16"))
        for (tool, precision), p50 in zip(tools, times, strict=True):
            more = {"p90_ms": p50 * 1.05, "p99_ms": p50 * 1.2, "throughput": batch / p50 * 1e3, "first_ms": p50 * 3}
            found.append(row(tool, precision, p50, batch, **more, launches=1 if tool == "aot" else 180, cosine=0.998))
        found.append(row("torch-tensorrt", "fp16", None, batch, reason="torch-tensorrt is not installed"))
    return {
        "artifact": "m.aot",
        "machine": H200,
        "versions": VERSIONS,
        "clocks": {"gpu": {"lowest_sm_mhz": 1965, "highest_sm_mhz": 1980, "slowed": []}},
        "rows": found,
    }


def decision(place: int, precision: str, op: str = "MatMul", reason: str = "the recipe's precision") -> dict[str, Any]:
    """A node in layer `place // 4` of the model."""
    module = f"encoder.layer.{place // 4}.dense"
    return {
        "node": f"n{place}", "op": op, "precision": precision, "reason": reason, "module": module, "source": "m.py:7"
    }  # fmt: skip


def layer(place: int, error: float | None, added: float | None, share: float, finite: bool = True) -> dict[str, Any]:
    """One row of `layers.json`."""
    return {
        "value": f"v{place}", "node": f"n{place}", "op": "MatMul", "module": f"encoder.layer.{place // 4}.dense",
        "source": "m.py:7", "cosine": 0.999, "relative_l2": error, "added": added, "share": share, "finite": finite,
    }  # fmt: skip


def compared(cosine: float = 0.9982) -> dict[str, Any]:
    """A comparison with eager at two sizes."""
    output = {
        "cosine": cosine, "relative_l2": 0.06, "max_abs": 0.2, "flips": None, "failure": None,
        "nonfinite": {"ref": 0, "mismatched": 0},
    }  # fmt: skip
    cases = [
        {"name": name, "kind": "heldout", "sizes": {"batch": size}, "cosine": cosine, "relative_l2": 0.06,
         "max_abs": 0.2, "accepted": True, "outputs": {"y <0>": output}}
        for name, size in (("heldout-000", 3), ("max", 64))
    ]  # fmt: skip
    return {"ran": True, "reason": None, "cases": cases, "metric": None}


def report() -> dict[str, Any]:
    """What `report.json` holds of a build in FP8 that missed its budget at first."""
    missed = {"case": "max", "cosine": 0.991, "relative_l2": 0.13, "missed": "case 'max': cosine 0.991 is below 0.995"}
    kept = {
        "node": "n3", "op": "MatMul", "module": "encoder.layer.0.dense", "source": "m.py:7", "was": "fp8",
        "kept": "fp16", "operations": 0.02, "share": 0.5, "without": missed,
    }  # fmt: skip
    numbers = {"ran": True, "reason": None, "cosine": 0.9982, "relative_l2": 0.06, "max_abs": 0.2, "cases": 2}
    return {
        "model": "m", "precision": "fp8", "choice": None, "route": "onnx", "backend": "tensorrt", "accepted": True,
        "reasons": [], "warnings": ["the builder says <this>"], "budget": {"cosine": 0.995},
        "engines": [
            {"target": "sm90", "backend": "tensorrt", "version": "10.6.0", "file": "engines/sm90.plan",
             "bytes": 36 << 20, "sha256": "ab" * 32, "seconds": 60.0, "cached": False, "verification": numbers},
        ],
        "nodes": {"exported": 40, "final": 61}, "quantized": {"ops": 14, "qdq": 28}, "quantized_ops": {"MatMul": 14},
        "verification": {"graph": {**numbers, "metric": None}, "engine": numbers},
        "search": {
            "met": True, "why": "", "kept": [kept], "keep": {"layers": ["n3"], "fp32": []}, "before": missed,
            "after": {"case": "max", "cosine": 0.9982, "relative_l2": 0.06, "missed": None}, "wide": None,
            "low": {"precision": "fp8", "before": 0.95, "after": 0.93}, "candidates": 15, "trials": 9,
            "exhausted": False,
        },
        "layers": {
            "case": "max",
            "rows": [layer(place, 0.001 * (place + 1), 0.0005, 0.5 if place == 3 else 0.03) for place in range(16)],
        },
        "steps": [
            {"step": "exported", "ops": {"MatMul": 16, "Add": 16, "Reshape": 8}},
            {"step": "surgery", "ops": {"MatMul": 16, "Add": 8}, "passes": {"gemm": 8, "no_ops": 0}},
            {"step": "final", "ops": {"MatMul": 16, "Add": 8, "DequantizeLinear": 28, "Cast": 4}},
        ],
        "decisions": [
            *(decision(place, "fp16" if place == 3 else "fp8") for place in range(14)),
            decision(14, "fp32", "Softmax", "its input reached 7e4"), decision(15, "int64", "Gather", "integers"),
        ],
        "replaced": [
            {"plugin": "rotary", "node": "n8", "replaced": False, "why": "not measured on sm90", "module": "encoder",
             "source": "m.py:9"},
        ],
        "kernels": [
            {"target": "sm90", "kernels": [{"plugin": "add_rms_norm", "nodes": ["n5"], "digests": ["cd" * 32]}],
             "left": [], "attention": {"formed": [], "left": [{"why": "its mask is broadcast", "nodes": ["n6"]}]}},
        ],
        "launched": {
            "sm90": {"kernels": [
                {"plugin": "add_rms_norm", "nodes": ["n5"], "digests": ["cd" * 32], "needs_python": True},
            ]},
        },
        "profiles": [{"batch": [1, 8, 64]}],
        "io": {
            "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", 128]}],
            "outputs": [{"name": "y <0>", "dtype": "float32", "shape": ["batch", 16]}],
        },
        "graph": compared(), "engine_reports": {"sm90": compared()}, "identity": "12" * 32,
        "records": {"graph": "34" * 32},
        "stages": [],
        "history": [
            {"did": ["graph"], "created": "2026-11-30T12:00:00+00:00", "versions": VERSIONS,
             "command": "aot build m.py", "machine": {"gpu": None, "driver": None, "cpu": "a CPU"},
             "stages": [{"name": "export", "seconds": 20.0, "cached": False},
                        {"name": "quantize", "seconds": 0.5, "cached": True}]},
            {"did": ["engines"], "created": "2026-11-30T13:00:00+00:00", "versions": VERSIONS, "machine": H200,
             "command": "aot build m.aot", "stages": [{"name": "build sm90", "seconds": 60.0, "cached": False}]},
        ],
    }  # fmt: skip
