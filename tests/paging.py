"""A server and a browser for the tests of the page: Debian's Chromium, driven by Playwright.

PYTEST_DONT_REWRITE: it is imported before pytest knows it as a plugin."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import language_model, model, running

from qkv.serve.api.run_log import RunLog
from qkv.serve.api.service import Service
from qkv.serve.scheduling.served_model import ServedModel

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    expect = sync_playwright = None
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = ("--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update "
         "--disable-sync --disable-dev-shm-usage").split()  # fmt: skip
TEXT = "a man sleeps"
WAIT = 20_000
"""Milliseconds that the slowest machine may take for one answer."""
if expect is not None:
    expect.set_options(timeout=WAIT)
needs_browser = pytest.mark.skipif(
    BROWSER is None or expect is None, reason="the page is not tested: apt-get install chromium, pip install playwright"
)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    lines = [{"step": step, "loss": 5 / step, "learning_rate": 1e-3} for step in range(1, 30)]
    lines[-1] |= {"valid_loss": 0.5, "valid_bleu": 12.5}
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def service(run_folder: Path) -> Service:
    labels = {"max_length": 64, "labels": ("bad", "fair", "good")}
    models = [
        ServedModel(
            "en-de", model("transformer-base", max_length=40), "translation", ("en", "de"), run=run_folder.resolve()
        ),
        ServedModel("lm", language_model()),
        ServedModel("classes", model("bert-base", head="classes", **labels)),
        ServedModel("eye", model("vit-b16", labels=("cat", "dog", "cow"))),
        ServedModel("writer", model("gpt2", max_length=96)),
        ServedModel("short", model("transformer-base", 5, max_length=80), "summary"),
        ServedModel("shorter", model("gpt2", 5, max_length=96), "summary"),
        ServedModel("tags", model("bert-base", head="tags", **labels)),
        ServedModel("words", model("bert-base", head="masked", max_length=64)),
        ServedModel("spans", model("bert-base", head="span", max_length=64)),
        ServedModel("two", model("bert-base", head="classes", **labels), pairs=True),
        ServedModel("lstm", model("lstm-lm")),
        ServedModel("search", model("rnnsearch"), "translation", ("en", "de")),
        ServedModel("t5", model("t5-small"), "translation", ("en", "de")),
        ServedModel("gated", model("gla-340m", max_length=96)),
    ]
    return Service(models, run_log=RunLog(run_folder))


@pytest.fixture(scope="module")
def url(service: Service) -> Iterator[str]:
    with running(service) as (address, _):
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def problems() -> list[str]:
    return []


@pytest.fixture
def page(browser: Any, problems: list[str]) -> Iterator[Any]:
    """A page on a desk; whatever it complains of in its console fails the test."""
    yield from open_page(browser, problems, {"width": 1280, "height": 860})


@pytest.fixture
def phone(browser: Any, problems: list[str]) -> Iterator[Any]:
    yield from open_page(browser, problems, {"width": 375, "height": 812}, has_touch=True, color_scheme="dark")


def open_page(browser: Any, problems: list[str], size: dict[str, int], **more: Any) -> Iterator[Any]:
    context = browser.new_context(viewport=size, reduced_motion="reduce", **more)
    found = context.new_page()
    found.set_default_timeout(WAIT)
    found.on("pageerror", lambda error: problems.append(str(error)))
    found.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    yield found
    context.close()
    assert problems == [], problems


def go(page: Any, url: str, **state: object) -> None:
    page.goto(url + "/#" + "&".join(f"{name}={value}" for name, value in ({"text": TEXT} | state).items()))


def idle(page: Any) -> None:
    """Nothing is being computed any more."""
    expect(page.locator(".state.busy, [aria-busy=true]")).to_have_count(0)
