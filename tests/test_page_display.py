"""What the page shows can be seen, and is what the model did: nothing cut off, washed out, scrolled away or out of date."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi")

from paging import TEXT, expect, go, idle, needs_browser
from served import model, running

from qkv.serve.api.service import Service
from qkv.serve.scheduling.served_model import ServedModel

pytest_plugins = ("paging",)
LONG = "two women sit on a bench in the park, and a child plays; the cat eats; who sees it?"
INSIDE = """([box, one]) => {
    const [a, b] = [document.querySelector(box).getBoundingClientRect(), document.querySelector(one).getBoundingClientRect()];
    return b.top >= a.top && b.bottom <= a.bottom && b.left >= a.left && b.right <= a.right;
}"""
"""Whether an element lies within the box that it is scrolled in."""


@pytest.fixture(scope="module")
def service() -> Service:
    labels = ("bad", "fair", "good")
    patches = {"image_size": 32, "patch_size": 8, "max_length": 17}
    return Service([
        ServedModel("en-de", model("transformer-base", max_length=80), "translation", ("en", "de")),
        ServedModel("writer", model("gpt2", max_length=96)),
        ServedModel("tags", model("bert-base", head="tags", max_length=64, labels=labels)),
        ServedModel("eye", model("vit-b16", labels=labels, **patches)),
        ServedModel("rotary", model("llama2-70b", max_length=96)),
        ServedModel("search", model("rnnsearch"), "translation", ("en", "de")),
    ])  # fmt: skip


@pytest.fixture(scope="module")
def url(service: Service) -> Iterator[str]:
    with running(service) as (address, _):
        yield address


# --- what was written


@needs_browser
def test_the_token_that_stands_there_is_among_its_alternatives(page: Any, url: str) -> None:
    """However unlikely it was: drawn tokens often are."""

    def token(number: int, text: str, p: float, *others: Any) -> dict[str, Any]:
        own = {"id": number, "text": text, "display": text.replace(" ", "␣"), "probability": p}
        return own | {"alternatives": [*others]}

    likely = [token(20 + n, f" w{n}", 0.1) for n in range(8)]
    events = [{"text": " b", "tokens": [token(9, " b", 0.004, *likely)]}, {"finish": "length"}]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    page.route("**/api/generate", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    go(page, url, model="writer")
    page.locator(".tok").first.click()
    expect(page.locator(".side .bar-name")).to_have_text([*(f"␣w{n}" for n in range(8)), "␣b"])
    expect(page.locator(".side [aria-current] .bar-name")).to_have_text("␣b")
    expect(page.locator(".side [aria-current] .bar-number")).to_have_text("0.4 %")


@needs_browser
def test_the_controls_say_what_the_text_was_drawn_with(page: Any, url: str) -> None:
    asked: list[dict[str, Any]] = []
    page.on("request", lambda one: asked.append(one.post_data_json) if one.url.endswith("/generate") else None)
    go(page, url, model="writer")
    card = page.locator(".card", has=page.get_by_role("slider", name="Temperature"))
    expect(card).to_contain_text("sampled with these values")
    idle(page)
    for label, value in (("Temperature", "0.3"), ("Top-p (nucleus)", "0.5")):
        page.get_by_role("slider", name=label).fill(value)
    expect(card).to_contain_text("sampled with temperature 0.8, top-p 1.")
    page.get_by_role("tab", name="Attention").click()
    page.get_by_role("tab", name="Generate").click()  # what was written is remembered, and so is how
    expect(card).to_contain_text("sampled with temperature 0.8, top-p 1.")
    page.get_by_role("button", name="Sample again").click()
    expect(card).to_contain_text("sampled with these values")
    assert [(one["temperature"], one["top_p"]) for one in asked] == [(0.8, 1), (0.3, 0.5)]


@needs_browser
def test_every_tag_has_its_probability(page: Any, url: str, service: Service) -> None:
    go(page, url, model="tags")
    found = service.models[2].model.tag([TEXT])[0]
    shown = [f"{one.word}{one.tag}{100 * one.probability:.0f} %" for one in found]
    expect(page.locator(".tagged")).to_have_text(shown)


@needs_browser
def test_without_a_head_switched_off_there_is_nothing_to_compare(page: Any, url: str) -> None:
    result = page.locator(".view-ablation .card").last
    for name in ("en-de", "writer", "tags"):
        go(page, url, model=name, view="ablation")
        expect(result).to_contain_text("Select a head to compare")
        expect(result).not_to_contain_text("With ablated heads")
        expect(result.locator(".verdict, th:text-is('Ablated')")).to_have_count(0)
        page.get_by_role("switch", name="Layer 0, head 0").click()
        expect(result).to_contain_text("Ablated heads (layer.head): 0.0")
        expect(result).to_contain_text("With ablated heads")


# --- what can be seen


@needs_browser
def test_all_rows_of_a_matrix_are_in_sight(page: Any, url: str) -> None:
    go(page, url, model="eye", view="attention")
    expect(page.locator(".matrix canvas")).to_be_visible()
    idle(page)
    fits = "one => one.scrollHeight <= one.clientHeight && one.scrollWidth <= one.clientWidth"
    assert page.locator(".matrix").evaluate(fits)


PICTURE = """async () => {
    const { drawOverlay } = await import("/static/js/image_overlay.js");
    const made = (colour) => {
        const own = Object.assign(document.createElement("canvas"), { width: 8, height: 8 });
        Object.assign(own.getContext("2d"), { fillStyle: colour }).fillRect(0, 0, 8, 8);
        return own.toDataURL();
    };
    return Promise.all(["#000", "#fff", "#c00"].map(async (colour) => {
        const own = drawOverlay(document.createElement("canvas"), made(colour), [0.7, 0.1, 0.1, 0.1], 2);
        const at = (n) => [...own.getContext("2d").getImageData(80 + 160 * n, 80, 1, 1).data];
        while (!at(0)[3]) await new Promise(requestAnimationFrame); // until it is drawn
        return [0, 1].map((n) => at(n).slice(0, 3));
    }));
}"""


@needs_browser
def test_weights_are_seen_on_patches_of_any_colour(page: Any, url: str) -> None:
    """On black too, where darkening shows nothing."""
    go(page, url, model="eye", view="attention", **{"as": "picture"})
    expect(page.locator(".overlay")).to_be_visible()
    for most, least in page.evaluate(PICTURE):
        assert max(abs(a - b) for a, b in zip(most, least, strict=True)) > 80, (most, least)


@needs_browser
def test_one_outlier_does_not_wash_out_the_positions(page: Any, url: str) -> None:
    table = [[0.02 * (-1) ** (i + j) for j in range(16)] for i in range(16)]
    table[0][0] = 5.0
    found = {"scheme": "learned", "table": table, "similarity": [[float(i == j) for j in range(16)] for i in range(16)]}
    page.route("**/api/look/positions", lambda route: route.fulfill(json=found))
    go(page, url, model="writer", view="positions")
    canvas = page.locator(".matrix canvas").first
    expect(canvas).to_be_visible()
    cell = """(one, [i, j]) => {
        const sharp = devicePixelRatio;
        const side = (one.height / sharp - 2 - 18) / 16; // the names of 16 columns lie flat
        const at = (n, first) => Math.round((first + (n + 0.5) * side) * sharp);
        const left = one.width / sharp - 2 - 16 * side;
        return [...one.getContext("2d").getImageData(at(j, left), at(i, 18), 1, 1).data.slice(0, 3)];
    }"""
    above, below, outlier = (canvas.evaluate(cell, at) for at in ([2, 2], [2, 3], [0, 0]))
    assert max(abs(a - b) for a, b in zip(above, below, strict=True)) > 60
    assert max(abs(a - b) for a, b in zip(above, outlier, strict=True)) > 20
    expect(page.locator(".legend").first).to_contain_text("≥ 0.060")


@needs_browser
def test_layers_open_on_a_cell_that_can_be_seen(page: Any, phone: Any, url: str) -> None:
    pressed = ".lens-cell[aria-pressed=true]"
    for one in (page, phone):
        go(one, url, model="writer", view="lens", text=LONG)
        expect(one.locator(pressed)).to_have_count(1)
        assert one.evaluate(
            "() => { const b = document.querySelector('.lens .scroll'); return b.scrollWidth > b.clientWidth; }"
        )
        assert one.evaluate(INSIDE, [".lens .scroll", pressed])
        one.locator(pressed).focus()
        for _ in range(12):
            one.keyboard.press("ArrowLeft")
        assert one.evaluate(INSIDE, [".lens .scroll", pressed])


@needs_browser
def test_the_lens_has_one_colour_rule(page: Any, url: str, service: Service) -> None:
    """On the page as in the file of `qkv look`: a cell has the colour of the probability of the answer that stands in it."""
    pytest.importorskip("plotly")
    found = service.models[1].model.look(TEXT).lens()
    own = found.probabilities[..., 0]
    assert [list(row) for row in found.figure().data[0].z] == own.tolist()
    go(page, url, model="writer", view="lens")
    expect(page.locator(".lens-cell")).to_have_count(own.numel())
    both = """async p => {
        const { css, sequential } = await import("/static/js/colour.js");
        const wanted = (x) => Object.assign(document.createElement("i"), { style: `background: ${css(sequential(x))}` });
        return [...document.querySelectorAll(".lens-cell")].map((one, i) => [one, wanted(p[i])].map((x) => x.style.background));
    }"""
    assert all(a == b for a, b in page.evaluate(both, [round(p, 6) for p in own.flatten().tolist()]))


# --- the walk


def table(page: Any, title: str) -> Any:
    """The lines below a heading."""
    return page.locator(f"h3:has-text('{title}') + .lines-table .line")


@needs_browser
def test_rotary_positions_are_a_step_of_their_own(page: Any, url: str) -> None:
    """Equal tokens have equal keys before it, and different ones behind it; who shares keys and values is said."""
    go(page, url, model="rotary", view="head", text="the the the", layer=0, head=2, token=2, step=1)
    names = ["x", "q k v", "rotation", "scores", "mask", "softmax", "weighted sum", "output"]
    expect(page.locator(".trail button")).to_have_text(names)
    expect(page.locator(".step-text")).to_contain_text("Heads 2 and 3 share these keys and values")
    expect(page.locator(".formula")).to_have_text("q = xWQ, k = xWK, v = xWV")
    expect(table(page, "Keys")).to_have_count(3)
    same = table(page, "Keys").locator(".vector").all_text_contents()
    assert same[1] == same[2]  # the first has no space before it
    page.locator(".trail button", has_text="rotation").click()
    expect(page.locator(".step-text")).to_contain_text("is rotated by")
    before, after = table(page, "Query").locator(".vector").all_text_contents()
    assert before != after


@needs_browser
def test_the_last_step_compares_with_the_residual_stream(page: Any, url: str, service: Service) -> None:
    found = service.models[1].model.look(TEXT).walk(1, 0)
    go(page, url, model="writer", view="head", layer=1, head=0, token=2, step=6)
    expect(page.locator(".added")).to_have_text(f"{found.output[2].norm():.2f}")
    expect(page.locator(".stream")).to_have_text(f"{found.residual[2].norm():.2f}")
    assert f"{found.residual[2].norm():.2f}" != f"{found.x[2].norm():.2f}"


@needs_browser
def test_rows_say_what_was_read_and_what_is_predicted(page: Any, phone: Any, url: str, service: Service) -> None:
    tokens = [token.strip() for token in service.models[0].model.look(TEXT, "the dog runs").tokens]
    rows = [f"after {x}, predicting {y}" for x, y in zip(tokens, [*tokens[1:], "(next)"], strict=True)]
    for kind in ("cross", "decoder"):
        go(page, url, view="attention", kind=kind, target="the dog runs", **{"as": "lines"})
        expect(page.locator(".words.from .word")).to_have_text(rows)
        page.get_by_role("tab", name="Head details").click()
        expect(page.get_by_label("Query token").locator("option")).to_have_text(
            [f"{i}: {row}" for i, row in enumerate(rows)]
        )
        expect(page.locator("button.token-name")).to_have_text(rows)
    go(phone, url, view="attention", kind="cross", target="the dog runs")
    phone.locator(".matrix").focus()
    phone.keyboard.press("ArrowDown")
    expect(phone.locator(".readout")).to_contain_text(rows[0])


@needs_browser
@pytest.mark.parametrize("name", ["writer", "en-de"])
def test_what_is_chosen_and_what_is_largest_is_in_sight(page: Any, url: str, service: Service, name: str) -> None:
    """In lists that are longer than their boxes: the query, its key, and the largest scores and weights."""
    number = [one.name for one in service.models].index(name)
    kind = "self" if name == "writer" else "encoder"
    found = service.models[number].model.look(LONG).walk(1, 0, kind)
    token = len(found.rows) - 2
    for step in range(7):
        go(page, url, model=name, view="head", kind=kind, text=LONG, layer=1, head=0, token=token, step=step)
        expect(page.locator(".step h2")).to_contain_text(f"{step + 1}.")
        for box in page.locator(".lines-table:has(.line.on)").all():
            assert box.evaluate("""box => {
                const [a, b] = [box, box.querySelector(".line.on")].map((one) => one.getBoundingClientRect());
                return b.top >= a.top && b.bottom <= a.bottom;
            }""")
        if step in (2, 4):
            values = (found.scores, found.weights)[step == 4][token]
            column = page.locator(".lines-table").first.locator(".narrow").first
            expect(column).to_contain_text(f"{values.max():.{2 if step == 2 else 3}f}".replace("-", "−"))
            expect(page.locator(".hint")).to_contain_text(f"{len(found.columns)} keys, sorted by")
    page.locator(".trail button").nth(2).click()
    names = page.locator("button.token-name")
    names.last.click()  # far below the first: it stays in sight
    expect(names.last).to_have_attribute("aria-pressed", "true")
    assert page.evaluate(INSIDE, [".lines-table", ".line.on"])


@needs_browser
def test_the_chosen_row_of_the_attention_is_in_sight(page: Any, url: str, service: Service) -> None:
    """As lines and as a matrix, when a link opens it and when it is chosen."""
    count = len(service.models[1].model.look(LONG + LONG).tokens)
    go(page, url, model="writer", view="attention", text=LONG + LONG, token=count - 1, **{"as": "lines"})
    pressed = ".words.from [aria-pressed=true]"
    expect(page.locator(pressed)).to_have_count(1)
    assert page.evaluate(INSIDE, [".lines-scroll", pressed])
    before = page.locator(".lines-scroll").evaluate("one => one.scrollTop")
    page.locator(".words.from .word").nth(count - 3).click()
    page.wait_for_url(f"**token={count - 3}*")
    expect(page.locator(pressed)).to_have_attribute("data-focus-key", f"word{count - 3}")
    assert before > 100 and page.evaluate(INSIDE, [".lines-scroll", pressed])
    assert abs(page.locator(".lines-scroll").evaluate("one => one.scrollTop") - before) < 60


@needs_browser
def test_a_recurrent_decoder_is_walked_through(page: Any, url: str, service: Service) -> None:
    found = service.models[5].model.look(TEXT).walk(0, 0, "cross")
    go(page, url, model="search", view="head", token=2, step=2)
    column = int(found.weights[2].argmax())
    expect(page.locator(".formula")).to_contain_text("tanh")
    expect(page.locator(".sum")).to_have_text(f"sum {found.scores[2, column]:.2f}".replace("-", "−"))
    for _ in range(4):
        page.get_by_role("button", name="Next →").click()
    expect(page.locator(".step-text")).to_contain_text("enters its recurrent cell")
    expect(page.get_by_role("button", name="Next →")).to_be_disabled()
