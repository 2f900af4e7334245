"""The runtime's wheel, `aot-engine-runtime`: of this package, the modules that a session and the server import.

It goes where nothing is built: into an image, and beside a model of Triton's Python backend. Both wheels hold `aot`,
so an environment has one or the other. The same sources give the same bytes: files by name, of one date, stored and
not compressed, for what a deflate library writes depends on its version.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import aot

ROOT = Path(aot.__file__).parent
WHOLE = ("aot.runtime", "aot.serving")
"""Packages that the wheel holds whole: they import some of their own modules by names that are made up as they run."""
REQUIRES = {
    "": ("numpy>=2.0",),
    "cpu": ("onnxruntime>=1.30",),
    "gpu": ("cuda-bindings>=12.8",),
    "serve": (
        "aiohttp>=3.11",
        "grpcio>=1.85",
        "grpcio-health-checking>=1.85",
        "prometheus-client>=0.21",
        "protobuf>=7.35.1",
    ),
}
"""By extra; those of the same name in `pyproject.toml`, as far as the runtime imports them."""
DATE = (1980, 1, 1, 0, 0, 0)
"""The first that a zip can say."""


def name() -> str:
    """The wheel's file name."""
    return f"aot_engine_runtime-{aot.__version__}-py3-none-any.whl"


def write(folder: Path) -> Path:
    """Write the wheel into a folder; return its path. Raises OSError."""
    about = f"aot_engine_runtime-{aot.__version__}.dist-info"
    files = {f"aot/{path.relative_to(ROOT).as_posix()}": path.read_bytes() for path in modules().values()}
    files[f"{about}/METADATA"] = _metadata().encode()
    files[f"{about}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: aot\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    lines = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in sorted(files.items())]
    record = f"{about}/RECORD"
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    made = folder / name()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as wheel:
        for path in sorted(files, key=lambda path: (path.startswith(about), path)):
            info = zipfile.ZipInfo(path, DATE)
            info.external_attr = 0o100644 << 16
            info.create_system = 3  # Unix, whatever wrote it
            wheel.writestr(info, files[path])
    return made


@cache
def modules() -> dict[str, Path]:
    """Every module of the wheel by name: those of `WHOLE`, and all of `aot` that these and `aot` itself import.

    Of a module outside of `WHOLE`, what its functions import does not count: that is a builder's.
    """
    known = {_module(path): path for path in ROOT.rglob("*.py")}
    found = dict[str, Path]()
    todo = [module for module in known if _whole(module)]
    while todo:
        module = todo.pop()
        if module in found or module not in known:
            continue
        found[module] = known[module]
        tree = ast.parse(known[module].read_bytes())
        for imported in _imported(tree, functions=_whole(module)):
            parts = imported.split(".")
            todo += [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return dict(sorted(found.items()))


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _whole(module: str) -> bool:
    return module == "aot" or any(f"{module}.".startswith(f"{package}.") for package in WHOLE)


def _imported(tree: ast.AST, *, functions: bool) -> Iterator[str]:
    """The modules that a tree may import, and names in them, which may be modules too; not those for type checkers."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            todo += node.orelse
        elif functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            todo += ast.iter_child_nodes(node)


def _metadata() -> str:
    lines = ["Metadata-Version: 2.4", "Name: aot-engine-runtime", f"Version: {aot.__version__}"]
    lines += ["Summary: What runs and serves an artifact of aot-engine; in its place, never beside it"]
    lines += ["License-Expression: Apache-2.0", "Requires-Python: >=3.11"]
    for extra, packages in REQUIRES.items():
        lines += [f"Provides-Extra: {extra}"] if extra else []
        lines += [f'Requires-Dist: {one}; extra == "{extra}"' if extra else f"Requires-Dist: {one}" for one in packages]
    return "\n".join([*lines, ""])


def _digest(data: bytes) -> str:
    """As RECORD has it: URL-safe base64 of the SHA-256, without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
