"""The page, driven by a real browser: Debian's Chromium by Playwright. Where there is none, all of this is skipped (and said so)."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import language_model, model, running

pytest.importorskip("fastapi")
pytest.importorskip("playwright.sync_api", reason="the page is not tested: pip install playwright")
from playwright.sync_api import expect, sync_playwright

from qkv.serve.keys import Keys
from qkv.serve.pages import PAGE, files
from qkv.serve.served import Served
from qkv.serve.service import Service
from qkv.serve.watch import Watch

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = ("--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update "
         "--disable-sync --disable-dev-shm-usage").split()  # fmt: skip
TEXT = "a man sleeps"
WAIT = 20_000
"""Milliseconds that the slowest machine may take for one answer."""
expect.set_options(timeout=WAIT)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="the page is not tested: apt-get install chromium")
VIEWS = ["write", "attention", "walk", "lens", "off", "positions", "run"]


# --- without a browser: what the files are


def test_the_page_fetches_nothing_from_elsewhere() -> None:
    """No address outside of this server, no inline script or style (the policy forbids them), every import is there."""
    known = files()
    for path in PAGE.rglob("*"):
        if path.suffix not in (".js", ".html", ".css"):
            continue
        text = path.read_text()
        assert not re.search(r"(?:src|href|url|import|from|fetch)\W{1,3}(?:https?:)?//", text), path
        assert "innerHTML" not in text and "eval(" not in text, path
        for name in re.findall(r'from "(\.[^"]+)"', text):
            assert (path.parent / name).resolve().relative_to(PAGE.resolve()).as_posix() in known, (path, name)
    index = (PAGE / "index.html").read_text()
    assert not re.search(r"<script>|<style|\son\w+=|style=", index)
    for name in re.findall(r'"/static/([^"]+)"', index):
        assert name in known


# --- with one


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
        Served("en-de", model("transformer-base", max_length=40), "translation", ("en", "de")),
        Served("lm", language_model()),
        Served("classes", model("bert-base", head="classes", **labels)),
        Served("eye", model("vit-b16", labels=("cat", "dog", "cow"))),
    ]
    return Service(models, watch=Watch(run_folder))


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
    yield from opened(browser, problems, {"width": 1280, "height": 860})


@pytest.fixture
def phone(browser: Any, problems: list[str]) -> Iterator[Any]:
    yield from opened(browser, problems, {"width": 375, "height": 812}, has_touch=True, color_scheme="dark")


def opened(browser: Any, problems: list[str], size: dict[str, int], **more: Any) -> Iterator[Any]:
    context = browser.new_context(viewport=size, reduced_motion="reduce", **more)
    found = context.new_page()
    found.set_default_timeout(WAIT)
    found.on("pageerror", lambda error: problems.append(str(error)))
    found.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    yield found
    context.close()
    assert problems == []


def go(page: Any, url: str, **state: object) -> None:
    page.goto(url + "/#" + "&".join(f"{name}={value}" for name, value in ({"text": TEXT} | state).items()))


def idle(page: Any) -> None:
    """Nothing is being computed any more."""
    expect(page.locator(".state.busy, [aria-busy=true]")).to_have_count(0)


@needs_browser
def test_a_text_is_translated_and_gone_on_from_an_alternative(page: Any, url: str, service: Service) -> None:
    go(page, url)
    expect(page.locator("#tabs [aria-selected=true]")).to_have_text("Translate")
    idle(page)
    tokens = page.locator(".output .tok")
    own = service.models[0].model.translate([TEXT], beam=1)[0]  # which gives up earlier
    assert re.sub(r"\s", "", "".join(tokens.all_text_contents())).startswith(re.sub(r"\s", "", own))
    tokens.nth(1).click()
    first = tokens.nth(0).text_content()
    other = page.locator(".side button.bar:not([aria-current])").first
    chosen = other.locator(".bar-name").text_content()
    other.click()
    idle(page)
    expect(page.locator(".tok.forced")).to_have_count(2)
    assert [tokens.nth(i).text_content().strip() for i in range(2)] == [first.strip(), chosen.replace("␣", "").strip()]
    assert "target=" in page.url  # the other views look at this answer
    page.get_by_role("button", name="Back to its own answer").click()
    expect(page.locator(".tok.forced")).to_have_count(0)
    expect(page.locator(".view-write table tbody tr").first).to_be_visible()  # what beam search found


@needs_browser
def test_a_head_is_picked_and_told(page: Any, url: str, service: Service) -> None:
    go(page, url, view="attention")
    page.get_by_role("button", name="Layer 0, head 1", exact=True).click()
    expect(page.get_by_role("heading", name="Layer 0, head 1")).to_be_visible()
    matrix = page.locator(".matrix")
    matrix.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    weights = service.models[0].model.look(TEXT).attention(0, 1, "cross").weights[0]
    expect(page.locator(".readout")).to_contain_text(f"{weights[1, 0]:.3f}")
    page.get_by_role("button", name="Lines").click()
    page.locator(".words.from .word").nth(1).hover()
    expect(page.locator(".readout")).to_contain_text(f"{weights[1].max():.3f}")
    assert "head=1" in page.url and "as=lines" in page.url
    page.reload()
    expect(page.locator(".thumb[aria-pressed=true]")).to_have_attribute("data-at", "0.1")


@needs_browser
def test_the_walk_through_a_head_shows_its_numbers(page: Any, url: str, service: Service) -> None:
    go(page, url, view="walk", kind="decoder", layer=1, head=0, token=2)
    expect(page.get_by_role("heading", name="1. Every token is a vector")).to_be_visible()
    seen = []
    for _ in range(6):
        page.get_by_role("button", name="Next →").click()
        seen.append(page.locator(".step h2").text_content())
    assert [title[:2] for title in seen] == ["2.", "3.", "4.", "5.", "6.", "7."]
    expect(page.get_by_role("button", name="Next →")).to_be_disabled()
    page.locator(".trail button").nth(4).click()
    weights = service.models[0].model.look(TEXT).attention(1, 0, "decoder").weights[0, 2]
    shown = [float(text) for text in page.locator(".line .narrow b").all_text_contents()]
    assert shown == pytest.approx(weights.tolist(), abs=6e-4) and shown[-1] == 0.0  # what comes later is hidden
    page.locator(".trail button").nth(2).click()
    page.locator(".lines-table button.token-name").first.click()
    expect(page.locator(".sum")).to_contain_text("√")


@needs_browser
def test_heads_are_switched_off(page: Any, url: str, service: Service) -> None:
    go(page, url, view="off", kind="cross")
    idle(page)
    expect(page.locator(".verdict")).to_have_text("The text is the same.")
    for name in ("All heads of layer 0", "All heads of layer 1"):
        page.get_by_role("button", name=name).click()
    expect(page.locator(".switch[aria-checked=true]")).to_have_count(0)
    idle(page)
    expect(page.locator(".likely tbody tr")).to_have_count(len(service.models[0].model.look(TEXT).tokens) - 1)
    expect(page.locator(".verdict")).to_have_text("The text has changed.")
    page.get_by_role("button", name="All on").click()
    expect(page.locator(".verdict")).to_have_text("The text is the same.")


@needs_browser
def test_the_layers_end_in_what_the_model_says(page: Any, url: str, service: Service) -> None:
    go(page, url, view="lens", model="lm")
    answers = service.models[1].model.look(TEXT).answers()
    last = page.locator(".lens-table tbody tr").last.locator("td").last
    expect(last.locator("span")).to_have_text(answers.words[0].strip() or "␣")


@needs_browser
def test_a_language_model_writes_on(page: Any, url: str) -> None:
    go(page, url, model="lm")
    idle(page)
    before = page.locator(".output .tok").count()
    assert before > 0
    text = page.locator("#text").input_value()
    page.get_by_role("button", name="Add it to the beginning").click()
    idle(page)
    assert len(page.locator("#text").input_value()) > len(text)


@needs_browser
def test_classes_and_pictures(page: Any, url: str, service: Service) -> None:
    go(page, url, model="classes")
    label = service.models[2].model.classify([TEXT])[0].label
    expect(page.locator(".big")).to_have_text(label)
    expect(page.locator(".felt-text .felt").first).to_be_visible()
    go(page, url, model="eye", view="attention", **{"as": "picture"})
    expect(page.locator(".overlay")).to_be_visible()
    page.get_by_role("tab", name="Classify").click()
    expect(page.locator(".bars li")).to_have_count(3)
    for name in ("Positions", "Layers", "Switch off", "One head"):
        page.get_by_role("tab", name=name).click()
        idle(page)
        expect(page.locator(".state.bad")).to_have_count(0)


@needs_browser
def test_curves_grow_with_the_run(page: Any, url: str, run_folder: Path) -> None:
    go(page, url, view="run")
    expect(page.locator(".live")).to_contain_text("update 29")
    expect(page.locator(".chart")).to_have_count(3)  # both losses in one
    with open(run_folder / "log.jsonl", "a") as log:
        log.write('{"step": 30, "loss": 0.125, "learning_rate": 0.001}\n')
    expect(page.locator(".live")).to_contain_text("update 30")
    expect(page.locator(".readout").first).to_contain_text("0.125")


@needs_browser
def test_every_view_fits_a_phone(phone: Any, url: str) -> None:
    for view in VIEWS:
        go(phone, url, view=view, text="two women sit on a bench in the park, and a child plays")
        expect(phone.locator(f".view-{view} .card").first).to_be_visible()
        idle(phone)
        assert phone.locator(".state.bad").count() == 0, view
        assert phone.evaluate("() => document.documentElement.scrollWidth") == 375, view


@needs_browser
def test_everything_is_reached_by_keyboard(page: Any, url: str) -> None:
    go(page, url)
    idle(page)
    page.locator("#tabs [aria-selected=true]").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tabs [aria-selected=true]")).to_have_text("Attention")
    idle(page)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".step h2")).to_contain_text("1.")
    names = []
    for _ in range(12):  # from the tabs on into the view
        page.keyboard.press("Tab")
        names.append(page.evaluate("() => document.activeElement.textContent"))
        style = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
        assert style != "none", names
    assert "softmax" in names
    page.keyboard.press("ArrowRight")
    expect(page.locator(".step h2")).to_contain_text("2.")
    page.go_back()
    expect(page.locator("#tabs [aria-selected=true]")).to_have_text("Attention")


@needs_browser
def test_light_and_dark(page: Any, url: str) -> None:
    go(page, url, view="positions")
    ground = lambda: page.evaluate("() => getComputedStyle(document.body).backgroundColor")  # noqa: E731
    light = ground()
    for name in ("as the system", "light"):
        page.get_by_role("button", name=f"Colours: {name}").click()
    dark = ground()
    assert light != dark
    page.reload()
    assert ground() == dark


@needs_browser
def test_what_is_wrong_is_said(page: Any, problems: list[str], url: str) -> None:
    go(page, url, view="attention", text="%20")
    expect(page.locator("#text")).not_to_have_value("")  # without a text, an example
    page.locator("#text").fill("a dog " * 200)
    expect(page.locator(".state.bad")).to_contain_text("tokens")
    page.locator("#text").fill("")
    expect(page.locator(".wide-card .state")).to_contain_text("nothing to look at")
    problems.clear()  # the browser notes every 400


@needs_browser
def test_a_key_is_asked_for(browser: Any, problems: list[str], service: Service) -> None:
    with running(Service([Served("lm", language_model())], keys=Keys(("secret",)))) as (url, _):
        for page in opened(browser, problems, {"width": 1280, "height": 860}):
            go(page, url)
            page.get_by_label("API key").fill("wrong")
            page.get_by_role("button", name="Go on").click()
            expect(page.locator(".state.bad")).to_contain_text("does not know this key")
            page.get_by_label("API key").fill("secret")
            page.keyboard.press("Enter")
            expect(page.locator(".output .tok").first).to_be_visible()
            problems.clear()  # the browser notes every 401
