"""`aot serve` under load: MiniLM in FP32 on the CPU, with and without batches across clients.

    python benchmarks/serving.py [--seconds 60] [--short 8] [--artifact MINILM.aot]

64 clients, each over a connection of its own, ask for the embedding of one random sentence after the other, tensors as
bytes over HTTP. They live in one process, which shares the machine's CPUs with the server: `client_core_ms` and
`server_core_ms` are what both take for a request, `other_cores` what else ran on the machine, in CPUs. Every answer is
held against a session's own for that sentence: `lost` got none, `wrong` another.

Rows of 4 tokens take `--seconds`, the others `--short`. `method`: `batching` is the server as it starts, `batch-1` with
`--max-batch 1`; `a thread a core` is what makes the server without batches fastest, one lane a core. Goals: none lost,
none wrong, batching 3 times as fast as batch 1 at 4 tokens. Writes benchmarks/results/serving.json and the table in
docs/serve.md; exit code 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _result import ROOT, write
from serving import load, page, requests
from serving.server import Server

GOAL = 3.0
CLIENTS = 64
SENTENCES = 256
NAME = "minilm"
CORES = len(os.sched_getaffinity(0))
A_THREAD_A_CORE = (["--lanes", str(CORES)], {"OMP_NUM_THREADS": "1"})
METHODS: dict[str, tuple[list[str], dict[str, str]]] = {
    "batching": ([], {}),
    "batch-1": (["--max-batch", "1"], {}),
    "batching, a thread a core": A_THREAD_A_CORE,
    "batch-1, a thread a core": (["--max-batch", "1", *A_THREAD_A_CORE[0]], A_THREAD_A_CORE[1]),
}
LENGTHS = {4: list(METHODS), 8: ["batching", "batch-1"], 16: ["batching", "batch-1"]}


def build(folder: Path) -> Path:
    """MiniLM's graph for onnxruntime; nothing is done where the store has it."""
    where = folder / "minilm.aot"
    aot = [str(Path(sys.executable).parent / "aot"), "build", "examples/minilm/model.py", "--precision", "fp32"]
    subprocess.run([*aot, "--backend", "onnxruntime", "-o", str(where), "--json"], cwd=ROOT, check=True, stdout=-3)
    return where


def busy_seconds() -> float:
    """CPU seconds of everything on this machine, idling and waiting left out."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def asked(job: load.Job) -> tuple[load.Answers, float]:
    """The answers, and the CPU seconds of the process of the clients."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job"
        path.write_bytes(pickle.dumps(job))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "serving.load", str(path)], cwd=ROOT / "benchmarks", check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        return pickle.loads(path.with_suffix(".answers").read_bytes()), taken


def measure(artifact: Path, method: str, length: int, seconds: float) -> dict[str, Any]:
    """One row: a server of its own, the load, and every answer looked at."""
    options, environment = METHODS[method]
    feeds = requests.feeds(SENTENCES, length)
    wanted = requests.direct(artifact, feeds)
    with Server(artifact, NAME, options, environment) as server:
        sent = [requests.as_http(NAME, one) for one in feeds]
        job = load.Job(server.host, server.port, sent, CLIENTS, seconds)
        before, busy, started = server.cpu_seconds(), busy_seconds(), time.perf_counter()
        answers, client_seconds = asked(job)
        server_seconds = server.cpu_seconds() - before
        others = (busy_seconds() - busy - server_seconds - client_seconds) / (time.perf_counter() - started)
        figures = server.figures()
    counted = sorted(took for at, took in answers.times if answers.started <= at and at + took <= answers.ended)
    total = len(answers.times)
    return {
        "model": NAME,
        "tool": "aot",
        "precision": "fp32",
        "method": method,
        "options": " ".join([*(f"{name}={value}" for name, value in environment.items()), *options]),
        "length": length,
        "clients": CLIENTS,
        "cores": CORES,
        "seconds": seconds,
        "requests": total,
        "lost": answers.lost,
        "wrong": sum(not requests.right(body, wanted[number]) for number, body in answers.bodies),
        "requests_per_second": round(len(counted) / seconds, 1),
        "p50_ms": round(1000 * counted[len(counted) // 2], 2),
        "p99_ms": round(1000 * counted[len(counted) * 99 // 100], 2),
        "mean_batch": round(figures["aot_batch_requests_sum"] / figures["aot_batch_requests_count"], 1),
        "compute_ms": round(1000 * figures["aot_compute_seconds_sum"] / figures["aot_compute_seconds_count"], 2),
        "server_core_ms": round(1000 * server_seconds / total, 3),
        "client_core_ms": round(1000 * client_seconds / total, 3),
        "other_cores": round(others, 2),
    }


def compared(rows: list[dict[str, Any]]) -> None:
    """`times_batch_1` of the rows with batches: against the row without, of the same length and threads."""
    speed = {(row["method"], row["length"]): row["requests_per_second"] for row in rows}
    for row in rows:
        alone = speed.get((row["method"].replace("batching", "batch-1"), row["length"]))
        if alone and row["method"].startswith("batching"):
            row["times_batch_1"] = round(row["requests_per_second"] / alone, 2)


def main() -> int:
    """Measure every row, and say whether the goals are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="of load at 4 tokens (default: 60)")
    parser.add_argument("--short", type=float, default=8, help="of load in the other rows (default: 8)")
    parser.add_argument("--artifact", type=Path, help="MiniLM for onnxruntime; default: it is built")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        artifact = arguments.artifact.resolve() if arguments.artifact else build(Path(folder))
        for length, methods in LENGTHS.items():
            for method in methods:
                headline = length == 4 and method in ("batching", "batch-1")
                rows.append(measure(artifact, method, length, arguments.seconds if headline else arguments.short))
                compared(rows)
                print(json.dumps(rows[-1]), flush=True)
    repeat = f"python benchmarks/serving.py --seconds {arguments.seconds:g} --short {arguments.short:g}"
    print(write("serving", rows, repeat))
    page.put(ROOT / "docs/serve.md", rows)
    ratio = rows[0]["times_batch_1"]
    print(f"batching: {ratio} times batch 1 at 4 tokens, goal {GOAL}")
    return 0 if ratio >= GOAL and not any(row["lost"] or row["wrong"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
