"""What makes a declaration's keys change, and what an unchanged one does without."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from aot.errors import CalibrationError, DeclarationError
from tests.sources.projects import LINEAR, Bench, forget, write

PROJECT = """
    import aot, torch
    import numpy as np
    from pathlib import Path
    import layers

    HERE = Path(__file__).parent
    batch = aot.Dim("batch", min=1, opt=4, max=8)

    @aot.model(inputs={"input": aot.Input([batch, 3])}, outputs=["y"])
    def linear():
        made = layers.make()
        made.weight.data = torch.from_numpy(np.load(HERE / "weights.npy"))
        return made

    @linear.calibration
    def batches():
        for x in np.load(HERE / "samples.npy"):
            yield {"input": torch.from_numpy(x)}

    @linear.metric
    def agreement(run):
        truth = np.load(HERE / "truth.npy")
        return -float(np.abs(run(input=torch.zeros(1, 3))["y"] - truth).max())
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    write(folder / "layers.py", "import torch\n\ndef make():\n    return torch.nn.Linear(3, 2)\n")
    np.save(folder / "weights.npy", np.ones((2, 3), np.float32))
    np.save(folder / "samples.npy", np.ones((3, 2, 3), np.float32))
    np.save(folder / "truth.npy", np.zeros((1, 2), np.float32))
    return write(folder / "model.py", PROJECT)


def keys(bench: Bench, model: Path) -> tuple[str, str]:
    source = bench.open(model)
    return source.key, source.data_key()


def test_an_unchanged_declaration_is_not_loaded_again(bench: Bench, model: Path) -> None:
    first = keys(bench, model)
    assert bench.loaded
    forget("layers", "model")
    assert keys(bench, model) == first
    assert not bench.loaded
    assert "layers" not in __import__("sys").modules


def test_inputs_keep_their_order_when_a_declaration_is_remembered(bench: Bench, tmp_path: Path) -> None:
    model = write(
        tmp_path / "ordered" / "model.py",
        """
        import aot, torch

        class Sum(torch.nn.Module):
            def forward(self, x, b, a):
                return x + b + a

        batch = aot.Dim("batch", min=1, opt=4, max=8)

        @aot.model(inputs={name: aot.Input([batch, 3]) for name in ("x", "b", "a")})
        def total():
            return Sum()
        """,
    )
    first = list(bench.open(model).spec.inputs)
    forget("model")
    assert list(bench.open(model).spec.inputs) == first == ["x", "b", "a"]
    assert not bench.loaded


def test_fresh_loads_it_again(bench: Bench, model: Path) -> None:
    bench.open(model)
    bench.open(model, fresh=True)
    assert bench.loaded


def test_a_touched_file_is_recognised_by_its_digest(bench: Bench, model: Path) -> None:
    first = keys(bench, model)
    os.utime(model.parent / "weights.npy", ns=(1, 1))
    assert keys(bench, model) == first
    assert not bench.loaded


@pytest.mark.parametrize("name", ["model.py", "layers.py", "weights.npy"])
def test_what_the_model_is_made_of_changes_its_key_only(bench: Bench, model: Path, name: str) -> None:
    before = keys(bench, model)
    path = model.parent / name
    if name.endswith(".py"):
        path.write_text(path.read_text() + "\n# another line\n")
    else:
        np.save(path, np.zeros((2, 3), np.float32))
    after = keys(bench, model)
    assert bench.loaded
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_going_back_loads_nothing(bench: Bench, model: Path) -> None:
    first = keys(bench, model)
    text = model.read_text()
    model.write_text(text + "# edited\n")
    second = keys(bench, model)
    model.write_text(text)
    assert keys(bench, model) == first
    assert not bench.loaded
    model.write_text(text + "# edited\n")
    assert keys(bench, model) == second
    assert not bench.loaded


def test_weights_replaced_by_others_of_the_same_size_and_time(bench: Bench, model: Path) -> None:
    before = keys(bench, model)
    path = model.parent / "weights.npy"
    stat = path.stat()
    np.save(path, np.zeros((2, 3), np.float32))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert keys(bench, model)[0] != before[0]


def test_calibration_data_change_the_data_key_only(bench: Bench, model: Path) -> None:
    before = keys(bench, model)
    np.save(model.parent / "samples.npy", np.zeros((3, 2, 3), np.float32))
    after = keys(bench, model)
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_equal_data_from_another_file_keep_the_data_key(bench: Bench, model: Path) -> None:
    before = keys(bench, model)
    model.write_text(model.read_text().replace("samples.npy", "copy.npy"))
    np.save(model.parent / "copy.npy", np.ones((3, 2, 3), np.float32))
    assert keys(bench, model)[1] == before[1]


def test_what_the_metric_read_changes_the_score_key_only(bench: Bench, model: Path) -> None:
    source = bench.open(model)
    assert source.score_key() == ""
    score = source.score(source.eager())
    before = keys(bench, model)
    assert score is not None
    assert score < 0
    assert bench.open(model).score_key() == ""
    np.save(model.parent / "truth.npy", np.ones((1, 2), np.float32))
    again = bench.open(model)
    assert again.score_key() != ""
    assert bench.open(model).score_key() == again.score_key()
    assert (again.key, again.data_key()) == before


def test_a_vanished_file_is_a_change(bench: Bench, model: Path) -> None:
    bench.open(model)
    (model.parent / "weights.npy").unlink()
    with pytest.raises(DeclarationError, match="No such file"):
        bench.open(model)


