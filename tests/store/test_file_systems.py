"""What other file systems do: no locks, no exchange of names, names that vanish late, other disks, stale handles.

Where they do less than a local disk, the store is as true as ever; work may be done twice, or a collection takes less.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from aot import folders
from aot.errors import StoreError
from aot.store import FACTS, TMP, Store, digest, sealed, unsealed
from aot.store_admin import collect_garbage, damage, entries

ROOT = Path(__file__).parent.parent.parent
KEY = digest("key")
Make = Callable[[Path], Mapping[str, Any]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def writes(word: bytes) -> Make:
    def make(folder: Path) -> Mapping[str, Any]:
        (folder / "data").write_bytes(word)
        return {"word": word.decode()}

    return make


def content(store: Store) -> bytes:
    entry = store.look("stage", KEY)
    assert entry is not None
    assert store.sound(entry)
    return (entry.path / "data").read_bytes()


def failing(number: int, real: Callable[..., Any], when: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
    def fail(*arguments: Any, **named: Any) -> Any:
        if when(*arguments):
            raise OSError(number, os.strerror(number), str(arguments[0]))
        return real(*arguments, **named)

    return fail


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_locks_the_store_works_and_a_collection_takes_what_is_old(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(number, fcntl.flock))
    with store.using():
        assert not store.fetch("stage", KEY, writes(b"one")).cached
        assert store.fetch("stage", KEY, writes(b"two")).cached
        store.fetch("stage", KEY, writes(b"three"), fresh=True)
    assert content(store) == b"three"
    work = store.workspace()
    found = collect_garbage(store, max_bytes=0)  # somebody may use it, or be at work
    assert (found.removed, found.swept, found.in_use) == (0, 0, 1)
    os.utime(store.home("stage", KEY) / FACTS, (1.0, 1.0))
    for path in (store.root / TMP).iterdir():
        os.utime(path, (1.0, 1.0))
    found = collect_garbage(store, max_bytes=0)
    assert (found.removed, found.swept) == (1, 1)
    work.close()
    assert list((store.root / TMP).iterdir()) == []


def test_without_locks_the_second_of_two_makers_takes_what_the_first_one_made(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK, fcntl.flock))

    def overtaken(folder: Path) -> Mapping[str, Any]:
        Store(store.root).fetch("stage", KEY, writes(b"first"))
        return writes(b"second")(folder)

    assert store.fetch("stage", KEY, overtaken).facts == {"word": "first"}
    assert content(store) == b"first"


@pytest.mark.parametrize("taken", [errno.ENOTEMPTY, errno.EEXIST])
@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_in_the_way_is_replaced(
    store: Store, monkeypatch: pytest.MonkeyPatch, taken: int, exchange: bool
) -> None:
    """A rename onto a folder that holds something fails with one or the other; NFS cannot exchange two names."""
    store.fetch("stage", KEY, writes(b"old"))
    real, home = os.rename, str(store.home("stage", KEY))
    monkeypatch.setattr(os, "rename", failing(taken, real, lambda source, to: str(to) == home and os.path.exists(to)))
    if not exchange:

        def refuse(*_: object) -> int:
            ctypes.set_errno(errno.EINVAL)
            return -1

        monkeypatch.setattr(folders, "_renameat2", lambda: refuse)
    store.fetch("stage", KEY, writes(b"new"), fresh=True)
    assert content(store) == b"new"
    (store.home("stage", KEY) / "data").write_bytes(b"damaged")
    store.fetch("stage", KEY, writes(b"newer"))
    assert content(store) == b"newer"
    assert list((store.root / TMP).iterdir()) == []


def test_where_names_cannot_be_exchanged_a_refused_rename_puts_the_old_one_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.fetch("stage", KEY, writes(b"old"))
    real, home = os.rename, str(store.home("stage", KEY))
    monkeypatch.setattr(folders, "_renameat2", lambda: None)

    def rename(source: Any, to: Any) -> None:
        if str(to) == home and not str(source).endswith(".old") and not os.path.exists(to):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(source))
        real(source, to)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(StoreError, match="Input/output error"):
        store.fetch("stage", KEY, writes(b"new"), fresh=True)
    assert content(store) == b"old"


def test_a_stage_on_another_disk_is_refused_and_what_lies_there_can_be_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the lower layer of a container's file system, whose folders cannot be renamed."""
    store.fetch("stage", KEY, writes(b"old"))
    monkeypatch.setattr(os, "rename", failing(errno.EXDEV, os.rename))
    with pytest.raises(StoreError, match="cross-device") as caught:
        store.fetch("stage", digest("other"), writes(b"new"))
    assert "one file system" in str(caught.value.fix)
    assert collect_garbage(store, max_bytes=0).removed == 1
    assert entries(store) == []


def test_a_stale_handle_is_looked_up_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.fetch("stage", KEY, writes(b"old"))
    left = [3]

    def stale(*_: object) -> bool:
        left[0] -= 1
        return left[0] >= 0

    monkeypatch.setattr(fcntl, "flock", failing(errno.ESTALE, fcntl.flock, stale))
    store.fetch("stage", KEY, writes(b"new"), fresh=True)
    assert content(store) == b"new"
    assert left[0] < 0


