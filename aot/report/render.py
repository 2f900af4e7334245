"""`report.html`: one page that needs neither network nor script and can be read on a phone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from aot.report.html import document
from aot.report.sections import SECTIONS, headline
from aot.report.style import STYLE

_TITLE = re.compile(r'<section id="([^"]+)"><h2>(.*?)</h2>')


def render(data: Mapping[str, Any]) -> str:
    """The page of what `report.json` holds; with `bench`, of what `aot bench --json` prints as well.

    What is not known leaves its section out.
    """
    body = "".join(section(data) for section in SECTIONS)
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title in _TITLE.findall(body))
    title = f"{data['model']}, {data['precision']}"
    return document(title, f"{headline.section(data)}<nav>{links}</nav><main>{body}</main>", STYLE)
