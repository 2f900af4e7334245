"""`aot pack`, `unpack`, `verify`, `sign` on the command line, and the commands of docs/pack.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aot.cli import _main as cli
from aot.cli.pack import FORMS
from tests.packing.artifacts import artifact, files
from tests.packing.damage import flip


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`tiny.aot` in the folder that commands run in."""
    monkeypatch.chdir(tmp_path)
    return artifact(Path("tiny.aot"), {"sm89": b"plan of sm89" * 100, "sm120": b"plan of sm120" * 100})


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """The exit code, and the object that `--json` prints."""
    capsys.readouterr()
    code = cli.call([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_pack_says_what_it_wrote(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = told(capsys, "pack", "tiny.aot", "--tar", "tiny.tar", "--oci", "oci")
    assert (code, found["artifact"], found["accepted"]) == (0, "tiny.aot", True)
    assert found["forms"].keys() == {"tar", "oci"}
    assert found["forms"]["tar"]["files"] == ["tiny.tar"]
    assert found["forms"]["tar"]["bytes"] == Path("tiny.tar").stat().st_size
    assert found["forms"]["tar"]["digest"] == f"sha256:{files(Path())['tiny.tar']}"
    assert found["forms"]["oci"]["files"] == sorted(str(path) for path in Path("oci").rglob("*") if path.is_file())
    assert f"blobs/{found['forms']['oci']['digest'].replace(':', '/')}" in files(Path("oci"))


def test_pack_takes_a_tar_and_gives_the_same(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, folder = told(capsys, "pack", "tiny.aot", "--tar", "tiny.tar", "--oci", "oci")
    _, tar = told(capsys, "pack", "tiny.tar", "--tar", "again.tar", "--oci", "again")
    assert [one["digest"] for one in tar["forms"].values()] == [one["digest"] for one in folder["forms"].values()]


def test_pack_needs_a_form_and_force_for_what_is_there(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = told(capsys, "pack", "tiny.aot")
    assert (code, found["error"]["what"]) == (2, "no form to pack it into")
    assert all(f"--{form}" in found["error"]["fix"] for form in FORMS)
    arguments = ("pack", "tiny.aot", "--tar", "tiny.tar")
    assert [told(capsys, *arguments)[0], told(capsys, *arguments)[0], told(capsys, *arguments, "-f")[0]] == [0, 2, 0]


def test_a_damaged_artifact_is_not_packed(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(tiny / "graph/model.onnx", 9)
    code, found = told(capsys, "pack", "tiny.aot", "--oci", "oci")
    assert (code, found["error"]["where"]) == (2, "tiny.aot/graph/model.onnx")
    assert not Path("oci").exists()


def test_a_rejected_artifact_is_packed_with_a_warning(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from aot.runtime.files import manifest_digest

    manifest = {**json.loads((tiny / "manifest.json").read_bytes()), "accepted": False}
    (tiny / "manifest.json").write_text(json.dumps({**manifest, "digest": manifest_digest(manifest)}))
    assert cli.call(["pack", "tiny.aot", "--tar", "tiny.tar"]) == 0
    assert "tiny.aot is not accepted" in capsys.readouterr().err


@pytest.mark.parametrize("place", [".", "", "..", "../here", "../here/../here"])
def test_the_folder_that_one_is_in_is_not_swapped_away(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    Path("outer/here").mkdir(parents=True)
    monkeypatch.chdir("outer/here")
    code, found = told(capsys, "pack", "../../tiny.aot", "--oci", place)
    assert (code, found["error"]["what"]) == (
        2, "an OCI image layout of one model cannot take the place of the folder that you are in"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("--tar", "one"), ("--oci", "./one")),
        (("--oci", "one"), ("--tar", "one/two.tar")),
        (("--oci", "one/two"), ("--image", "one")),
        (("--oci", "models/tiny"), ("--triton", "models")),
        (("--tar", "one"), ("--oci", "there")),
        (("--tar", "one"), ("--image", "two", "--engine", "sm70")),
        (("--tar", "one"), ("--triton", "two", "--engine", "sm70")),
    ],
)
def test_all_places_are_looked_at_before_anything_is_written(
    tiny: Path, capsys: pytest.CaptureFixture[str], first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    Path("there").mkdir()
    Path("there/mine.txt").write_text("mine")
    before = files(Path())
    assert told(capsys, "pack", "tiny.aot", *first, *second)[0] == 2
    assert files(Path()) == before


@pytest.mark.parametrize("place", ["tiny.aot/oci", "tiny.aot/engines/oci", "holder"])
def test_nothing_is_packed_into_the_artifact_or_over_it(
    tiny: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    cli.call(["pack", "tiny.aot", "--oci", "holder"])
    shutil.copytree(tiny, "holder/tiny.aot")
    before = files(Path())
    source = "holder/tiny.aot" if place == "holder" else "tiny.aot"
    code, found = told(capsys, "pack", source, "--oci", place, "--force")
    assert code == 2
    assert found["error"]["what"] in (
        "nothing is written into an artifact", "one cannot be written into the other, nor in its place"
    )  # fmt: skip
    assert files(Path()) == before
    assert told(capsys, "unpack", "holder", "holder/back.aot")[0] == 2


def test_a_file_that_would_be_left_behind_is_told(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tiny / "notes.txt").write_text("mine")
    code, found = told(capsys, "pack", "tiny.aot", "--tar", "tiny.tar")
    assert (code, found["error"]["where"]) == (2, "tiny.aot/notes.txt")
    assert not Path("tiny.tar").exists()


def test_a_folder_above_that_is_a_file_is_said_to_be_one(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.call(["pack", "tiny.aot", "--tar", "tiny.tar"])
    _, found = told(capsys, "pack", "tiny.aot", "--tar", "tiny.tar/again.tar")
    assert found["error"]["what"] == "a tar cannot be written: Not a directory"


def test_a_layout_given_for_an_artifact_is_told_how_to_become_one(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.call(["pack", "tiny.aot", "--oci", "oci"])
    for command in (("run", "oci"), ("inspect", "oci"), ("pack", "oci", "--tar", "x.tar")):
        _, found = told(capsys, *command)
        assert found["error"]["fix"] == "an OCI image layout is unpacked first: aot unpack oci NAME.aot"


def test_what_cannot_be_read_is_not_said_to_be_unwritable(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = told(capsys, "unpack", "/proc/self/mem", "back.aot")
    assert (found["error"]["what"], found["error"]["where"]) == (
        "it cannot be read: Input/output error", "/proc/self/mem"
    )  # fmt: skip
    Path("empty").mkdir()
    assert told(capsys, "unpack", "empty", "back.aot")[1]["error"]["what"] == "a folder that is no OCI layout"


def test_verify_answers_with_its_exit_code(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = told(capsys, "verify", "tiny.aot")
    assert (code, found["ok"], found["form"], found["signed"], found["problems"]) == (0, True, "folder", "no", [])
    (tiny / "engines/sm89.plan").unlink()
    code, found = told(capsys, "verify", "tiny.aot")
    problem = {"what": "a file of the artifact is missing", "where": "tiny.aot/engines/sm89.plan"}
    assert (code, found["ok"], found["problems"]) == (1, False, [problem])
    assert cli.call(["verify", "tiny.aot"]) == 1
    assert "tiny.aot/engines/sm89.plan: a file of the artifact is missing" in capsys.readouterr().out
    assert told(capsys, "verify", "nothing.aot")[0] == 2
    assert told(capsys, "verify", "tiny.aot", "--key", "nothing.pem")[0] == 2


def test_unpack_says_what_it_wrote(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.call(["pack", "tiny.aot", "--oci", "oci"])
    code, found = told(capsys, "unpack", "oci", "back.aot")
    assert (code, found["source"], found["artifact"]) == (0, "oci", "back.aot")
    assert found["files"] == sorted(files(tiny))
    assert files(Path("back.aot")) == files(tiny)


def blocks(page: Path) -> list[str]:
    """Every block of commands."""
    return re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_page_run(tiny: Path, root: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A block runs where its tools are installed; those of a registry push to one on this machine."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path / "home"),
    }
    ran = []
    for block in blocks(root / "docs/pack.md"):
        tools = {line.split()[0] for line in block.splitlines()} - {"aot"}
        if "registry.example.com" in block:
            tools.add("docker-registry")
        if any(shutil.which(tool) is None for tool in tools):
            continue
        if "docker-registry" in tools:
            port = request.getfixturevalue("registry").partition(":")[2]
            settings = tmp_path / "home/.config/containers"
            settings.mkdir(parents=True, exist_ok=True)
            (settings / "registries.conf").write_text(f'[[registry]]\nlocation = "localhost:{port}"\ninsecure = true\n')
            block = block.replace("registry.example.com", f"localhost:{port}")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        ran.append(block)
    assert files(Path("back.aot")) == {k: v for k, v in files(tiny).items() if k != "manifest.sig"}
    assert ran
