"""What a declaration read while it was loaded: so that an unchanged rebuild imports nothing.

While a `Recorder` is active it notes

    local modules       imported source files that are neither the standard library nor installed packages
    data files          opened for reading: by Python (an audit hook), by safetensors (whose Rust code no hook
                        sees), mapped into memory, or weights that lie beside a file that was opened
    distributions       installed packages that were imported, by name and version

and leaves a record, plain data. `unchanged` compares a record with the disk: a stat for each file, and a
digest only where the stat differs. What a C library opens by itself is seen only where one of these catches
it; `files=` of the declaration names the rest.
"""

from __future__ import annotations

import builtins
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from aot.store import digest, sha256

Recorded = dict[str, Any]

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".npz", ".npy", ".onnx", ".h5", ".ckpt", ".data")
_CODE = (".py", ".pyc", ".pyi", ".so", ".pyd", ".dylib", ".lock")
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/run/", "/lib/", "/usr/lib/")
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_OWN = str(Path(__file__).resolve().parent) + os.sep

_active: Recorder | None = None
_hooked = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _active is None or event != "open":
        return
    path, mode, flags = arguments
    if isinstance(path, (str, bytes)) and not _writes(mode, flags):
        _active.opened.add(os.path.abspath(os.fsdecode(path)))


def _writes(mode: str | None, flags: int | None) -> bool:
    if mode is not None:
        return any(letter in mode for letter in "wax+")
    return bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))


class Recorder:
    """Watches one phase; used as a context manager, once. `record()` afterwards says what was read.

    `ignore` is a folder whose files are ours (the store).
    """

    def __init__(self, ignore: Path | None = None) -> None:
        self.opened: set[str] = set()
        self._requested: set[str] = set()
        self._ignore = str(ignore) + os.sep if ignore else None

    def __enter__(self) -> Recorder:
        global _active, _hooked
        assert _active is None, "phases do not nest"
        if not _hooked:  # an audit hook cannot be taken out again, so there is one, asleep between phases
            sys.addaudithook(_audit)
            _hooked = True
        self._safetensors = _watch_safetensors(self.opened)
        self._before = frozenset(sys.modules)
        self._mapped_before = _mapped()
        self._import = builtins.__import__
        builtins.__import__ = self._watched_import
        _active = self
        return self

    def __exit__(self, *_: object) -> None:
        global _active
        _active = None
        builtins.__import__ = self._import
        self._safetensors()
        self.opened |= _mapped() - self._mapped_before

    def _watched_import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        module = self._import(name, globals, locals, fromlist, level)
        # Only what the user's own code asks for: an installed package's imports are its own affair, except
        # where they are new to this process (seen in sys.modules afterwards).
        if globals and is_local(globals.get("__file__")):
            package = globals.get("__package__") or ""
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - level + 1]) if level else ""
            full = ".".join(part for part in (base, name) if part)
            self._requested.add(full)
            self._requested.update(f"{full}.{item}" for item in fromlist or () if isinstance(item, str))
        return module

    def record(self, *extra: Path) -> Recorded:
        """Digests of everything read, `extra` included, and the versions of the packages imported."""
        modules = (set(sys.modules) - self._before) | (self._requested & set(sys.modules))
        tops = {name.partition(".")[0] for name in modules} - {"__main__", "aot"}
        # Once one module of a local package is used, all of it that is loaded counts: what it imported in
        # turn may have been in memory already.
        related = {name for name in set(sys.modules) if name.partition(".")[0] in tops}
        origins = (str(getattr(sys.modules.get(name), "__file__", None)) for name in related)
        sources = {path for path in origins if is_local(path) and os.path.isfile(path)}
        sources.discard(str(getattr(sys.modules.get("__main__"), "__file__", None)))  # whoever runs aot
        data = {path for path in self.opened if self._counts(path)}
        folders = {os.path.dirname(path) for path in data if not path.endswith(WEIGHTS)}
        data |= {beside for folder in folders for beside in _weights_in(folder) if self._counts(beside)}
        paths = {str(p) for p in extra} | sources | data
        return {"files": {path: signed(path) for path in sorted(paths)}, "packages": _packages(tops)}

    def _counts(self, path: str) -> bool:
        if path.endswith(_CODE) or ".so." in os.path.basename(path) or path.startswith((*_SYSTEM, _OWN)):
            return False
        if self._ignore and path.startswith(self._ignore):
            return False
        if "__pycache__" in path or ".dist-info" + os.sep in path or ".egg-info" in path or _in_stdlib(path):
            return False
        return os.path.isfile(path)


def unchanged(record: Recorded, refreshed: Callable[[], None] = lambda: None) -> bool:
    """Whether every file and package is as recorded. Refreshes the stats of files that were only touched, and then
    calls `refreshed`: a record that is kept spares the next comparison their digests.
    """
    before = _stats(record)
    same = not changes(record)
    if same and _stats(record) != before:
        refreshed()
    return same


