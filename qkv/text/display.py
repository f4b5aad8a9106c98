"""Display: the entries of a vocabulary as people read them, with visible word boundaries."""

from __future__ import annotations

import re
from functools import cache

import tokenizers

SPACE = "\u2581"
"""How SentencePiece writes a space."""
BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
"""A byte among the words of SentencePiece's kind."""
VISIBLE = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"})


@cache
def alphabet() -> dict[str, int]:
    """The letters by which byte-level tokenizers write bytes: a printable byte stands for itself, the others follow from
    U+0100 on (GPT-2)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}


class Display:
    """Names the tokens of one vocabulary: `␣the` begins a word and `ing` continues it; WordPiece marks it the other way round,
    `the` and `##ing`. A line break is ↵, a tab ⇥, part of a character its bytes (`\\xe2`), a special token its own name."""

    def __init__(self, backend: tokenizers.Tokenizer):
        self.backend = backend
        self.added = backend.get_added_tokens_decoder()
        self.bytewise = "ByteLevel" in repr(backend.decoder)

    def name(self, token: int) -> str:
        """The entry as the vocabulary writes it; an id without one as a number."""
        return self.backend.id_to_token(token) or str(token)

    def spelled(self, token: int) -> bytes | None:
        """The bytes of an entry that spells bytes, maybe part of a character; None of any other."""
        name = self.name(token)
        if token in self.added:
            return None
        if self.bytewise and alphabet().keys() >= set(name):
            return bytes(alphabet()[letter] for letter in name)
        byte = BYTE.fullmatch(name)
        return bytes.fromhex(byte[1]) if byte else None

    def __call__(self, token: int) -> str:
        if token in self.added and self.added[token].special:
            return self.name(token)
        spelled = self.spelled(token)
        text = self.name(token).replace(SPACE, " ") if spelled is None else spelled.decode("utf-8", "backslashreplace")
        return text.translate(VISIBLE)
