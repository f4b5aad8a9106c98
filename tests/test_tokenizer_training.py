"""Tokenizers trained here: text comes back, unknowns are handled, sizes and samples are bounded."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data.grammar import pairs
from qkv.errors import QkvError
from qkv.text.train import KINDS, SPECIAL, sample, train_tokenizer

TEXTS = [text for p in itertools.islice(pairs("train"), 400) for text in (p.source, p.target)]
TRAINED = {kind: train_tokenizer(TEXTS, kind, 3000 if kind == "words" else 600) for kind in KINDS}


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("wordpiece",)])
def test_seen_text_comes_back(kind: str) -> None:
    tokenizer = TRAINED[kind]
    for text in TEXTS[:100]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=40))
def test_bytes_can_write_anything(text: str) -> None:
    assert TRAINED["byte-bpe"].decode(TRAINED["byte-bpe"].encode(text)) == text


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_special_ids_and_unknown_characters(kind: str) -> None:
    tokenizer = TRAINED[kind]
    assert 30 < tokenizer.size <= (3000 if kind == "words" else 600)
    if kind != "wordpiece":
        assert [tokenizer.id_of(token) for token in SPECIAL] == [0, 1, 2, 3]
        assert (3 in tokenizer.encode("☃")) == (kind not in ("bytes", "byte-bpe"))
    assert all(0 <= i < tokenizer.size for i in tokenizer.encode("Ich habe einen Apfel gegessen ☃."))


def test_training_is_deterministic() -> None:
    for kind in ("bpe", "byte-bpe", "words"):
        assert train_tokenizer(TEXTS, kind, 400).to_json() == train_tokenizer(TEXTS, kind, 400).to_json()


def test_more_merges_make_fewer_tokens() -> None:
    lengths = [len(train_tokenizer(TEXTS, "bpe", size).encode(TEXTS[0])) for size in (120, 300, 900)]
    assert lengths[0] > lengths[1] > lengths[2]


def test_a_sample_is_bounded_and_even() -> None:
    texts = [f"{i:06d}" for i in range(20000)]
    kept = list(sample(texts, 6000))
    assert sum(map(len, kept)) <= 6000 and len(kept) > 400
    assert abs(sum(int(t) for t in kept) / len(kept) - 10000) < 1500  # from all over, not the first ones
    assert list(sample(texts, 10**9)) == texts


def test_no_text_and_unknown_kinds_are_said() -> None:
    with pytest.raises(QkvError, match="no text"):
        train_tokenizer([], "bpe", 100)
    with pytest.raises(QkvError, match="no tokenizer kind 'bep': one of bpe"):
        train_tokenizer(TEXTS, "bep", 100)
