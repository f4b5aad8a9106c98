"""Take the screenshots of docs/page.md: `python benchmarks/screenshots.py --run runs/demo --captions runs/shapes`, of the example model,
the training curves of a run and a captioning model; without --run or --captions, that screenshot is left as it is."""

from __future__ import annotations

import argparse
import io
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from PIL import Image

from qkv.pretrained import EXAMPLE, HERE
from qkv.serve.api.run_log import RunLog
from qkv.serve.api.service import Service
from qkv.serve.http.sockets import listen
from qkv.serve.scheduling.served_model import load_for_serving
from qkv.serve.server import create_server

DOCS = Path(__file__).parent.parent / "docs"
DESK, PHONE = {"width": 1280, "height": 860}, {"width": 375, "height": 1330}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
APPLE, BOOKS, GARDEN = "I ate an apple.", "She reads the books aloud in warm gardens.", "Did our man go to the garden?"
SHOTS: dict[str, tuple[dict[str, object], bool]] = {
    "attention": ({"text": BOOKS, "view": "attention", "kind": "cross", "layer": 1, "head": 0}, False),
    "lines": (
        {"text": APPLE, "view": "attention", "kind": "cross", "layer": 1, "head": 0, "as": "lines", "token": 3},
        True,
    ),
    "head": ({"text": APPLE, "view": "head", "kind": "cross", "layer": 1, "head": 0, "token": 3, "step": 2}, False),
    "lens": ({"text": APPLE, "view": "lens"}, False),
    "positions": ({"view": "positions"}, False),
    "training": ({"view": "training"}, True),
}
"""Name -> state of the page, and whether in the dark theme."""


def address(**state: object) -> str:
    from urllib.parse import urlencode

    return "/#" + urlencode({name: str(value) for name, value in state.items()})


class Camera:
    """Take screenshots of the page of a server."""

    def __init__(self, browser: Any, url: str):
        self.browser, self.url = browser, url

    def open(self, state: dict[str, object], dark: bool = False, size: dict[str, int] = DESK) -> Any:
        found = self.browser.new_page(viewport=size, color_scheme="dark" if dark else "light", reduced_motion="reduce")
        found.set_default_timeout(120_000)
        found.goto(self.url + address(**state))
        self.settle(found)
        return found

    def settle(self, page: Any) -> None:
        """Wait until nothing is being computed."""
        page.wait_for_selector(".view .card *", state="attached")
        for _ in range(2):
            page.wait_for_timeout(1500)
            page.wait_for_function(
                "() => !document.querySelector('.state.busy, [aria-busy=true], .thumb [data-empty]')"
            )

    def keep(self, name: str, page: Any) -> None:
        page.mouse.move(0, 0)
        page.screenshot(path=DOCS / f"page-{name}.png", full_page=True)
        page.close()

    # --- screenshots after some interaction

    def generate(self) -> None:
        page = self.open({"text": BOOKS})
        page.locator(".tok").nth(2).click()
        page.locator(".side button.bar").nth(1).click()
        self.settle(page)
        page.locator(".tok").nth(2).click()
        self.keep("generate", page)

    def ablation(self) -> None:
        page = self.open({"text": BOOKS, "view": "ablation", "kind": "cross", "off": "1.0,1.1,1.2"})
        page.get_by_role("button", name="Measure every head").click()
        self.settle(page)
        self.keep("ablation", page)

    def phone(self) -> None:
        """Join three screenshots side by side."""
        shots: list[tuple[dict[str, object], bool]] = [
            ({"text": GARDEN}, False),
            ({"text": GARDEN, "view": "attention", "kind": "cross", "layer": 1, "head": 0}, True),
            ({"text": APPLE, "view": "head", "kind": "decoder", "layer": 1, "head": 0, "token": 4, "step": 4}, False),
        ]
        sheet = Image.new("RGB", (3 * PHONE["width"] + 40, PHONE["height"]), "white")
        for number, (state, dark) in enumerate(shots):
            page = self.open(state, dark, PHONE)
            shot = Image.open(io.BytesIO(page.screenshot()))
            sheet.paste(shot, (number * (PHONE["width"] + 20), 0))
            page.close()
        sheet.save(DOCS / "page-phone.png", optimize=True)

    def image(self, name: str) -> None:
        state = {
            "model": name,
            "view": "attention",
            "kind": "cross",
            "layer": 1,
            "head": 0,
            "as": "picture",
            "token": 3,
        }
        self.keep("image", self.open(state))


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="run for the training curves")
    parser.add_argument("--captions", type=Path, help="captioning model for attention on an image")
    parser.add_argument("--only", nargs="*", help="names of screenshots")
    given = parser.parse_args()
    models = [
        load_for_serving(HERE / EXAMPLE, EXAMPLE),
        *([load_for_serving(given.captions, "shapes")] if given.captions else []),
    ]
    server, socket = create_server(Service(models, run_log=given.run and RunLog(given.run))), listen("127.0.0.1", 0)
    server.install_signal_handlers = lambda: None
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    while not server.started:
        time.sleep(0.05)
    missing = {name for name, path in {"training": given.run, "image": given.captions}.items() if path is None}
    wanted = lambda name: name not in missing and (not given.only or name in given.only)  # noqa: E731
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        camera = Camera(browser, f"http://127.0.0.1:{socket.getsockname()[1]}")
        for name, (state, dark) in SHOTS.items():
            if wanted(name):
                camera.keep(name, camera.open(state, dark))
        for name in filter(wanted, ("generate", "ablation", "phone")):
            getattr(camera, name)()
        if wanted("image"):
            camera.image("shapes")
        browser.close()
    server.should_exit = True
    thread.join()


if __name__ == "__main__":
    main()
