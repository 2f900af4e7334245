"""A Chromium that is on this machine, driven by its command line: what it says, what it draws, where things lie."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--force-device-scale-factor=1",
    "--enable-logging=stderr",
)  # fmt: skip
DARK = "--blink-settings=preferredColorScheme=0"

# The page in a frame of the asked width, for windows have a least one; the page itself has no script.
FRAME = """<!doctype html><iframe style="border: 0; width: {width}px; height: 800px" srcdoc="{page}"></iframe>
<script>addEventListener("load", () => {{
  const page = document.querySelector("iframe").contentDocument, view = page.defaultView;
  const box = e => {{ const b = e.getBoundingClientRect(); return [b.left, b.top + view.scrollY, b.width, b.height]; }};
  const inside = e => !e.closest(".scroll, pre, .plot");
  const found = {{
    width: view.innerWidth, scroll: page.documentElement.scrollWidth, height: page.documentElement.scrollHeight,
    wide: [...page.body.querySelectorAll("*")].filter(e => inside(e) && box(e)[0] + box(e)[2] > view.innerWidth + 0.5)
      .map(e => e.outerHTML.slice(0, 90)),
    plots: [...page.querySelectorAll(".plot")].map(e => ({{title: e.querySelector("title").textContent, box: box(e),
      texts: [...e.querySelectorAll("text")].map(t => ({{said: t.textContent, box: box(t)}})),
      shapes: [...e.querySelectorAll("rect, path")].map(s => ({{kind: s.getAttribute("class"), box: box(s),
        colour: view.getComputedStyle(s).fill, said: (s.querySelector("title") || {{}}).textContent || ""}}))}})),
  }};
  const out = document.createElement("script"); out.type = "application/json"; out.id = "found";
  out.textContent = JSON.stringify(found); document.body.replaceChildren(out);
}});</script>"""


def browser() -> str | None:
    """The browser's program: what CHROME names, else the first that is found."""
    named = os.environ.get("CHROME")
    return named if named else next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass(frozen=True)
class Browser:
    """program: see `browser`. folder: where profiles, pages and pictures are kept."""

    program: str
    folder: Path

    def __call__(self, *options: str) -> tuple[str, str]:
        """(standard output, standard error) of one run."""
        profile = self.folder / f"profile-{len(list(self.folder.iterdir()))}"
        done = subprocess.run(
            [self.program, *FLAGS, f"--user-data-dir={profile}", *options],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    def measured(self, page: str, width: int) -> tuple[dict[str, Any], list[str]]:
        """Where everything lies on a screen of that width, and what came to the console."""
        path = self.folder / f"measured-{width}.html"
        path.write_text(FRAME.format(width=width, page=html.escape(page)))
        dom, said = self("--dump-dom", path.as_uri())
        text = re.search(r'<script type="application/json" id="found">(.*?)</script>', dom, re.DOTALL)
        assert text, dom[-2000:]
        console = [line for line in said.splitlines() if ":CONSOLE" in line]
        return json.loads(html.unescape(text.group(1))), console

    def picture(self, page: str, width: int, height: int, *options: str) -> Any:
        """The page as it is drawn: a Pillow image, RGB."""
        from PIL import Image

        path, drawn = self.folder / f"page-{width}.html", self.folder / f"page-{width}.png"
        path.write_text(page)
        self(f"--screenshot={drawn}", f"--window-size={width},{height}", *options, path.as_uri())
        with Image.open(drawn) as image:
            return image.convert("RGB")
