"""The entry point of the command line: as little as can be, so that Ctrl-C is answered from the first moment on."""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED = 130
STOPPED = "interrupted; finished stages are kept"
"""What an interrupt leaves."""
UNWRITTEN = "interrupted; nothing was written"
"""What it leaves of a command that has no stages, and writes what it makes at its end."""
WHOLE = ("optimize", "quantize", "unpack", "verify", "sign")
"""Those commands."""


def stopped(arguments: Sequence[str]) -> str:
    """What is said of an interrupt of the command that `arguments` call."""
    return UNWRITTEN if arguments and arguments[0] in WHOLE else STOPPED


def main() -> None:
    """The entry point of the command `aot`."""
    try:
        from aot.cli._main import call

        code = call(sys.argv[1:])
    except KeyboardInterrupt:
        # Pressed while modules were imported, or again while the answer to the first was written.
        code = INTERRUPTED
        if sys.stderr is not None:
            sys.stderr.write(f"{stopped(sys.argv[1:])}\n")
    try:
        sys.exit(code)
    finally:
        # What runs at exit (thread pools, atexit of libraries) has nothing left to interrupt.
        import signal

        signal.signal(signal.SIGINT, signal.SIG_IGN)
