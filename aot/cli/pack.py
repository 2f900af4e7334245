"""`aot pack`."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from aot.cli import _options
from aot.text import size_of, table

FORMS = {
    "tar": ("FILE", "One .tar, as `aot build -o FILE` writes it."),
    "oci": ("DIR", "An OCI image layout of the model, for registries and clusters (CNCF ModelPack)."),
    "triton": ("DIR", "A model in the model repository DIR of Triton Inference Server."),
    "image": (
        "DIR",
        "What a container image that serves the model is built from: a Dockerfile, the runtime, the model.",
    ),
}
"""`aot.packing.FORM.write(artifact, to, overwrite=...)` returns the files that it wrote, `check` with the same
arguments where it would write them; where that module has one, `digest(to)` is what tells them from others."""
ONE_ENGINE = ("triton", "image")
"""Forms that hold engines of one kind, and take the `engine` to choose it by."""


def _form_options(command: Any) -> Any:
    """An option for every form."""
    for name, (metavar, text) in reversed(FORMS.items()):
        command = click.option(f"--{name}", metavar=metavar, help=text)(command)
    return command


@click.command("pack", no_args_is_help=True)
@click.argument("artifact")
@_form_options
@click.option("--engine", metavar="TARGET", help="sm90, ..., or cpu: what --triton and --image serve.")
@click.option("--name", metavar="NAME", help="What --triton calls the model. Default: its own name.")
@click.option("-f", "--force", is_flag=True, help="Replace what is there, where it is of the same form.")
@_options.json_option
def command(
    artifact: str, engine: str | None, name: str | None, force: bool, as_json: bool, **places: str | None
) -> int:
    """Pack ARTIFACT, a folder or a .tar, into the forms that are asked for.

    Every file is checked first. The same artifact gives the same bytes, whenever and wherever it is packed.

    \b
    Examples:
      aot pack minilm.aot --oci minilm-oci
      aot pack minilm.aot --tar minilm.tar --force
      aot pack minilm.aot --triton models --engine sm90
    """
    from aot.artifact import check_files, prepared_of, read_manifest
    from aot.errors import UsageError
    from aot.packing.output import check_apart
    from aot.packing.verify import check_whole
    from aot.runtime.files import unpacked

    chosen = {form: Path(place) for form in FORMS if (place := places[form]) is not None}
    if not chosen:
        options = ", ".join(f"--{name} {metavar}" for name, (metavar, _) in FORMS.items())
        raise UsageError("no form to pack it into", where="aot pack", fix=f"give at least one of {options}")
    if engine is not None and not chosen.keys() & set(ONE_ENGINE):
        options = " or ".join(f"--{form}" for form in ONE_ENGINE)
        raise UsageError("--engine chooses nothing here", where="aot pack", fix=f"give it with {options}")
    if name is not None and "triton" not in chosen:
        raise UsageError("--name names nothing here", where="aot pack", fix="give it with --triton")
    folder = unpacked(artifact)
    manifest = read_manifest(folder, shown=artifact)
    prepared_of(folder, manifest, shown=artifact)
    if folder == Path(artifact):
        check_whole(artifact)  # what the manifest does not list would not be packed
    else:
        check_files(folder, manifest, shown=artifact)
    forms = {form: import_module(f"aot.packing.{form}") for form in chosen}
    choice = {form: {"engine": engine} if form in ONE_ENGINE else {} for form in chosen}
    if "triton" in chosen:
        choice["triton"]["name"] = name
    check_apart(
        artifact, [forms[form].check(folder, to, overwrite=force, **choice[form]) for form, to in chosen.items()]
    )
    if not manifest.accepted:
        click.echo(f"{artifact} is not accepted: it misses its accuracy budget (see report.html)", err=True)
    done = dict[str, dict[str, Any]]()
    for form, to in chosen.items():
        module = forms[form]
        written = module.write(folder, to, overwrite=force, **choice[form])
        size = sum(path.stat().st_size for path in written)
        done[form] = {"path": str(to), "files": [str(path) for path in written], "bytes": size}
        if hasattr(module, "digest"):
            done[form]["digest"] = module.digest(to)
    if as_json:
        click.echo(json.dumps({"artifact": artifact, "accepted": manifest.accepted, "forms": done}))
        return 0
    rows = [(form, one["path"], size_of(one["bytes"]), one.get("digest", "")) for form, one in done.items()]
    click.echo(table(rows, indent=""))
    return 0
