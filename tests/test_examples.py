"""The commands in the examples' READMEs, run as they stand there."""

from __future__ import annotations

import os
import re
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


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_the_commands_of_an_example_run(readme: Path, tmp_path: Path) -> None:
    """One folder and one store for all blocks of a README, since later ones build on earlier ones."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
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
