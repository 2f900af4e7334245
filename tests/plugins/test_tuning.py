"""`aot plugin tune`: what is asked of the process that times, and what is made of its answers."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from aot import toolchain
from aot.cli import _main as cli
from aot.errors import AotError, PluginError, UsageError
from aot.plugins import tuned, tuning
from aot.plugins.header import read
from aot.plugins.loading import load
from aot.toolchain import Gpu, Machine
from tests.plugins.projects import line_of, write
from tests.plugins.test_tuned import entry

H200 = Gpu("NVIDIA H200", "sm90", 141 << 30)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one plugin, on a machine with an H200."""
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(toolchain, "machine", lambda: Machine(H200, "580.159.04", "cpu"))
    return tmp_path


def answering(monkeypatch: pytest.MonkeyPatch, folder: Path, program: str) -> None:
    """Have another program in the place of the process that times; it finds its question on standard input."""
    (folder / "tuner.py").write_text(f"import json, os, sys\ntasks = json.load(sys.stdin)\n{program}")
    started = tuning.subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        assert command == [sys.executable, "-m", "aot.plugins._tuner"]
        assert "TRITON_INTERPRET" not in options["env"]
        return started([sys.executable, str(folder / "tuner.py")], **options)

    monkeypatch.setattr(tuning.subprocess, "Popen", start)
    monkeypatch.setitem(os.environ, "TRITON_INTERPRET", "1")


def test_what_was_found_is_shown_and_kept_in_the_project(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    header = read((project / "plugins/triple.py").resolve())
    found = entry(header, 1000, 768, 64, ms=0.0123)
    said = [
        {"total": 2},
        {"entry": asdict(found), "file": str(header.file)},
        {
            "failed": "no config runs: it needs scratch memory",
            "what": "float32; x [1000, 768]",
            "file": str(header.file),
        },
    ]
    answering(monkeypatch, project, f"for one in {said!r}: print(json.dumps(one), flush=True)")

    assert cli.call(["plugin", "tune", "triple", "--size", "...=1000,width=768"]) == 0

    told = capsys.readouterr()
    assert told.out.splitlines()[1].split() == [
        *("mine::triple", "float16", "...=1024", "width=1024", "block=64", "num_warps=2", "0.0123", "2")
    ]
    assert "warning: triple: float32; x [1000, 768]: no config runs: it needs scratch memory" in told.err
    assert tuned.read(project / "plugins/tuned/triple.json") == [found]
    assert cli.call(["plugin", "tune", "triple", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["plugins"]
    assert one["file"] == "plugins/tuned/triple.json"
    assert [kept["ms"] for kept in one["entries"]] == [0.0123]


def test_nothing_found_is_exit_1_and_writes_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str((project / "plugins/triple.py").resolve())
    said = [{"total": 1}, {"failed": "no config runs", "what": "float16", "file": file}]
    answering(monkeypatch, project, f"for one in {said!r}: print(json.dumps(one), flush=True)")
    assert cli.call(["plugin", "tune", "triple"]) == 1
    assert not (project / "plugins/tuned").exists()


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (
            "print(json.dumps({'error': {'what': 'the kernel fails', 'where': 'a.py:3', 'fix': None}}))",
            "the kernel fails",
        ),
        ("print(json.dumps({'total': 2})); sys.exit('Killed')", "tuning ended after 0 of 2 runs: Killed"),
    ],
)
def test_what_ends_the_process_is_an_error(
    project: Path, monkeypatch: pytest.MonkeyPatch, program: str, says: str
) -> None:
    answering(monkeypatch, project, program)
    with pytest.raises(PluginError, match=says):
        tuning.tune([read(project / "plugins/triple.py")], {}, None)


def test_sizes_and_dtypes_are_asked_for_as_the_plugin_has_them(project: Path) -> None:
    fp8 = write(project, "narrow", ('"float32 float16"', '"float16 float8_e4m3fn"'))
    header = read(fp8)
    assert tuning._task(header, {"...": 8, "width": 64, "other": 3}, None, "sm90") == {
        "file": str(fp8),
        "types": [{"T": "float16"}, {"T": "float8_e4m3fn"}],
        "sizes": {"...": (8,), "width": 64},
    }
    assert tuning._task(header, {}, None, "sm86")["types"] == [{"T": "float16"}]  # no FP8 there
    assert tuning._task(header, {}, "float8_e4m3fn", "sm90")["types"] == [{"T": "float8_e4m3fn"}]


@pytest.mark.parametrize(
    ("sizes", "dtype", "says", "fix"),
    [
        ({"widht": 8}, None, "unknown size 'widht'", "did you mean 'width'?"),
        ({}, "bfloat16", "no plugin takes bfloat16", "float16, float32"),
    ],
)
def test_a_size_or_dtype_that_no_plugin_has_is_refused(
    project: Path, sizes: dict[str, int], dtype: str | None, says: str, fix: str
) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        tuning.tune([read(project / "plugins/triple.py")], sizes, dtype)
    assert fix in str(raised.value.fix)


def test_a_space_is_values_by_name(project: Path) -> None:
    space = 'SPACE = {"block": [16, 32], "num_warps": (1, 2)}\nCONFIGS'
    assert load(write(project, "wide", ("CONFIGS", space))).space == {"block": (16, 32), "num_warps": (1, 2)}
    file = write(project, "wide", ("CONFIGS", 'SPACE = {"block": 16}\nCONFIGS'))
    with pytest.raises(AotError, match="SPACE: 'block' is 16, not the values to try") as raised:
        load(file)
    assert raised.value.where == line_of(file, "SPACE")
