"""Back from a `.tar` or an OCI image layout to the artifact's folder, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from aot.errors import ArtifactError, UsageError
from aot.packing.contents import Contents, form_of, manifest_of, problems, read
from aot.packing.output import check_apart, replacing
from aot.runtime.files import COPY, MANIFEST

KIND = "an artifact folder"


def unpack(source: str, to: Path, *, overwrite: bool = False) -> Contents:
    """Write the files of `source` into the folder `to`, and hold each against the manifest before it gets that name.

    Raises UsageError for a source that is missing or a folder already, and for `to` as `replacing` does; ArtifactError
    for a source that is damaged, or that holds a file which its manifest does not list.
    """
    if form_of(source) == "folder":
        found = (
            "an artifact folder is unpacked already" if _is_artifact(Path(source)) else "a folder that is no OCI layout"
        )
        raise UsageError(found, where=source, fix="give a .tar or an OCI layout")
    check_apart(source, [to])
    with replacing(to, KIND, _is_artifact, overwrite=overwrite) as new:
        new.mkdir()
        contents = read(source, into=new)
        for problem in problems(contents, manifest_of(contents, source), source):
            raise ArtifactError(problem.what, where=problem.where, fix=COPY)
    return contents


def _is_artifact(path: Path) -> bool:
    return path.is_dir() and (path / MANIFEST).is_file()