def test_files_that_are_deleted_while_open_are_no_part_of_an_entry(store: Store) -> None:
    """NFS keeps them as `.nfs...` until they are closed."""

    def make(folder: Path) -> Mapping[str, Any]:
        (folder / "scratch").mkdir()
        (folder / "scratch/.nfs000000000123").write_bytes(b"open elsewhere")
        return writes(b"one")(folder)

    store.fetch("stage", KEY, make)
    (store.home("stage", KEY) / "scratch/.nfs000000000123").unlink()
    assert content(store) == b"one"
    assert damage(store) == (1, [])


def test_what_cannot_be_deleted_yet_is_deleted_by_a_later_collection(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.fetch("stage", KEY, writes(b"one"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", failing(errno.ENOTEMPTY, os.rmdir))
        assert collect_garbage(store, max_bytes=0).removed == 1
        assert entries(store) == []
        assert list((store.root / TMP).iterdir()) != []
    collect_garbage(store)
    assert list((store.root / TMP).iterdir()) == []


def test_two_processes_of_one_number_do_not_meet(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two containers that share a store, every first process is number 1; nor does a clock tell them apart."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr("time.time_ns", lambda: 1)
    one, other = store.workspace(), Store(store.root).workspace()
    assert one.path != other.path
    assert collect_garbage(store).swept == 0


@pytest.mark.parametrize(
    "name",
    [
        *("with spaces", "qu'ote\"s", "br[ack]*ets?", "line\nbreak", "prozent%20#&;$HOME", "ünïcødé-日本", "-rf"),
        *("a" * 200, os.fsdecode(b"not-utf8-\xff")),
    ],
)
def test_a_store_may_have_any_name(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / name / "aot")
    with store.using():
        store.fetch("stage", KEY, writes(b"one"))
        store.remember("sources", "model", {"path": str(store.root)})
    assert store.fetch("stage", KEY, writes(b"two")).cached
    assert store.recall("sources", "model") == {"path": str(store.root)}
    assert damage(store) == (2, [])
    assert collect_garbage(store, max_bytes=0).removed == 1


def test_a_store_that_onnx_could_open_no_file_of_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.fsdecode(b"/tmp/not-utf8-\xff"))
    with pytest.raises(StoreError, match="not UTF-8") as caught:
        Store()
    assert str(caught.value).isascii()


def test_a_store_below_a_file_and_one_whose_name_is_too_long_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file" / "aot", tmp_path / ("x" * 300), tmp_path / "file"):
        with pytest.raises(StoreError, match="cannot be written") as caught:
            Store(root).fetch("stage", KEY, writes(b"one"))
        assert "XDG_CACHE_HOME" in str(caught.value.fix)
        assert Store(root).recall("sources", "x") is None


AS_NOBODY = """
import os, sys
from pathlib import Path
from aot.errors import StoreError
from aot.store import Store, digest
from aot.store_admin import collect_garbage, damage, entries
import filecmp, fcntl, errno, shutil, weakref
store = Store(Path(sys.argv[1]))
os.setgid(65534); os.setuid(65534)
def make(folder):
    (folder / "data").write_bytes(b"mine")
    return {}
def attempt(action):
    try:
        return action()
    except StoreError as error:
        return error.what
with store.using():
    print(attempt(lambda: store.get("stage", digest("key")) is not None))
    print(attempt(lambda: store.fetch("stage", digest("key"), make).cached))
    print(attempt(lambda: store.fetch("stage", digest("other"), make).cached))
    print(attempt(lambda: store.remember("sources", "x", {"a": 1})))
    print(attempt(lambda: collect_garbage(store, max_bytes=0).removed))
    print(attempt(lambda: damage(store)[1]))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become somebody else")
def test_a_store_of_somebody_else_is_read_and_what_is_missing_is_refused(store: Store) -> None:
    def as_nobody() -> list[str]:
        """What that process says."""
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(AS_NOBODY), str(store.root)],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        return done.stdout.splitlines()

    store.fetch("stage", KEY, writes(b"one"))
    for folder in (store.root, *store.root.parents):
        if folder.is_relative_to("/tmp/pytest-of-root") or "pytest" in str(folder):
            folder.chmod(folder.stat().st_mode | stat.S_IROTH | stat.S_IXOTH)
    refused = "the store cannot be written: Permission denied"
    assert as_nobody() == [
        *("True", "True", refused, "None", "the store cannot be cleaned: Permission denied", "[]"),
    ]
    store.root.chmod(0o700)
    assert as_nobody()[:3] == ["False", refused, refused]
    assert content(store) == b"one"


def test_a_record_of_which_any_byte_is_another_is_none() -> None:
    data = {"name": "x", "sizes": [1, 2.5, None]}
    content = sealed(data)
    assert unsealed(content) == data
    for place in range(len(content)):
        for bit in range(8):
            flipped = content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
            with pytest.raises(ValueError, match="not what was written"):
                unsealed(flipped)
    for end in range(len(content)):
        with pytest.raises(ValueError, match="not what was written"):
            unsealed(content[:end])
