"""The node tests of ONNX as input files: each is built, or refused with a reason, and none takes the process down.

    python benchmarks/sweep/node_tests.py [--only TEXT] [--jobs N] [--resume]

Every test of `onnx.backend.test` for nodes is a model of one op, most with fixed shapes. Each is given to
`aot build TEST.onnx --precision fp32 --backend tensorrt_rtx --target sm89` in a process of its own, and what is
prepared of it is run on onnxruntime with the test's inputs: `numbers` says whether the outputs are the test's.
Writes benchmarks/results/sweep-node-tests.json: a row a test, [name, op, status, numbers, reason], and the counts by
op. `crashed`: a signal ended the process; `failed`: a bug of aot, or out of time.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import queue
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from _result import ROOT, write  # noqa: I001
from sweep import apart

NAME = "sweep-node-tests"
TIMEOUT = 120.0


def main() -> int:
    """Try every test; exit code 1 where one crashed or failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="tests whose name holds this; nothing is written then")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--resume", action="store_true", help="keep the rows of tests that are done")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows: list[list[Any]] = []
    path = ROOT / "benchmarks/results" / f"{NAME}.json"
    if arguments.resume and path.exists():
        rows = [row for row in json.loads(path.read_text())["rows"][0]["tests"] if row[2] not in ("crashed", "failed")]
    known = {row[0] for row in rows}
    cases = [case for case in _cases() if arguments.only in case.name and case.name not in known]
    workers: queue.SimpleQueue[apart.Worker] = queue.SimpleQueue()
    for _ in range(arguments.jobs):
        workers.put(apart.Worker())

    def tried(case: Any) -> list[Any]:
        worker = workers.get()
        try:
            return _row(worker, case)
        finally:
            workers.put(worker)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for done, row in enumerate(pool.map(tried, cases), 1):
            rows.append(row)
            if arguments.only or row[2] in ("crashed", "failed"):
                print(*row, flush=True)
            if not arguments.only and (done % 100 == 0 or done == len(cases)):
                _keep(rows)
                print(f"{done} of {len(cases)}", dict(collections.Counter(row[2] for row in rows)), flush=True)
    return 1 if any(row[2] in ("crashed", "failed") for row in rows) else 0


def _keep(rows: list[list[Any]]) -> None:
    ops: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for _, op, status, *_ in rows:
        ops[op][status] += 1
    total = collections.Counter(row[2] for row in rows)
    numbers = collections.Counter(row[3] for row in rows)
    summary = {
        "total": dict(total),
        "numbers": dict(numbers),
        "ops": {op: dict(count) for op, count in sorted(ops.items())},
        "tests": sorted(rows),
    }
    write(NAME, [summary], "python benchmarks/sweep/node_tests.py")


def _cases() -> Iterator[Any]:
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from node.collect_testcases(None)


def _row(worker: apart.Worker, case: Any) -> list[Any]:
    import onnx

    folder = Path(tempfile.mkdtemp(prefix="sweep-"))
    try:
        onnx.save(case.model, str(folder / "test.onnx"))
        command = ["build", "test.onnx", "--backend", "tensorrt_rtx", "--target", "sm89", "--precision", "fp32"]
        answer = worker.call([*command, *_dims(case), "-o", "out.aot"], folder, TIMEOUT)
        numbers = _numbers(folder, case)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    status = {0: "built", 1: "built", 2: "refused"}.get(answer.code, "failed") if answer.code is not None else "failed"
    if answer.code is not None and answer.code < 0:
        status = "crashed"
    ops = [node.op_type for node in case.model.graph.node if node.op_type != "Constant"]
    reason = None if status == "built" else answer.reason[:200]
    return [case.name, ops[0] if ops else "", status, numbers, reason]


def _dims(case: Any) -> list[str]:
    """What the test's inputs say: the sizes of the dims that it leaves open, and the range of its integers."""
    import numpy as np

    options = []
    for value, array in zip(case.model.graph.input, case.data_sets[0][0], strict=False):
        if isinstance(array, list) or np.ndim(array) != len(
            value.type.tensor_type.shape.dim
        ):  # a sequence, or nothing is known of its rank
            continue
        if np.size(array) and np.asarray(array).dtype.name in ("int32", "int64", "uint8") and np.min(array) >= 0:
            options += ["--dim", f"{value.name}={np.min(array)}:{np.min(array)}:{np.max(array)}"]
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_value <= 0:
                size = np.shape(array)[axis]
                options += ["--dim", f"{dim.dim_param or f'{value.name}_{axis}'}={size}:{size}:{size}"]
    return options


def _numbers(folder: Path, case: Any) -> str:
    """Whether the prepared graph gives the test's outputs: `equal`, `differ`, or why it was not run."""
    import numpy as np
    import onnxruntime as ort

    found = sorted(folder.glob("store/**/model.onnx"))
    if not found:
        return "not prepared"
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(str(found[0]), options)
    except Exception:  # noqa: BLE001  onnxruntime's classes have no base of their own
        return "not run"
    inputs, outputs = case.data_sets[0]
    names = [value.name for value in session.get_inputs()]
    try:
        made = session.run(None, dict(zip(names, inputs, strict=True)))
    except Exception:  # noqa: BLE001
        return "not run"
    equal = all(
        np.shape(a) == np.shape(b)
        and np.allclose(a, b, rtol=max(case.rtol, 1e-3), atol=max(case.atol, 1e-5), equal_nan=True)
        for a, b in zip(made, outputs, strict=True)
    )
    return "equal" if equal else "differ"


if __name__ == "__main__":
    sys.exit(main())
