"""The command line that a report gives asks for what was asked."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from aot.cli import build as command
from aot.config import Budget, Patterns, Request, Surgery
from aot.report.command import command_of


class Asked(Exception):
    """Ends a command where the build would begin."""


def parsed(monkeypatch: pytest.MonkeyPatch, line: str) -> Request:
    """What `aot build` makes of a command line, short of building."""
    seen: list[Request] = []

    def build(request: Request, *_: Any) -> None:
        seen.append(request)
        raise Asked

    monkeypatch.setattr("aot.pipeline.build", build)
    program, name, *arguments = shlex.split(line)
    assert (program, name) == ("aot", "build")
    with pytest.raises(Asked):
        command.command.main(arguments, standalone_mode=False)
    return seen[0]


@pytest.mark.parametrize(
    "request_",
    [
        Request(model="model.py"),
        Request(
            model="a folder/model.py:name",
            precision="int8",
            backend="tensorrt_rtx",
            targets=("sm89", "sm120"),
            profile="batch",
            calibration="my recipe.yaml",
            dims={"batch": (1, 8, 64)},
            budget=Budget(cosine=0.9951234567891234, relative_l2=0.1),
            search=False,
            surgery=Surgery(without=("gelu",), verify=True),
            patterns=Patterns(plugins=("rotary",)),
            until="graph",
            workers=3,
        ),
        Request(model="x.onnx", precision="auto", patterns=Patterns(measured=False)),
    ],
)
def test_the_line_asks_for_the_same(
    request_: Request, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("project"))
    assert parsed(monkeypatch, command_of(request_)) == request_


def test_what_has_its_default_is_left_out() -> None:
    assert command_of(Request(model="model.py", precision="fp8")) == "aot build model.py --precision fp8"


def test_a_name_that_is_not_utf8_can_be_written_into_a_report() -> None:
    assert command_of(Request(model="model.py", output=Path("m\udcff.aot"))).encode().endswith(rb"m\udcff.aot'")
