"""The commands in the examples' READMEs, run as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(readme: Path) -> list[str]:
    return BLOCK.findall(readme.read_text())


READMES = sorted((ROOT / "examples").glob("*/README.md"))


def test_every_example_shows_commands() -> None:
    assert {readme.parent.name for readme in READMES} == {p.parent.name for p in ROOT.glob("examples/*/model.py")}
    assert all(blocks(readme) for readme in READMES)


# What of model.py is changed, and into what: sizes up to those of profiles/verify.yaml, a part of the data.
SMALL = {
    "minilm": [
        ("max=64", "max=17"),
        ("max=512", "max=128"),
        ("    Random(0)", "    del sentences[60:]\n    Random(0)"),
    ],
    "mobilenet": [("max=32", "max=17"), ("in PICTURES:", "in PICTURES[::3]:")],
}


def copied(example: str, folder: Path, *, small: bool) -> None:
    """`examples/NAME` in the folder."""
    there = folder / "examples" / example
    shutil.copytree(ROOT / "examples" / example, there, ignore=shutil.ignore_patterns("__pycache__"))
    text = (there / "model.py").read_text()
    for old, new in SMALL[example] if small else ():
        assert old in text, old
        text = text.replace(old, new)
    (there / "model.py").write_text(text)


@pytest.mark.parametrize("small", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["small", "whole"])
@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_the_commands_of_an_example_run(readme: Path, tmp_path: Path, small: bool) -> None:
    """One folder and one store for all blocks of a README, since later ones build on earlier ones."""
    copied(readme.parent.name, tmp_path, small=small)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / "store"),
    }
    for block in blocks(readme):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    assert list(tmp_path.glob("*.aot")), "no example made an artifact"
