"""Option values that are checked where they are given, with the nearest name for a wrong one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from aot.errors import UsageError, unknown

if TYPE_CHECKING:
    StringType = click.ParamType[str]
else:  # not generic before click 8.2
    StringType = click.ParamType


class Named(StringType):
    """One of a set of names. `known` is called when a value is checked, so that it may import."""

    def __init__(self, kind: str, known: Callable[[], Iterable[str]]) -> None:
        self.name = kind
        self.known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Raises UsageError with the nearest name."""
        names = list(self.known())
        if value not in names:
            raise unknown(self.name, str(value), names)
        return str(value)


def precisions() -> Iterable[str]:
    """What `--precision` takes."""
    from aot.config import PRECISIONS

    return PRECISIONS


def precisions_or_auto() -> Iterable[str]:
    """What `--precision` takes where engines are built."""
    from aot.config import AUTO_PRECISION

    return (*precisions(), AUTO_PRECISION)


def routes() -> Iterable[str]:
    """What `--route` takes."""
    from aot.config import ROUTES

    return ROUTES


def budget(values: Iterable[str]) -> dict[str, float]:
    """`--budget KEY=VALUE`, repeated. Raises UsageError for an unknown key or an impossible value."""
    from aot.config import Budget, parse

    limits: dict[str, float] = {}
    for text in values:
        key, mark, value = text.partition("=")
        if not mark:
            raise UsageError(f"--budget {text}: expected KEY=VALUE", fix="e.g. --budget cosine=0.99")
        if key not in Budget.model_fields:
            raise unknown("budget", key, Budget.model_fields)
        try:
            limits[key] = float(value)
        except ValueError:
            raise UsageError(f"--budget {key}: '{value}' is not a number", fix=f"e.g. --budget {key}=0.99") from None
        if limits[key] != limits[key]:
            raise UsageError(f"--budget {key}: NaN is no limit", fix="leave the option out for no limit")
    parse(Budget, limits, "--budget")
    return limits


def dims(values: Iterable[str]) -> dict[str, tuple[int, int, int]]:
    """`--dim NAME=MIN:OPT:MAX`, repeated. Raises UsageError for another form."""
    found: dict[str, tuple[int, int, int]] = {}
    for text in values:
        name, _, triple = text.partition("=")
        try:
            low, opt, high = (int(part) for part in triple.split(":"))
        except ValueError:
            raise UsageError(
                f"--dim {text}: expected NAME=MIN:OPT:MAX", fix=f"e.g. --dim {name or 'batch'}=1:8:64"
            ) from None
        found[name] = (low, opt, high)
    return found


def sizes(values: Iterable[str]) -> dict[str, int]:
    """`--size NAME=N`, repeated or separated by commas. Raises UsageError for another form."""
    found: dict[str, int] = {}
    for text in (part for value in values for part in value.split(",")):
        name, _, size = text.partition("=")
        if not name.strip() or not re.fullmatch("[0-9]{1,18}", size):
            raise UsageError(f"--size '{text}': expected NAME=NUMBER", fix="e.g. --size batch=3,seq=11")
        if found.setdefault(name.strip(), int(size)) != int(size):
            raise UsageError(
                f"--size gives Dim '{name.strip()}' two sizes", where=f"--size {text}", fix="give one of them"
            )
    return found


def patterns(plugins: tuple[str, ...], none: bool) -> dict[str, Any]:
    """`--plugin NAME`, repeated, and `--no-plugins`. Raises UsageError where both are given."""
    if plugins and none:
        raise UsageError(f"--no-plugins contradicts --plugin {plugins[0]}", fix="leave one of them away")
    return {"plugins": tuple(dict.fromkeys(plugins)), "measured": not none}


def engine(strip: bool, version: bool, no_lean: bool, hardware: str | None) -> dict[str, Any]:
    """The engine options of the command line, only those that are given.

    Raises UsageError for --no-lean-runtime without the plan that it is said of.
    """
    if no_lean and not version:
        raise UsageError("--no-lean-runtime is said of a version-compatible plan", fix="add --version-compatible")
    given = {"strip": strip, "version_compatible": version}
    found: dict[str, Any] = {name: True for name, value in given.items() if value}
    if no_lean:
        found["lean_runtime"] = False
    return found | ({"hardware_compatible": hardware} if hardware else {})


def engine_options(command: Any) -> Any:
    """What `aot build` says of the form of an engine (see config.EngineOptions)."""
    for option in (
        click.option(
            "--hardware-compatible",
            type=Named("level", lambda: ("ampere_plus", "same_compute_capability")),
            metavar="LEVEL",
            help="A plan for other GPUs too: ampere_plus or same_compute_capability.",
        ),
        click.option("--no-lean-runtime", is_flag=True, help="Leave the library that runs such a plan out of it."),
        click.option("--version-compatible", is_flag=True, help="A plan that later TensorRT runs too."),
        click.option("--strip", is_flag=True, help="Weights beside the plan, put in when it is loaded."),
    ):
        command = option(command)
    return command


def lock_options(command: Any) -> Any:
    """`--lock FILE` and `--locked` of `aot build` (see aot/lock.py)."""
    for option in (
        click.option("--locked", is_flag=True, help="Rebuild exactly what the lock says, or fail naming what changed."),
        click.option("--lock", metavar="FILE", help="Write the lock there too; with --locked, read it there."),
    ):
        command = option(command)
    return command


# The options that several commands take, each said once.
precision_option = click.option(
    "--precision",
    type=Named("precision", precisions),
    metavar="NAME",
    help="fp32, fp16, bf16, int8, fp8 or int4 (weights alone). Default: fp16, or what the recipe says.",
)
backend_option = click.option(
    "--backend", metavar="NAME", help="tensorrt, tensorrt_rtx or onnxruntime. Default: what fits the target."
)
profile_option = click.option(
    "--profile", default="default", metavar="NAME", help="A profile: shape ranges, options, budget."
)
dim_option = click.option(
    "--dim",
    "dims",
    multiple=True,
    metavar="NAME=MIN:OPT:MAX",
    help="Narrow the range of a Dim; of an ONNX file, or of its integer inputs, give it.",
)
without_option = click.option(
    "--without-pass", "without", multiple=True, metavar="NAME", help="Leave a rewrite of the graph out. Repeatable."
)
verify_option = click.option(
    "--verify-passes", "verify", is_flag=True, help="Run the whole graph before and after every rewrite of it."
)
plugin_option = click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="NAME",
    help="Use a plugin wherever a pattern of it occurs, without a measurement that says it is faster. Repeatable.",
)
no_plugins_option = click.option(
    "--no-plugins", is_flag=True, help="Use no plugin that the model does not call, whatever was measured."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
