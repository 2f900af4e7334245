"""What tuning keeps: buckets of sizes, merging, entries that no longer hold, and which config is best."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aot.errors import PluginError
from aot.plugins import tuned
from aot.plugins.header import Header, read
from aot.plugins.tuned import Entry
from tests.plugins.projects import write

CONFIGS = 'CONFIGS = [{"block": 16, "num_warps": 1}, {"block": 64, "num_warps": 2}]'
PLAIN = 'CONFIGS = [{"block": 16, "num_warps": 1}]'


@pytest.fixture
def header(tmp_path: Path) -> Header:
    return read(write(tmp_path, "triple", (PLAIN, CONFIGS)))


def block(config: Mapping[str, Any] | None) -> int | None:
    """What tells the configs apart."""
    return None if config is None else int(config["block"])


def entry(header: Header, rows: int, width: int, block: int, ms: float = 1.0) -> Entry:
    shapes = {"x": (rows, width)}
    return Entry(
        gpu="NVIDIA H200",
        target="sm90",
        dtypes=("float16",),
        bucket={name: size for name, size in tuned.bucket(header, shapes).items() if size is not None},
        config={"block": block, "num_warps": 1 if block == 16 else 2},
        ms=ms,
        tried=2,
        measured=200,
        shapes=shapes,
        source=tuned.source(header),
        date="2026-11-30",
        driver="580.159.04",
        triton="3.6.0",
    )


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1000, 768), {"...": 1024, "width": 1024}),
        ((4, 250, 1024), {"...": 1024, "width": 1024}),  # leading axes count together
        ((768,), {"...": 1, "width": 1024}),
        ((0, 1), {"...": 0, "width": 1}),
        ((None, 1025), {"...": None, "width": 2048}),
        ((3, None), {"...": 4, "width": None}),
    ],
)
def test_a_bucket_is_every_size_rounded_up_to_a_power_of_two(
    header: Header, shape: tuple[int | None, ...], expected: dict[str, int | None]
) -> None:
    assert tuned.bucket(header, {"x": shape}) == expected


def test_what_one_input_does_not_know_of_a_size_another_may(tmp_path: Path) -> None:
    both = read(Path(__file__).parents[2] / "plugins" / "add_rms_norm.py")
    shapes = {"x": (8, None), "residual": (8, None), "weight": (4000,)}
    assert tuned.bucket(both, shapes) == {"...": 8, "width": 4096}


def test_a_change_of_what_a_plugin_imports_makes_another_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the shared parts of kernels, and of those that these import; a plugin that imports none is its file alone."""
    plain = read(write(tmp_path / "plain"))
    assert tuned.source(plain) == hashlib.sha256(plain.file.read_bytes()).hexdigest()
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(tuned, "__file__", str(shared / "tuned.py"))
    for name, text in (("gemm", "import aot.plugins.rounding\n"), ("rounding", "x = 1\n"), ("norms", "")):
        (shared / f"{name}.py").write_text(text)
    header = read(write(tmp_path, "triple", ("import math", "import math\nfrom aot.plugins import gemm")))
    names = [file.name for file in tuned.written_in(header)]
    assert names == ["triple.py", "gemm.py", "rounding.py"]
    before = tuned.source(header)
    (shared / "norms.py").write_text("x = 2\n")
    assert tuned.source(header) == before
    (shared / "rounding.py").write_text("x = 2\n")
    assert tuned.source(header) != before


def test_the_best_config_is_that_of_the_bucket_target_and_dtypes(header: Header) -> None:
    plugins = header.file.parent
    tuned.write(header, plugins, [entry(header, 8, 64, 16), entry(header, 1000, 64, 64)])

    def best(rows: int | None, width: int, target: str = "sm90", dtype: str = "float16") -> int | None:
        return block(tuned.best(header, target, (dtype,), {"x": (rows, width)}))

    assert (best(8, 64), best(5, 33), best(1000, 64)) == (16, 16, 64)
    assert best(16, 64) is None  # a bucket that nobody measured
    assert best(8, 64, target="sm89") is None
    assert best(8, 64, dtype="float32") is None
    assert best(None, 64) is None  # one is best for few rows, another for many
    tuned.write(header, plugins, [entry(header, 1000, 64, 16)])
    assert best(None, 64) == 16
    tuned.write(header, plugins, [replace(entry(header, 2, 2, 64), config={"block": 128})])
    assert best(2, 2) == 128  # of a SPACE, not one of CONFIGS


