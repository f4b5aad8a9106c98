"""The page, driven by a real browser. Where there is none, what needs it is skipped (and said so)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from paging import TEXT, expect, go, idle, needs_browser, open_page
from served import language_model, running

from qkv.serve.api.service import Service
from qkv.serve.http.auth import ApiKeys
from qkv.serve.http.static import PAGE, load_files
from qkv.serve.scheduling.served_model import ServedModel

pytest_plugins = ("paging",)
VIEWS = ["generate", "attention", "head", "lens", "ablation", "positions", "embeddings", "training"]


# --- without a browser: what the files are


def test_the_page_fetches_nothing_from_elsewhere() -> None:
    """No address outside of this server, no inline script or style (the policy forbids them), every import is there."""
    known = load_files()
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


def test_functions_and_files_are_short() -> None:
    """A function of the page has at most 60 lines, a file 400."""
    begins = re.compile(r"^( *)(?!if|for|while|switch|catch)(?:(?:export|async|function\*?) )*\w+\([^;]*\) \{$")
    for path in PAGE.rglob("*.js"):
        lines = path.read_text().splitlines()
        assert len(lines) <= 400, path
        found = [(at, match[1]) for at, line in enumerate(lines) if (match := begins.match(line))]
        for at, indent in found:
            assert lines.index(indent + "}", at) - at < 60, (path.name, lines[at])


# --- with one


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
    expect(page.locator(".tok.forced")).to_have_count(1)  # what the reader decided, not what stands before it
    assert [tokens.nth(i).text_content().strip() for i in range(2)] == [first.strip(), chosen.replace("␣", "").strip()]
    assert "target=" in page.url  # the other views look at this answer
    written = tokens.all_text_contents()
    page.get_by_role("tab", name="Attention").click()
    idle(page)
    page.get_by_role("tab", name="Translate").click()
    expect(page.locator(".tok.forced")).to_have_count(1)
    assert tokens.all_text_contents() == written
    page.get_by_role("button", name="Reset to the model's output").click()
    expect(page.locator(".tok.forced")).to_have_count(0)
    expect(page.locator(".view-generate table tbody tr").first).to_be_visible()  # what beam search found


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
def test_a_choice_by_keyboard_keeps_the_focus(page: Any, url: str, service: Service) -> None:
    focus = lambda: page.evaluate("() => document.activeElement.dataset.focusKey")  # noqa: E731
    weights = service.models[0].model.look(TEXT).attention(1, 0, "cross").weights[0]
    go(page, url, view="attention", layer=1, head=0)
    page.locator(".matrix").focus()
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.wait_for_url("**token=1*")
    idle(page)
    assert focus() == "matrix"
    page.keyboard.press("ArrowDown")  # it goes on from where it was
    expect(page.locator(".readout")).to_contain_text(f"{weights[2, 0]:.3f}")
    page.get_by_role("button", name="Lines").click()
    page.locator(".words.from .word").nth(2).focus()
    page.keyboard.press("Enter")
    expect(page.locator(".words.from .word").nth(2)).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("ArrowDown")
    assert focus() == "word3"
    go(page, url, view="head", layer=1, head=0, token=1)
    page.locator("button.token-name").nth(2).focus()
    page.keyboard.press("Enter")
    expect(page.locator("button.token-name").nth(2)).to_have_attribute("aria-pressed", "true")
    assert focus() == "from2"
    for _ in range(7):  # to the last step, where "Next" can be pressed no more
        page.locator("[data-focus-key=next]:not(:disabled)").press("Enter") if page.locator(
            "[data-focus-key=next]"
        ).is_enabled() else None
    assert focus() is not None


@needs_browser
def test_the_walk_through_a_head_shows_its_numbers(page: Any, url: str, service: Service) -> None:
    go(page, url, view="head", kind="decoder", layer=1, head=0, token=2)
    expect(page.get_by_role("heading", name="1. Input: one vector per token")).to_be_visible()
    seen = []
    for _ in range(6):
        page.get_by_role("button", name="Next →").click()
        seen.append(page.locator(".step h2").text_content())
    assert [title[:2] for title in seen] == ["2.", "3.", "4.", "5.", "6.", "7."]
    expect(page.get_by_role("button", name="Next →")).to_be_disabled()
    page.locator(".trail button").nth(4).click()
    weights = service.models[0].model.look(TEXT).attention(1, 0, "decoder").weights[0, 2]
    shown = [float(text) for text in page.locator(".line .narrow b").all_text_contents()]
    assert shown == pytest.approx(sorted(weights.tolist(), reverse=True), abs=6e-4) and shown[-1] == 0.0  # hidden: last
    go(page, url, view="head", kind="cross", layer=1, head=0, token=2)
    looks = page.get_by_label("Query token").locator("option:checked")
    expect(looks).to_contain_text(page.locator("button.token-name[aria-pressed=true]").text_content())
    page.locator(".trail button").nth(2).click()
    page.locator(".lines-table button.token-name").first.click()
    expect(page.locator(".sum")).to_contain_text("√")


@needs_browser
def test_a_score_is_the_sum_of_what_is_shown(page: Any, url: str) -> None:
    """T5's scores are not divided by the root of the width, and positions add to them."""
    numbers = lambda: [float(text.replace("−", "-")) for text in page.locator(".sum b").all_text_contents()]  # noqa: E731
    go(page, url, model="t5", view="head", kind="decoder", layer=1, head=1, token=2, step=2)
    expect(page.locator(".formula")).to_contain_text("position bias")
    dot, added, score = numbers()
    assert dot + added == pytest.approx(score, abs=0.01) and abs(added) > 0.01
    assert "√" not in page.locator(".step").text_content()
    go(page, url, view="head", kind="decoder", layer=1, head=1, token=2, step=2)
    expect(page.locator(".formula")).to_contain_text("√")
    dot, score = numbers()
    assert dot / 8**0.5 == pytest.approx(score, abs=0.01)


