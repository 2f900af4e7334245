"""Exit codes, messages and speed of the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import click
import pytest

from aot.cli import _main as cli
from aot.errors import AotError, ExportError

AOT = [sys.executable, "-c", "from aot.cli import main; main()"]


def install(monkeypatch: pytest.MonkeyPatch, error: BaseException | None, value: int | None = None) -> None:
    """Make `aot doctor` raise, or return."""

    @click.command("doctor")
    @click.option("--json", "as_json", is_flag=True)
    def command(as_json: bool) -> int | None:
        if error is not None:
            raise error
        return value

    monkeypatch.setitem(sys.modules, "aot.cli.doctor", types.SimpleNamespace(command=command))


def test_a_users_error_says_what_where_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, ExportError("dim seq became 4", where="model.py:12", fix="export at another size"))
    assert cli.call(["doctor", "--json"]) == 2
    said = capsys.readouterr()
    assert said.err == "error: dim seq became 4\n  at:  model.py:12\n  fix: export at another size\n"
    assert json.loads(said.out) == {
        "error": {"what": "dim seq became 4", "where": "model.py:12", "fix": "export at another size"}
    }


def test_without_json_nothing_goes_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, AotError("no"))
    assert cli.call(["doctor"]) == 2
    assert capsys.readouterr().out == ""


def test_the_commands_answer_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, code in ((None, 0), (0, 0), (1, 1)):
        install(monkeypatch, None, value)
        assert cli.call(["doctor"]) == code


def test_an_interrupt_says_that_finished_stages_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, KeyboardInterrupt())
    assert cli.call(["doctor"]) == 130
    assert "interrupted; finished stages are kept" in capsys.readouterr().err


def test_a_bug_keeps_its_traceback_and_says_how_to_report_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, ZeroDivisionError("oops"))
    assert cli.call(["doctor", "--json"]) == 70
    said = capsys.readouterr()
    assert "Traceback" in said.err
    assert "aot doctor --json" in said.err
    assert json.loads(said.out)["error"]["what"] == "ZeroDivisionError: oops"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["biuld"], "did you mean 'build'?"),
        (["build", "m.py", "--precision", "fp9"], "did you mean 'fp8'?"),
        (["build", "m.py", "--budget", "cosin=0.9"], "did you mean 'cosine'?"),
        (["build", "m.py", "--budget", "cosine"], "expected KEY=VALUE"),
        (["build", "m.py", "--budget", "cosine=high"], "'high' is not a number"),
        (["build", "m.py", "--dim", "batch=1:8"], "--dim batch=1:8:64"),
        (["build", "m.py", "--until", "grph"], "did you mean 'graph'?"),
        (["build", "m.py", "--nonsense"], "no such option: --nonsense"),
        (["build", "m.py", "--fesh"], "fix: did you mean --fresh?"),
        (["cache", "lst"], "fix: did you mean list?"),
        (["inspect", "m.aot", "m.aot"], "fix: aot inspect --help"),
        (["run", "a.aot", "--size", "batch"], "no such artifact"),
        (["inspect", "nowhere.aot"], "no such artifact"),
        (["diff", "a.aot"], "error: missing argument"),
        (["cache", "gc", "--older-than", "soon"], "error: invalid value"),
        (["cache", "gc", "--older-than", "nan"], "error: --older-than nan: no number of days"),
    ],
)
def test_wrong_use_is_exit_2_without_a_traceback(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.call(arguments) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said
    assert "Usage:" not in said


@pytest.mark.parametrize("command", [*cli.COMMANDS, "cache list", "cache gc", "cache verify"])
def test_every_help_text_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call([*command.split(), "--help"]) == 0
    assert "Example" in capsys.readouterr().out


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in cli.COMMANDS)


def test_help_and_version_import_nothing_heavy() -> None:
    heavy = ("torch", "numpy", "onnx", "onnx_ir", "polygraphy", "pydantic", "rich", "yaml", "onnxruntime")
    code = f"""
import sys
from aot.cli._main import call
assert call(["--help"]) == 0
found = [name for name in {heavy!r} if name in sys.modules]
assert not found, found"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_reader_who_leaves_early_gets_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", '"$@" | true', "-", *AOT, "doctor", "--json"], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_ctrl_c_during_a_command_ends_it_with_130() -> None:
    code = """
import sys, time, types, click
@click.command("doctor")
def command():
    print("ready", flush=True)
    time.sleep(60)
sys.modules["aot.cli.doctor"] = types.SimpleNamespace(command=command)
from aot.cli import main
sys.argv = ["aot", "doctor"]
main()"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said == "interrupted; finished stages are kept\n"
    assert "Usage:" not in said


def test_wrong_use_is_told_to_programs_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.call(["build", "m.py", "--fesh", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == {
        "what": "no such option: --fesh",
        "where": "aot build",
        "fix": "did you mean --fresh?",
    }


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("redirection", [">&-", "> /dev/full"])
def test_an_output_that_takes_nothing_is_one_error(
    redirection: str, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = ["bash", "-c", f'"$@" {redirection}', "-", *AOT, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: standard output ")
    assert len(done.stderr.splitlines()) == 2


def test_a_closed_standard_error_does_not_matter() -> None:
    done = subprocess.run(["bash", "-c", '"$@" 2>&-', "-", *AOT, "inspect", "nowhere.aot"], check=False)
    assert done.returncode == 2


def test_an_interrupt_that_a_library_turned_into_its_own_error_is_an_interrupt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command("doctor")
    def command() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise RecursionError("maximum recursion depth exceeded") from None

    monkeypatch.setitem(sys.modules, "aot.cli.doctor", types.SimpleNamespace(command=command))
    assert cli.call(["doctor"]) == 130
    assert capsys.readouterr().err == "interrupted; finished stages are kept\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_modules_are_imported_is_one_line() -> None:
    code = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from aot.cli import main
main()"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == "interrupted; finished stages are kept\n"
