"""How tokens are displayed: no byte alphabet, and where words begin can be seen, whatever the vocabulary."""

from __future__ import annotations

import pytest
from served import TEXTS, tokenizer

from qkv.text.tokenizer import Tokenizer
from qkv.text.train import train_tokenizer

TEXT = "the dog\n\truns, über 日"


def trained(kind: str) -> Tokenizer:
    return train_tokenizer(TEXTS * 20, kind, 300, special=["<mask>"])


@pytest.mark.parametrize("kind", ["byte-bpe", "bytes", "bpe", "unigram", "characters"])
def test_displayed_tokens_join_to_the_text(kind: str) -> None:
    """With every space, line break and tab visible, and bytes of a split character told as such."""
    words = trained(kind)
    ids = words.encode(TEXTS[0] if kind in ("bpe", "unigram", "characters") else TEXT, special=False)
    displayed = "".join(map(words.display, ids))
    assert not set(displayed) & set("ĠĊĉ▁ \n\t")
    if kind in ("bpe", "unigram", "characters"):
        assert displayed.lstrip("␣") == TEXTS[0].replace(" ", "␣")
    else:
        text = (
            displayed.encode().decode("unicode_escape").encode("latin-1").decode("utf-8")
        )  # bytes of characters again
        assert text == TEXT.translate({ord(" "): "␣", ord("\n"): "↵", ord("\t"): "⇥"})


def test_wordpiece_marks_what_goes_on_and_special_tokens_keep_their_names() -> None:
    words = trained("wordpiece")
    displayed = [*map(words.display, words.encode("the dogs"))]
    assert displayed[0] == "[CLS]" and displayed[1] == "the" and displayed[-1] == "[SEP]"
    assert "".join(displayed[2:-1]).replace("##", "") == "dogs" and all(one.startswith("##") for one in displayed[3:-1])
    mask = tokenizer().id_of("<mask>")
    assert mask is not None and tokenizer().display(mask) == "<mask>"
    assert tokenizer().display(10**6) == "1000000"  # no entry of the vocabulary
