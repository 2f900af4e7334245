"""`aot plugin list`, `check`, `tune`, `compile`, `new`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.cli import _options
from aot.cli._writing import writing
from aot.errors import PluginError, unknown
from aot.text import table

if TYPE_CHECKING:
    from aot.plugins.checking import Checked
    from aot.plugins.header import Header
    from aot.plugins.tuning import Tuned
    from aot.runtime.kernels import Compiled

_DEVICES = {"cpu": "the interpreter", "gpu": "the GPU"}
DEFAULT_TARGETS = ("sm80", "sm86", "sm89", "sm90", "sm100", "sm120")


@click.group("plugin")
def command() -> None:
    """List, check, tune, compile or begin plugins: ops that a target lacks, one file each in plugins/.

    \b
    Examples:
      aot plugin new gated
      aot plugin check gated
      aot plugin compile add_rms_norm --size width=4096 --target sm90 --output kernels
    """


@command.command("list")
@_options.json_option
def list_(as_json: bool) -> int:
    """List the plugins of this folder and the built-in ones. None of them is run. Exit 2 where one cannot be read.

    \b
    Example:
      aot plugin list --json
    """
    from aot import content

    headers, broken = _readable(())
    found = [_described(header, content.BUILTIN) for header in headers]
    if as_json:
        click.echo(json.dumps({"plugins": found, "broken": _broken(broken)}))
    elif found:
        click.echo(table([(one["plugin"], _whose(one), one["about"]) for one in found]))
    else:
        click.echo("no plugins; begin one: aot plugin new NAME")
    return _told(broken)


@command.command("check")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "gpu"]),
    default="auto",
    help="cpu: Triton's interpreter. gpu: this machine's. Default: both, where there is a GPU.",
)
@_options.json_option
def check(names: tuple[str, ...], device: str, as_json: bool) -> int:
    """Run kernels and compare them with their references; all plugins where none is named.

    Over dtypes, odd sizes, sizes 0 and 1, attributes and configs; what is read or written beside a tensor is found.
    Exit 1 where a kernel differs, 2 where a plugin is broken; the others are checked all the same. Triton's
    interpreter, which needs no GPU, also runs misaligned inputs. BF16 and FP8, which it rounds otherwise than a GPU,
    and more than 2^31 elements are run on a GPU, with the code that an engine gets.

    \b
    Example:
      aot plugin check add_rms_norm --json
    """
    from aot import toolchain
    from aot.cli._progress import reporter
    from aot.plugins.checking import check as run
    from aot.plugins.checking import devices

    headers, broken = _readable(names)
    done: list[Checked] = []
    with reporter() as progress:
        for one in devices(device, toolchain.machine().gpu) if headers else ():
            started = time.perf_counter()
            said = f"{', '.join(header.name for header in headers)} on {_DEVICES[one]}"
            progress.stage("check", said)
            unfit: list[PluginError] = []
            done += run(headers, lambda name, count, of: progress.step(count, of, name), one, unfit)
            broken += [error for error in unfit if str(error) not in map(str, broken)]
            progress.finished("check", time.perf_counter() - started, False, said)
    if broken and not done:
        raise broken[0]
    if as_json:
        click.echo(json.dumps({"plugins": [one.to_json() for one in done], "broken": _broken(broken)}))
    elif done:
        click.echo("\n".join(_verdict(one) for one in done))
    return _told(broken) or int(any(not one.passed for one in done))


@command.command("tune")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="A size by its name in SHAPES; ...=N for rows.")
@click.option("--dtype", metavar="NAME", help="Only where a tensor has this dtype. Default: every choice of dtypes.")
@_options.json_option
def tune(names: tuple[str, ...], sizes: tuple[str, ...], dtype: str | None, as_json: bool) -> int:
    """Find the fastest config of kernels on this machine's GPU, and keep it in plugins/tuned/NAME.json.

    All of CONFIGS are timed in turns, or 20 to 50 configs of a SPACE. What is found holds for sizes near those given,
    is used by later builds without timing again, and is merged with what was found before. Sizes left out are usual
    ones. Exit 1 where nothing runs.

    \b
    Example:
      aot plugin tune add_rms_norm --size ...=2048,width=4096 --dtype bfloat16
    """
    from aot.cli._progress import reporter
    from aot.plugins import tuned
    from aot.plugins.tuning import tune as run

    headers = _headers(names)
    started = time.perf_counter()
    said = ", ".join(header.name for header in headers)
    with reporter() as progress:
        progress.stage("tune", said)
        done = run(headers, _options.sizes(sizes), dtype, lambda name, count, of: progress.step(count, of, name))
        progress.finished("tune", time.perf_counter() - started, False, said)
        for one in done:
            for reason in one.failed:
                progress.warn(f"{one.header.name}: {reason}")
    plugins = Path("plugins")
    with writing("what was found", str(plugins / "tuned"), "make room, or change the permissions"):
        files = {one.header.name: tuned.write(one.header, plugins, one.entries) for one in done if one.entries}
    if as_json:
        click.echo(json.dumps({"plugins": [_found(one, files.get(one.header.name)) for one in done]}))
    else:
        rows = [row for one in done for row in _rows(one)]
        click.echo(table([("plugin", "inputs", "sizes", "config", "ms", "tried"), *rows]))
    return 0 if all(one.entries for one in done) else 1


@command.command("compile")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--target", "targets", multiple=True, metavar="TARGET", help=f"Default: {', '.join(DEFAULT_TARGETS)}.")
@click.option("--size", "sizes", multiple=True, metavar="NAME=N", help="A size that the kernel takes as a constant.")
@click.option("--output", "-o", type=click.Path(file_okay=False), metavar="FOLDER", help="Write PTX and launch there.")
@_options.json_option
def compile_(
    names: tuple[str, ...], targets: tuple[str, ...], sizes: tuple[str, ...], output: str | None, as_json: bool
) -> int:
    """Compile kernels to PTX, which needs no GPU, for every dtype; all plugins where none is named.

    Sizes vary unless --size gives them. Exit 2 where TensorRT could not launch a kernel, with the reason.

    \b
    Example:
      aot plugin compile add_rms_norm --size width=4096 --target sm90 --output kernels
    """
    from aot.cli._progress import reporter
    from aot.plugins.compiling import compile_all, jobs
    from aot.plugins.header import REST

    given = _options.sizes(sizes)
    headers = _headers(names)
    known = {symbol for header in headers for symbol in header.symbols() if symbol != REST}
    for size in given:
        if size not in known:
            raise unknown("size", size, known)
    made: list[Compiled] = []
    with reporter() as progress:
        for header in headers:
            progress.stage("compile", header.name)
            wanted = [job for target in targets or DEFAULT_TARGETS for job in jobs(header, target, given)]
            made += compile_all(header, wanted)
    if output is not None:
        _write(made, Path(output))
    if as_json:
        click.echo(json.dumps({"kernels": [{k: v for k, v in one.to_json().items() if k != "code"} for one in made]}))
        return 0
    head = ("plugin", "target", "inputs", "threads", "registers", "spilled", "shared", "sha256")
    rows = [
        (one.plugin, one.target, " ".join(dict.fromkeys(one.dtypes)), str(one.threads), str(one.registers),
         str(one.spilled), str(one.shared), one.digest[:12])
        for one in made
    ]  # fmt: skip
    click.echo(table([head, *rows]))
    return 0


@command.command("new")
@click.argument("name", metavar="NAME")
@click.option("--domain", default="mine", metavar="NAME", help="Of the op, for torch and ONNX. Default: mine.")
@_options.json_option
def new(name: str, domain: str, as_json: bool) -> int:
    """Write plugins/NAME.py: a plugin that works and passes `check`, to be changed.

    \b
    Example:
      aot plugin new gated
    """
    from aot.plugins.skeleton import write

    file = write(name, domain, Path("plugins"))
    if as_json:
        click.echo(json.dumps({"file": str(file), "plugin": f"{domain}::{name}"}))
    else:
        click.echo(f"{file}\n  in a model: aot.ops.{name}(a, b)\n  next: aot plugin check {name}")
    return 0


def _headers(names: tuple[str, ...]) -> list[Header]:
    """What the named plugins, or all, say of themselves. Raises UsageError, PluginError."""
    from aot import content
    from aot.plugins.header import read

    project = Path.cwd()
    if names:
        return [read(content.find("plugins", name, project).resolve()) for name in names]
    return [read(path.resolve()) for _, path in sorted(content.names("plugins", project).items())]


def _readable(names: tuple[str, ...]) -> tuple[list[Header], list[PluginError]]:
    """The same of those that can be read, and what is wrong with the others. Raises UsageError."""
    from aot import content
    from aot.plugins.header import read

    project = Path.cwd()
    wanted = names or sorted(content.names("plugins", project))
    headers: list[Header] = []
    broken: list[PluginError] = []
    for name in wanted:
        try:
            headers.append(read(content.find("plugins", name, project).resolve()))
        except PluginError as error:
            broken.append(error)
    return headers, broken


def _broken(errors: Sequence[PluginError]) -> list[dict[str, str | None]]:
    return [{"what": error.what, "where": error.where, "fix": error.fix} for error in errors]


def _told(broken: Sequence[PluginError]) -> int:
    """Say what is wrong with broken plugins; the exit code, 0 where there are none."""
    for error in broken:
        click.echo(f"error: {error}", err=True)
    return PluginError.exit_code if broken else 0


def _hides(header: Header, builtin: Path) -> bool:
    """Whether a built-in plugin of that name cannot be had for this one."""
    file = builtin.resolve() / "plugins" / header.file.name
    return file.is_file() and file != header.file.resolve()


def _whose(one: dict[str, Any]) -> str:
    if one["builtin"]:
        return "built-in"
    return "own, hides a built-in" if one["hides"] else "own"


def _described(header: Header, builtin: Path) -> dict[str, Any]:
    return {
        "plugin": header.qualified,
        "file": str(header.file),
        "hides": _hides(header, builtin),
        "builtin": header.file.is_relative_to(builtin.resolve() / "plugins"),
        "schema": header.schema.torch(),
        "types": {name: list(dtypes) for name, dtypes in header.schema.types.items()},
        "shapes": {name: list(axes) for name, axes in header.shapes.items()},
        "about": header.about,
    }


def _verdict(found: Checked) -> str:
    """What a check found, for people."""
    facts = found.to_json()
    lines = [
        f"{found.plugin} on {_DEVICES[found.device]}: {'DIFFERENT' if found.failed else 'equal'} in "
        f"{len(found.failed) or len(found.cases)} of {len(found.cases)} cases, "
        f"by {facts['relative']:.1e} of the outputs' magnitude at most",
        f"  may vary in an engine: {', '.join(found.varying) or 'no size'}; fixed: {', '.join(found.fixed) or 'none'}",
    ]
    if found.unchecked:
        lines.append(
            f"  not checked {'without a GPU' if found.device == 'cpu' else 'here'}: {', '.join(found.unchecked)}"
        )
    for case in found.failed[:5]:
        lines += [f"  {case.what}", *(f"    {failure}" for failure in case.failures)]
    if len(found.failed) > 5:
        lines.append(f"  and {len(found.failed) - 5} more, see --json")
    if found.missed:
        lines.append(f"  not run after that: {found.missed} cases")
    if found.failed:
        lines.append(f"  at: {found.at}")
    return "\n".join(lines)


def _found(one: Tuned, file: Path | None) -> dict[str, Any]:
    """What tuning found, as plain data."""
    return {
        "plugin": one.header.qualified,
        "file": None if file is None else str(file),
        "entries": [asdict(entry) for entry in one.entries],
        "failed": list(one.failed),
    }


def _rows(one: Tuned) -> list[tuple[str, ...]]:
    """The same for people, one row for each choice of dtypes."""
    return [
        (
            one.header.qualified,
            " ".join(dict.fromkeys(entry.dtypes)),
            " ".join(f"{name}={size}" for name, size in entry.bucket.items()),
            " ".join(f"{name}={value}" for name, value in entry.config.items()),
            f"{entry.ms:.4f}",
            str(entry.tried),
        )
        for entry in one.entries
    ]


def _write(made: list[Compiled], folder: Path) -> None:
    """`OP.TARGET.DTYPES.ptx`, and how it is launched as `.json` beside it."""
    with writing("the kernels", f"-o {folder}", "make room, change the permissions, or give another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for one in made:
            name = f"{one.plugin.partition('::')[2]}.{one.target}.{'-'.join(dict.fromkeys(one.dtypes))}"
            (folder / f"{name}.ptx").write_text(one.code)
            (folder / f"{name}.json").write_text(json.dumps(one.to_json(), indent=1))
    click.echo(f"{len(made)} kernels in {folder}", file=sys.stderr)
