"""Signatures: Ed25519 over the bytes of `manifest.json`, which holds the digest of every other file.

`manifest.sig` holds the 64 bytes of the signature (RFC 8032) and nothing else, so that OpenSSL checks it too:

    openssl pkeyutl -verify -pubin -inkey public.pem -rawin -in manifest.json -sigfile manifest.sig

Signing twice gives the same bytes. To import this module where `cryptography` is missing raises UsageError.
"""

from __future__ import annotations

from pathlib import Path

from aot.errors import UsageError
from aot.packing.contents import form_of
from aot.packing.output import replacing
from aot.packing.tar import SIGNATURE
from aot.packing.verify import check_whole
from aot.runtime.files import MANIFEST

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
except ImportError as error:
    raise UsageError(
        "signatures need the package cryptography", fix='install it: pip install "aot-engine[sign]"'
    ) from error

MAKE = "make one with: openssl genpkey -algorithm ed25519 -out key.pem"
LARGEST = 1 << 16
"""Bytes that are read of a key; a PEM of Ed25519 has about 120."""
PUBLIC = "make it from the private key with: openssl pkey -in key.pem -pubout -out public.pem"


def private_key(path: Path) -> Ed25519PrivateKey:
    """The key that signs. Raises UsageError for a file that is not an Ed25519 private key in PEM without passphrase."""
    try:
        key = serialization.load_pem_private_key(_read(path), password=None)
    except TypeError as error:  # so says cryptography of a key that is encrypted
        raise UsageError(
            "the key has a passphrase", where=str(path), fix="give one without: openssl pkey -in KEY.pem -out key.pem"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError("not a private key in PEM form", where=str(path), fix=MAKE) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError("not an Ed25519 key", where=str(path), fix=MAKE)
    return key


def public_key(path: Path) -> Ed25519PublicKey:
    """The key that a signature is checked with. Raises UsageError for a file that is not one in PEM."""
    try:
        key = serialization.load_pem_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError("not a public key in PEM form", where=str(path), fix=PUBLIC) from error
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError("not an Ed25519 key", where=str(path), fix=MAKE)
    return key


def sign(artifact: str, key: Ed25519PrivateKey) -> Path:
    """Write `manifest.sig` into an artifact folder; return its path.

    Raises UsageError for an artifact in another form, or a folder that cannot be written; ArtifactError for one that is
    not whole.
    """
    if form_of(artifact) != "folder":
        raise UsageError(
            "a signature is written into an artifact folder",
            where=artifact,
            fix="unpack it, sign the folder, pack it again: aot unpack, aot sign, aot pack",
        )
    check_whole(artifact)
    path = Path(artifact, SIGNATURE)
    with replacing(path, "a signature", Path.is_file, overwrite=True) as new:
        new.write_bytes(key.sign(path.with_name(MANIFEST).read_bytes()))
    return path


def holds(key: Ed25519PublicKey, signature: bytes, manifest: bytes) -> bool:
    """Whether the owner of the key signed this manifest."""
    try:
        key.verify(signature, manifest)
    except InvalidSignature:
        return False
    return True


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST)
    except OSError as error:
        raise UsageError(f"the key cannot be read: {error.strerror}", where=str(path), fix="check the path") from error
