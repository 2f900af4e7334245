"""`aot explain` on models in torch: exit codes, lines of the model's code, and one JSON object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aot.cli import _main as cli

pytest.importorskip("tensorrt_rtx")
MODELS = """\
import aot
import torch

print("imported")
batch = aot.Dim("batch", min=1, opt=4, max=16)


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 32)

    def forward(self, x):
        h = self.layer(x)
        if h.sum() > 0:
            h = h * 2
        h = torch.tanh(h)
        if h.max() > 0.5:
            h = h - 1
        return h


class Inner(torch.nn.Module):
    def forward(self, h):
        return torch.linalg.det(h.view(-1, 9, 9))


class Lacking(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 81)
        self.last = Inner()

    def forward(self, x):
        return self.last(torch.relu(self.layer(x)))


class Fine(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 32)

    def forward(self, x):
        return torch.relu(self.layer(x))


@aot.model(inputs={"x": aot.Input([batch, 32])}, outputs=["y"])
def branches():
    return Branches().eval()


@aot.model(inputs={"x": aot.Input([batch, 32])}, outputs=["y"])
def lacking():
    return Lacking().eval()


@aot.model(inputs={"x": aot.Input([batch, 32])}, outputs=["y"])
def fine():
    print("made")
    return Fine().eval()
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("models") / "model.py"
    file.write_text(MODELS)
    return file


def line(text: str) -> int:
    """The number of the line of the model's code that begins with the text."""
    return next(number for number, code in enumerate(MODELS.splitlines(), 1) if code.strip().startswith(text))


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = cli.call(["explain", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_model_that_builds_is_0(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["explain", f"{models}:fine", "--target", "sm89", "--dim", "batch=1:2:8", "--json"]
    code, said = cli.call(arguments), capsys.readouterr()
    found = json.loads(said.out)
    assert {"imported", "made"} <= set(said.err.splitlines())  # what the model's own code prints
    assert (code, found["accepted"], found["breaks"]) == (0, True, [])
    assert found["profiles"] == [{"dims": {"batch": [1, 2, 8]}, "inputs": {"x": [[1, 32], [2, 32], [8, 32]]}}]
    assert found["precision"]["name"] == "fp16"


def test_every_branch_on_values_is_listed_with_its_line(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = asked(capsys, f"{models}:branches", "--target", "sm89")
    assert (code, found["accepted"]) == (1, False)
    assert [one["line"] for one in found["breaks"]] == [line("if h.sum()"), line("if h.max()")]
    assert {one["file"] for one in found["breaks"]} == {str(models)}
    assert all("torch.where" in one["fix"] for one in found["breaks"])


def test_the_code_is_shown_with_what_is_around_it(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["explain", f"{models}:branches", "--target", "sm89"]) == 1
    said = capsys.readouterr().out
    number = line("if h.sum()")
    assert f"> {number:>5} |         if h.sum() > 0:\n    {number + 1:>5} |             h = h * 2\n" in said
    assert "a build would fail: the export breaks" in " ".join(said.split())  # a long path moves the line's end
    assert all(len(text) <= 100 for text in said.splitlines())


def test_an_op_that_the_target_lacks_is_named_with_its_line(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = asked(capsys, f"{models}:lacking", "--target", "sm89")
    (target,) = found["targets"]
    (node,) = target["unsupported"]
    assert (code, target["ok"], target["ops"]["none"]) == (1, False, {"Det": 1})
    assert (node["op"], node["module"]) == ("Det", "last")
    assert node["source"].endswith(f"model.py:{line('return torch.linalg.det')}")
    assert "plugins/Det.py" in node["fix"]

    assert cli.call(["explain", f"{models}:lacking", "--target", "sm89"]) == 1  # exported already
    said = capsys.readouterr()
    assert "Det: it is none of its ops" in said.out
    assert f"model.py:{line('return torch.linalg.det')}" in said.out
    assert "export            cached" in said.err


def test_fp8_for_a_target_without_it_is_refused(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = asked(capsys, f"{models}:fine", "--target", "sm80", "--precision", "fp8")
    assert code == 1
    assert found["targets"][0]["refused"]["what"] == "sm80 has no FP8: it begins with sm89"
    assert cli.call(["explain", f"{models}:fine", "--target", "sm80", "--precision", "fp8"]) == 1
    said = capsys.readouterr().out
    assert "nothing can be built for sm80 (tensorrt_rtx)" in " ".join(said.split())
    assert "a target from sm89 on" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.py"], "no such file"),
        (["m.py", "--precision", "fp9"], "did you mean 'fp8'?"),
        (["m.py", "--nonsense"], "no such option"),
    ],
)
def test_wrong_use_is_2(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["explain", *arguments]) == 2
    assert says in capsys.readouterr().err
