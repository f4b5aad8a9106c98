"""Mask tokens of a vocabulary: the mask of BERT and BART, the sentinels of T5."""

from __future__ import annotations

from qkv.data import corrupt
from qkv.data.corrupt import Marks
from qkv.errors import QkvError
from qkv.text.tokenizer import Tokenizer

MASKS = ("[MASK]", "<mask>")
SENTINELS = [f"<extra_id_{i}>" for i in range(100)]
"""T5's names of the spans that are taken out."""


def mask_token(tokenizer: Tokenizer) -> str:
    """Return the name of the mask token; QkvError if the vocabulary has none."""
    names = (tokenizer.special_names().get("mask_token", ""), *MASKS)
    found = next((name for name in names if name and tokenizer.id_of(name) is not None), None)
    if found is None:
        raise QkvError(
            "this vocabulary has no mask token ([MASK] or <mask>): choose one that has it, or train a new tokenizer"
        )
    return found


def special_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    added = tokenizer.backend.get_added_tokens_decoder()
    return frozenset(i for i, token in added.items() if token.special)


def marks_of(tokenizer: Tokenizer, whole_words: bool = False) -> Marks:
    """Return the mask, the ordinary and the special tokens of a vocabulary; with `whole_words` also those inside of words."""
    names, special = tokenizer.backend.get_vocab(with_added_tokens=True), special_tokens(tokenizer)
    mask = names[mask_token(tokenizer)]
    inside = corrupt.inner_pieces(names) if whole_words else frozenset()
    return Marks(mask, sorted(set(names.values()) - special), special, inside)


def sentinels_of(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of T5's sentinels in the vocabulary, from <extra_id_0> on; QkvError if there are fewer than two."""
    ids = [tokenizer.id_of(name) for name in SENTINELS]
    found = [i for i in ids if i is not None]
    if len(found) < 2:
        raise QkvError(
            "this vocabulary has no sentinels (<extra_id_0>, ...): choose one that has them, or train a new tokenizer"
        )
    return found
