"""What a build and a benchmark came to, for people: text for a terminal, and one page that needs no network.

`page` is the page of a benchmark, `render.py` that of a build; `sections/` holds what both are made of, `svg.py` the
plots, `html.py` tables and folds, `style.py` how it looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def page(bench: Mapping[str, Any], artifact: str | Path) -> str:
    """The page of a benchmark: what `aot bench --json` prints, beside what the artifact's own report says.

    Raises UsageError for a path that is not there, ArtifactError for what is no artifact or holds no report.
    """
    from aot.report.reading import report_of
    from aot.report.render import render
    from aot.runtime.files import damaged

    report = report_of(str(artifact))
    try:
        render(report)  # alone, so that what fails is what the artifact says
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise damaged(Path(artifact) / "report.json", f"it does not say what its page shows: {error!r}") from error
    return render({**report, "bench": bench})
