"""Tiny artifacts to pack: whole ones, with any engines."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from aot.stages.package import package
from aot.stages.verify import verify_engine
from aot.store import Store
from tests.tiny import PLAN, Workshop


def artifact(output: Path, engines: Mapping[str, bytes] | None = None) -> Path:
    """The artifact of y = x W with these plans by target; prepared where there are none."""
    shop = Workshop(Store().root)
    prepared, plans = shop.prepared(), engines or {}
    built = [shop.engine(target, data=data) for target, data in plans.items()]
    plan = replace(PLAN, backend="tensorrt_rtx" if built else None, targets=tuple(plans))
    package(shop.run, prepared, plan, built, [verify_engine(shop.run, one, prepared, plan) for one in built], output)
    return output


def files(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
