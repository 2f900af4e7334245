"""Killed at any instant, packing and unpacking leave what was there or what was to be there; two at once do not mix."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aot.artifact_write import sweep
from aot.errors import UsageError
from aot.packing import oci, tar
from aot.packing.verify import verify
from tests.packing.artifacts import artifact

FOREVER = """
import sys
from itertools import cycle
from pathlib import Path
from aot.packing import oci, tar
from aot.packing.unpack import unpack
form, target, *sources = sys.argv[1:]
write = {"oci": oci.write, "tar": tar.write, "unpack": unpack}
print("ready", flush=True)
for source in cycle(sources):
    write[form](source if form == "unpack" else Path(source), Path(target), overwrite=True)
"""


@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", ["oci", "tar", "unpack"])
def test_killed_at_any_instant_one_of_the_two_is_there(tmp_path: Path, root: Path, form: str, kills: int) -> None:
    sources = [artifact(tmp_path / f"{size}.aot", {"sm90": b"p" * size}) for size in (1_000_000, 3_000_000)]
    if form == "unpack":
        for source in sources:
            tar.write(source, source.with_suffix(".tar"))
        sources = [source.with_suffix(".tar") for source in sources]
    target, chance = tmp_path / "there/target", random.Random(0)
    for _ in range(kills):
        command = [sys.executable, "-c", FOREVER, form, str(target), *map(str, sources)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            while not target.exists() and process.poll() is None:  # so that there is something to keep
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.05))
            process.kill()
        sweep(target)
        assert verify(str(target)).problems == ()
        assert [path.name for path in target.parent.iterdir()] == ["target"]


@pytest.mark.parametrize("writer", [oci.write, tar.write])
def test_of_two_at_once_one_writes_and_the_other_is_told(tmp_path: Path, writer: Callable[..., object]) -> None:
    tiny, start, said = artifact(tmp_path / "tiny.aot", {"sm90": b"p" * 1_000_000}), threading.Barrier(2), list[str]()

    def write() -> None:
        start.wait()
        try:
            writer(tiny, tmp_path / "target")
            said.append("done")
        except UsageError as error:
            said.append(error.what)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said) == ["done", "there is one already"]
    assert verify(str(tmp_path / "target")).problems == ()
