"""Commands over all plugins, one of which is broken: it is told, and the others are there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aot import content
from aot.cli import _main as cli
from tests.plugins.projects import line_of, write

SCHEMA = ("-> (T y)", "")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a plugin that works between broken ones, and nothing built in."""
    write(tmp_path)
    (tmp_path / "none" / "plugins").mkdir(parents=True)
    monkeypatch.setattr(content, "BUILTIN", tmp_path / "none")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_list_shows_the_others(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(project, "broken", SCHEMA)
    assert cli.call(["plugin", "list"]) == 2
    said = capsys.readouterr()
    assert said.out.split()[:2] == ["mine::triple", "own"]
    assert "error: plugin broken: SCHEMA is not of the form" in said.err
    assert cli.call(["plugin", "list", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert [one["plugin"] for one in found["plugins"]] == ["mine::triple"]
    assert [one["where"] for one in found["broken"]] == [line_of(file, "SCHEMA")]


def test_check_runs_the_others(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, "broken", SCHEMA)
    loads = write(project, "needing", ("import math", "import math, maths"))
    runs = write(project, "running", ("value * 3.0 + SHIFT", "value * 3.0 + SHIFTED"))
    assert cli.call(["plugin", "check", "--device", "cpu", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert [(one["plugin"], one["passed"]) for one in found["plugins"]] == [("mine::triple", True)]
    assert [
        "broken" in found["broken"][0]["what"],
        *(one["where"].partition(": ")[0] for one in found["broken"][1:]),
    ] == [
        True,
        line_of(loads, "maths"),
        line_of(runs, "SHIFTED"),
    ]


def test_new_says_that_plugins_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "plugins").write_text("")
    monkeypatch.chdir(tmp_path / "other")
    assert cli.call(["plugin", "new", "gated"]) == 2
    assert "'plugins' is no folder" in capsys.readouterr().err
