"""An ONNX file of unknown origin is read in a process of its own first: a crash, a hang or a hunger for memory of the
parsers ends that process, and becomes an error that names the file.

The parsers are the C++ of protobuf, onnx (checker, shape inference, inliner) and onnxruntime (a session). They do the
same in every process, so what they survive there they survive here. The process starts in 0.2 s; it runs for a file
that is new, and not in an unchanged rebuild, which parses nothing.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aot.errors import AotError, GraphError

What = Literal["read", "open"]
"""read: what onnx does with a file. open: what onnxruntime does, which takes its weights too."""

_GIB = 1 << 30
_START = "import os, sys; sys.path[:] = sys.argv.pop(1).split(os.pathsep); "
"""Modules are found where this process finds them, but for the current folder, where the file may have come with some
(-P: it is not looked into for these two either)."""
_MAIN = "from aot.onnx_input.vetting import main; main()"
_SAID = 1 << 16
"""Bytes that the process may write."""
_LARGE = 1 << 10
"""Bytes from which a weight is no shape and no list of axes."""
_seen: set[tuple[object, ...]] = set()


@dataclass(frozen=True)
class Limits:
    """What the process may take. memory: bytes of address space, of which libraries map 2 GiB without using them.
    seconds: of CPU time, and, twice as long, of the clock."""

    memory: int
    seconds: int

    @classmethod
    def of(cls, path: Path, what: What) -> Limits:
        """Enough for the largest models: several copies of the file, and for onnxruntime of the weights beside it."""
        held = path.stat().st_size
        if what == "open":
            held = sum(file.stat().st_size for file in path.parent.iterdir() if file.is_file())
        return cls(4 * _GIB + 6 * held, 60 + 30 * held // _GIB)


def vet(path: Path, what: What = "read", limits: Limits | None = None) -> None:
    """Let the parsers see a file, once for each state of it.

    Raises GraphError for a file that is no whole or no valid ONNX model, and for one at which a parser crashes, hangs,
    or takes more than `limits`, which come from the file's size.
    """
    try:
        found = path.stat()
        state = (what, str(path), found.st_size, found.st_mtime_ns, found.st_ino)
        if state not in _seen:
            _apart(path, what, limits or Limits.of(path, what))
            _seen.add(state)
    except OSError as error:
        from aot.onnx_input.reading import not_whole

        raise not_whole(path, error) from error


def examine(path: Path, what: What) -> None:
    """What the process does; raises GraphError for what it can say in words."""
    if what == "open":
        _open(path)
    else:
        _read(path)


def _read(path: Path) -> None:
    import onnx
    from onnx import inliner

    from aot.onnx_input import validity
    from aot.onnx_input.reading import not_whole, proto_of

    proto = proto_of(path)
    try:
        validity.check(proto, str(path))
    except (TypeError, AttributeError) as error:  # protobuf gives bytes where a name is no UTF-8
        raise not_whole(path, ValueError("a name in it is no text")) from error
    # What the rest says of it is said by those who use it; here it is seen to come to an end.
    with suppress(onnx.checker.ValidationError, RuntimeError, ValueError, TypeError):
        onnx.checker.check_model(str(path))
    for weight in proto.graph.initializer:
        if len(weight.raw_data) > _LARGE:  # sizes do not follow from it, and it would be copied again and again
            weight.ClearField("raw_data")
    with suppress(
        onnx.checker.ValidationError, onnx.shape_inference.InferenceError, RuntimeError, ValueError, TypeError
    ):
        plain = inliner.inline_local_functions(proto) if proto.functions else proto
        # Without contents: onnx makes up a name for every element of a vector, and valid ones have millions.
        onnx.shape_inference.infer_shapes(plain)


def _open(path: Path) -> None:
    from aot.runtime import sessions

    with suppress(*sessions.errors()):
        sessions.session(str(path), sessions.options())


def main() -> None:
    """The process: `PATH WHAT MEMORY SECONDS` as arguments, an AotError as JSON on standard output."""
    path, what, memory, seconds = sys.argv[1:]
    for limit, most in (
        (resource.RLIMIT_AS, int(memory)),
        (resource.RLIMIT_CPU, int(seconds)),
        (resource.RLIMIT_FSIZE, _SAID),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        # Where both are reached at once the process is killed, which does not say by whom.
        resource.setrlimit(limit, (most, most + 1 if limit == resource.RLIMIT_CPU and most != hard else most))
    try:
        examine(Path(path), "open" if what == "open" else "read")
    except AotError as error:
        print(json.dumps({"what": error.what, "where": error.where, "fix": error.fix}))


def _apart(path: Path, what: What, limits: Limits) -> None:
    modules = os.pathsep.join(one for one in sys.path if one)
    command = [sys.executable, "-P", "-c", _START + _MAIN, modules, str(path), what, str(limits.memory),
               str(limits.seconds)]  # fmt: skip
    # One thread: each has a heap of its own, for which address space is taken.
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_ARENA_MAX")}
    environment = {**os.environ, **threads}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment,
                timeout=2 * limits.seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise _refused(path, what, f"it takes more than {2 * limits.seconds} seconds") from error
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read(_SAID).decode(errors="replace"))
    _judge(path, what, limits, done.returncode, texts)


def _judge(path: Path, what: What, limits: Limits, code: int, texts: Sequence[str]) -> None:
    """What became of the process: nothing where it came to its end; else GraphError."""
    said, complaint = texts
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    if code == 0 and not said:
        return
    if code == 0:
        with suppress(ValueError, KeyError, TypeError):
            told = json.loads(said)
            raise GraphError(str(told["what"]), where=str(told["where"]), fix=str(told["fix"]))
    if code == -signal.SIGXCPU:
        raise _refused(path, what, f"it takes more than {limits.seconds} seconds")
    if any(sign in complaint for sign in ("MemoryError", "bad_alloc", "out of memory", "Cannot allocate memory")):
        raise _refused(path, what, f"it takes more than {limits.memory / _GIB:.1f} GiB of memory")
    ended = signal.strsignal(-code) if code < 0 else lines[-1] if lines else f"exit code {code}"
    raise _refused(path, what, f"the parser came to its end: {ended}")


def _refused(path: Path, what: What, why: str) -> GraphError:
    reader = "onnxruntime opens" if what == "open" else "onnx reads"
    return GraphError(
        f"the file cannot be used: as {reader} it, {why}",
        where=str(path),
        fix="if it comes from a place that you do not know, do not use it; else export it again with another opset",
    )