def test_the_same_project_elsewhere_has_the_same_key(bench: Bench, model: Path, tmp_path: Path) -> None:
    here = bench.open(model).key
    model.parent.rename(tmp_path / "moved")
    assert bench.open(tmp_path / "moved/model.py").key == here


def test_helpers_of_two_projects_are_kept_apart(bench: Bench, tmp_path: Path) -> None:
    for name, width in (("a", 2), ("b", 5)):
        write(tmp_path / name / "helper.py", f"WIDTH = {width}\n")
        text = LINEAR.replace("import aot, torch", "import aot, torch, helper").replace("(3, 2)", "(3, helper.WIDTH)")
        source = bench.open(write(tmp_path / name / "model.py", text))
        assert source.eager()({"input": np.zeros((1, 3), np.float32)})["y"].shape == (1, width)


def test_random_weights_are_the_same_in_every_run(bench: Bench, tmp_path: Path) -> None:
    model = write(tmp_path / "model.py", LINEAR)
    x = {"input": np.ones((1, 3), np.float32)}
    first, second = (bench.open(model, fresh=True).eager()(x)["y"] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_an_installed_package_counts_by_its_version(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "venv/site-packages"
    monkeypatch.syspath_prepend(str(site))

    def install(version: str) -> None:
        write(site / "widgets.py", "WIDTH = 2\n")
        write(site / "widgets-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: widgets\nVersion: {version}\n")
        write(site / "widgets-1.dist-info/RECORD", "widgets.py,,\nwidgets-1.dist-info/METADATA,,\n")

    install("1.0")
    model = write(tmp_path / "project/model.py", LINEAR.replace("import aot, torch", "import aot, torch, widgets"))
    first = bench.open(model).key
    assert bench.open(model).key == first
    assert not bench.loaded
    install("1.1")
    assert bench.open(model).key != first
    assert bench.loaded


class TestBatches:
    def given(self, bench: Bench, tmp_path: Path, batches: str) -> list[dict[str, np.ndarray]]:
        text = (
            LINEAR
            + f"""
    @linear.calibration
    def batches():
        {batches}
"""
        )
        source = bench.open(write(tmp_path / "model.py", text))
        source.data_key()
        found = source.batches()
        assert found is not None
        return list(found)

    def test_tensors_and_arrays_are_the_same(self, bench: Bench, tmp_path: Path) -> None:
        import_numpy = "import numpy as np; "
        (one,) = self.given(bench, tmp_path, "yield {'input': torch.ones(2, 3)}")
        (two,) = self.given(bench, tmp_path, import_numpy + "yield {'input': np.ones((2, 3), 'float32')}")
        np.testing.assert_array_equal(one["input"], two["input"])

    @pytest.mark.parametrize(
        ("batches", "words"),
        [
            ("return iter(())", ["hold no batch", "batches()"]),
            ("yield torch.ones(2, 3)", ["batch 0", "not a Tensor"]),
            ("return None", ["batches() returned None, not batches", "model.py:", "yield {'input': ...}"]),
            ("return 3", ["batches() returned a int, not batches"]),
            ("yield {'input': 'hello'}", ["expected a tensor of float32, got a str ('hello')"]),
            ("yield {'input': None}", ["expected a tensor of float32, got a NoneType", "yield a torch tensor"]),
            ("yield {'input': [[1.0], [1.0, 2.0]]}", ["expected a tensor of float32, got a list"]),
            ("yield {'input': torch.ones(2, 3) * 1j}", ["got a Tensor of complex64"]),
            ("yield {'y': torch.ones(2, 3)}", ["lacks input"]),
            ("yield {'input': torch.ones(2, 3), 'y': 1}", ["unknown y"]),
            ("yield {'input': torch.ones(2, 3).double()}", ["input 'input'", "expected float32, got float64"]),
            ("yield {'input': torch.ones(3)}", ["expected shape [batch, 3], got [3]", "give it 2 axes"]),
            ("yield {'input': torch.ones(2, 4)}", ["axis 1 has size 4, expected 3", "give it with 3 there"]),
            ("yield {'input': torch.ones(9, 3)}", ["axis 0 has size 9, outside Dim 'batch' (1..8)"]),
            (
                "yield {'input': torch.ones(2, 3)}; yield {'input': torch.full((2, 3), float('nan'))}",
                ["batch 1", "6 of 6"],
            ),
        ],
    )
    def test_wrong_ones_are_refused(self, bench: Bench, tmp_path: Path, batches: str, words: list[str]) -> None:
        with pytest.raises(CalibrationError) as caught:
            self.given(bench, tmp_path, batches)
        for word in words:
            assert word in str(caught.value)

    def test_what_the_generator_raises_is_shown_at_its_line(self, bench: Bench, tmp_path: Path) -> None:
        with pytest.raises(DeclarationError, match=r"running batches\(\): ValueError: no data") as caught:
            self.given(bench, tmp_path, "raise ValueError('no data')")
        assert "in batches: raise ValueError" in str(caught.value)

    def test_none_are_given_where_none_are_declared(self, bench: Bench, tmp_path: Path) -> None:
        assert bench.open(write(tmp_path / "model.py", LINEAR)).batches() is None


def test_a_metric_that_returns_no_number(bench: Bench, tmp_path: Path) -> None:
    text = LINEAR + "\n    @linear.metric\n    def score(run):\n        return 'good'\n"
    source = bench.open(write(tmp_path / "model.py", text))
    with pytest.raises(DeclarationError, match="'good', not a number"):
        source.score(source.eager())
