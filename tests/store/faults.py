"""Faults at every file operation of what writes the store and artifacts; run as a script, prints one JSON object.

    python faults.py FOLDER kill|full|once|limit|blocks|inodes SCENARIO... [--every N]

Each scenario is run in a fork, again and again, with the fault one operation later, until it is over before the fault:

    kill     SIGKILL before the operation
    full     from this operation on, nothing new can be made: ENOSPC
    once     this operation alone fails: EIO
    limit    no file may have more bytes than so many: EFBIG, in the middle of a write
    blocks   on a disk of its own, of so many pages (needs mount)
    inodes   on a disk of its own, of so many files and folders (needs mount)

An audit hook sees the operations of Python; what C++ writes, the last three reach. After each fault, what is left is
looked at; then the scenario is run again, without one, and what it made is looked at.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from aot.errors import AotError
from tests.store import scenarios
from tests.store.scenarios import Scenario

OPERATIONS = {
    *("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.utime", "os.link"),
    *("os.listdir", "os.scandir", "shutil.rmtree", "fcntl.flock", "store.exchange"),
}
MAKING = {"os.mkdir", "os.rename", "os.link", "store.exchange"}
REFUSED, BROKEN = 3, 4
PAGE, STEP = 4096, 256
ON_A_DISK = ("blocks", "inodes")


class Watch:
    """Counts this process's operations in `folder`, and does what the fault says from the one numbered `at`."""

    def __init__(self, folder: Path, fault: str, at: int) -> None:
        self.folder, self.fault, self.at = str(folder), fault, at
        self.seen = 0
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in OPERATIONS or not _concerns(arguments, self.folder):
            return
        making = event in MAKING or (event == "open" and _writes(arguments))
        if self.fault == "full" and not making:
            return
        self.seen += 1
        if self.fault == "kill" and self.seen == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        if (self.fault == "full" and self.seen >= self.at) or (self.fault == "once" and self.seen == self.at):
            number = errno.ENOSPC if self.fault == "full" else errno.EIO
            raise OSError(number, os.strerror(number), arguments[0] if isinstance(arguments[0], str) else None)


def _concerns(arguments: tuple[Any, ...], folder: str) -> bool:
    """Whether an operation is one in the folder; those relative to an open folder, and on an open file, count."""
    first = arguments[0] if arguments else None
    return isinstance(first, int) or (isinstance(first, (str, bytes, Path)) and _inside(os.fsdecode(first), folder))


def _inside(path: str, folder: str) -> bool:
    return not path.startswith("/") or path.startswith(folder)


def _writes(arguments: tuple[Any, ...]) -> bool:
    """Whether opening it takes space: a file is made, or one is cut and written."""
    path, mode, flags = arguments
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return bool((flags or 0) & os.O_CREAT) and not os.path.exists(path)


def attempt(
    scenario: Scenario, folder: Path, before: Callable[[], Watch | None] = lambda: None
) -> tuple[int, bool, str]:
    """Run it in a fork. How that ended: 0, REFUSED (an AotError), BROKEN (any other error), or minus a signal; whether
    the fault was still to come; and what was said."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code, text, watched = BROKEN, "", before()
        try:
            scenario.act(folder)
            code = 0
        except AotError as error:
            code, text = REFUSED, str(error)
        except BaseException:  # noqa: BLE001  whatever it is, it is told
            text = traceback.format_exc()
        finally:
            over = watched is None or watched.seen < watched.at
            os.write(writer, f"{'over' if over else ''}\n{text}".encode()[-4000:])
            os._exit(code)
    os.close(writer)
    with open(reader) as said:
        passed, _, text = said.read().partition("\n")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), bool(passed), text


@contextmanager
def disk(folder: Path, option: str) -> Iterator[None]:
    """A file system of its own at `folder`."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", option, "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def rows(scenario: Scenario, folder: Path, fault: str, every: int) -> Iterator[dict[str, Any]]:
    """One a fault, until the scenario is over before it."""
    scenario.preload()
    template = folder / f"{scenario.name}.template"
    template.mkdir()
    scenario.prepare(template)
    found = list(template.rglob("*"))
    pages = sum(-(-path.stat().st_size // PAGE) for path in found if path.is_file())
    at = every
    while True:
        work = folder / f"{scenario.name}.work"
        if fault in ON_A_DISK:
            option = f"size={(pages + at) * PAGE}" if fault == "blocks" else f"nr_inodes={len(found) + 1 + at}"
            with disk(work, option):
                shutil.copytree(template, work, dirs_exist_ok=True, symlinks=True)
                row = judged(scenario, work, lambda: None)
                subprocess.run(["mount", "-o", "remount,size=64m,nr_inodes=100k", work], check=True)
                row |= again(scenario, work)
            work.rmdir()
        else:
            shutil.copytree(template, work, symlinks=True)
            row = judged(scenario, work, partial(_set, fault, work, at))
            row |= again(scenario, work)
            shutil.rmtree(work)
        if row.pop("over"):
            break
        yield {"scenario": scenario.name, "at": at, **row}
        at += every * (STEP if fault == "limit" else 1)
    shutil.rmtree(template)


def _set(fault: str, work: Path, at: int) -> Watch | None:
    if fault == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (at, resource.RLIM_INFINITY))
        return None
    scenarios.audited_exchange()
    return Watch(work, fault, at)


def judged(scenario: Scenario, work: Path, before: Callable[[], Watch | None]) -> dict[str, Any]:
    """How it ended under the fault, and what is wrong with what is left."""
    code, over, said = attempt(scenario, work, before)
    left = scenario.wrong(work)
    return {"code": code, "over": over and code == 0 and not scenario.unfinished(work), "said": said, "left": left}


def again(scenario: Scenario, work: Path) -> dict[str, Any]:
    """How it ends without a fault, and what is then not as it should be."""
    code, _, said = attempt(scenario, work)
    return {"next": code, "next_said": said, "missing": scenario.unfinished(work), "wrong": scenario.wrong(work)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("fault", choices=["kill", "full", "once", "limit", "blocks", "inodes"])
    parser.add_argument("names", nargs="+")
    parser.add_argument("--every", type=int, default=1)
    asked = parser.parse_args()
    found = [row for name in asked.names for row in rows(scenarios.ALL[name], asked.folder, asked.fault, asked.every)]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
