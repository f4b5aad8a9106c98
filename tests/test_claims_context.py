"""Claims about senses, heads and pre-training (C18, C19, C20): what they measure has known answers."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch

import qkv
from qkv.data.grammar import pairs
from qkv.errors import FileError
from qkv.lab.claims import c18_pretraining, c19_senses, c20_heads
from qkv.lab.heads import RelationCounts, word_attention
from qkv.lab.treebank import TreeWord, read_trees
from qkv.models.build import build
from qkv.text.train import train_tokenizer

WORDS = "the apple dog teacher sees eats a small big . child man woman book garden".split()


@pytest.fixture()
def model() -> qkv.Model:
    """Random weights; every word is one token."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer([" ".join(WORDS)] * 3, "words", 100)
    sizes = c19_senses.MODEL | {"vocab_size": tokenizer.size, "d_model": 16, "d_ff": 32, "dropout": 0.0}
    config = qkv.config.ModelConfig(**sizes)
    return qkv.Model(config, build(config).eval(), tokenizer)


# --- senses (C19)


def test_merged_words_keep_their_sense() -> None:
    """In the text nothing tells the two apart but the context."""
    found = list(c19_senses.occurrences("test", 300))
    assert {word for _, _, word, _ in found} == set(c19_senses.MERGED.values())
    assert {sense for *_, sense in found} == {0, 1}
    for words, place, word, _ in found:
        assert words[place] == word and not set(words) & set(c19_senses.MERGED)


def test_a_static_vector_tells_no_sense(model: qkv.Model) -> None:
    """At the embedding every occurrence has the same vector: exactly one half, whatever the network is; above it contexts differ."""
    found = [(["the", word, verb, "a", "book"], 1, word, sense)
             for word in ("apple", "dog") for sense, verb in enumerate(("sees", "eats"))]  # fmt: skip
    for static, *contextual in c19_senses.centroid_accuracy(model, found, found).values():
        assert static == 0.5
        assert contextual == [1.0] * len(contextual)  # each sense has one context, so that its centroid is that vector


# --- heads (C20)


def test_relations_of_a_sentence_of_the_grammar() -> None:
    for pair in islice(pairs("test"), 200):
        parsed = c20_heads.grammar_sentence(pair.english)
        for name, tag in (("determiner to noun", "DET"), ("adjective to noun", "ADJ"), ("auxiliary to verb", "AUX")):
            for start, end in parsed.relations.get(name, ()):
                assert pair.english[start].tag == tag
                assert pair.english[end].tag == ("VERB" if tag == "AUX" else "NOUN")
        for start, end in parsed.relations.get("determiner to noun", ()):
            between = [token.tag for token in pair.english[start + 1 : end]]
            assert set(between) <= {"ADJ"}


def test_heads_are_counted_by_their_largest_weight_on_another_word() -> None:
    weights = torch.zeros(1, 2, 3, 3)  # (layers, H, W, W)
    weights[0, 0] = torch.tensor([[0.9, 0.1, 0.0], [0.0, 0.5, 0.5], [0.2, 0.8, 0.0]])
    weights[0, 1] = torch.tensor([[0.0, 0.1, 0.9], [0.6, 0.0, 0.4], [1.0, 0.0, 0.0]])
    counts = RelationCounts()
    counts.add(weights, {"next": [(0, 1), (1, 2)], "far": [(0, 2)]})
    assert counts.hits["next"].tolist() == [[2.0, 0.0]] and counts.hits["far"].tolist() == [[0.0, 1.0]]
    assert counts.distances["next"] == {1: 2} and counts.total == {"next": 2, "far": 1}


def test_weights_between_words_are_those_of_their_tokens(model: qkv.Model) -> None:
    """Every word is a token here: the weights are the network's own, without the columns of special tokens."""
    text = "the small dog sees a book".split()
    found = word_attention(model, text)
    before = len(model.words().encode("the")) - 1
    own = model.look(" ".join(text)).attention(1).weights  # (H, T, T)
    first = next(i for i in range(before + 1) if own.size(1) - i >= len(text))
    inside = own[:, first : first + len(text), first : first + len(text)]
    assert found.shape == (3, 4, 6, 6)
    torch.testing.assert_close(found[1], inside, atol=1e-6, rtol=0)


def test_trees_of_a_treebank(tmp_path: Path) -> None:
    fields = [("1", "The", "DET", "2", "det"), ("2-3", "dog's", "_", "_", "_"), ("2", "dog", "NOUN", "0", "root"),
              ("3", "'s", "PART", "2", "case:gen")]  # fmt: skip
    lines = ["\t".join((i, w, "_", tag, "_", "_", head, relation, "_", "_")) for i, w, tag, head, relation in fields]
    (tmp_path / "x.conllu").write_text("# text\n" + "\n".join(lines) + "\n\n")
    (tree,) = read_trees(tmp_path / "x.conllu")
    assert tree == [
        TreeWord("the", "DET", 1, "det"),
        TreeWord("dog", "NOUN", -1, "root"),
        TreeWord("'s", "PART", 1, "case"),
    ]
    relations = c20_heads.tree_sentence(tree).relations
    assert relations["det to its head"] == [(0, 1)] and relations["head to its case"] == [(1, 2)]


@pytest.mark.parametrize("row", ["1\ta\ta", "1\ta\ta\tDET\t_\t_\tx\tdet\t_\t_", "1\ta\ta\tDET\t_\t_\t²\tdet\t_\t_"])
def test_a_word_that_is_not_one_of_a_treebank_is_an_error_with_its_line(row: str, tmp_path: Path) -> None:
    (tmp_path / "x.conllu").write_text(f"# text\n{row}\n")
    with pytest.raises(FileError, match=r"x\.conllu, line 2: .* 10 columns"):
        list(read_trees(tmp_path / "x.conllu"))


# --- pre-training (C18)


def test_bad_sentences_have_the_words_of_good_ones() -> None:
    """Half of them, and nothing but the order tells: two neighbours are exchanged."""
    texts = [" ".join(token.text for token in pair.english) for pair in islice(pairs("train", 2), 600)]
    known = {text: sorted(text.split()) for text in texts}
    labels = []
    for line in islice(c18_pretraining.judgements("train", 2), 400):
        text, label = line.split("\t")
        labels.append(label)
        assert text in known or label == "bad"
        assert sorted(text.split()) in known.values()
    assert 0.4 < labels.count("bad") / len(labels) < 0.6