def test_entries_of_this_gpu_count_before_those_of_another_with_the_same_target(header: Header) -> None:
    other = replace(entry(header, 8, 64, 64), gpu="NVIDIA H100")
    tuned.write(header, header.file.parent, [entry(header, 8, 64, 16), other])
    inputs = ("sm90", ("float16",), {"x": (8, 64)})
    assert block(tuned.best(header, *inputs, gpu="NVIDIA H100")) == 64
    assert block(tuned.best(header, *inputs, gpu="NVIDIA H200")) == 16
    assert tuned.best(header, *inputs) is None  # they do not agree


def test_a_changed_kernel_makes_entries_stale(header: Header) -> None:
    tuned.write(header, header.file.parent, [entry(header, 8, 64, 64)])
    header.file.write_text(header.file.read_text().replace("* 3.0", "* 3.5"))

    found, warnings = tuned.entries(header)

    assert found == []
    (said,) = warnings
    assert "1 of 1 entries" in said
    assert "of another version of triple.py" in said
    assert tuned.best(header, "sm90", ("float16",), {"x": (8, 64)}) is None
    file = tuned.write(header, header.file.parent, [entry(header, 2, 64, 16)])
    assert [one["bucket"]["..."] for one in json.loads(file.read_text())["entries"]] == [2]  # the stale one is gone


def test_the_projects_entries_take_the_place_of_those_that_were_shipped(header: Header, tmp_path: Path) -> None:
    project = tmp_path / "project"
    tuned.write(header, header.file.parent, [entry(header, 8, 64, 16), entry(header, 2, 64, 16)])
    file = tuned.write(header, project / "plugins", [entry(header, 8, 64, 64)])
    assert file == project / "plugins/tuned/triple.json"
    for rows, expected in ((8, 64), (2, 16)):
        found = tuned.best(header, "sm90", ("float16",), {"x": (rows, 64)}, project=project)
        assert block(found) == expected


def test_what_is_written_is_merged_ordered_and_whole(header: Header) -> None:
    plugins = header.file.parent
    one, two, three = (entry(header, rows, 64, 16, ms) for rows, ms in ((64, 1.0), (8, 2.0), (64, 3.0)))
    file = tuned.write(header, plugins, [replace(one, expanded_ms=4.0)])
    tuned.write(header, plugins, [two])
    tuned.write(header, plugins, [three])

    assert tuned.read(file) == [two, replace(three, expanded_ms=4.0)]
    assert [path.name for path in file.parent.iterdir()] == ["triple.json"]
    text = file.read_text()
    tuned.write(header, plugins, [two, replace(three, expanded_ms=4.0)])
    assert file.read_text() == text


def test_a_kernel_wins_where_it_is_faster_than_its_function_in_an_engine(header: Header) -> None:
    def wins(rows: int | None) -> bool | None:
        return tuned.wins(header, "sm90", ("float16",), {"x": (rows, 64)})

    found = [entry(header, rows, 64, 16, ms=1.0) for rows in (2, 8, 64)]
    expanded = [replace(one, expanded_ms=ms) for one, ms in zip(found, (1.5, 0.9, None), strict=True)]
    tuned.write(header, header.file.parent, expanded)
    assert (wins(2), wins(8), wins(64), wins(4)) == (True, False, None, None)
    assert wins(None) is None


def test_a_damaged_file_is_named_with_what_to_do(header: Header) -> None:
    file = tuned.write(header, header.file.parent, [entry(header, 8, 64, 16)])
    file.write_text(file.read_text()[:-20])
    with pytest.raises(PluginError, match="cannot be read") as raised:
        tuned.entries(header)
    assert raised.value.where == str(file)
    assert "aot plugin tune triple" in str(raised.value.fix)
