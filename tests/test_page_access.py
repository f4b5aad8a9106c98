"""The page for everybody: an axe scan of every view, one tab stop for each grid."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi")

from paging import expect, go, idle, needs_browser, open_page

pytest_plugins = ("paging",)
STOPS = """() => [...document.querySelectorAll("a, button, input, select, textarea, [tabindex]")]
    .filter(one => one.tabIndex >= 0 && !one.disabled && one.checkVisibility()).length"""


def scan(page: Any) -> list[str]:
    """What axe finds wrong with the page as it is now: rule, element, why."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="not scanned: pip install axe-playwright-python"
    )
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:200]}" for one in found for node in one["nodes"]
    ]


@needs_browser
@pytest.mark.parametrize(("scheme", "models"), [("light", ["en-de", "eye"]), ("dark", ["writer", "classes"])])
def test_axe_finds_nothing_in_any_view(
    browser: Any, problems: list[str], url: str, scheme: str, models: list[str]
) -> None:
    for page in open_page(browser, problems, {"width": 1280, "height": 860}, color_scheme=scheme):
        for name in models:
            go(page, url, model=name, token=1)
            for tab in page.get_by_role("tab").all():
                tab.click()
                idle(page)
                if tab.text_content() == "Ablation":
                    page.get_by_role("switch").first.click()
                    page.get_by_role("button", name="Measure every head").click()
                    idle(page)
                assert scan(page) == [], (name, tab.text_content())
        go(page, url, view="attention", **{"as": "lines"}, token=1)
        idle(page)
        assert scan(page) == []
        page.goto(f"{url}/docs")
        assert scan(page) == []


@needs_browser
def test_a_head_that_is_off_stays_readable_when_it_is_measured(page: Any, url: str) -> None:
    """Its ground is striped, not the colour of its effect, for which black or white letters are chosen."""
    go(page, url, view="ablation", off="0.0")
    head = page.get_by_role("switch", name="Layer 0, head 0")
    expect(head).to_have_attribute("aria-checked", "false")
    idle(page)
    before = head.evaluate("one => getComputedStyle(one).color")
    page.get_by_role("button", name="Measure every head").click()
    expect(page.locator("[role=switch]:not(.measured)")).to_have_count(0)
    idle(page)
    strong = "one => (one.classList.add('strong'), getComputedStyle(one).color)"  # as of a head with a large effect
    assert head.evaluate(strong) == before


@needs_browser
def test_a_grid_is_one_tab_stop(page: Any, url: str) -> None:
    """The arrow keys move within it, to what stands beside; Enter chooses."""
    for view in ("attention", "head", "lens", "ablation"):
        go(page, url, view=view)
        idle(page)
        assert page.evaluate(STOPS) < 30, view
    for view, part in (("attention", ".thumb"), ("ablation", ".switch:not(.row-switch)")):
        go(page, url, view=view, kind="cross")
        idle(page)
        parts = page.locator(part)
        assert parts.count() > 4
        expect(page.locator(f"{part}[tabindex='0'], .row-switch[tabindex='0']")).to_have_count(1)
        name = lambda: page.evaluate("() => document.activeElement.ariaLabel")  # noqa: E731
        parts.first.focus()
        for key, wanted in (("Right", "0, head 1"), ("Down", "1, head 1"), ("Left", "1, head 0"), ("Up", "0, head 0")):
            page.keyboard.press(f"Arrow{key}")
            assert name() == f"Layer {wanted}", (view, key)
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        idle(page)
        assert name() == "Layer 1, head 0"  # it keeps the focus
        expect(page.locator(f"{part}[tabindex='0'], .row-switch[tabindex='0']")).to_have_count(1)
