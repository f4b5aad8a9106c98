"""What the page's views show and where the reader is: titles, addresses, errors, examples, comparisons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from paging import TEXT, expect, go, idle, needs_browser, open_page
from served import TEXTS, language_model, model, running

from qkv.api import Model
from qkv.config import CorpusConfig
from qkv.config.usage import Usage
from qkv.serve.api.run_log import RunLog
from qkv.serve.api.service import Service
from qkv.serve.scheduling.served_model import ServedModel
from qkv.text.train import train_tokenizer

pytest_plugins = ("paging",)


# --- where one is


@needs_browser
def test_the_skip_link_keeps_the_address(page: Any, url: str) -> None:
    go(page, url, view="attention", layer=1, head=1)
    idle(page)
    before = page.url
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#panel")).to_be_focused()
    assert page.url == before
    page.reload()
    expect(page.get_by_role("heading", name="Layer 1, head 1")).to_be_visible()


@needs_browser
def test_title_and_heading_name_the_view_and_the_model(page: Any, url: str) -> None:
    for name, tab in (("en-de", "Translate"), ("en-de", "Training"), ("classes", "Logit lens")):
        go(page, url, model=name)
        page.get_by_role("tab", name=tab).click()
        expect(page).to_have_title(f"{tab} · {name} · qkv")
        expect(page.locator("h1")).to_have_text(f"{tab} · {name}")  # there is one
        idle(page)


@needs_browser
def test_curves_stand_under_the_name_of_their_own_run(
    browser: Any, problems: list[str], url: str, page: Any, run_folder: Path
) -> None:
    """Of the models only that of the run has the view; a run without a model has an entry of its own in the list."""
    go(page, url)
    expect(page.get_by_role("tab", name="Training")).to_have_count(1)  # "en-de" comes from this run
    page.get_by_label("Model").select_option("writer")
    expect(page.get_by_role("tab", name="Attention")).to_be_visible()
    expect(page.get_by_role("tab", name="Training")).to_have_count(0)
    name = f"Run {run_folder.name}"
    with running(Service([ServedModel("lm", language_model())], run_log=RunLog(run_folder))) as (other, _):
        for tab in open_page(browser, problems, {"width": 1280, "height": 860}):
            go(tab, other, view="training")
            expect(tab.get_by_label("Model")).to_have_value(name)
            expect(tab.locator(".chart").first).to_be_visible()
            expect(tab.locator("#model-summary")).to_be_empty()
            expect(tab).to_have_title(f"Training · {name} · qkv")
            tab.get_by_label("Model").select_option("lm")
            expect(tab.get_by_role("tab", name="Chat")).to_be_visible()
            expect(tab.get_by_role("tab", name="Training")).to_have_count(0)
            tab.get_by_label("Model").select_option(name)
            expect(tab.locator(".chart").first).to_be_visible()


@needs_browser
def test_an_error_leaves_no_heads_of_another_text(page: Any, problems: list[str], url: str) -> None:
    go(page, url, view="attention")
    idle(page)
    expect(page.locator(".thumb")).not_to_have_count(0)
    page.locator("#text").fill("a dog " * 200)
    expect(page.locator(".state.bad")).to_contain_text("tokens")
    expect(page.locator(".thumb, .toolbar select")).to_have_count(0)
    page.locator("#text").fill(TEXT)
    expect(page.locator(".thumb")).not_to_have_count(0)
    expect(page.locator(".state.bad")).to_have_count(0)
    problems.clear()  # the browser notes every 400


# --- tokens


@needs_browser
def test_tokens_are_shown_with_visible_boundaries(browser: Any, problems: list[str]) -> None:
    """Of a byte-level vocabulary: no letter of its alphabet, in any view; a space, a line break and a tab can be seen."""
    words = train_tokenizer(TEXTS * 20, "byte-bpe", 300)
    writer = model("gpt2", vocab_size=words.size, max_length=96)
    with running(Service([ServedModel("writer", Model(writer.config, writer.network, words, "cpu"))])) as (url, _):
        for page in open_page(browser, problems, {"width": 1280, "height": 860}):
            go(page, url, text="the%20dog%0A%09runs")
            for tab in page.get_by_role("tab").all():
                tab.click()
                idle(page)
                said = page.locator("#panel").inner_text()
                assert not set("ĠĊĉ") & set(said), tab.text_content()
                if tab.text_content() == "Logit lens":
                    heads = page.locator(".lens-table thead th").all_text_contents()[1:]
                    assert "".join(heads) == "the␣dog↵⇥runs"
                if tab.text_content() == "Embeddings":
                    page.get_by_role("button", name="Find").click()
                    expect(page.locator(".bars .bar-name").first).to_be_visible()
                    assert not set("ĠĊĉ") & set(page.locator("#panel").inner_text())


# --- texts of several sentences


@needs_browser
def test_every_sentence_is_translated(page: Any, url: str) -> None:
    """Sentence by sentence, as the APIs do; what has no words stays as it is."""
    sentences = ["A man sleeps.", "The dog runs.", "A man rides a bicycle."]
    go(page, url, text=f"{sentences[0]} {sentences[1]}%0A42%0A{sentences[2]}")
    expect(page.locator(".view-generate table tbody tr").first).to_be_visible()
    tight = lambda words: "".join(words.split())  # noqa: E731
    shown = tight("".join(page.locator(".output .tok").all_text_contents()))
    alone = []
    for one in sentences:
        go(page, url, text=one)
        expect(page.locator("#text")).to_have_value(one)
        expect(page.locator(".view-generate table tbody tr").first).to_be_visible()
        alone.append(tight("".join(page.locator(".output .tok").all_text_contents())))
    assert shown == alone[0] + alone[1] + "42" + alone[2]


@needs_browser
def test_several_sentences_are_inspected_as_one_text_and_the_page_says_so(page: Any, url: str) -> None:
    note = page.get_by_text("one sentence at a time")
    for view, text, seen in (
        ("lens", "A man sleeps. The dog runs.", True),
        ("generate", "A man sleeps. The dog runs.", False),
        ("lens", "The dog runs at 3.5 km.", False),
    ):
        go(page, url, view=view, text=text)
        expect(page.locator("#text")).to_have_value(text)
        expect(note).to_be_visible() if seen else expect(note).to_be_hidden()


# --- examples


@needs_browser
def test_examples_come_from_what_the_model_has_learned(browser: Any, problems: list[str], page: Any, url: str) -> None:
    """Its own where its folder has some, else of the kind of its data; a model of unknown data gets neither verses nor film
    reviews."""
    own = model("transformer-base")
    own.usage = Usage(corpus=CorpusConfig(grammar=100), examples=("the cat eats", "the dog runs"))
    translator = ServedModel("own", own, "translation", ("en", "de"))
    assert (
        translator.about()["examples"] == ["the cat eats", "the dog runs"] and translator.about()["data"] == "grammar"
    )
    with running(Service([translator])) as (other, _):
        for tab in open_page(browser, problems, {"width": 1280, "height": 860}):
            go(tab, other, text="")
            expect(tab.locator("#text")).to_have_value("the cat eats")
            expect(tab.locator(".chip")).to_have_text(["the cat eats", "the dog runs"])
            idle(tab)
    go(page, url)
    of = """async models => {
        const { examplesFor } = await import("/static/js/examples.js");
        return models.map(one => examplesFor(one).map(each => each.text));
    }"""
    base = {
        "can": ["generate"],
        "family": "decoder",
        "vocabulary": 50_000,
        "context": 160,
        "pairs": False,
        "mask": None,
    }
    kinds = [
        {},
        {"data": "tinyshakespeare.txt"},
        {"data": "grammar"},
        {"can": ["classify"]},
        {"can": ["classify"], "data": "imdb"},
    ]
    unknown, verses, grammar, classes, reviews = page.evaluate(of, [base | one for one in kinds])
    assert "ROMEO" in "".join(verses) and "apple" in "".join(grammar) and "film" in "".join(reviews)
    assert not [word for word in ("ROMEO", "Citizen", "film", "apple") if word in "".join(unknown + classes)]


# --- vectors


@needs_browser
def test_two_texts_are_compared_by_their_vectors(page: Any, url: str, service: Service) -> None:
    go(page, url, model="words", view="embeddings")
    both = ["the dog runs", "a man rides a bicycle"]
    for label, text in zip(("First text", "Second text"), both, strict=True):
        page.get_by_label(label).fill(text)
    page.get_by_role("button", name="Compare").click()
    words = next(one for one in service.models if one.name == "words").model
    a, b = words.embed(both)
    expect(page.locator(".big")).to_have_text(f"Cosine similarity: {a @ b:.3f}".replace("-", "−"))


# --- large models


@needs_browser
def test_columns_of_the_lens_are_computed_as_they_come_into_sight(page: Any, url: str) -> None:
    """As of a model with a million words, of which one request computes four columns."""
    asked: list[list[int]] = []
    computed = lambda: [column for columns in asked for column in columns]  # noqa: E731
    page.route("**/api/models", lambda route: route.fulfill(json=enlarge_vocabulary(route.fetch().json())))
    page.on("request", lambda one: asked.append(one.post_data_json["columns"]) if one.url.endswith("/lens") else None)
    page.set_viewport_size({"width": 700, "height": 860})
    go(page, url, view="lens", model="writer", text="two women sit on a bench in the park, and a child plays")
    expect(page.locator(".lens-cell[aria-pressed=true]")).to_be_visible()
    idle(page)
    heads = page.locator(".lens-table thead th")
    count = heads.count() - 1
    own = int(page.locator(".lens-cell[aria-pressed=true]").get_attribute("data-at").split(".")[1])
    assert own in asked[0] and all(len(columns) <= 4 for columns in asked)
    assert 0 not in computed() and len(computed()) < count  # what is out of sight is not computed
    page.locator(".lens-table").locator("xpath=..").evaluate("box => (box.scrollLeft = 0)")
    expect(page.locator(".lens-cell[data-at='0.0']")).to_be_visible()
    page.locator(".lens-cell[data-at='0.0']").click()
    for _ in range(8):  # into columns that are known, or made known now
        page.keyboard.press("ArrowRight")
    page.wait_for_url("**token=8*")
    idle(page)
    assert len(computed()) == len(set(computed()))  # each once


def enlarge_vocabulary(answer: dict[str, Any]) -> dict[str, Any]:
    for one in answer["models"]:
        one["vocabulary"] = 10**9
    return answer


def next_held(page: Any, held: list[Any]) -> Any:
    """Wait for the next request that is held back."""
    while not held:
        page.wait_for_timeout(10)
    return held.pop()


@needs_browser
def test_numbers_come_before_the_text_and_heads_layer_by_layer(page: Any, url: str) -> None:
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url.rpartition("/")[2]) if one.method == "POST" else None)
    go(page, url, view="ablation", model="writer")
    expect(page.locator(".change dd")).not_to_be_empty()
    assert asked == ["answers", "ablation", "generate"]
    page.get_by_role("switch", name="Layer 0, head 0").click()
    expect(page.locator(".verdict")).to_be_visible()
    assert asked[3:] == ["ablation", "generate"]  # the text with all heads on is known
    layers = page.locator(".row-switch").count()
    held: list[Any] = []
    page.route("**/api/look/effects", lambda route: held.append(route))
    page.get_by_role("button", name="Measure every head").click()
    expect(page.get_by_role("button", name=f"Measuring layer 1 of {layers}")).to_be_disabled()
    next_held(page, held).continue_()
    expect(page.get_by_role("button", name=f"Measuring layer 2 of {layers}")).to_be_disabled()
    expect(page.locator(".switch small")).to_have_count(page.locator("[role=switch]").count() // layers)
    for _ in range(layers - 1):
        next_held(page, held).continue_()
    idle(page)
    expect(page.locator(".switch small")).to_have_count(page.locator("[role=switch]").count())
