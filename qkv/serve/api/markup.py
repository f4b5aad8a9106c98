"""Markup: the prose within HTML, to be translated, and what stands around it, which stays as it is.

A run of prose goes on over inline tags: <p>a <b>red</b> car</p> is one sentence. It is translated as a whole, and the tags are put
around the words that the translator aligns with theirs.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html.parser import HTMLParser
from itertools import accumulate, groupby, pairwise

from qkv.generate.alignment import Link, Span

KEPT = {"script", "style", "code", "pre", "textarea", "template"}
"""What is in these is no prose."""
EMPTY = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
"""Elements that nothing closes."""
INLINE = {"a", "abbr", "b", "bdi", "bdo", "cite", "del", "dfn", "em", "font", "i", "ins", "label", "mark", "q", "s", "small",
          "span", "strong", "sub", "sup", "time", "u"}  # fmt: skip
"""Elements within a sentence."""
PROSE, TAG, OTHER = "prose", "inline tag", "other"
MOST = 100
"""Inline elements of one run that are looked at; a run with more is cut at its tags."""
WORD = re.compile(r"\S+")
SPACES = " \t\r\n\f"
SPACE = re.compile(f"[{SPACES}]+")
"""What HTML shows as one space; one that does not break (&nbsp;) is a character of its own."""
NAME = re.compile(r"</?\s*([a-zA-Z]+)")


class Markup(HTMLParser):
    """A page as `parts`, whose join is the page: runs of prose, and what stands between them. The parser says only where something
    begins: the parts are cut out of the page itself, so that nothing of it is written anew."""

    def __init__(self, page: str):
        super().__init__(convert_charrefs=False)
        self.lines = [0, *accumulate(len(line) + 1 for line in page.split("\n"))]
        """Where each line begins."""
        self.begins: list[tuple[int, str]] = []
        """Where a piece begins, and what it is."""
        self.within: list[str] = []
        """Open elements that are not to be translated, the innermost last."""
        self.feed(page)
        self.close()
        if page and (not self.begins or self.begins[0][0]):  # what the parser leaves out belongs to the piece before it
            self.begins.insert(0, (0, OTHER))
        places = [*(at for at, _ in self.begins), len(page)]
        pieces = [
            (kind, page[begin:end]) for (_, kind), (begin, end) in zip(self.begins, pairwise(places), strict=True)
        ]
        self.parts: list[str | Run] = []
        for prose, some in groupby(pieces, lambda piece: piece[0] != OTHER):
            run = Run(list(some))
            self.parts.append(run if prose and run.prose() else run.raw)

    def runs(self) -> list[Run]:
        return [part for part in self.parts if isinstance(part, Run)]

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """<![ANYTHING is a comment up to the next >, as browsers have it; the parser knows only some and fails on others."""
        return self.parse_bogus_comment(i, bool(report))

    # --- what the parser sees

    def begin(self, kind: str) -> None:
        """A piece begins here; prose goes on where prose was before."""
        line, column = self.getpos()
        kind = OTHER if self.within else kind
        if not (kind == PROSE and self.begins and self.begins[-1][1] == PROSE):
            self.begins.append((self.lines[line - 1] + column, kind))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kept = tag in KEPT or ("translate", "no") in attrs or "notranslate" in (dict(attrs).get("class") or "").split()
        self.begin(TAG if tag in INLINE and not kept else OTHER)
        if tag not in EMPTY and (kept or self.within):
            self.within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.begin(TAG if tag in INLINE else OTHER)
        if tag in self.within:
            while self.within.pop() != tag:
                pass

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.begin(OTHER)

    def handle_data(self, data: str) -> None:
        self.begin(PROSE)

    def handle_entityref(self, name: str) -> None:
        self.begin(PROSE)

    def handle_charref(self, name: str) -> None:
        self.begin(PROSE)

    def handle_comment(self, data: str) -> None:
        self.begin(OTHER)

    def handle_decl(self, decl: str) -> None:
        self.begin(OTHER)

    def unknown_decl(self, data: str) -> None:
        self.begin(OTHER)

    def handle_pi(self, data: str) -> None:
        self.begin(OTHER)


@dataclass(frozen=True)
class Element:
    """An inline element of a run."""

    opening: str
    closing: str
    begin: int
    end: int
    """The characters of the run's text that it is around."""


@dataclass(eq=False)
class Run:
    """Prose with inline tags in it: pieces (kind, as it stands in the page)."""

    pieces: list[tuple[str, str]]

    @property
    def raw(self) -> str:
        return "".join(piece for _, piece in self.pieces)

    # --- cut at its tags

    def prose(self) -> list[str]:
        """The texts between the tags, their entities resolved, in one line each."""
        return [one_line(piece).strip(" ") for kind, piece in self.pieces if kind == PROSE and says(piece)]

    def with_prose(self, texts: Sequence[str]) -> str:
        """The run with other texts in the places of its own."""
        left = iter(texts)
        return "".join(
            dressed(next(left), piece) if kind == PROSE and says(piece) else piece for kind, piece in self.pieces
        )

    # --- as a whole

    @property
    def tagged(self) -> bool:
        return any(kind == TAG for kind, _ in self.pieces)

    @cached_property
    def text(self) -> str:
        """All of it without the tags."""
        return one_line("".join(piece for kind, piece in self.pieces if kind == PROSE)).strip(" ")

    def elements(self) -> list[Element] | None:
        """The inline elements in the order in which they begin; None where tags do not close each other in turn."""
        if sum(kind == TAG for kind, _ in self.pieces) > 2 * MOST:
            return None
        found: dict[int, Element] = {}
        open_: list[tuple[int, str, int]] = []  # number, tag, where its text begins
        before = ""
        for number, (kind, piece) in enumerate(self.pieces):
            if kind == PROSE:
                before += piece
                continue
            at = min(len(one_line(before).lstrip(" ")), len(self.text))
            if not piece.startswith("</"):
                open_.append((number, piece, at))
                continue
            if not open_ or name(open_[-1][1]) != name(piece):
                return None
            first, opening, begin = open_.pop()
            found[first] = Element(opening, piece, begin, at)
        return None if open_ else [found[number] for number in sorted(found)]

    def with_text(self, text: str, links: Sequence[Link]) -> str | None:
        """The run with a translation of its text, each tag around the words that are linked to those within it; None where an
        element would be around nothing, or two would cross."""
        elements = self.elements()
        if elements is None:
            return None
        own, theirs = spans(self.text), spans(text)
        places = [place(each, own, text, theirs, links) for each in elements]
        found = [one for one in places if one is not None]
        if len(found) < len(elements) or crossing(elements, found):
            return None
        # where two stand at one place: what closes comes first, the inner one before the outer; what opens, the outer one first
        marks = [(end, 0, -n, one.closing) for n, (one, (_, end)) in enumerate(zip(elements, found, strict=True))]
        marks += [(begin, 1, n, one.opening) for n, (one, (begin, _)) in enumerate(zip(elements, found, strict=True))]
        parts, last = list[str](), 0
        for at, *_, tag in sorted(marks):
            parts += [html.escape(text[last:at], quote=False), tag]
            last = at
        first, final = self.raw, "".join(parts) + html.escape(text[last:], quote=False)
        return around(final, first)


def place(one: Element, own: Sequence[Span], text: str, theirs: Sequence[Span], links: Sequence[Link]) -> Span | None:
    """The characters of the translation from the first to the last word that is linked to a word of the element."""
    words = [number for number, (begin, end) in enumerate(own) if begin < one.end and end > one.begin]
    if not words:
        return None
    linked = [target for source, target in links if words[0] <= source <= words[-1] and target < len(theirs)]
    if not linked:
        return None
    begin, end = theirs[min(linked)][0], theirs[max(linked)][1]
    # a mark that stands outside of the tags does so in the translation: <b>Stop</b>!
    if one.end < own[words[-1]][1]:
        while end > begin + 1 and not text[end - 1].isalnum():
            end -= 1
    if one.begin > own[words[0]][0]:
        while begin < end - 1 and not text[begin].isalnum():
            begin += 1
    return begin, end


def crossing(elements: Sequence[Element], places: Sequence[Span]) -> bool:
    """Whether some two are no longer one within the other, or one after the other, as they were."""
    for n, (one, (begin, end)) in enumerate(zip(elements, places, strict=True)):
        for other, (first, last) in zip(elements[n + 1 :], places[n + 1 :], strict=True):
            inner = other.end <= one.end and other.begin < one.end
            if not (begin <= first and last <= end if inner else end <= first or last <= begin):
                return True
    return False


def spans(text: str) -> list[Span]:
    return [word.span() for word in WORD.finditer(text)]


def name(tag: str) -> str:
    found = NAME.match(tag)
    return found[1].lower() if found else ""


def says(raw: str) -> bool:
    """Whether a piece of prose is more than spaces."""
    return bool(html.unescape(raw).strip())


def one_line(raw: str) -> str:
    """Entities resolved; a line break is a space in HTML."""
    return SPACE.sub(" ", html.unescape(raw))


def dressed(text: str, old: str) -> str:
    """A text in the place of another one."""
    return around(html.escape(text, quote=False), old)


def around(new: str, old: str) -> str:
    """With the spaces that were around the old one."""
    return old[: len(old) - len(old.lstrip(SPACES))] + new + old[len(old.rstrip(SPACES)) :]
