"""The check of kernels against references: it passes for what is right, and sees each thing that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aot.cli import _main as cli
from aot.errors import PluginError
from aot.plugins import cases, checking, skeleton
from aot.plugins.checking import Case, Checked, check
from aot.plugins.header import read
from tests.plugins import pack
from tests.plugins.kernels import BUILT_IN
from tests.plugins.projects import line_of, write

WRONG: dict[str, tuple[tuple[str, str], str]] = {
    "value": (("value * 3.0", "value * 3.01"), "differs by 0.0033 of its magnitude"),
    "beside": (("SHIFT).to(y.dtype.element_ty), mask=at < count", "SHIFT).to(y.dtype.element_ty), mask=at <= count"),
               "'y' is written beside its end"),
    "unwritten": (('grid=(ceil_div(count, config["block"]),)', 'grid=(count // config["block"],)'),
                  "is not a number in"),
    "no_program": (('grid=(ceil_div(count, config["block"]),)', "grid=(0,)"),
                   "the grid is [0, 1, 1], so that no program"),
    "read_beside": (("x + at, mask=at < count", "x + at + 1, mask=at < count"), "read beside"),
    "in_place": (("return (x.float()", "return (x.mul_(2).float()"), "reference changes its input 'x'"),
    "overwrites": (("    tl.store(y", "    tl.store(x + at, value.to(x.dtype.element_ty) + 1, mask=at < count)\n"
                    "    tl.store(y"), "the kernel writes to its input 'x', or beside it"),
    "narrow": ((".to(tl.float32)", ".to(tl.float16).to(tl.float32)"), "and 5e-05 is allowed"),
}  # fmt: skip


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checked]:
    """Every wrong plugin and a new one, by name: one process, for importing torch takes longest."""
    folder = tmp_path_factory.mktemp("wrong")
    # What a plugin prints is no answer of the check.
    aloud = ("def launch(", "print('loaded')\n\n\ndef launch(")
    wrong = [write(folder, name, change, aloud) for name, (change, _) in WRONG.items()]
    new = skeleton.write("gated", "mine", folder / "plugins")
    found = check([read(file) for file in (*wrong, new)])
    return {one.plugin.partition("::")[2]: one for one in found}


def test_every_built_in_plugin_is_run_somewhere() -> None:
    built_in = [file.stem for file in BUILT_IN.glob("*.py")]
    assert sorted([*pack.NORMS, *pack.PRODUCTS, *pack.SEQUENCES, *pack.VISION]) == sorted(built_in)


@pytest.mark.parametrize("name", WRONG)
def test_a_kernel_that_is_wrong_in_one_way_is_seen(name: str, checked: dict[str, Checked]) -> None:
    failures = [failure for case in checked[name].failed for failure in case.failures]
    assert any(WRONG[name][1] in failure for failure in failures), failures


def test_dtypes_odd_sizes_0_1_configs_attributes_and_misaligned_inputs_are_run(tmp_path: Path) -> None:
    header = read(write(tmp_path, "triple", ("CONFIGS", 'ATTRIBUTES = {"shift": [0.5]}\nCONFIGS')))
    found = list(cases.trials(header, [{}, {}], [{"T": "float32"}, {"T": "float16"}]))
    assert {tuple(one.chosen.values()) for one in found} == {("float32",), ("float16",)}
    shapes = [one.shapes["x"] for one in found]
    assert {(), (0,), (1,)} <= {shape[:-1] for shape in shapes}
    assert {0, 1, 3, 67, 131} <= {shape[-1] for shape in shapes}
    assert {one.config for one in found} == {0, 1}
    assert {one.attributes["shift"] for one in found} == {0.0, 0.5}
    assert any(one.misaligned for one in found)


def test_a_gpu_runs_every_dtype_and_needs_few_kernels_for_it(tmp_path: Path) -> None:
    header = read(write(tmp_path, "triple", ("float32 float16", "float32 float16 bfloat16")))
    combinations = list(header.schema.combinations())
    found = list(cases.compiled_trials(header, [{}] * 4, combinations, ["width"]))
    assert [one.chosen["T"] for one in found if one.config == 3] == ["float32", "bfloat16"]
    by_dtype = {
        dtype: [one.shapes["x"] for one in found if one.chosen["T"] == dtype] for dtype in header.schema.types["T"]
    }
    assert {shape[-1] for shape in by_dtype["float32"]} == {0, 1, 3, 67, 131}
    for dtype in ("float16", "bfloat16"):
        assert {shape[-1] for shape in by_dtype[dtype]} == {3, 131}
        assert {(), (0,), (1,), (67,)} <= {shape[:-1] for shape in by_dtype[dtype]}  # those need no kernel of their own
    assert not any(one.misaligned for one in found)


def test_sizes_that_hang_together_are_run_as_cases_say(tmp_path: Path) -> None:
    said = 'CASES = [{"...": (2,), "width": 4}, {"...": (), "width": 9, "shift": 0.5}]\nCONFIGS'
    found = list(cases.trials(read(write(tmp_path, "triple", ("CONFIGS", said))), [{}], [{"T": "float32"}]))
    assert {(one.shapes["x"], one.attributes["shift"]) for one in found} == {((2, 4), 0.0), ((9,), 0.5)}
    file = write(tmp_path, "triple", ("CONFIGS", 'CASES = [{"width": 4}]\nCONFIGS'))
    with pytest.raises(PluginError, match=r"CASES: \{'width': 4\} does not give \.\.\., width") as caught:
        read(file)
    assert caught.value.where == line_of(file, "CASES")


def test_a_kernel_that_raises_is_exit_2_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, "triple", ("value * 3.0 + SHIFT", "value * 3.0 + SHIFTED"))
    monkeypatch.chdir(tmp_path)
    assert cli.call(["plugin", "check", "triple", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["what"] == "plugin triple: kernel: NameError: name 'SHIFTED' is not defined"
    assert error["where"].startswith(line_of(file, "SHIFTED"))


ENDED: dict[str, tuple[tuple[str, str], str, str]] = {
    "endless": (("    value = tl.load(", "    while count > 0:\n        at += 0\n    value = tl.load("),
                "the check heard nothing for 6 s in case 1 of ", "at += 0"),
    "reference": (("    return (x.float()", "    while True:\n        x = x + 0\n    return (x.float()"),
                  "the check heard nothing for 6 s in case 1 of ", "x = x + 0"),
    "crashing": (("    return (x.float()", "    import os\n    os.abort()\n    return (x.float()"),
                 "the check ended in case 1 of ", "os.abort()"),
    "no_input": (("CONFIGS", "def sample(inputs, attributes):\n    return {}\n\n\nCONFIGS"),
                 "sample gives no tensor for 'x', which is [3, 3]", "def sample"),
    "other_size": (("CONFIGS", "def sample(inputs, attributes):\n    return {'x': inputs['x'][:2]}\n\n\nCONFIGS"),
                   "sample gives a tensor [2, 3] for 'x', which is [3, 3]", "def sample"),
    "no_inputs": (("CONFIGS", "def sample(inputs, attributes):\n    inputs['x'].abs_()\n\n\nCONFIGS"),
                  "sample gives NoneType, not the inputs", "def sample"),
}  # fmt: skip


def test_what_ends_a_check_is_told_with_its_line_and_the_others_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop without end, in the kernel or the reference, is ended where it is; so is a crash of the process."""
    monkeypatch.setattr(checking, "PATIENCE", 6.0)
    files = {name: write(tmp_path, name, change) for name, (change, _, _) in ENDED.items()}
    files["right"] = write(tmp_path, "right")
    broken: list[PluginError] = []
    (found,) = check([read(file) for file in files.values()], broken=broken)
    assert (found.plugin, found.passed) == ("mine::right", True)
    for error, (name, (_, says, line)) in zip(broken, ENDED.items(), strict=True):
        assert f"plugin {name}: {says}" in str(error)
        assert str(error.where).startswith(f"{line_of(files[name], line).rpartition(':')[0]}:"), name
        near = int(str(error.where).removeprefix(f"{files[name]}:").split(":")[0])
        assert abs(near - int(line_of(files[name], line).rpartition(":")[2])) <= 1, name
        assert error.fix


