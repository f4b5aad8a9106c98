"""Markup: the texts within HTML, to be translated, and what stands around them, which stays as it is."""

from __future__ import annotations

import html
from collections.abc import Sequence
from html.parser import HTMLParser
from itertools import accumulate, pairwise

KEPT = {"script", "style", "code", "pre", "textarea", "template"}
"""What is in these is no prose."""
EMPTY = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
"""Elements that nothing closes."""


class Markup(HTMLParser):
    """A page in pieces: `pieces` joined is the page; those at `texts` are prose. The parser says only where something begins:
    the pieces are cut out of the page itself, so that nothing of it is written anew."""

    def __init__(self, page: str):
        super().__init__(convert_charrefs=False)
        self.lines = [0, *accumulate(len(line) + 1 for line in page.split("\n"))]
        """Where each line begins."""
        self.begins: list[tuple[int, bool]] = []
        """Where a piece begins, and whether it is prose."""
        self.within: list[str] = []
        """Open elements that are not to be translated, the innermost last."""
        self.feed(page)
        self.close()
        if page and (not self.begins or self.begins[0][0]):  # what the parser leaves out belongs to the piece before it
            self.begins.insert(0, (0, False))
        places = [*(at for at, _ in self.begins), len(page)]
        self.pieces = [page[begin:end] for begin, end in pairwise(places)]
        self.texts = [n for n, (_, prose) in enumerate(self.begins) if prose and self.pieces[n].strip()]

    def begin(self, prose: bool) -> None:
        """A piece begins here; prose goes on where prose was before."""
        line, column = self.getpos()
        prose = prose and not self.within
        if not (prose and self.begins and self.begins[-1][1]):
            self.begins.append((self.lines[line - 1] + column, prose))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.begin(prose=False)
        kept = tag in KEPT or ("translate", "no") in attrs or "notranslate" in (dict(attrs).get("class") or "").split()
        if tag not in EMPTY and (kept or self.within):
            self.within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.begin(prose=False)
        if tag in self.within:
            while self.within.pop() != tag:
                pass

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.begin(prose=False)

    def handle_data(self, data: str) -> None:
        self.begin(prose=True)

    def handle_entityref(self, name: str) -> None:
        self.begin(prose=True)

    def handle_charref(self, name: str) -> None:
        self.begin(prose=True)

    def handle_comment(self, data: str) -> None:
        self.begin(prose=False)

    def handle_decl(self, decl: str) -> None:
        self.begin(prose=False)

    def unknown_decl(self, data: str) -> None:
        self.begin(prose=False)

    def handle_pi(self, data: str) -> None:
        self.begin(prose=False)

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
