"""Packages of this environment in a folder of their own: those of an image, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path


def site(folder: Path, requirements: str) -> Path:
    """The packages that a requirements file names, as installed here, as hard links where the disk allows."""
    for name in sorted(set(re.findall(r"^([a-z0-9-]+)==", requirements, re.MULTILINE))):
        for file in metadata.files(name) or ():
            source = Path(str(file.locate()))
            if ".." in file.parts or not source.is_file():
                continue
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, target)
            except OSError:
                shutil.copyfile(source, target)
    return folder


def command(folder: Path, *arguments: str) -> list[str]:
    """A Python that sees the standard library and the folder, and neither site-packages nor the environment."""
    start = (
        f"import sys, runpy; sys.path[1:1] = [{str(folder)!r}]; sys.argv = sys.argv[1:];"
        "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-I", "-S", "-c", start, *arguments]


def code(folder: Path, text: str) -> list[str]:
    """The same for some lines of Python."""
    return [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[1:1] = [{str(folder)!r}]\n{text}"]
