"""An artifact that means harm: nothing in it is unpickled, run, or looked for outside of its folder."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot import arrays, artifact
from aot.errors import ArtifactError, UsageError
from aot.runners import read_arrays
from aot.runtime import files, untar
from tests.conftest import ROOT
from tests.fuzz.artifact import put, seal, write

WATCHED = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
place, seen = "nowhere", []

def hook(event, given):
    if event in ("pickle.find_class", "os.system", "os.exec", "socket.connect"):
        seen.append(f"{event} {given}")
    elif event == "subprocess.Popen" and "aot.onnx_input.vetting" not in " ".join(map(str, given[1])):
        seen.append(f"{event} {given[1]}")
    elif event in ("compile", "exec") and place in str(given[-1] if event == "compile" else given[0]):
        seen.append(f"{event} {given}")
    elif event == "open" and any(word in str(given[0]) for word in ("secret", "passwd")):
        seen.append(f"{event} {given[0]}")

import tests.fuzz.artifact as everything
import aot.cli.inspect, aot.cli.build, onnxruntime, aot.auto
sys.addaudithook(hook)
for folder in sys.argv[2:]:
    place, seen, refused = os.path.realpath(folder), [], []
    os.chdir(folder)
    for use in (everything._inspected, everything._run, everything._finished, everything.finish):
        try:
            use(everything.Path(folder))
        except everything.aot.AotError as error:
            refused.append(str(error))
    print(json.dumps([seen, refused]))
"""


