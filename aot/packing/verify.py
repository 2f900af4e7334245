"""Whether an artifact is whole, and signed: what `aot verify` says, and what packing asks first."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from aot.errors import ArtifactError
from aot.packing.contents import Contents, Form, Problem, form_of, manifest_of, problems, read
from aot.runtime.files import COPY

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

Signed = Literal["no", "not checked", "yes"]


@dataclass(frozen=True)
class Verdict:
    """What an artifact was found to be.

    name: of its model; None where the manifest could not be read. files, bytes: how many there are, and of what size.
    signed: `yes` where a key was given and its owner signed, `not checked` where there is a signature and no key.
    """

    artifact: str
    form: Form
    name: str | None
    files: int
    bytes: int
    signed: Signed
    problems: tuple[Problem, ...]

    def to_json(self) -> dict[str, Any]:
        """As `aot verify --json` prints it."""
        return {**asdict(self), "ok": not self.problems}


def verify(artifact: str, key: Ed25519PublicKey | None = None) -> Verdict:
    """Read all of an artifact in any form, and judge it. key: of who must have signed it.

    Raises UsageError for a path that cannot be read.
    """
    form, contents, name = form_of(artifact), Contents({}, None, None), None
    signed: Signed = "no"
    found = list[Problem]()
    try:
        contents = read(artifact)
        signed, unsigned = _signed(contents, key, artifact)
        found += unsigned
        manifest = manifest_of(contents, artifact)
        name = manifest.name
        found += problems(contents, manifest, artifact)
    except ArtifactError as error:
        found.append(Problem(error.what, error.where or artifact))
    size = sum(part.bytes for part in contents.files.values())
    return Verdict(artifact, form, name, len(contents.files), size, signed, tuple(found))


def _signed(contents: Contents, key: Ed25519PublicKey | None, shown: str) -> tuple[Signed, list[Problem]]:
    if key is None or contents.manifest is None:
        return ("no" if contents.signature is None else "not checked"), []
    if contents.signature is None:
        return "no", [Problem("it is not signed", shown)]
    from aot.packing.signature import holds

    if not holds(key, contents.signature, contents.manifest):
        return "no", [Problem("the signature is not one of this key for this manifest", shown)]
    return "yes", []


def check_whole(artifact: str) -> None:
    """Raise ArtifactError for the first problem of an artifact."""
    for problem in verify(artifact).problems:
        raise ArtifactError(problem.what, where=problem.where, fix=COPY)