@needs_browser
def test_heads_are_switched_off(page: Any, url: str, service: Service) -> None:
    go(page, url, view="ablation", kind="cross")
    idle(page)
    for name in ("All heads of layer 0", "All heads of layer 1"):
        page.get_by_role("button", name=name).click()
    expect(page.locator(".switch[aria-checked=true]")).to_have_count(0)
    idle(page)
    expect(page.locator(".likely tbody tr")).to_have_count(len(service.models[0].model.look(TEXT).tokens) - 1)
    expect(page.locator(".verdict")).to_have_text("The output has changed.")
    page.get_by_role("button", name="Restore all").click()
    expect(page.locator(".verdict")).to_have_count(0)
    with page.expect_response("**/effects") as measured:
        page.get_by_role("button", name="Measure every head").click()
    word = measured.value.json()["word"].strip()
    expect(page.locator(".view-ablation")).to_contain_text(
        f"Decrease of the logit of “{word}” when only that head is ablated"
    )


@needs_browser
def test_the_layers_end_in_what_the_model_says(page: Any, url: str, service: Service) -> None:
    go(page, url, view="lens", model="writer")
    answers = service.models[4].model.look(TEXT).answers()
    last = page.locator(".lens-table tbody tr").last.locator("td").last
    expect(last.locator("span")).to_have_text(answers.words[0].strip() or "␣")


@needs_browser
def test_classes_and_pictures(page: Any, url: str, service: Service) -> None:
    go(page, url, model="classes")
    label = service.models[2].model.classify([TEXT])[0].label
    expect(page.locator(".big")).to_have_text(label)
    expect(page.locator(".attribution-text .attributed").first).to_be_visible()
    go(page, url, model="eye", view="attention", **{"as": "picture"})
    expect(page.locator(".overlay")).to_be_visible()
    page.get_by_role("tab", name="Classify").click()
    expect(page.locator(".bars li")).to_have_count(3)
    for name in ("Positions", "Logit lens", "Ablation", "Head details"):
        page.get_by_role("tab", name=name).click()
        idle(page)
        expect(page.locator(".state.bad")).to_have_count(0)


@needs_browser
def test_curves_grow_with_the_run(page: Any, url: str, run_folder: Path) -> None:
    go(page, url, view="training")
    expect(page.locator(".live")).to_contain_text("update 29")
    expect(page.locator(".chart")).to_have_count(3)  # both losses in one
    with open(run_folder / "log.jsonl", "a") as log:
        log.write('{"step": 30, "loss": 0.125, "learning_rate": 0.001}\n')
    expect(page.locator(".live")).to_contain_text("update 30")
    expect(page.locator(".readout").first).to_contain_text("0.125")
    again = [
        {"step": step, "loss": 0.0625, "learning_rate": 0.001} for step in range(1, 40)
    ]  # resumed, and further by now
    (run_folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in again))
    expect(page.locator(".live")).to_contain_text("update 39")
    expect(page.locator(".chart")).to_have_count(2)  # nothing was measured yet
    expect(page.locator(".chart").first.locator("circle")).to_have_count(39)


@needs_browser
def test_every_view_fits_a_phone(phone: Any, url: str) -> None:
    for view in VIEWS:
        go(phone, url, view=view, text="two women sit on a bench in the park, and a child plays")
        expect(phone.locator(f".view-{view} .card").first).to_be_visible()
        idle(phone)
        assert phone.locator(".state.bad").count() == 0, view
        assert phone.evaluate("() => document.documentElement.scrollWidth") == 375, view


