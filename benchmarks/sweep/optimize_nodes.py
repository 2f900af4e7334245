"""The node tests of ONNX through `aot optimize`: each gives the same outputs after it as before.

    python benchmarks/sweep/optimize_nodes.py [--only TEXT] [--jobs N] [--resume]

Every test of `onnx.backend.test` for nodes is a model of one op, with its inputs. It is run on onnxruntime without
its optimizations (on onnx's own evaluator, where onnxruntime has no kernel), written as `aot optimize` writes it, and
run again. Writes benchmarks/results/sweep-optimize.json: a row a test, [name, op, status, reason], and the counts.
`equal`: the same names, dtypes, shapes and numbers. `random`: the model does not give the same numbers twice.
`not run`: neither runs it as it was. `refused`: aot says what is wrong with it. `differs` and `failed`: bugs of aot.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from _result import ROOT, write

NAME = "sweep-optimize"
BUGS = ("differs", "failed")
TOLERANCE = 1e-5
"""Largest difference, relative to the largest magnitude of an output; FP16 and BF16 may differ by a rounding."""


def main() -> int:
    """Try every test; exit code 1 where one differs or failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="tests whose name holds this; nothing is written then")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--resume", action="store_true", help="keep the rows of tests that are done")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows: list[list[Any]] = []
    path = ROOT / "benchmarks/results" / f"{NAME}.json"
    if arguments.resume and path.exists():
        rows = [row for row in json.loads(path.read_text())["rows"][0]["tests"] if row[2] not in BUGS]
    known = {row[0] for row in rows}
    names = [name for name in cases() if arguments.only in name and name not in known]
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for done, row in enumerate(pool.imap(_row, names, chunksize=8), 1):
            rows.append(row)
            if arguments.only or row[2] in BUGS:
                print(*row, flush=True)
            if not arguments.only and (done % 200 == 0 or done == len(names)):
                _keep(rows)
                print(f"{done} of {len(names)}", dict(collections.Counter(row[2] for row in rows)), flush=True)
    return 1 if any(row[2] in BUGS for row in rows) else 0


def _keep(rows: list[list[Any]]) -> None:
    total = collections.Counter(row[2] for row in rows)
    write(NAME, [{"total": dict(total), "tests": sorted(rows)}], "python benchmarks/sweep/optimize_nodes.py")


def cases() -> dict[str, Any]:
    """Every node test by name; the same object when asked again."""
    if not _CASES:
        from onnx.backend.test.case import node

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _CASES.update((case.name, case) for case in node.collect_testcases(None))
    return _CASES


_CASES: dict[str, Any] = {}


def _row(name: str) -> list[Any]:
    case = cases()[name]
    ops = [node.op_type for node in case.model.graph.node if node.op_type != "Constant"]
    status, reason = outcome(case)
    return [name, ops[0] if ops else "", status, reason]


def outcome(case: Any) -> tuple[str, str | None]:
    """(status, reason) of one test; see the module."""
    import onnx

    from aot.errors import AotError
    from aot.optimize_file import optimize_file

    with tempfile.TemporaryDirectory(prefix="sweep-") as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        onnx.save(case.model, before)
        fed = dict(
            zip([value.name for value in case.model.graph.input], map(_array, case.data_sets[0][0]), strict=False)
        )
        try:
            wanted, again = run(before, fed), run(before, fed)
        except Exception as error:  # noqa: BLE001  whatever keeps both from running it
            return "not run", _line(error)
        if differences(wanted, again):
            return "random", None
        try:
            optimize_file(before, after)
        except AotError as error:
            return "refused", error.what
        except Exception as error:  # noqa: BLE001  a bug, whatever it is
            return "failed", f"{type(error).__name__}: {_line(error)}"
        try:
            found = differences(wanted, run(after, fed))
        except Exception as error:  # noqa: BLE001
            return "failed", f"it no longer runs: {_line(error)}"
    return ("differs", found) if found else ("equal", None)


def _array(given: Any) -> Any:
    """What numpy has no dtype for comes as a TensorProto."""
    import onnx

    return onnx.numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else given


def _line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]


def run(path: Path, fed: dict[str, Any]) -> dict[str, Any]:
    """The outputs by name: onnxruntime without optimizations, else onnx's own evaluator."""
    import onnx
    import onnxruntime as ort
    from onnx.reference import ReferenceEvaluator

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_outputs()]
        return dict(zip(names, session.run(None, fed), strict=True))
    except Exception:  # noqa: BLE001  onnxruntime's classes have no base of their own
        evaluator = ReferenceEvaluator(onnx.load(path))
        return dict(zip(evaluator.output_names, evaluator.run(None, fed), strict=True))


def differences(want: dict[str, Any], got: dict[str, Any]) -> str | None:
    """What is not the same, in words; None where all is."""
    if list(want) != list(got):
        return f"outputs {list(got)} in place of {list(want)}"
    return next((f"'{name}' {said}" for name in want for said in _unlike(want[name], got[name])), None)


def _unlike(want: Any, got: Any) -> Iterator[str]:
    import numpy as np

    if want is None or got is None:
        if want is not got:
            yield f"is {got} in place of {want}"
        return
    if isinstance(want, Sequence) and not isinstance(want, str):
        if not isinstance(got, Sequence) or len(got) != len(want):
            yield "is another sequence"
            return
        for a, b in zip(want, got, strict=True):
            yield from _unlike(a, b)
        return
    a, b = np.asarray(want), np.asarray(got)
    if a.dtype != b.dtype or a.shape != b.shape:
        yield f"is {b.dtype}{list(b.shape)} in place of {a.dtype}{list(a.shape)}"
    elif a.dtype.kind not in "fcV":
        if not np.array_equal(a, b):
            yield "has other values"
    else:
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        tolerance = TOLERANCE if a.dtype.itemsize >= 4 else 1e-2
        a, b = a.astype(wide), b.astype(wide)
        most = float(np.abs(a[np.isfinite(a)]).max(initial=0))
        if not np.allclose(b, a, rtol=0, atol=tolerance * most + 1e-30, equal_nan=True):
            yield f"differs by {np.nanmax(np.abs(a - b)):.3g} where the largest value is {most:.3g}"


if __name__ == "__main__":
    sys.exit(main())
