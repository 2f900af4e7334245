"""Keeping Polygraphy from importing torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def torchless() -> Iterator[None]:
    """While it lasts, torch counts as not installed, unless it has been imported before.

    Polygraphy imports torch to ask whether an array is a tensor of it, which takes seconds; ours are numpy's.
    """
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # what `import` takes for «cannot be imported»
    try:
        yield
    finally:
        del sys.modules["torch"]
