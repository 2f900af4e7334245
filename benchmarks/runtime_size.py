"""What is installed where a model runs, without torch: by package, for every library that runs engines.

    python benchmarks/runtime_size.py

Each flavour is installed into a folder of its own, by the requirements that `aot pack --image` writes, and slimmed as
its Dockerfile does it. Counted are the bytes of files, without what Python compiles: `session` is what `aot.load`
needs, `server` what `python -m aot.serving` needs. Writes benchmarks/results/runtime-size.json; exit code 1 where a
goal is missed: a session in 120 MB on onnxruntime, in 400 MB on a GPU.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from _result import write

from aot.packing import wheel
from aot.packing.image_requirements import LOCKS, SLIMMING, requirements
from aot.runtime.manifest import Engine
from aot.text import table

GOALS = {"onnxruntime": 120e6, "tensorrt-lean": 400e6, "tensorrt-rtx": 400e6}
SESSION = ("numpy", "aot-engine-runtime")
"""Of what every image has, what a session imports."""


def flavours() -> dict[str, Sequence[Engine]]:
    """The engines that want each library."""

    def engine(backend: str, version: str, compatible: str | None = None) -> Sequence[Engine]:
        return [Engine("sm89", backend, version, "engines/sm89.plan", compatible=compatible)]

    return {
        "onnxruntime": [],
        "tensorrt-lean": engine("tensorrt", "11.4.0.106", compatible="with"),
        "tensorrt-rtx": engine("tensorrt_rtx", "1.7.1.116"),
        "tensorrt": engine("tensorrt", "11.4.0.106"),
    }


def install(folder: Path, engines: Sequence[Engine]) -> None:
    """Install what an image for these engines has. Raises CalledProcessError, with what uv said."""
    needed = requirements(engines)
    site = folder / "site"
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable, "--target", str(site)]
    (folder / "requirements.txt").write_text(needed.hashed)
    hashed = ["--no-deps", "--require-hashes", "--requirement", str(folder / "requirements.txt")]
    for what in (hashed, list(needed.pinned), ["--no-deps", str(wheel.write(folder))]):
        if what:
            subprocess.run([*uv, *what], check=True, capture_output=True, text=True)


def sizes(site: Path) -> dict[str, tuple[str, int]]:
    """(version, bytes) of every package in a folder."""
    return {
        one.metadata["Name"].lower().replace("_", "-"): (
            one.version,
            sum(
                path.stat().st_size
                for file in one.files or ()
                if (path := Path(str(one.locate_file(file)))).is_file() and path.suffix != ".pyc"
            ),
        )
        for one in metadata.distributions(path=[str(site)])
    }


def measured(flavour: str, engines: Sequence[Engine]) -> list[dict[str, Any]]:
    """A row for every package, and the sums; one row with the reason where it cannot be installed here."""
    server = set(re.findall("^([a-z0-9-]+)==", (LOCKS / "serve.lock").read_text(), re.MULTILINE)) - set(SESSION)
    with tempfile.TemporaryDirectory() as folder:
        try:
            install(Path(folder), engines)
        except subprocess.CalledProcessError as error:
            reason = next(
                (line.strip() for line in error.stderr.splitlines() if "fail" in line.lower()), "not installed"
            )
            return [{"flavour": flavour, "reason": f"not installed: {reason}"}]
        site = Path(folder) / "site"
        whole = sizes(site)
        subprocess.run(["sh", "-ec", "\n".join(SLIMMING)], cwd=site, check=True)
        slim = sizes(site)
    rows = [
        {"flavour": flavour, "package": name, "version": version, "for": "server" if name in server else "session",
         "bytes": size, "slim_bytes": slim[name][1]}
        for name, (version, size) in sorted(whole.items(), key=lambda one: -one[1][1])
    ]  # fmt: skip
    sums = [
        {"flavour": flavour, "sum": part, **{key: sum(row[key] for row in chosen) for key in ("bytes", "slim_bytes")}}
        for part, chosen in (("session", [row for row in rows if row["for"] == "session"]), ("server", rows))
    ]
    return rows + sums


def main() -> int:
    """Measure all; 1 where a goal is missed."""
    rows = [row for flavour, engines in flavours().items() for row in measured(flavour, engines)]
    write("runtime-size", rows)
    shown = [("flavour", "", "MB", "slimmed")]
    for row in rows:
        if "reason" in row:
            shown.append((row["flavour"], row["reason"], "", ""))
        elif "sum" in row or row["bytes"] > 1e6:
            name = row.get("package") or f"= {row['sum']}"
            shown.append((row["flavour"], name, f"{row['bytes'] / 1e6:.1f}", f"{row['slim_bytes'] / 1e6:.1f}"))
    print(table(shown))
    missed = [
        row["flavour"]
        for row in rows
        if row.get("sum") == "session" and row["slim_bytes"] >= GOALS.get(row["flavour"], float("inf"))
    ]
    print(f"goals missed: {', '.join(missed)}" if missed else "goals kept")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
