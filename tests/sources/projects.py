"""Small model files for the tests, and a way to open them."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

from aot.config import Request
from aot.progress import Silent
from aot.run import Run
from aot.source import Source, open_source
from aot.store import Store

LINEAR = """
    import aot, torch
    from pathlib import Path

    batch = aot.Dim("batch", min=1, opt=4, max=8)

    @aot.model(inputs={"input": aot.Input([batch, 3])}, outputs=["y"])
    def linear():
        return torch.nn.Linear(3, 2)
"""


def write(path: Path, text: str) -> Path:
    """Write indented text to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip())
    return path


class Bench:
    """Opens sources with one store; `run` keeps the times and the warnings."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root)
        self.run = self._run()

    def _run(self) -> Run:
        return Run(self.store, Silent())

    def open(self, model: object, **settings: Any) -> Source:
        """Open as `aot build MODEL` does, as if in a new process where only torch was imported before."""
        self.run = self._run()
        return open_source(Request(model=str(model), **settings), self.run)

    @property
    def loaded(self) -> bool:
        """Whether the last `open` had to load the model."""
        return not self.run.times[0].cached

    @property
    def warnings(self) -> list[str]:
        """What the last run warned of."""
        assert isinstance(self.run.progress, Silent)
        return self.run.progress.warnings


def forget(*names: str) -> None:
    """Drop modules, as a new process would."""
    for name in list(sys.modules):
        if name.partition(".")[0] in names:
            del sys.modules[name]