@needs_browser
def test_a_finger_reads_the_matrix(phone: Any, url: str, service: Service) -> None:
    weights = service.models[0].model.look(TEXT, "a man").attention(1, 0, "cross").weights[0]
    go(phone, url, view="attention", layer=1, head=0, target="a man")
    canvas = phone.locator(".matrix canvas")
    canvas.scroll_into_view_if_needed()
    idle(phone)
    box = canvas.bounding_box()
    phone.touchscreen.tap(box["x"] + box["width"] - 6, box["y"] + box["height"] - 6)  # the last cell
    expect(phone.locator(".readout")).to_contain_text(f"{weights[-1, -1]:.3f}")
    phone.wait_for_url(f"**token={len(weights) - 1}*")  # and its row is chosen


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
def test_an_emptied_text_leaves_nothing_on_show(page: Any, url: str) -> None:
    go(page, url)
    expect(page.locator(".view-generate table tbody tr").first).to_be_visible()  # what beam search found
    page.locator("#text").fill("")
    expect(page.locator(".view-generate table, .tok, .side *")).to_have_count(0)
    expect(page.locator(".output")).to_contain_text("No input yet")
    expect(page.locator(".note")).to_be_empty()


@needs_browser
def test_what_an_address_names_wrongly_is_said_once(page: Any, url: str) -> None:
    said = page.locator("#notice")
    go(page, url, model="nobody", view="nothing")
    expect(said).to_contain_text("Model “nobody” not found; showing “en-de”")
    expect(said).to_contain_text("View “nothing” is not available for “en-de”; showing “Translate”")
    assert "nobody" not in page.url and "nothing" not in page.url
    page.get_by_role("tab", name="Attention").click()
    expect(said).to_be_empty()
    page.evaluate("() => void (location.hash = '#model=classes&view=generate')")  # a view that another model has
    expect(said).to_contain_text("View “generate” is not available for “classes”; showing “Classify”")
    said.get_by_role("button", name="Close").click()
    expect(said).to_be_hidden()
    go(page, url, view="lens")
    expect(page.get_by_role("tab", name="Logit lens")).to_have_attribute("aria-selected", "true")
    expect(said).to_be_empty()


@needs_browser
def test_old_addresses_still_open(page: Any, url: str) -> None:
    """Views had other names once; a link with one opens the same view, and the address gets the new name."""
    old = {"write": "generate", "walk": "head", "off": "ablation", "run": "training"}
    for name, view in old.items():
        go(page, url, view=name, layer=1, step=2)
        expect(page.locator(f".view-{view}")).to_be_visible()
        idle(page)
        assert f"view={view}" in page.url and "layer=1" in page.url and "step=2" in page.url
        expect(page.locator("#notice")).to_be_empty()
    go(page, url, model="classes", view="read")
    expect(page.locator(".view-predict .big")).to_be_visible()


@needs_browser
def test_a_phone_shows_where_more_is(phone: Any, url: str) -> None:
    """The header has two rows at most; tabs and examples that go on say so there, and the chosen tab is never covered by it."""
    go(phone, url)
    tabs = phone.locator("#tabs")
    expect(tabs).to_have_attribute("data-more", "right")
    expect(phone.locator(".chips")).to_have_attribute("data-more", "right")
    arrows = "one => ['::before', '::after'].map(side => getComputedStyle(one, side).display)"
    assert tabs.evaluate(arrows) == ["none", "flex"]
    assert phone.locator(".top").bounding_box()["height"] < 90
    phone.get_by_role("tab", name="Logit lens").click()
    expect(tabs).to_have_attribute("data-more", "left right")
    box = phone.get_by_role("tab", name="Logit lens").bounding_box()
    assert box["x"] >= 12 + 40 and box["x"] + box["width"] <= 375 - 12 - 40
    phone.get_by_role("tab", name="Training").click()
    expect(tabs).to_have_attribute("data-more", "left")
    assert tabs.evaluate(arrows) == ["flex", "none"]


@needs_browser
def test_light_and_dark(page: Any, url: str) -> None:
    go(page, url, view="positions")
    ground = lambda: page.evaluate("() => getComputedStyle(document.body).backgroundColor")  # noqa: E731
    light = ground()
    for name in ("system", "light"):
        page.get_by_role("button", name=f"Theme: {name}").click()
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
    expect(page.locator(".wide-card .state")).to_contain_text("No input yet")
    problems.clear()  # the browser notes every 400


@needs_browser
def test_a_key_is_asked_for(browser: Any, problems: list[str], service: Service) -> None:
    with running(Service([ServedModel("lm", language_model())], keys=ApiKeys(("secret",)))) as (url, _):
        for page in open_page(browser, problems, {"width": 1280, "height": 860}):
            go(page, url)
            page.get_by_label("API key").fill("wrong")
            page.get_by_role("button", name="Continue").click()
            expect(page.locator(".state.bad")).to_contain_text("Invalid API key")
            page.get_by_label("API key").fill("secret")
            page.keyboard.press("Enter")
            expect(page.locator(".output .tok").first).to_be_visible()
            problems.clear()  # the browser notes every 401
