"""`aot sign`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from aot.cli import _options


@click.command("sign", no_args_is_help=True)
@click.argument("artifact")
@click.option("--key", required=True, metavar="KEY.pem", help="An Ed25519 private key, without a passphrase.")
@_options.json_option
def command(artifact: str, key: str, as_json: bool) -> int:
    """Sign the artifact folder ARTIFACT: write manifest.sig into it, which a .tar and an OCI layout carry along.

    Signed is the manifest, which holds the digest of every file. All of them are checked first.

    \b
    Example:
      openssl genpkey -algorithm ed25519 -out key.pem
      openssl pkey -in key.pem -pubout -out public.pem
      aot sign minilm.aot --key key.pem
      aot verify minilm.aot --key public.pem
    """
    from aot.packing.signature import private_key, sign

    written = sign(artifact, private_key(Path(key)))
    click.echo(json.dumps({"artifact": artifact, "signature": str(written)}) if as_json else f"signed: {written}")
    return 0
