"""`open_source`: which forms of MODEL there are, and what is said about one that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.errors import AotError, DeclarationError, ProfileError, UsageError
from tests.sources.projects import LINEAR, Bench, write

TWO = """
    import aot, torch

    @aot.model(inputs={"x": aot.Input([2, 3])})
    def encoder():
        return torch.nn.Linear(3, 2)

    @aot.model(inputs={"x": aot.Input([2, 3])})
    def decoder():
        return torch.nn.Linear(3, 5)

    alias = encoder
    width = 3
"""


def refused(bench: Bench, kind: type[AotError], model: object, **settings: object) -> str:
    with pytest.raises(kind) as caught:
        bench.open(model, **settings)
    return str(caught.value)


def test_a_file_with_one_model_needs_no_name(bench: Bench, tmp_path: Path) -> None:
    source = bench.open(write(tmp_path / "model.py", LINEAR))
    assert source.spec.name == "linear"
    assert source.spec.dims["batch"].bounds == (1, 4, 8)
    assert source.project == tmp_path


def test_a_name_chooses_among_several(bench: Bench, tmp_path: Path) -> None:
    model = write(tmp_path / "model.py", TWO)
    assert bench.open(f"{model}:decoder").spec.name == "decoder"
    said = refused(bench, DeclarationError, model)
    assert "encoder, decoder" in said
    assert "model.py:encoder, model.py:decoder" in said


def test_a_missing_name_is_answered_with_the_nearest(bench: Bench, tmp_path: Path) -> None:
    said = refused(bench, DeclarationError, f"{write(tmp_path / 'model.py', TWO)}:encodr")
    assert "did you mean 'encoder'?" in said


def test_an_attribute_that_is_no_model_says_what_it_is(bench: Bench, tmp_path: Path) -> None:
    said = refused(bench, DeclarationError, f"{write(tmp_path / 'model.py', TWO)}:width")
    assert "'width' is a int, not a declared model" in said
    assert "@aot.model" in said


def test_a_file_without_a_model(bench: Bench, tmp_path: Path) -> None:
    said = refused(bench, DeclarationError, write(tmp_path / "model.py", "x = 1"))
    assert "no model is declared" in said
    assert "@aot.model" in said


def test_a_module_and_attribute(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "package/__init__.py", "")
    write(tmp_path / "package/models.py", TWO)
    monkeypatch.chdir(tmp_path)
    assert bench.open("package.models:decoder").spec.name == "decoder"
    assert "no module named 'package.model'" in refused(bench, UsageError, "package.model:decoder")


def test_an_import_that_fails_inside_a_module_is_not_called_a_missing_module(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "broken.py", "import nowhere_to_be_found")
    monkeypatch.chdir(tmp_path)
    said = refused(bench, DeclarationError, "broken:model")
    assert "No module named 'nowhere_to_be_found'" in said
    assert "broken.py:1: import nowhere_to_be_found" in said


@pytest.mark.parametrize("name", ["model.txt", "nothing", "model.py:a b"])
def test_a_form_that_is_none_names_those_that_are(bench: Bench, name: str) -> None:
    said = refused(bench, UsageError, name)
    assert name.partition(":")[0] in said


def test_weights_alone_are_no_model(bench: Bench, tmp_path: Path) -> None:
    assert "weights alone" in refused(bench, UsageError, tmp_path / "weights.safetensors")


def test_a_forgotten_suffix(bench: Bench, tmp_path: Path) -> None:
    write(tmp_path / "model.py", LINEAR)
    assert f"did you mean '{tmp_path / 'model.py'}'?" in refused(bench, UsageError, tmp_path / "model")


def test_a_missing_file_names_the_nearest(bench: Bench, tmp_path: Path) -> None:
    write(tmp_path / "model.py", LINEAR)
    said = refused(bench, UsageError, tmp_path / "modl.py")
    assert "no such file" in said
    assert "model.py" in said
    assert "no such folder" in refused(bench, UsageError, tmp_path / "away/model.py")


def test_a_name_that_is_not_near_is_not_suggested(bench: Bench, tmp_path: Path) -> None:
    write(tmp_path / "ex.py", LINEAR)
    assert "did you mean" not in refused(bench, UsageError, tmp_path / "nope.py")


def test_a_folder_called_like_a_file(bench: Bench, tmp_path: Path) -> None:
    for name in ("dir.py", "dir.onnx", "dir.pt2"):
        (tmp_path / name).mkdir()
        said = refused(bench, UsageError, tmp_path / name)
        assert "is a folder, not a file" in said
        assert "did you mean" not in said


def test_nothing(bench: Bench) -> None:
    assert "MODEL is empty" in refused(bench, UsageError, "")


@pytest.mark.parametrize("name", ["model.aot", "model.tar"])
def test_an_artifact_that_is_not_there(bench: Bench, tmp_path: Path, name: str) -> None:
    assert f"no such artifact: {tmp_path / name}" in refused(bench, UsageError, tmp_path / name)


def test_a_file_with_nul_bytes(bench: Bench, tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_bytes(b"x = 1\ny = \0\n")
    said = refused(bench, DeclarationError, model)
    assert "NUL bytes" in said
    assert f"at:  {model}:2\n" in said


def test_a_file_that_is_not_utf8(bench: Bench, tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_bytes(b"x = 1\ny = '\xe9'\n")
    assert f"at:  {model}:" in refused(bench, DeclarationError, model)


@pytest.mark.parametrize("shape", ["10**10, 16", "dim, 16"])
def test_an_input_beyond_the_limit_is_refused_before_it_is_made(bench: Bench, tmp_path: Path, shape: str) -> None:
    text = LINEAR.replace("batch, 3", shape).replace("batch =", 'dim = aot.Dim("dim", min=1, max=10**12)\n    batch =')
    said = refused(bench, DeclarationError, write(tmp_path / "model.py", text))
    assert "input 'input' takes " in said
    assert "640,000,000,000 bytes" in said or "32,000,000,000,000 bytes at the optimum (dim=500000000000)" in said


def test_a_syntax_error_points_at_its_line(bench: Bench, tmp_path: Path) -> None:
    model = write(tmp_path / "model.py", "x = 1\ndef broken(:\n    pass\n")
    said = refused(bench, DeclarationError, model)
    assert f"{model}:2: def broken(:" in said


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        ("    return torch.nn.Linear(3, -2)", "return torch.nn.Linear(3, -2)", "negative dimension -2"),
        ("    raise SystemExit(3)", "raise SystemExit(3)", "SystemExit: 3"),
        ("    return {}['weights']", "return {}['weights']", "KeyError: 'weights'"),
    ],
)
def test_what_building_raises_is_shown_at_the_deepest_own_line(
    bench: Bench, tmp_path: Path, body: str, line: str, message: str
) -> None:
    declaration = 'import aot, torch\n\n@aot.model(inputs={"x": aot.Input([2, 3])})\ndef model():\n'
    model = tmp_path / "model.py"
    model.write_text(f"{declaration}{body}\n")
    said = refused(bench, DeclarationError, model)
    assert message in said
    assert f"{model}:5 in model: {line}" in said
    assert "site-packages" not in said


def test_a_wrong_declaration_keeps_its_message_and_gains_the_line(bench: Bench, tmp_path: Path) -> None:
    model = write(tmp_path / "model.py", 'import aot\n\nbatch = aot.Dim("batch", min=4, opt=2, max=8)\n')
    said = refused(bench, DeclarationError, model)
    assert "need 0 <= min <= opt <= max" in said
    assert f"{model}:3" in said


def test_a_builder_that_returns_no_module(bench: Bench, tmp_path: Path) -> None:
    text = 'import aot\n@aot.model(inputs={"x": aot.Input([2])})\ndef model():\n    return 3\n'
    said = refused(bench, DeclarationError, write(tmp_path / "model.py", text))
    assert "'model' returns a int, not a torch.nn.Module" in said


def test_a_stem_that_is_a_module_of_the_standard_library(bench: Bench, tmp_path: Path) -> None:
    import types

    assert bench.open(write(tmp_path / "types.py", LINEAR)).spec.name == "linear"
    assert __import__("types") is types


def test_files_that_are_declared_must_exist(bench: Bench, tmp_path: Path) -> None:
    text = LINEAR.replace('outputs=["y"]', 'files=["missing.bin"]')
    assert "missing.bin" in refused(bench, DeclarationError, write(tmp_path / "model.py", text))


class TestDims:
    def test_narrow_the_declared_range(self, bench: Bench, tmp_path: Path) -> None:
        model = write(tmp_path / "model.py", LINEAR)
        wide = bench.open(model)
        narrow = bench.open(model, dims={"batch": (1, 2, 4)})
        assert narrow.spec.dims["batch"].bounds == (1, 2, 4)
        assert narrow.key != wide.key

    def test_may_not_leave_it(self, bench: Bench, tmp_path: Path) -> None:
        said = refused(bench, UsageError, write(tmp_path / "model.py", LINEAR), dims={"batch": (1, 4, 16)})
        assert "batch=1:4:16 leaves the declared range 1..8" in said

    def test_must_be_in_order(self, bench: Bench, tmp_path: Path) -> None:
        refused(bench, ProfileError, write(tmp_path / "model.py", LINEAR), dims={"batch": (4, 2, 8)})

    def test_must_exist(self, bench: Bench, tmp_path: Path) -> None:
        said = refused(bench, UsageError, write(tmp_path / "model.py", LINEAR), dims={"bach": (1, 2, 4)})
        assert "did you mean 'batch'?" in said


def test_a_package_that_the_model_lacks_is_named_with_what_to_do(bench: Bench, tmp_path: Path) -> None:
    said = refused(bench, DeclarationError, write(tmp_path / "model.py", "import no_such_package.part"))
    assert "model.py:1: import no_such_package.part" in said
    assert "fix: install no_such_package, or correct the name" in said
