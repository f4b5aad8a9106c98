"""The report of `qkv look`: one self-contained HTML file with a heading, an explanation and a picture for each result.

The pictures are tables that a short script (report.js) draws from the numbers; report.css has a light and a dark scheme. `png` takes
a screenshot of the page with a headless browser.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.errors import QkvError
from qkv.look.answers import Answers
from qkv.look.pictures import BarChart
from qkv.look.result import LookResult, plain

HERE = Path(__file__).parent
DIGITS = 4
"""Significant digits of a number in the file."""
SECONDS = 120
"""Timeout of the browser."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")
WIDEST, TALLEST = 12_000, 16_000
"""Maximum pixels of a screenshot: browsers fail on much larger ones."""

HEADINGS = {
    "answers": "Predictions", "lens": "Logit lens", "effect": "Head ablation", "patch": "Activation patching", "heads": "Head statistics",
    "rollout": "Attention rollout", "walk": "Head details", "residual": "Residual stream", "neighbours": "Nearest words",
    "contexts": "Word in context",
}  # fmt: skip
"""Headings of sections, by the name of the result; others are capitalised."""


def page(texts: Sequence[str], results: Mapping[str, LookResult]) -> str:
    """Return one HTML file: the input texts as its heading, and a section for each result."""
    title = texts[0] if len(texts[0]) <= 80 else texts[0][:79] + "…"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
    files = {"style": HERE / "report.css", "script": HERE / "report.js"}
    style, script = (f"<{tag}>{file.read_text('utf-8')}</{tag}>" for tag, file in files.items())
    heading = f"<h1>{escape(texts[0])}</h1>" + "".join(f"<p class=text>{escape(text)}</p>" for text in texts[1:])
    parts = "".join(section(name, one) for name, one in results.items())
    return f'<!doctype html><html lang="en"><head>{head}{style}</head><body><main>{heading}{parts}</main>{script}</body></html>\n'


def section(name: str, result: LookResult) -> str:
    """Return a heading, the explanation, a warning where there is one, and the numbers of the picture."""
    if isinstance(result, Answers) and result.measure == "score":
        name = "score"  # a regression
    note = getattr(result, "note", "")
    warning = f"<p class=note>{escape(note)}</p>" if note else ""
    numbers = json.dumps(data(result), ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    return (
        f"<section><h2>{escape(HEADINGS.get(name, name.capitalize()))}</h2><p>{escape(result.explain())}</p>{warning}"
        f'<script type="application/json">{numbers}</script></section>'
    )


def data(result: LookResult) -> dict[str, Any]:
    """Return the data that report.js draws."""
    picture = result.picture()
    if isinstance(picture, BarChart):
        return {"title": picture.title, "names": picture.names, "values": round_values(picture.values)}
    panels = {name: round_values(values) for name, values in picture.panels.items()}
    return {"title": picture.title, "panels": panels, "rows": picture.rows, "columns": picture.columns,
            "words": picture.words, "across": picture.x_title, "down": picture.y_title}  # fmt: skip


def round_values(values: Tensor) -> Any:
    """Return nested lists of rounded numbers; values that are not finite become None."""
    return plain(values.float(), lambda value: float(f"{value:.{DIGITS}g}"))


# --- screenshot


def png(html: str, path: Path) -> None:
    """Save a screenshot of a page, as large as the page, with a headless browser."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise QkvError(
            "--png needs a browser, and neither chromium nor chrome is installed: install one, or use the HTML report"
        )
    with tempfile.TemporaryDirectory() as folder:
        source, shot = Path(folder) / "page.html", Path(folder) / "page.png"
        source.write_text(html, encoding="utf-8")
        size = page_size(run_browser(browser, "--dump-dom", "--window-size=1000,1000", source.as_uri()))
        run_browser(browser, f"--screenshot={shot}", f"--window-size={size[0]},{size[1]}", source.as_uri())
        if not shot.is_file():
            raise QkvError(f"{Path(browser).name} saved no screenshot: open the HTML report instead")
        shutil.copyfile(shot, path)


def run_browser(browser: str, *arguments: str) -> str:
    """Return what the browser prints; "" where it takes too long."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars",
               "--virtual-time-budget=8000", *arguments]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
        return done.stdout.decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        return ""


def page_size(dom: str) -> tuple[int, int]:
    """Return width and height of the page, which report.js writes into its root element."""
    found = re.search(r'data-size="(\d+) (\d+)"', dom)
    width, height = (int(one) for one in found.groups()) if found else (1000, 1000)
    return min(width, WIDEST), min(height, TALLEST)