def test_new_writes_a_plugin_that_passes_check(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    checked: dict[str, Checked],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.call(["plugin", "new", "gated", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": "plugins/gated.py", "plugin": "mine::gated"}
    found = checked["gated"].to_json()
    assert (tmp_path / "plugins" / "gated.py").read_text() == Path(found["file"]).read_text()
    assert found["passed"]
    assert found["cases"] > 20
    assert found["varying"] == ["...", "width"]
    assert found["unchecked"] == ["bfloat16"]


def test_a_kernel_that_differs_is_exit_1_with_its_cases(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = Case("float32; x [0]", 0.1, 0.5, ("'y' differs",))
    both = (Case("float32; x [1]", 0.1, 0.0, ()), wrong)
    found = Checked("aot::rotary", "rotary.py", "rotary.py:9", "cpu", both, 2, ("...",), ("head",), ())
    monkeypatch.setattr(checking, "check", lambda headers, told, device, broken: [found])
    assert cli.call(["plugin", "check", "rotary"]) == 1
    said = capsys.readouterr().out
    assert "aot::rotary on the interpreter: DIFFERENT in 1 of 2 cases" in said
    assert "float32; x [0]\n    'y' differs" in said
    assert cli.call(["plugin", "check", "rotary", "--json"]) == 1
    (one,) = json.loads(capsys.readouterr().out)["plugins"]
    assert one["failed"] == [{"case": "float32; x [0]", "failures": ["'y' differs"]}]


def test_list_names_own_and_built_in_plugins_without_running_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "triple", ("import math", "raise SystemExit"))
    monkeypatch.chdir(tmp_path)
    assert cli.call(["plugin", "list", "--json"]) == 0
    found = {one["plugin"]: one for one in json.loads(capsys.readouterr().out)["plugins"]}
    assert found["aot::add_rms_norm"]["builtin"]
    assert not found["mine::triple"]["builtin"]
    assert found["mine::triple"]["schema"] == "(Tensor x, float shift=0.0) -> Tensor y"
    assert found["mine::triple"]["about"] == "y = 3 x + shift."


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "tripel"], "unknown plugin 'tripel'"),
        (["new", "triple"], "there is a plugin 'triple' already"),
        (["new", "3ple"], "'3ple' cannot be the name of an op"),
        (["new", "more", "--domain", "aten"], "the domain 'aten' is taken"),
        (["compile", "triple", "--target", "sm75"], "not for sm75"),
        (["new", "rotary"], "'rotary' is a built-in plugin"),
        (["compile", "triple", "--size", "width"], "expected NAME=NUMBER"),
        (["compile", "triple", "--size", "widht=8"], "unknown size 'widht'"),
        (["compile", "triple", "--target", "sm89", "-o", "/proc/kernels"], "the kernels cannot be written"),
    ],
)
def test_what_a_user_can_put_right_is_exit_2(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.call(["plugin", *arguments]) == 2
    assert says in capsys.readouterr().err
