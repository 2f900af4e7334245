"""Ed25519 over the manifest: made with a key, checked with its public half, by aot and by OpenSSL."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from aot.errors import ArtifactError, UsageError
from aot.packing import oci, signature, tar
from aot.packing.unpack import unpack
from aot.packing.verify import verify
from tests.packing.artifacts import artifact, files
from tests.packing.damage import flip

PLAIN = serialization.NoEncryption()
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def write_keys(folder: Path, key: ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey, name: str = "key") -> Path:
    """`NAME.pem` and `NAME.public.pem`; the path of the first."""
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / f"{name}.pem").write_bytes(key.private_bytes(pem, pkcs8, PLAIN))
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{name}.public.pem").write_bytes(public)
    return folder / f"{name}.pem"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return write_keys(tmp_path, ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32))))


@pytest.fixture
def signed(tmp_path: Path, key: Path) -> Path:
    made = artifact(tmp_path / "tiny.aot", {"sm90": b"plan"})
    signature.sign(str(made), signature.private_key(key))
    return made


def public(key: Path) -> ed25519.Ed25519PublicKey:
    return signature.public_key(key.with_suffix(".public.pem"))


def test_a_signature_is_64_bytes_and_the_same_every_time(signed: Path, key: Path) -> None:
    first = (signed / "manifest.sig").read_bytes()
    assert len(first) == 64
    signature.sign(str(signed), signature.private_key(key))
    assert (signed / "manifest.sig").read_bytes() == first


@needs_openssl
def test_openssl_makes_the_keys_and_checks_the_signature(tmp_path: Path) -> None:
    made = artifact(tmp_path / "tiny.aot")
    for command in ("genpkey -algorithm ed25519 -out key.pem", "pkey -in key.pem -pubout -out public.pem"):
        subprocess.run(["openssl", *command.split()], cwd=tmp_path, check=True, capture_output=True)
    signature.sign(str(made), signature.private_key(tmp_path / "key.pem"))
    check = "pkeyutl -verify -pubin -inkey public.pem -rawin -in tiny.aot/manifest.json -sigfile tiny.aot/manifest.sig"
    command = ["openssl", *check.split()]
    assert subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode == 0
    flip(made / "manifest.json", 5)
    assert subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode == 1


def test_every_form_carries_it(signed: Path, key: Path, tmp_path: Path) -> None:
    tar.write(signed, tmp_path / "tiny.tar")
    oci.write(signed, tmp_path / "oci")
    for packed in (signed, tmp_path / "tiny.tar", tmp_path / "oci"):
        assert verify(str(packed)).signed == "not checked"
        found = verify(str(packed), public(key))
        assert (found.signed, found.problems) == ("yes", ())
    unpack(str(tmp_path / "oci"), tmp_path / "back.aot")
    assert files(tmp_path / "back.aot") == files(signed)


def test_another_key_another_manifest_and_no_signature_are_told_apart(signed: Path, key: Path, tmp_path: Path) -> None:
    def problems(artifact: Path, key: Path) -> list[str]:
        return [problem.what for problem in verify(str(artifact), public(key)).problems]

    other = write_keys(tmp_path, ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32)), "other")
    wrong = "the signature is not one of this key for this manifest"
    assert problems(signed, other) == [wrong]
    elsewhere = artifact(tmp_path / "other.aot", {"sm120": b"another plan"})
    assert problems(elsewhere, key) == ["it is not signed"]
    shutil.copy(signed / "manifest.sig", elsewhere)
    assert problems(elsewhere, key) == [wrong]
    for content in (b"", b"x" * 63, b"x" * 64, b"x" * 65):
        (signed / "manifest.sig").write_bytes(content)
        assert problems(signed, key) == [wrong]
    (signed / "manifest.sig").write_bytes(b"x" * 5000)
    assert problems(signed, key) == ["a file has 5000 bytes, which none of this name has"]


def test_a_signed_artifact_that_was_changed_is_not_what_was_signed(signed: Path, key: Path) -> None:
    flip(signed / "engines/sm90.plan", 0)
    (problem,) = verify(str(signed), public(key)).problems
    assert problem.where.endswith("engines/sm90.plan")
    with pytest.raises(ArtifactError, match="damaged"):
        signature.sign(str(signed), signature.private_key(key))


def test_a_packed_form_is_not_signed(signed: Path, key: Path, tmp_path: Path) -> None:
    tar.write(signed, tmp_path / "tiny.tar")
    with pytest.raises(UsageError, match="into an artifact folder"):
        signature.sign(str(tmp_path / "tiny.tar"), signature.private_key(key))


def test_keys_that_are_none_say_how_to_make_one(tmp_path: Path, key: Path) -> None:
    wrong = write_keys(tmp_path, rsa.generate_private_key(65537, 1024), "rsa")
    (tmp_path / "text.pem").write_text("my key")
    locked = serialization.load_pem_private_key(key.read_bytes(), None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    (tmp_path / "locked.pem").write_bytes(locked)
    public = key.with_suffix(".public.pem")
    for load, path, what, fix in [
        (signature.private_key, tmp_path / "no.pem", "the key cannot be read", "check the path"),
        (signature.private_key, tmp_path, "the key cannot be read", "check the path"),
        (signature.private_key, tmp_path / "text.pem", "not a private key", "openssl genpkey"),
        (signature.private_key, public, "not a private key", "openssl genpkey"),
        (signature.private_key, wrong, "not an Ed25519 key", "openssl genpkey"),
        (signature.private_key, tmp_path / "locked.pem", "the key has a passphrase", "openssl pkey"),
        (signature.public_key, key, "not a public key", "openssl pkey"),
        (signature.public_key, Path("/dev/zero"), "not a public key", "openssl pkey"),
        (signature.public_key, wrong.with_suffix(".public.pem"), "not an Ed25519 key", "openssl genpkey"),
    ]:
        with pytest.raises(UsageError, match=what) as refused:
            load(path)
        assert fix in str(refused.value.fix)


def test_without_the_library_the_extra_is_named() -> None:
    script = "import sys; sys.modules['cryptography'] = None; import aot.packing.signature"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert 'pip install "aot-engine[sign]"' in done.stderr
    assert "aot.errors.UsageError: signatures need the package cryptography" in done.stderr
