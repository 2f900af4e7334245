"""Kernels of plugins on this machine's GPU: against eager, torch.compile and libraries, and what the GPU does at most.

    python benchmarks/plugins.py [--only NAME] [--resume] [--tune] ...
    python benchmarks/plugins.py --table                                 the kept result into the page, no GPU needed

Each plugin has a process of its own: all compile side by side, then one after the other is timed while nothing else
uses its GPU. At each size the tools run in turns, as CUDA graphs, with the L2 cache overwritten before each run; where
something cannot be captured, its launches are timed, and the row says so. aot is the fastest of CONFIGS, as TensorRT
takes it, or of what tuning tries of a SPACE; with --tune that is kept in plugins/tuned/. Errors are of an output's
largest magnitude, against the reference. With --engines TensorRT builds each op without its plugin and runs in the same
turns; with --tune this is kept too, for it says where the plugin wins. Writes benchmarks/results/plugins.json, after
each plugin, and the table in benchmarks/README.md; what SIGTERM or the end of the --budget leaves out stays as it was
kept, and --resume goes on there.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _result import ROOT, write
from precision.worker import Worker

from plugins import page

sys.path.insert(0, str(ROOT))

from aot import content
from aot.plugins import tuned
from aot.plugins.header import Header, read

NAME = "plugins"
BUILDERS = 8
"""How many processes build engines side by side: each holds TensorRT's kernels in memory."""
WRITING = threading.Lock()
"""Held while a result is written."""


def measure(headers: Sequence[Header], arguments: argparse.Namespace, worker: Any = Worker) -> bool:
    """Measure plugins; rows are written as they come. Whether every kernel ran."""
    until = time.monotonic() + (arguments.budget or math.inf)
    from plugins import measure as work

    folder, unbuilt = Path(tempfile.mkdtemp(prefix="aot-engines-")), dict[str, list[str]]()
    rows = page.kept(arguments.name)
    left_out: list[str] = []
    workers = [(header, worker(place % arguments.gpus, daemon=False)) for place, header in enumerate(headers)]

    def prepare(one: tuple[Header, Any]) -> str | None:
        try:
            seconds = min(arguments.seconds, (until - time.monotonic()) / 4)
            one[1].call(work.prepare, (one[0].file, seconds), 2 * seconds + 60)
        except RuntimeError as error:
            one[1].close()
            return str(error)
        return None

    def build(place: int) -> None:
        header, _ = workers[place]
        if failed[place] is None:
            one = worker(place % arguments.gpus)
            try:
                reasons = one.call(work.engines, (header.file, folder), arguments.timeout)
                unbuilt[header.name] = [reason for reason in reasons.values() if reason is not None]
            except RuntimeError as error:
                unbuilt[header.name] = [str(error)]
            one.close()

    def serve(gpu: int) -> None:
        for place, (header, one) in enumerate(workers):
            if place % arguments.gpus != gpu or failed[place] is not None:
                continue
            seconds = min(arguments.timeout, until - time.monotonic())
            if seconds > 0:
                keep(header, *_answer(header, one, work.measure, folder, seconds))
            else:
                left_out.append(header.name)
            one.close()

    def keep(header: Header, found: list[dict[str, Any]], entries: list[dict[str, Any]]) -> None:
        found = found + [
            {"plugin": header.name, "tool": "tensorrt", "reason": why} for why in unbuilt.get(header.name, ())
        ]
        with WRITING:
            rows[:] = [row for row in rows if row["plugin"] != header.name] + found
            for row in found:
                print(json.dumps(row), flush=True)
            write(arguments.name, sorted(rows, key=lambda row: (row["plugin"] != "roofline", row["plugin"])))
            if arguments.tune and entries:
                tuned.write(header, ROOT / "plugins", [tuned.Entry.from_json(entry) for entry in entries])

    with ThreadPoolExecutor(max(len(workers), 1)) as pool:
        failed = list(pool.map(prepare, workers))
    if arguments.engines:
        with ThreadPoolExecutor(BUILDERS) as pool:
            list(pool.map(build, range(len(workers))))
    first = worker(0)
    try:
        ceilings = first.call(work.roofline, (), 120)
        rows[:] = [row for row in rows if row["plugin"] != "roofline"] + ceilings
    except RuntimeError as error:
        print(f"no roofline: {error}", file=sys.stderr)
    first.close()
    for (header, _), reason in zip(workers, failed, strict=True):
        if reason is not None:
            keep(header, [{"plugin": header.name, "tool": "aot", "reason": reason}], [])
    with ThreadPoolExecutor(arguments.gpus) as pool:
        list(pool.map(serve, range(arguments.gpus)))
    shutil.rmtree(folder)
    if left_out:
        print(f"no time was left for {', '.join(left_out)}; --resume goes on", file=sys.stderr)
    return not left_out and not any("reason" in row for row in rows if row["tool"] == "aot")


def _answer(header: Header, worker: Any, function: Any, folder: Path, timeout: float) -> tuple[list[Any], list[Any]]:
    try:
        answer = worker.call(function, (folder, timeout), timeout)
    except RuntimeError as error:
        return [{"plugin": header.name, "tool": "aot", "reason": str(error)}], []
    return answer["rows"], answer["entries"]


def stopped(*_: Any) -> None:
    """On SIGTERM: end when what is being written is whole. A thread waits for that, for this one may be writing."""

    def end() -> None:
        with WRITING:
            for child in multiprocessing.active_children():
                child.kill()
            os._exit(128 + signal.SIGTERM)

    threading.Thread(target=end).start()


def main() -> int:
    """Measure, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="this plugin only; may be repeated")
    parser.add_argument("--resume", action="store_true", help="only plugins that the kept result lacks or that failed")
    parser.add_argument("--tune", action="store_true", help="keep the fastest configs in plugins/tuned/")
    parser.add_argument("--engines", action="store_true", help="also engines without the plugin; needs TensorRT")
    parser.add_argument("--table", action="store_true", help="write the page from the kept result, and nothing else")
    parser.add_argument("--gpus", type=int, default=1, help="how many GPUs work side by side")
    parser.add_argument("--seconds", type=float, default=60, help="for torch.compile, of each plugin (default: 60)")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for timing one plugin (default: 60)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="for everything together (default: no limit)")
    parser.add_argument(
        "--name", default=NAME, help=f"the result's name; of {NAME}, the default, the page shows the table"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, stopped)
    code = 0
    if not arguments.table:
        headers = [read(file.resolve()) for _, file in sorted(content.names("plugins").items())]
        done = {row["plugin"] for row in page.kept(arguments.name) if row["tool"] == "aot" and "ms" in row}
        wanted = set(arguments.only or [header.name for header in headers]) - (done if arguments.resume else set())
        code = 0 if measure([header for header in headers if header.name in wanted], arguments) else 1
    if arguments.name == NAME:
        readme = ROOT / "benchmarks/README.md"
        readme.write_text(page.into(readme.read_text(), page.kept(NAME)))
    return code


if __name__ == "__main__":
    sys.exit(main())
