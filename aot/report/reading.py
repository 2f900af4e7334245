"""The data of a report, read back from an artifact."""

from __future__ import annotations

from typing import Any

from aot.errors import ArtifactError
from aot.runtime.files import REBUILD, json_of, unpacked


def report_of(name: str) -> dict[str, Any]:
    """What `report.json` of an artifact holds, a folder or a `.tar`.

    Raises UsageError for a path that is not there, ArtifactError where the report is missing or is not one.
    """
    path = unpacked(name) / "report.json"
    found = json_of(path)
    texts = ("model", "precision")
    if not isinstance(found, dict) or "accepted" not in found or not all(isinstance(found.get(t), str) for t in texts):
        raise ArtifactError("the report does not say what was built", where=str(path), fix=REBUILD)
    return found
