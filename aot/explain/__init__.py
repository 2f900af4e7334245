"""What would break and where, before any build: the answer of `aot explain`, as data.

`explain` runs what a build runs first (the export and the graph rewrites, under the same store keys), and then only
looks: no calibration, no reference run, no engine.
"""

from __future__ import annotations

from aot.explain.explaining import explain
from aot.explain.findings import Explanation

__all__ = ["Explanation", "explain"]
