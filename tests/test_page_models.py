"""The page with every kind of model: what writes, chats, summarises, tags, fills gaps, answers questions, recurs."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("fastapi")

from paging import TEXT, expect, go, idle, needs_browser

from qkv.serve.service import Service

pytest_plugins = ("paging",)


@needs_browser
def test_a_language_model_writes_on(page: Any, url: str) -> None:
    go(page, url, model="writer")
    expect(page.locator("#tabs [aria-selected=true]")).to_have_text("Write")
    idle(page)
    before = page.locator(".output .tok").count()
    assert before > 0
    text = page.locator("#text").input_value()
    page.get_by_role("button", name="Add it to the beginning").click()
    idle(page)
    assert len(page.locator("#text").input_value()) > len(text)


@needs_browser
def test_of_a_chat_the_views_read_what_the_model_reads(page: Any, url: str, service: Service) -> None:
    go(page, url, model="lm")
    expect(page.locator("#tabs [aria-selected=true]")).to_have_text("Chat")
    expect(page.get_by_role("button", name="Add it to the beginning")).to_have_count(0)
    page.get_by_role("tab", name="Layers").click()
    expect(page.locator(".lens-table thead th")).to_have_count(1 + len(service.models[1].prompt_ids(TEXT, True)))


@needs_browser
def test_what_is_being_written_is_stopped(page: Any, url: str) -> None:
    page.route("**/api/generate", lambda route: None)  # an answer that never comes
    go(page, url, model="writer")
    expect(page.locator(".caret")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Write on")).to_be_visible()
    expect(page.locator(".caret, [aria-busy=true]")).to_have_count(0)


@needs_browser
def test_a_reader_may_end_the_text(page: Any, url: str, service: Service) -> None:
    """Behind a character that is split over two tokens: the text is the stream's, not that of the tokens."""
    end = service.models[0].config.eos_ids[0]
    token = lambda number, text, *others: {"id": number, "text": text, "probability": 0.5, "alternatives": [*others]}  # noqa: E731
    name = service.models[0].model.tokenizer.backend.id_to_token(end)
    events = [
        {"text": "ü", "tokens": [token(9, "\ufffd"), token(10, "\ufffd")]},
        {"text": " x", "tokens": [token(11, " x", token(11, " x"), token(end, name))]},
        {"finish": "stop"},
    ]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    page.route("**/api/generate", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    go(page, url)
    page.locator(".tok").nth(2).click()
    page.unroute("**/api/generate")
    page.get_by_role("button", name="(the end)").click()
    expect(page.locator(".tok")).to_have_count(3)
    expect(page.locator(".tok.forced")).to_have_text(name)
    assert page.evaluate("() => new URLSearchParams(location.hash.slice(1)).get('target')") == "ü"


OTHERS = {
    "short": "Summarise", "shorter": "Summarise", "tags": "Tag", "words": "Fill", "spans": "Answer", "two": "Classify",
    "lstm": "Write", "search": "Translate", "gated": "Write", "eye": "Classify",
}  # fmt: skip


@needs_browser
@pytest.mark.parametrize("name", OTHERS)
def test_every_view_of_every_kind_of_model(page: Any, url: str, name: str) -> None:
    """Opened with an example; whatever the page or the server complains of fails the test."""
    go(page, url, model=name, text="")
    tabs = page.get_by_role("tab")
    expect(tabs.first).to_have_text(OTHERS[name])
    idle(page)
    expect(page.locator(".output .tok, .big, .tagged").first).to_be_visible()
    for number in range(1, tabs.count()):
        tabs.nth(number).click()
        idle(page)
        assert page.locator(".state.bad").count() == 0, tabs.nth(number).text_content()
        expect(page.locator(".view .card").first).not_to_be_empty()


@needs_browser
def test_gaps_are_written_as_the_model_writes_them(page: Any, url: str, service: Service) -> None:
    mask = next(one for one in service.models if one.name == "words").about()["mask"]
    go(page, url, model="words", text="")
    expect(page.locator("label .quiet, label span").filter(has_text="gap")).to_contain_text(mask)
    assert mask in page.locator("#text").input_value()
    expect(page.locator(".bars li").first).to_be_visible()
    expect(page.locator(".felt-text")).to_contain_text(mask)  # read as one token


@needs_browser
def test_two_texts_are_read_as_two(page: Any, url: str, service: Service) -> None:
    models = {one.name: one.model for one in service.models}
    go(page, url, model="two", pair="the dog runs")
    expect(page.locator(".big")).to_have_text(models["two"].classify([(TEXT, "the dog runs")])[0].label)
    asked = "who sleeps?"
    go(page, url, model="spans", pair=asked)
    expect(page.locator("#pair")).to_have_value(asked)
    answer = models["spans"].answer([asked], [TEXT])[0]
    expect(page.locator(".big")).to_have_text(answer.text or "No answer")
    page.get_by_role("tab", name="Layers").click()
    expect(page.locator(".lens-table thead th")).to_have_count(1 + len(models["spans"].look(TEXT, pair=asked).tokens))
