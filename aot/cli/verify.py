"""`aot verify`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from aot.cli import _options
from aot.text import size_of, visible

SIGNED = {"no": "not signed", "not checked": "signed; --key says whether by whom you think", "yes": "signed by the key"}


@click.command("verify", no_args_is_help=True)
@click.argument("artifact")
@click.option("--key", metavar="PUBLIC.pem", help="Demand a signature of this key's owner (Ed25519).")
@_options.json_option
def command(artifact: str, key: str | None, as_json: bool) -> int:
    """Check that ARTIFACT, a folder, a .tar or an OCI image layout, is whole; exit 1 where it is not.

    Checked are the manifest, the size and SHA-256 of every file, that no other file is there, and of a layout every
    blob. Without --key a signature says nothing about who made the artifact, and is not checked.

    \b
    Examples:
      aot verify minilm.aot
      aot verify minilm-oci --key public.pem
    """
    from aot.packing.verify import verify

    public = None
    if key is not None:
        from aot.packing.signature import public_key

        public = public_key(Path(key))
    found = verify(artifact, public)
    if as_json:
        click.echo(json.dumps(found.to_json()))
    elif found.problems:
        click.echo(f"{artifact}: not what it has to be")
        for problem in found.problems:
            click.echo(visible(f"  {problem.where}: {problem.what}"))
    else:
        click.echo(visible(f"{artifact}: '{found.name}' is whole, {found.files} files, {size_of(found.bytes)}"))
        click.echo(f"  {SIGNED[found.signed]}")
    return 1 if found.problems else 0
