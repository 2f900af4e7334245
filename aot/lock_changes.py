"""What differs between a lock and a build, in words: options, versions, files; and tactics, layer by layer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

SHOWN = 12
"""So many differences are listed, the rest is counted."""
_OF_ENGINES = ("aot", "aot's source", "triton", "tensorrt", "tensorrt-cu12-bindings", "tensorrt-cu13-bindings",
               "tensorrt-rtx-cu13", "onnxruntime")  # fmt: skip
_DECIDED_LAST = ("precision", "route", "profiles", "backend", "targets", "engine")
"""What a build from an artifact decides; the rest was decided where that was made."""


def changes(locked: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str | None]:
    """What differs before any long work, one line each; None for what does not.

    Of a build from an artifact, on either side, only that counts which such a build decides.
    """
    whole = all(one.get(part) is not None for one in (locked, now) for part in ("sources", "packages"))
    old, new = _flat(locked["options"], whole), _flat(now["options"], whole)
    for name in sorted(old.keys() | new.keys()):
        yield differs(f"option {name}", old.get(name), new.get(name))
    named = locked["versions"].keys() | now["versions"].keys()
    for name in sorted(named if whole else named & set(_OF_ENGINES)):
        yield differs(f"version of {name}", locked["versions"].get(name), now["versions"].get(name))
    if locked["engines"]:
        for name in sorted(now["machine"]):
            yield differs(name, locked["machine"].get(name), now["machine"][name])
    if whole:
        for part, what in (("packages", "version of"), ("sources", "file")):
            for name in sorted(locked[part].keys() | now[part].keys()):
                yield differs(f"{what} {name}", locked[part].get(name), now[part].get(name))
        yield differs("digest of the calibration data", locked["digests"].get("data"), now["digests"].get("data"))


def _flat(value: Mapping[str, Any], whole: bool) -> dict[str, Any]:
    """Options by their paths: `engine.optimization_level`."""
    found: dict[str, Any] = {}
    for name, inner in value.items():
        if not whole and name not in _DECIDED_LAST:
            continue
        if isinstance(inner, dict) and inner:
            found |= {f"{name}.{rest}": leaf for rest, leaf in _flat(inner, True).items()}
        else:
            found[name] = inner
    return found


def tactic_changes(locked: list[dict[str, str]], now: list[dict[str, str]]) -> list[str]:
    """Where two lists of layers differ: a layer that is gone or new, and one with another tactic.

    Layers of one name are told apart by their order.
    """
    old, new = _numbered(locked), _numbered(now)
    found = [f"layer '{name}' is gone" for name in old if name not in new]
    found += [f"layer '{name}' is new, with tactic {_shown(new[name])}" for name in new if name not in old]
    both = [differs(f"tactic of layer '{name}'", old[name], new[name]) for name in old if name in new]
    return [*(one for one in both if one), *found]


def _numbered(layers: list[dict[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in layers:
        name, again = one["layer"], 2
        while name in found:
            name, again = f"{one['layer']} ({again})", again + 1
        found[name] = one["tactic"]
    return found


def differs(what: str, old: Any, new: Any) -> str | None:
    """`option precision: fp16 -> fp32`; None where both are the same."""
    return None if old == new else f"{what}: {_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value)
    return f"{text[:12]}..." if len(text) == 64 and " " not in text else text or "none"


def listed(found: list[str]) -> list[str]:
    """The first of them, and how many more there are."""
    return [*found[:SHOWN], *([f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else [])]
