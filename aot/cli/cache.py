"""`aot cache list`, `gc`, `verify`."""

from __future__ import annotations

import json

import click

from aot.cli import _options
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
@click.option("--max-size", type=click.FloatRange(min=0), metavar="GB", help="Remove the longest unused above this.")
@_options.json_option
def gc(older_than: float | None, max_size: float | None, as_json: bool) -> int:
    """Remove leftovers of killed builds, damaged entries, and what --older-than or --max-size asks for.

    While a build is running, finished entries stay: any of them may be in use.

    \b
    Example:
      aot cache gc --max-size 20
    """
    from aot.store import Store
    from aot.store_admin import collect_garbage

    limit = None if max_size is None else int(max_size * 1e9)
    found = collect_garbage(Store(), older_than_days=older_than, max_bytes=limit)
    if as_json:
        click.echo(json.dumps(found.to_json()))
        return 0
    click.echo(f"removed {found.removed} entries and {found.swept} leftovers, {size_of(found.bytes)}")
    if found.kept_for:
        click.echo(f"{found.kept_for} builds are running, so finished entries were kept; run it again afterwards")
    return 0


@command.command("verify")
@_options.json_option
def verify(as_json: bool) -> int:
    """Check that every entry is whole; exit 1 where one is not. `gc` removes those, and a build makes them again.

    \b
    Example:
      aot cache verify
    """
    from aot.store import Store
    from aot.store_admin import entries

    found = list(entries(Store()))
    damaged = [entry for entry in found if not entry.whole]
    if as_json:
        click.echo(json.dumps({"entries": len(found), "damaged": [entry.to_json() for entry in damaged]}))
    else:
        click.echo(f"{len(found)} entries, {len(damaged)} damaged")
        for entry in damaged:
            click.echo(f"  {entry.path}")
    return 1 if damaged else 0