class Payload:
    """Touches a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def pickled(mark: Path) -> bytes:
    """An `.npz` of objects."""
    held = io.BytesIO()
    np.savez(held, x=np.array([Payload(mark)], object))
    return held.getvalue()


def cases(folder: Path, data: dict[str, Any], name: str) -> None:
    """References of that name."""
    put(folder, data, "references/cases.json", [{"name": name, "kind": "heldout", "sizes": {}}])


def code(folder: Path, data: dict[str, Any], mark: Path) -> None:
    """Python files, some of which Python itself looks for where it starts."""
    for name in ("model.py", "plugins/MatMul.py", "conftest.py", "graph/onnx.py", "sitecustomize.py", "resource.py"):
        put(folder, data, name, f"import pathlib; pathlib.Path({str(mark)!r}).touch()".encode())


def link(folder: Path, data: dict[str, Any], mark: Path) -> None:
    """A file with the right content, elsewhere."""
    (folder / "references/b1.in.npz").unlink()
    (folder / "references/b1.in.npz").symlink_to(folder.parent / "secret.in.npz")


HARM: dict[str, Callable[[Path, dict[str, Any], Path], None]] = {
    "objects in the references": lambda f, m, mark: put(f, m, "references/b1.in.npz", pickled(mark)),
    "a pickle for a part": lambda f, m, mark: put(f, m, "ranges/ranges.json", pickle.dumps(Payload(mark))),
    "cases outside": lambda f, m, mark: cases(f, m, "../../secret"),
    "a case by a whole path": lambda f, m, mark: cases(f, m, str(f.parent / "secret")),
    "Python files": code,
    "an engine file outside": lambda f, m, mark: m["engines"][0]["engine"]["facts"].update(file="../../secret.plan"),
    "a file outside": lambda f, m, mark: m["files"].update({"../secret": m["files"]["report.json"]}),
    "a link to a file outside": link,
}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[str], list[str], bool]]:
    """Under an audit hook, in a process of its own, everything that reads an artifact reads each of these, in its
    folder: what was seen that must not be, what was refused, and whether code of the artifact ran."""
    root, marks = tmp_path_factory.mktemp("harm"), {}
    for number, (name, harm) in enumerate(HARM.items()):
        place = root / str(number) / "place"
        folder, marks[name] = place / "x.aot", root / str(number) / "touched"
        data = write(folder, root / "store", candidates=False)
        for end in ("in", "out"):
            (place / f"secret.{end}.npz").write_bytes((folder / f"references/b1.{end}.npz").read_bytes())
        harm(folder, data, marks[name])
        seal(folder, data)
    folders = [str(mark.parent / "place" / "x.aot") for mark in marks.values()]
    environment = {**os.environ, "XDG_CACHE_HOME": str(root / "cache")}
    command = [sys.executable, "-P", "-c", WATCHED, str(ROOT), *folders]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = map(json.loads, done.stdout.splitlines())
    return {name: (*answer, mark.exists()) for (name, mark), answer in zip(marks.items(), found, strict=True)}


@pytest.mark.parametrize("harm", HARM)
def test_nothing_in_an_artifact_is_run_or_leads_out_of_it(
    watched: dict[str, tuple[list[str], list[str], bool]], harm: str
) -> None:
    seen, refused, ran = watched[harm]
    assert seen == []
    assert not ran
    assert refused or harm == "Python files"  # which nothing reads


def tar_with(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    """A tar of a manifest and these."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for info, content in ((tarfile.TarInfo("manifest.json"), b"{}"), *members):
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    """A member of a kind."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info, b"" if kind != tarfile.REGTYPE else b"x"


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (member("../x"), "names a path outside"),
        (member("/tmp/x"), "names a path outside"),
        (member("a/../../x"), "names a path outside"),
        (member("a\\..\\x"), "names a path outside"),
        (member("x", tarfile.SYMTYPE, "/etc/passwd"), "something else than a plain file"),
        (member("x", tarfile.LNKTYPE, "manifest.json"), "something else than a plain file"),
        (member("x", tarfile.CHRTYPE), "something else than a plain file"),
        (member("x", tarfile.FIFOTYPE), "something else than a plain file"),
        (member("x", tarfile.GNUTYPE_SPARSE), "something else than a plain file"),
        (member("manifest.json"), "a file twice"),
    ],
)
def test_a_tar_gives_plain_files_below_one_folder(
    tmp_path: Path, odd: tuple[tarfile.TarInfo, bytes], says: str
) -> None:
    path = tar_with(tmp_path / "x.tar", odd)
    with pytest.raises(ArtifactError, match=f"not a readable tar: .*{says}"):
        artifact.load(str(path))
    assert {one.name for one in tmp_path.iterdir()} == {"x.tar"}


def test_a_tar_of_headers_of_headers(tmp_path: Path) -> None:
    """Each says that the next one describes the next: tarfile calls itself for every one of them."""
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 0
    (tmp_path / "x.tar").write_bytes(info.tobuf(tarfile.USTAR_FORMAT) * 5000)
    with pytest.raises(ArtifactError, match="not a readable tar"):
        artifact.load(str(tmp_path / "x.tar"))


def test_a_tar_of_too_many_members_or_too_large_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untar, "MEMBERS", 3)
    with pytest.raises(ArtifactError, match="more than 3 members"):
        artifact.load(str(tar_with(tmp_path / "x.tar", *(member(str(number)) for number in range(4)))))
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 1 << 33
    (tmp_path / "y.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    with pytest.raises(ArtifactError, match="a header of 8589934592 bytes"):
        artifact.load(str(tmp_path / "y.tar"))


@pytest.mark.parametrize(
    "text", ["[" * 100_000 + "]" * 100_000, '{"a":' * 70 + "1" + "}" * 70, '"\\ud800"', "9" * 5000]
)
def test_json_is_bounded(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ArtifactError, match="the manifest is not JSON"):
        aot.load(tmp_path)
    monkeypatch.setattr(files, "MOST", len(text) - 1)
    with pytest.raises(ArtifactError, match=r"bytes, and at most \d+ are read"):
        aot.load(tmp_path)


def header(shape: str, descr: str = "'<f4'") -> bytes:
    """The start of a `.npy` member, whatever it says."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            header("(1000000, 1000000)") + bytes(8),
            "says .1000000, 1000000. of float32, 4,000,000,000,000 bytes, and holds 8",
        ),
        (header("(-1,)") + bytes(4), "says"),
        (header("(1,)", "'|O'") + pickle.dumps([1]), "of object"),
        (b"no array", "magic"),
    ],
)
def test_an_array_is_as_large_as_it_says(tmp_path: Path, content: bytes, says: str) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", content)
    with pytest.raises(UsageError, match=says):
        read_arrays(str(tmp_path / "x.npz"))


def test_what_is_compressed_does_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros(1 << 20, np.float32))
    assert read_arrays(str(tmp_path / "x.npz"))["x"].nbytes == 4 << 20
    monkeypatch.setattr(arrays, "INFLATED", 1 << 20)
    with pytest.raises(UsageError, match="it would grow to 4,194,4"):
        read_arrays(str(tmp_path / "x.npz"))
