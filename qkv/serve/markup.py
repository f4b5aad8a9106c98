"""Markup: the texts within HTML, to be translated, and what stands around them, which stays as it is."""

from __future__ import annotations

import html
from collections.abc import Sequence
from html.parser import HTMLParser

KEPT = {"script", "style", "code", "pre", "textarea", "template"}
"""What is in these is no prose."""
EMPTY = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
"""Elements that nothing closes."""


class Markup(HTMLParser):
    """A page in pieces: `pieces` joined is the page; those at `texts` are prose."""

    def __init__(self, page: str):
        super().__init__(convert_charrefs=False)
        self.pieces: list[str] = []
        self.texts: list[int] = []
        self.within: list[str] = []
        """Open elements that are not to be translated, the innermost last."""
        self.prose = ""
        self.feed(page)
        self.close()
        self.flush()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.put(self.get_starttag_text() or "")
        kept = tag in KEPT or ("translate", "no") in attrs or "notranslate" in (dict(attrs).get("class") or "").split()
        if tag not in EMPTY and (kept or self.within):
            self.within.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.put(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        self.put(f"</{tag}>")
        if tag in self.within:
            while self.within.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        self.prose += data

    def handle_entityref(self, name: str) -> None:
        self.prose += f"&{name};"

    def handle_charref(self, name: str) -> None:
        self.prose += f"&#{name};"

    def handle_comment(self, data: str) -> None:
        self.put(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self.put(f"<!{decl}>")

    def unknown_decl(self, data: str) -> None:
        self.put(f"<![{data}]>")

    def handle_pi(self, data: str) -> None:
        self.put(f"<?{data}>")

    def put(self, tag: str) -> None:
        """A piece of markup, behind the text before it."""
        self.flush()
        self.pieces.append(tag)

    def flush(self) -> None:
        if self.prose.strip() and not self.within:
            self.texts.append(len(self.pieces))
        if self.prose:
            self.pieces.append(self.prose)
        self.prose = ""

    def prose_of(self) -> list[str]:
        """The texts, their entities resolved, without the spaces around them."""
        return [html.unescape(self.pieces[at]).strip() for at in self.texts]

    def with_prose(self, texts: Sequence[str]) -> str:
        """The page with other texts in the places of its own."""
        pieces = list(self.pieces)
        for at, text in zip(self.texts, texts, strict=True):
            old = pieces[at]
            before, after = old[: len(old) - len(old.lstrip())], old[len(old.rstrip()) :]
            pieces[at] = before + html.escape(text, quote=False) + after
        return "".join(pieces)
