"""Tokens of a vocabulary that stand for what is missing from a text: the mask of BERT and BART, the sentinels of T5."""

from __future__ import annotations

from qkv.data import corrupt
from qkv.data.corrupt import Marks
from qkv.errors import QkvError
from qkv.text.tokenizer import Tokenizer

MASKS = ("[MASK]", "<mask>")
SENTINELS = [f"<extra_id_{i}>" for i in range(100)]
"""T5's names of the spans that are taken out."""


def mask_token(tokenizer: Tokenizer) -> str:
    """The name of the token that hides another one."""
    names = (tokenizer.special_names().get("mask_token", ""), *MASKS)
    found = next((name for name in names if name and tokenizer.id_of(name) is not None), None)
    if found is None:
        raise QkvError("this vocabulary has no mask token ([MASK] or <mask>): take one that has, or learn a new one")
    return found


def special_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    added = tokenizer.backend.get_added_tokens_decoder()
    return frozenset(i for i, token in added.items() if token.special)


def marks_of(tokenizer: Tokenizer, whole_words: bool = False) -> Marks:
    names, special = tokenizer.backend.get_vocab(with_added_tokens=True), special_tokens(tokenizer)
    mask = names[mask_token(tokenizer)]
    inside = corrupt.inner_pieces(names) if whole_words else frozenset()
    return Marks(mask, sorted(set(names.values()) - special), special, inside)


def sentinels_of(tokenizer: Tokenizer) -> list[int]:
    """T5's sentinels that the vocabulary has, from <extra_id_0> on."""
    ids = [tokenizer.id_of(name) for name in SENTINELS]
    found = [i for i in ids if i is not None]
    if len(found) < 2:
        raise QkvError("this vocabulary has no sentinels (<extra_id_0>, ...): take one that has, or learn a new one")
    return found
