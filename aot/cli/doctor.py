"""`aot doctor`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from aot.cli import _options
from aot.text import size_of, table

PACKAGES = (
    "torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "polygraphy", "numpy", "tensorrt", "tensorrt-rtx-cu13",
    "torch-tensorrt", "triton",
)  # fmt: skip
INSTALL = {
    "tensorrt": "pip install 'aot-engine[gpu]', on a machine with an NVIDIA GPU",
    "tensorrt_rtx": "pip install 'aot-engine[cpu]' (tensorrt-rtx-cu13); it builds without a GPU",
    "onnxruntime": "pip install onnxruntime (or onnxruntime-gpu, never both)",
}


@click.command("doctor")
@_options.json_option
def command(as_json: bool) -> int:
    """Show what this machine can build and run, and what to install for the rest.

    \b
    Example:
      aot doctor --json
    """
    data = examine()
    click.echo(json.dumps(data) if as_json else describe(data))
    return 0


def examine() -> dict[str, Any]:
    """The machine, the versions installed, and what each backend can do with them."""
    import platform

    from aot import __version__, backend, toolchain
    from aot.backends import NAMES
    from aot.store import default_root

    machine = toolchain.machine()
    backends = []
    for name in NAMES:
        vendor = backend.get(name)
        version = vendor.version()
        targets = vendor.targets(machine) if version else ()
        runs = [target for target in targets if vendor.can_run(target, machine) is None]
        missing = None
        if version is None:
            missing = INSTALL[name]
        elif not targets:
            missing = "an NVIDIA GPU and its driver" if machine.gpu is None else "a version that knows this GPU"
        backends.append({"name": name, "version": version, "builds": list(targets), "runs": runs, "missing": missing})
    return {
        "aot": __version__,
        "python": platform.python_version(),
        "machine": asdict(machine),
        "versions": {name: toolchain.version(name) for name in PACKAGES},
        "backends": backends,
        "store": str(default_root()),
    }


def describe(data: dict[str, Any]) -> str:
    """The answer for people."""
    machine = data["machine"]
    gpu = machine["gpu"]
    facts = [
        ("aot", f"{data['aot']}, Python {data['python']}"),
        ("cpu", machine["cpu"]),
        ("gpu", f"{gpu['name']} ({gpu['target']}, {size_of(gpu['memory'])}), driver {machine['driver']}" if gpu else
         "none that the driver reports"),
        ("store", data["store"]),
    ]  # fmt: skip
    lines = [table(facts), "", table([(n, v or "not installed") for n, v in data["versions"].items()]), ""]
    for backend in data["backends"]:
        lines.append(f"  {backend['name']} {backend['version'] or 'is not installed'}")
        lines.append(f"    builds for: {', '.join(backend['builds']) or 'nothing here'}")
        lines.append(f"    runs here:  {', '.join(backend['runs']) or 'nothing'}")
        if backend["missing"]:
            lines.append(f"    needs:      {backend['missing']}")
    return "\n".join(lines)
