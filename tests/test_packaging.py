"""The wheel holds exactly what we mean to ship, and works from a folder that is not the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.e2e.harness import DIM, MAIN, write_mlp_onnx

CONTENT = ("calib", "profiles", "plugins")


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(root)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's contents; its dependencies come from this environment."""
    site = tmp_path_factory.mktemp("site")
    pip = ["uv", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, "-m", *pip], check=True, capture_output=True)
    return site


def shipped_files(root: Path) -> set[str]:
    code = {
        p.relative_to(root) for kind in ("py", "pyi", "proto", "lock", "txt") for p in (root / "aot").rglob(f"*.{kind}")
    }
    code.add(Path("aot/py.typed"))
    content = {
        Path("aot/_content") / p.relative_to(root) for kind in CONTENT for p in (root / kind).rglob("*") if p.is_file()
    }
    return {str(path) for path in code | content if "__pycache__" not in path.parts}


def test_the_wheel_holds_the_code_the_content_and_nothing_else(wheel: Path, root: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    metadata = {name for name in names if ".dist-info/" in name}
    assert names - metadata == shipped_files(root)
    assert {name.partition("/")[2] for name in metadata} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }


def test_every_precision_has_its_recipe_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    recipes = {f"aot/_content/calib/{precision}.yaml" for precision in ("fp32", "fp16", "bf16", "int8", "fp8")}
    assert recipes | {"aot/_content/profiles/default.yaml", "aot/_content/plugins/README.md"} <= names


def test_the_version_is_the_one_that_the_package_says(wheel: Path, root: Path) -> None:
    import aot

    assert wheel.name == f"aot_engine-{aot.__version__}-py3-none-any.whl"
    assert f"## {aot.__version__}" in (root / "CHANGELOG.md").read_text()


def test_the_installed_wheel_builds_outside_of_the_repository(installed: Path, tmp_path: Path) -> None:
    write_mlp_onnx(tmp_path / "mlp.onnx")
    environment = {**os.environ, "PYTHONPATH": str(installed), "XDG_CACHE_HOME": str(tmp_path / "store")}
    where = "import aot.content, sys; print(aot.content.BUILTIN, file=sys.stderr)"
    build = ["build", "mlp.onnx", *DIM, "--precision", "int8", "--backend", "onnxruntime", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", f"{where}\n{MAIN}", *build],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(installed / "aot/_content") in done.stderr
    summary = json.loads(done.stdout)
    assert summary["accepted"]
    assert summary["quantized"]["ops"] == 2
    assert (tmp_path / summary["artifact"] / "manifest.json").is_file()


def test_the_command_is_installed(installed: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, installed / "bin/aot", "--version"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "0.1.0" in done.stdout
