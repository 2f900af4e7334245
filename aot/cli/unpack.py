"""`aot unpack`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from aot.cli import _options
from aot.text import size_of


@click.command("unpack", no_args_is_help=True)
@click.argument("source")
@click.argument("target", metavar="TO")
@click.option("-f", "--force", is_flag=True, help="Replace the artifact folder that is there.")
@_options.json_option
def command(source: str, target: str, force: bool, as_json: bool) -> int:
    """Unpack SOURCE, a .tar or an OCI image layout, to the artifact folder TO.

    Every file is held against its digest; TO is there when all of them are right, or not at all.

    \b
    Example:
      aot unpack minilm-oci minilm.aot
    """
    from aot.packing.unpack import unpack

    files = unpack(source, Path(target), overwrite=force).files
    size = sum(part.bytes for part in files.values())
    if as_json:
        click.echo(json.dumps({"source": source, "artifact": target, "files": sorted(files), "bytes": size}))
        return 0
    click.echo(f"{target}: {len(files)} files, {size_of(size)}")
    return 0
