"""The text of a kernel, as Triton writes it and as TensorRT launches it.

TensorRT passes the parameters that it knows of: inputs, int32 scalars, outputs. Triton adds two pointers behind them,
to scratch memory; they are taken out where nothing reads them, and a kernel that does is refused. One PTX serves one
architecture: code for `sm_90a`, `sm_100a` and `sm_120a` runs on no later one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from aot.errors import PluginError

ISA = {80: 81, 86: 81, 87: 81, 89: 81, 90: 81, 100: 86, 103: 88, 120: 87, 121: 88}
"""Compute capability -> the PTX ISA to write, 81 for 8.1, unless a kernel needs a later one: the least that has its
common instructions (FP8 conversions came with 8.1, sm_100 with 8.6), so that older drivers read it, from CUDA 12.1 on
for 8.1. PTX ISA, release notes."""
SHARED = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
"""Compute capability -> KiB of shared memory that a program can have at most. CUDA C++ Programming Guide, technical
specifications by compute capability."""
HIDDEN = 2
"""Pointers that Triton adds: to global and to profiling scratch memory."""
_ENTRY = re.compile(r"(?P<head>\.visible \.entry (?P<name>[\w$]+)\()(?P<parameters>.*?)(?P<tail>\n?\))", re.S)
_REFUSED = {
    "global_scratch_size": "it needs scratch memory, which TensorRT does not give to a kernel",
    "profile_scratch_size": "it is instrumented, and needs memory for that",
    "launch_cooperative_grid": "it is launched cooperatively, all programs at once, which TensorRT does not do",
    "launch_cluster": "it is launched in clusters, which TensorRT does not do",
    "launch_pdl": "it overlaps with the kernel before it (PDL), which TensorRT does not do",
    "tensordesc_meta": "it takes tensor descriptors, which are made on the host",
}


def refusal(metadata: Mapping[str, Any]) -> str | None:
    """Why TensorRT cannot launch a kernel of this metadata; None where it can."""
    if metadata.get("num_ctas", 1) != 1:
        return _REFUSED["launch_cluster"]
    return next((reason for key, reason in _REFUSED.items() if metadata.get(key)), None)


def launchable(text: str, parameters: int) -> str:
    """The PTX with its `parameters` declared parameters alone. Raises PluginError where a hidden one is read."""
    entry = _entry(text)
    given = [line.strip() for line in entry["parameters"].split(",") if line.strip()]
    hidden = [line.split()[-1] for line in given[parameters:]]
    if len(given) < parameters or len(hidden) > HIDDEN:
        raise PluginError(f"the kernel has {len(given)} parameters in PTX, and {parameters} in its file")
    body = text[entry.end() :]
    read = [name for name in hidden if re.search(rf"\b{re.escape(name)}\b", body)]
    if read:
        raise PluginError(f"the kernel reads {', '.join(read)}, a parameter that Triton adds: it needs scratch memory")
    kept = ",\n\t".join(given[:parameters])
    return f"{text[: entry.end('head')]}\n\t{kept}\n){body}"


def needed_isa(said: str) -> int | None:
    """The latest ISA that the assembler asks for, 86 for 8.6; None where its complaint is another."""
    found = re.findall(r"requires PTX ISA \.version (\d+)\.(\d+)", said)
    return max((int(major) * 10 + int(minor) for major, minor in found), default=None)


def threads(text: str) -> int:
    """How many threads a program has."""
    found = re.search(r"\.reqntid (\d+)", text)
    if found is None:
        raise PluginError("the kernel does not say how many threads it takes (.reqntid)")
    return int(found[1])


def architecture(text: str) -> str:
    """What it is compiled for, such as `sm_90a`."""
    found = re.search(r"^\.target (sm_\w+)", text, re.M)
    if found is None:
        raise PluginError("the kernel does not say what it is compiled for (.target)")
    return found[1]


def entry_name(text: str) -> str:
    """The name under which the kernel is found in its module."""
    return _entry(text)["name"]


def _entry(text: str) -> re.Match[str]:
    found = _ENTRY.search(text)
    if found is None:
        raise PluginError("there is no kernel in the PTX")
    return found
