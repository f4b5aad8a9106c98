"""The prose of HTML, to be translated, and the markup around it, which stays as it is.

A run of prose includes inline tags: <p>a <b>red</b> car</p> is one sentence. It is translated as a whole, and the tags are put
around the words that are aligned with theirs.
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
"""Elements whose content is not prose."""
EMPTY = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
"""Void elements, which have no end tag."""
INLINE = {"a", "abbr", "b", "bdi", "bdo", "cite", "del", "dfn", "em", "font", "i", "ins", "label", "mark", "q", "s", "small",
          "span", "strong", "sub", "sup", "time", "u"}  # fmt: skip
"""Elements within a sentence."""
PROSE, TAG, OTHER = "prose", "inline tag", "other"
MOST = 100
"""Most inline elements of a run; one with more is split at its tags."""
WORD = re.compile(r"\S+")
SPACES = " \t\r\n\f"
SPACE = re.compile(f"[{SPACES}]+")
"""White space that HTML collapses; a non-breaking space (&nbsp;) is an ordinary character."""
NAME = re.compile(r"</?\s*([a-zA-Z]+)")


class Markup(HTMLParser):
    """Splits a page into `parts`, whose join is the page: runs of prose, and the markup between them. The parser only determines where a
    piece starts; the pieces are slices of the page, so that nothing is reformatted."""

    def __init__(self, page: str):
        super().__init__(convert_charrefs=False)
        self.lines = [0, *accumulate(len(line) + 1 for line in page.split("\n"))]
        """Offset of each line."""
        self.starts: list[tuple[int, str]] = []
        """Offset and kind of each piece."""
        self.protected: list[str] = []
        """Open elements that are not translated, the innermost last."""
        self.feed(page)
        self.close()
        if page and (not self.starts or self.starts[0][0]):  # what the parser skips belongs to the piece before it
            self.starts.insert(0, (0, OTHER))
        places = [*(at for at, _ in self.starts), len(page)]
        kinds = [kind for _, kind in self.starts]
        pieces = [(kind, page[begin:end]) for kind, (begin, end) in zip(kinds, pairwise(places), strict=True)]
        self.parts: list[str | ProseRun] = []
        for prose, some in groupby(pieces, lambda piece: piece[0] != OTHER):
            run = ProseRun(list(some))
            self.parts.append(run if prose and run.prose() else run.raw)

    def runs(self) -> list[ProseRun]:
        return [part for part in self.parts if isinstance(part, ProseRun)]

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """Treat <![ANYTHING as a comment up to the next >, as browsers do; the base class fails on unknown ones."""
        return self.parse_bogus_comment(i, bool(report))

    # --- callbacks of the parser

    def start_piece(self, kind: str) -> None:
        """Start a piece at the current position; prose after prose continues the piece before it."""
        line, column = self.getpos()
        kind = OTHER if self.protected else kind
        if not (kind == PROSE and self.starts and self.starts[-1][1] == PROSE):
            self.starts.append((self.lines[line - 1] + column, kind))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kept = tag in KEPT or ("translate", "no") in attrs or "notranslate" in (dict(attrs).get("class") or "").split()
        self.start_piece(TAG if tag in INLINE and not kept else OTHER)
        if tag not in EMPTY and (kept or self.protected):
            self.protected.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.start_piece(TAG if tag in INLINE else OTHER)
        if tag in self.protected:
            while self.protected.pop() != tag:
                pass

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.start_piece(OTHER)

    def handle_data(self, data: str) -> None:
        self.start_piece(PROSE)

    def handle_comment(self, data: str) -> None:
        self.start_piece(OTHER)

    handle_entityref = handle_charref = handle_data  # type: ignore[assignment]  # other names of the parameter
    handle_decl = unknown_decl = handle_pi = handle_comment  # type: ignore[assignment]


@dataclass(frozen=True)
class Element:
    """An inline element of a run."""

    opening: str
    closing: str
    begin: int
    end: int
    """The characters of the run's text that it encloses."""


@dataclass(eq=False)
class ProseRun:
    """Prose with inline tags: pieces (kind, source)."""

    pieces: list[tuple[str, str]]

    @property
    def raw(self) -> str:
        return "".join(piece for _, piece in self.pieces)

    # --- split at its tags

    def prose(self) -> list[str]:
        """Return the texts between the tags, with entities resolved and white space collapsed."""
        return [one_line(piece).strip(" ") for kind, piece in self.pieces if kind == PROSE and has_text(piece)]

    def with_prose(self, texts: Sequence[str]) -> str:
        """Return the run with other texts between its tags."""
        left = iter(texts)
        new = [escape_like(next(left), raw) if kind == PROSE and has_text(raw) else raw for kind, raw in self.pieces]
        return "".join(new)

    # --- as a whole

    @property
    def tagged(self) -> bool:
        return any(kind == TAG for kind, _ in self.pieces)

    @cached_property
    def text(self) -> str:
        """Its text without the tags."""
        return one_line("".join(piece for kind, piece in self.pieces if kind == PROSE)).strip(" ")

    def elements(self) -> list[Element] | None:
        """Return the inline elements in the order of their start tags; None if tags are not properly nested."""
        if sum(kind == TAG for kind, _ in self.pieces) > 2 * MOST:
            return None
        found: dict[int, Element] = {}
        open_: list[tuple[int, str, int]] = []  # number, tag, start of its text
        before = ""
        for number, (kind, piece) in enumerate(self.pieces):
            if kind == PROSE:
                before += piece
                continue
            at = min(len(one_line(before).lstrip(" ")), len(self.text))
            if not piece.startswith("</"):
                open_.append((number, piece, at))
                continue
            if not open_ or tag_name(open_[-1][1]) != tag_name(piece):
                return None
            first, opening, begin = open_.pop()
            found[first] = Element(opening, piece, begin, at)
        return None if open_ else [found[number] for number in sorted(found)]

    def with_text(self, text: str, links: Sequence[Link]) -> str | None:
        """Return the run with a translation of its text, each tag around the words aligned with those inside it; None if an element
        would be empty, or two would overlap."""
        elements = self.elements()
        if elements is None:
            return None
        own, theirs = spans(self.text), spans(text)
        places = [span_of(each, own, text, theirs, links) for each in elements]
        found = [one for one in places if one is not None]
        if len(found) < len(elements) or overlap(elements, found):
            return None
        # at the same position: end tags come first, the inner before the outer; then start tags, the outer first
        marks = list[tuple[int, int, int, str]]()
        for n, (one, (begin, end)) in enumerate(zip(elements, found, strict=True)):
            marks += [(end, 0, -n, one.closing), (begin, 1, n, one.opening)]
        new, last = "", 0
        for at, *_, tag in sorted(marks):
            new += html.escape(text[last:at], quote=False) + tag
            last = at
        return with_spaces(new + html.escape(text[last:], quote=False), self.raw)


def span_of(one: Element, own: Sequence[Span], text: str, theirs: Sequence[Span], links: Sequence[Link]) -> Span | None:
    """Return the characters of the translation from the first to the last word that is aligned with a word of the element."""
    words = [number for number, (begin, end) in enumerate(own) if begin < one.end and end > one.begin]
    if not words:
        return None
    linked = [target for source, target in links if words[0] <= source <= words[-1] and target < len(theirs)]
    if not linked:
        return None
    begin, end = theirs[min(linked)][0], theirs[max(linked)][1]
    # punctuation outside of the tags stays outside: <b>Stop</b>!
    if one.end < own[words[-1]][1]:
        while end > begin + 1 and not text[end - 1].isalnum():
            end -= 1
    if one.begin > own[words[0]][0]:
        while begin < end - 1 and not text[begin].isalnum():
            begin += 1
    return begin, end


def overlap(elements: Sequence[Element], places: Sequence[Span]) -> bool:
    """Return whether two elements are no longer nested, or no longer one after the other, as they were."""
    for n, (one, (begin, end)) in enumerate(zip(elements, places, strict=True)):
        for other, (first, last) in zip(elements[n + 1 :], places[n + 1 :], strict=True):
            inner = other.end <= one.end and other.begin < one.end
            if not (begin <= first and last <= end if inner else end <= first or last <= begin):
                return True
    return False


def spans(text: str) -> list[Span]:
    return [word.span() for word in WORD.finditer(text)]


def tag_name(tag: str) -> str:
    found = NAME.match(tag)
    return found[1].lower() if found else ""


def has_text(raw: str) -> bool:
    """Return whether a piece of prose is more than white space."""
    return bool(html.unescape(raw).strip())


def one_line(raw: str) -> str:
    """Resolve entities and collapse white space."""
    return SPACE.sub(" ", html.unescape(raw))


def escape_like(text: str, old: str) -> str:
    """Escape a text that replaces another one, with the white space around that one."""
    return with_spaces(html.escape(text, quote=False), old)


def with_spaces(new: str, old: str) -> str:
    """Put the white space around `old` around `new`."""
    return old[: len(old) - len(old.lstrip(SPACES))] + new + old[len(old.rstrip(SPACES)) :]
