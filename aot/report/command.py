"""A request as the command line that asks for it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from aot.config import Request


def command_of(request: Request) -> str:
    """`aot build model.py --precision int8 --target sm89`; what has its default is left out.

    Names that are not UTF-8 are written with escapes, as reports are UTF-8.
    """
    return shlex.join(["aot", "build", request.model, *_options(request)]).encode(errors="backslashreplace").decode()


def _options(request: Request) -> Iterator[str]:
    for name in ("precision", "route", "backend"):
        value = getattr(request, name)
        if value is not None:
            yield from (f"--{name}", str(value))
    for target in request.targets:
        yield from ("--target", target)
    if request.profile != "default":
        yield from ("--profile", request.profile)
    if request.calibration is not None:
        yield from ("--calibration", request.calibration)
    for limit, value in request.budget.model_dump(exclude_none=True).items():
        yield from ("--budget", f"{limit}={value:g}" if float(f"{value:g}") == value else f"{limit}={value!r}")
    if not request.search:
        yield "--no-search"
    for dim, triple in request.dims.items():
        yield from ("--dim", f"{dim}={':'.join(map(str, triple))}")
    for rewrite in request.surgery.without:
        yield from ("--without-pass", rewrite)
    if request.surgery.verify:
        yield "--verify-passes"
    for plugin in request.patterns.plugins:
        yield from ("--plugin", plugin)
    if not request.patterns.measured:
        yield "--no-plugins"
    for name, value in request.engine.items():
        option = f"--{name.replace('_', '-')}"
        yield from ("--no-lean-runtime",) if name == "lean_runtime" else (option,) if value is True else (option, value)
    if request.until is not None:
        yield from ("--until", request.until)
    if request.output is not None:
        yield from ("--output", str(request.output))
    if request.lock is not None:
        yield from ("--lock", str(request.lock))
    if request.locked:
        yield "--locked"
    if request.workers != 1:
        yield from ("--workers", str(request.workers))
