"""`aot cache list`, `gc`, `verify`."""

from __future__ import annotations

import json
import math

import click

from aot.cli import _options
from aot.errors import UsageError
from aot.text import size_of, table


@click.group("cache")
def command() -> None:
    """List, shrink or check the store of finished stages.

    \b
    Examples:
      aot cache list
      aot cache gc --older-than 30
      aot cache verify
    """


@command.command("list")
@_options.json_option
def list_(as_json: bool) -> int:
    """List what the store holds, largest first.

    \b
    Example:
      aot cache list --json
    """
    from aot.store import Store
    from aot.store_admin import entries

    store = Store()
    found = sorted(entries(store), key=lambda entry: -entry.bytes)
    total = sum(entry.bytes for entry in found)
    if as_json:
        click.echo(json.dumps({"root": str(store.root), "bytes": total, "entries": [e.to_json() for e in found]}))
        return 0
    click.echo(f"{store.root}: {len(found)} entries, {size_of(total)}")
    if found:
        rows = [(e.stage, e.key[:12], size_of(e.bytes), f"used {e.age_days():.1f} days ago") for e in found]
        click.echo(table(rows))
    return 0


@command.command("gc")
@click.option("--older-than", type=click.FloatRange(min=0), metavar="DAYS", help="Remove what was not used since.")
@click.option(
    "--max-size",
    metavar="SIZE",
    help="Remove the longest unused above this: 10G, 500M; a number alone counts GB.",
)
@_options.json_option
def gc(older_than: float | None, max_size: str | None, as_json: bool) -> int:
    """Remove leftovers of killed builds, damaged entries, and what --older-than or --max-size asks for.

    What a running build or a loaded artifact uses stays. With AOT_CACHE_LIMIT=SIZE in the environment, every build
    ends with --max-size SIZE.

    \b
    Example:
      aot cache gc --max-size 20G
    """
    from aot.store import Store
    from aot.store_admin import bytes_of, collect_garbage

    limit = None if max_size is None else bytes_of(max_size, f"--max-size {max_size}")
    if older_than is not None and not math.isfinite(older_than):
        raise UsageError(f"--older-than {older_than}: no number of days", fix="e.g. --older-than 30")
    found = collect_garbage(Store(), older_than_days=older_than, max_bytes=limit)
    if as_json:
        click.echo(json.dumps(found.to_json()))
        return 0
    click.echo(f"removed {found.removed} entries and {found.swept} leftovers, {size_of(found.bytes)}")
    if found.in_use:
        click.echo(f"{found.in_use} entries are in use and were kept; run it again afterwards")
    return 0


@command.command("verify")
@_options.json_option
def verify(as_json: bool) -> int:
    """Read everything, and hold it against its digests; exit 1 where something is damaged.

    What is damaged no build takes up any more: `gc` removes it, and a build makes it again.

    \b
    Example:
      aot cache verify
    """
    from aot.store import Store
    from aot.store_admin import damage

    checked, damaged = damage(Store())
    if as_json:
        click.echo(json.dumps({"checked": checked, "damaged": [str(path) for path in damaged]}))
    else:
        click.echo(f"{checked} checked, {len(damaged)} damaged")
        for path in damaged:
            click.echo(f"  {path}")
    return 1 if damaged else 0
