"""Broken plugins: each gives one message that names the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.errors import PluginError
from aot.plugins.header import read
from aot.plugins.loading import load
from tests.plugins.projects import TRIPLE, line_of, write


@pytest.mark.parametrize(
    ("old", "new", "says", "at"),
    [
        ("def reference", "def truth", "has no reference", '"""y = 3 x'),
        ("CONFIGS = ", "CONFIG = ", "has no CONFIGS", '"""y = 3 x'),
        ('"mine::triple"', '"mine::double"', "the op is 'double' and the file 'triple.py'", "NAME ="),
        ('"mine::triple"', '"triple"', "'triple' is not DOMAIN::OP", "NAME ="),
        ('"mine::triple"', '"aten::triple"', "the domain 'aten' is taken", "NAME ="),
        ('"mine::triple"', '"mine::" + "triple"', "NAME is not a literal str", "NAME ="),
        ("-> (T y)", "", "SCHEMA is not of the form", "SCHEMA ="),
        ("(T x, float", "(T x, double", "'double shift=0.0' is not KIND NAME", "SCHEMA ="),
        ("-> (T y)", "-> (S y)", "'S y' is not KIND NAME", "SCHEMA ="),
        ("(T x, float shift=0.0)", "(T x, float x=0.0)", "'x' occurs twice", "SCHEMA ="),
        ("float shift=0.0", "int shift=0.5", "the default of 'shift' is not int", "SCHEMA ="),
        ('"float32 float16"', '"float32 half"', "T names 'half', which is no dtype", "TYPES ="),
        ('{"x": "... width"}', '{"y": "... width"}', "it names y, and the inputs are x", "SHAPES ="),
        ('{"x": "... width"}', '{"x": "width ..."}', "'width ...' of 'x' cannot be read", "SHAPES ="),
        ("float shift=0.0", "float shift", "'shift' has no default", "SCHEMA ="),
        (
            "CONFIGS =",
            'ATTRIBUTES = {"shift": ["much"]}\nCONFIGS =',
            "'shift' is 'much', and SCHEMA says float",
            "ATTR",
        ),
        ("CONFIGS =", 'CASES = [{"...": 3, "width": 4}]\nCONFIGS =', "the size '...' is 3", "CASES ="),
        ("CONFIGS =", 'CASES = [{"...": (), "width": "4"}]\nCONFIGS =', "the size 'width' is '4'", "CASES ="),
    ],
)
def test_what_is_declared_wrongly_is_told_without_running_the_file(
    old: str, new: str, says: str, at: str, tmp_path: Path
) -> None:
    file = write(tmp_path, "triple", (old, new), text="raise SystemExit\n" + TRIPLE)
    with pytest.raises(PluginError) as caught:
        read(file)
    assert says in str(caught.value)
    expected = f"{file}:1" if at.startswith('"""') else line_of(file, at)
    assert caught.value.where == expected


def test_a_syntax_error_is_told_with_its_line(tmp_path: Path) -> None:
    file = write(tmp_path, "triple", ("return (shapes.x,)", "return (shapes.x,"))
    with pytest.raises(PluginError, match="SyntaxError") as caught:
        read(file)
    assert str(caught.value.where).startswith(f"{line_of(file, 'return (shapes.x,')}: ")


@pytest.mark.parametrize(
    ("old", "new", "says", "at"),
    [
        ("import math", "import maths", "No module named 'maths'", "import maths"),
        ("@triton.jit\n", "", "kernel is no Triton kernel", "def kernel"),
        ("kernel(x, count, y,", "kernel(x, y, count,", "the kernel takes x, y, count, SHIFT, BLOCK", "def kernel"),
        ("kernel(x, count, y,", "kernel(z, count, y,", "the kernel takes z, count, y, SHIFT, BLOCK", "def kernel"),
        ('"num_warps": 1', '"num_ctas": 2', "TensorRT launches no clusters", "CONFIGS ="),
        ('"num_warps": 1', '"num_warps": 3', "CONFIGS sets num_warps to 3", "CONFIGS ="),
        ('"num_warps": 1', '"num_warps": "1"', "CONFIGS sets num_warps to '1'", "CONFIGS ="),
        ('"num_warps": 1', '"num_stages": 0', "CONFIGS sets num_stages to 0", "CONFIGS ="),
        ("CONFIGS = [", "CONFIGS = []  # [", "CONFIGS is not a list of dicts", "CONFIGS ="),
    ],
)
def test_what_only_running_the_file_tells(old: str, new: str, says: str, at: str, tmp_path: Path) -> None:
    file = write(tmp_path, "triple", (old, new))
    expected = line_of(file, at)
    with pytest.raises(PluginError) as caught:
        load(file)
    assert says in str(caught.value)
    assert str(caught.value.where).partition(": ")[0] == expected


@pytest.mark.parametrize(
    ("old", "new", "says", "at"),
    [
        ("return (shapes.x,)", "return (shapes.x, shapes.x)", "outputs gives 2 shapes, and SCHEMA 1: y", "def outputs"),
        ("return (shapes.x,)", "return (shapes.z,)", "there is no input 'z', there are: x", "shapes.z"),
    ],
)
def test_outputs_gives_one_shape_for_each_output(old: str, new: str, says: str, at: str, tmp_path: Path) -> None:
    file = write(tmp_path, "triple", (old, new))
    with pytest.raises(PluginError) as caught:
        load(file).outputs({"x": (2, 3)}, {"shift": 0.0})
    assert says in str(caught.value)
    assert str(caught.value.where).partition(": ")[0] == line_of(file, at)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('scalars={"count": count}', 'scalars={"counts": count}', "the scalars counts; the kernel takes count"),
        ('"SHIFT": attributes.shift, ', "", "the constants BLOCK; the kernel takes SHIFT, BLOCK"),
        ('grid=(ceil_div(count, config["block"]),)', "grid=(1.5,)", "1.5 is not a size"),
        ("count = math.prod(shapes.x)", "count = fixd(shapes.x)", "NameError: name 'fixd' is not defined"),
        ("    return Launch(", "    return None\n    Launch(", "gives None, not a Launch"),
    ],
)
def test_launch_gives_what_the_kernel_takes(old: str, new: str, says: str, tmp_path: Path) -> None:
    file = write(tmp_path, "triple", (old, new))
    plugin = load(file)
    with pytest.raises(PluginError) as caught:
        plugin.launch({"x": (2, 3)}, {"shift": 0.0}, plugin.configs[0])
    assert says in str(caught.value)
    assert str(caught.value.where).startswith(f"{file}:")


def test_in_a_model_the_call_and_the_plugins_line_are_both_told(tmp_path: Path) -> None:
    """What is wrong is the plugin's, or what it is called with; no word of inputs= then."""
    from aot.frontend.failures import own

    file = write(tmp_path, "triple", ("return (shapes.x,)", "return shapes.x"))
    try:
        load(file).outputs({"x": (4, 3)}, {"shift": 0.0})
    except PluginError as error:
        found = own(error, {"x": [4, 3]})
    assert found.what == f"plugin triple: outputs gives 2 shapes, and SCHEMA 1: y, at {line_of(file, 'def outputs')}"
    assert found.fix == "return a tuple of shapes, one for each of them: (shapes.x, ...)"
    assert found.line is not None


def test_a_changed_file_is_loaded_again(tmp_path: Path) -> None:
    file = write(tmp_path)
    first = load(file)
    assert load(file) is first
    write(tmp_path, "triple", ("shift=0.0", "shift=1.0"))
    assert load(file).schema.attributes[0].default == 1.0