def _stats(record: Recorded) -> list[Any]:
    return [known["stat"] for part in ("files", "packages") for known in record[part].values()]


def changes(record: Recorded) -> list[str]:
    """What differs from the record: paths and package names; empty where nothing does."""
    found = []
    for path, known in record["files"].items():
        stat = _stat(path)
        if stat == known["stat"]:
            continue
        if stat is None or _sha256_of(path, tuple(stat)) != known["sha256"]:
            found.append(path)
        else:
            known["stat"] = stat
    return found + [name for name, known in record["packages"].items() if not _same_package(name, known)]


def renewed(record: Recorded) -> Recorded:
    """The same files and packages as they are now; what is gone is left out."""
    files = {path: now for path in record["files"] if (now := signed(path))["sha256"] is not None}
    packages = {
        name: known if _same_package(name, known) else _package(name) for name, known in record["packages"].items()
    }
    return {"files": files, "packages": packages}


def key(record: Recorded, root: Path) -> str:
    """Digest of a record's contents. Paths below `root` count relative to it: a moved project keeps its keys."""
    return digest(
        {
            "files": sorted([_below(path, root), known["sha256"]] for path, known in record["files"].items()),
            "packages": {name: known["version"] for name, known in record["packages"].items()},
        }
    )


def _below(path: str, root: Path) -> str:
    return os.path.relpath(path, root) if path.startswith(f"{root}{os.sep}") else path


def signed(path: str | Path) -> dict[str, Any]:
    """A file's digest, and the stat under which the digest may be trusted."""
    return {"stat": _stat(path), "sha256": _sha256(path)}


def is_local(path: object) -> bool:
    """Whether a module's file is the user's own: not the standard library, not an installed package, not aot."""
    if not isinstance(path, str) or not os.path.isabs(path):
        return False
    return not (_INSTALLED.intersection(path.split(os.sep)) or _in_stdlib(path) or path.startswith(_OWN))


def _in_stdlib(path: str) -> bool:
    return path.startswith(_stdlib()) and not _INSTALLED.intersection(path.split(os.sep))


@cache
def _stdlib() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    return tuple(str(Path(path)) + os.sep for path in paths) + tuple(str(Path(p).resolve()) + os.sep for p in paths)


def _stat(path: str | Path) -> list[int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _sha256(path: str | Path) -> str | None:
    try:
        return sha256(path)
    except OSError:
        return None


@cache
def _sha256_of(path: str, stat: tuple[int, ...]) -> str | None:
    """The digest of a file in one state: several records may ask for it."""
    return _sha256(path)


def _weights_in(folder: str) -> Iterable[str]:
    """Weight-like files beside a data file (a config): a reader written in C opened them, if anything did."""
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.name.endswith(WEIGHTS)]
    except OSError:
        return []


def _mapped() -> set[str]:
    """Regular files mapped into this process; empty where the system does not say (no /proc)."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return set()
    return {path for line in lines if len(parts := line.split(None, 5)) == 6 and (path := parts[5]).startswith("/")}


def _watch_safetensors(opened: set[str]) -> Callable[[], None]:
    """Note the files that safetensors opens; return what undoes it. Does nothing where it is not installed."""
    try:
        import safetensors
    except ImportError:
        return lambda: None
    original: Any = safetensors.safe_open

    def safe_open(filename: Any, *args: Any, **kwargs: Any) -> Any:
        opened.add(os.path.abspath(os.fsdecode(filename)))
        return original(filename, *args, **kwargs)

    def replace(old: Any, new: Any) -> None:
        # `from safetensors import safe_open` left copies of the name in other modules.
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            if isinstance(names, dict) and names.get("safe_open") is old:
                names["safe_open"] = new

    replace(original, safe_open)
    return lambda: replace(safe_open, original)


def _packages(tops: set[str]) -> dict[str, Any]:
    """Installed distributions behind top-level module names, each with the file that states its version.

    aot is left out: its own code has its own digest in every key.
    """
    owners = _owners(tuple(sys.path))
    names = {owner for top in tops for owner in owners.get(top, ())}
    return {name: _package(name) for name in sorted(names)}


@cache
def _owners(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Top-level module name -> distributions that have it, on this sys.path: a search through all that is installed."""
    from importlib import metadata

    return metadata.packages_distributions()


def _package(name: str) -> Recorded:
    from importlib import metadata

    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return {"version": None, "metadata": "", "stat": None}
    folder = getattr(distribution, "_path", None)
    stated = str(Path(str(folder)) / "METADATA") if folder is not None else ""
    return {"version": distribution.version, "metadata": stated, "stat": _stat(stated)}


def _same_package(name: str, known: Recorded) -> bool:
    if known["stat"] is not None and _stat(known["metadata"]) == known["stat"]:
        return True
    from importlib import metadata

    try:
        same = bool(metadata.version(name) == known["version"])
    except metadata.PackageNotFoundError:
        return False
    if same:
        known["stat"] = _stat(known["metadata"])
    return same
