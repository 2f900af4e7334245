"""Where recipes, profiles and plugins are found: the user's project first, then the built-ins."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from aot.errors import UsageError, unknown

Kind = Literal["calib", "profiles", "plugins"]

_PACKAGED = Path(__file__).parent / "_content"
BUILTIN = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parent.parent

_SUFFIX: dict[Kind, str] = {"calib": ".yaml", "profiles": ".yaml", "plugins": ".py"}
_NOUN: dict[Kind, str] = {"calib": "recipe", "profiles": "profile", "plugins": "plugin"}


def names(kind: Kind, project: Path | None = None) -> dict[str, Path]:
    """Every name of that kind and its file; a project's own file hides the built-in of the same name."""
    found: dict[str, Path] = {}
    for root in (BUILTIN, project):
        if root is not None:
            files = sorted((root / kind).glob(f"*{_SUFFIX[kind]}"))
            found.update({p.stem: p for p in files if not p.stem.startswith("_")})
    return found


def plugin_digest(project: Path) -> str:
    """SHA-256 over every plugin that a model of the project may use, helper modules beside them included."""
    total = hashlib.sha256()
    for root in (BUILTIN, project):
        for path in sorted((root / "plugins").rglob("*.py")):
            total.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return total.hexdigest()


def find(kind: Kind, name: str, project: Path | None = None) -> Path:
    """The file behind a name or a path. Raises UsageError, with the nearest name, where there is none."""
    if name.endswith(_SUFFIX[kind]) or "/" in name:
        path = Path(name)
        if not path.is_file():
            raise UsageError(f"no such {_NOUN[kind]} file: {name}", fix="check the path, or give a name instead")
        return path
    known = names(kind, project)
    if name not in known:
        raise unknown(_NOUN[kind], name, known)
    return known[name]
