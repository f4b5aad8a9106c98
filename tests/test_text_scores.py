"""`qkv score`: probabilities of texts, against the definition, batches of one, and transformers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv import pretrained
from qkv.api import Model
from qkv.config.usage import Usage
from qkv.errors import QkvError
from qkv.models.build import build
from qkv.presets import tiny
from qkv.tasks.text_scores import TextScorer, chain_rows, total
from qkv.text.tokenizer import Tokenizer
from qkv.text.train import train_tokenizer

Run = Callable[..., tuple[int, str, str]]
TEXTS = ["the cat sat on the mat", "a dog", "the dog ran to the cat", "on"]


def tokenizer(kind: str = "characters", **how: Any) -> Tokenizer:
    return train_tokenizer([*TEXTS, "abcdefghijklmnopqrstuvwxyz"] * 20, kind, 60, **how)


def model(name: str, kind: str = "characters", usage: Usage = Usage(), **changes: Any) -> Model:
    torch.manual_seed(0)
    words = tokenizer(kind, **({"special": ["[MASK]"]} if name == "bert-base" else {}))
    c = tiny(name).changed(**{"vocab_size": words.size, "bos_id": 1, "eos_id": 2, "pad_id": 0} | changes)
    return Model(c, build(c), words, "cpu", usage=usage)


def log_probs(one: Model, *ids: Any) -> torch.Tensor:
    return one.logits(*ids).double().log_softmax(-1)[0]  # (T, V)


# --- the definition


@pytest.mark.parametrize("name", ["gpt2", "llama2-70b", "lstm-lm", "mamba-130m"])
def test_a_decoder_multiplies_the_probabilities_of_its_tokens(name: str) -> None:
    one = model(name)
    (found,) = one.score(["the cat"])
    ids = one.words().plain(["the cat"])[0]
    table = log_probs(one, [[1, *ids]])
    by_hand = [table[at, token].item() for at, token in enumerate(ids)]
    assert found.token_log_probs == pytest.approx(by_hand, abs=1e-5)
    assert found.log_prob == pytest.approx(sum(by_hand), abs=1e-4)
    assert found.perplexity == pytest.approx(math.exp(-sum(by_hand) / len(ids)), rel=1e-4)
    assert found.bits_per_byte == pytest.approx(-sum(by_hand) / math.log(2) / 7, rel=1e-4)
    (ended,) = one.score(["the cat"], end=True)
    assert ended.token_log_probs == pytest.approx([*by_hand, table[len(ids), 2].item()], abs=1e-5)


@pytest.mark.parametrize("context", ["", "  "])
def test_an_empty_context_is_none(context: str) -> None:
    """Also without a begin token, where the first token cannot be scored."""
    for one in (model("gpt2"), model("gpt2", bos_id=None)):
        assert one.score(["the cat"], [context]) == one.score(["the cat"])


def test_the_next_tokens_after_a_context_have_probabilities_that_sum_to_one() -> None:
    """Every character and the special tokens; of the latter by the network itself."""
    one = model("gpt2")
    words = one.words()
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    scores = one.score(letters, ["the"] * len(letters))  # a space, then the letter
    space, *_ = words.plain([" "])[0]
    table = log_probs(one, [[1, *words.plain(["the"])[0], space]])
    given = log_probs(one, [[1, *words.plain(["the"])[0]]])[-1, space].item()
    for letter, found in zip(letters, scores, strict=True):
        (token,) = words.plain([letter])[0]
        assert found.log_prob == pytest.approx(given + table[-1, token].item(), abs=1e-4)
        assert len(found.tokens) == 2 and found.bytes == 2
    assert sum(table[-1].exp()) == pytest.approx(1)


@pytest.mark.parametrize("copies", [False, True])
def test_an_encoder_decoder_scores_a_target_given_its_source(copies: bool) -> None:
    one = model("transformer-base", copy_source=copies)
    (found,) = one.score(["a dog"], ["the cat"])
    source, target = one.words().plain(["the cat", "a dog"])
    table = log_probs(one, [[*source, 2]], [[1, *target]])
    by_hand = [table[at, token].item() for at, token in enumerate([*target, 2])]
    assert found.token_log_probs == pytest.approx(by_hand, abs=1e-5)
    (open_ended,) = one.score(["a dog"], ["the cat"], end=False)
    assert open_ended.token_log_probs == pytest.approx(by_hand[:-1], abs=1e-5)


def test_a_translation_has_the_log_probability_that_the_search_reports() -> None:
    one = qkv.load(pretrained.find("example"), device="cpu")
    texts = ["The old man sees the dog.", "The cat sleeps."]
    for text, translation in zip(texts, one.translate(texts, beam=1, scores=True), strict=True):
        (found,) = one.score([translation.text], [text])
        assert found.log_prob == pytest.approx(translation.log_prob, abs=1e-3)


def test_a_masked_model_scores_each_token_given_all_others() -> None:
    one = model("bert-base", "wordpiece")
    (found,) = one.score(["the cat"])
    ids, mask = one.words().plain(["the cat"])[0], one.words().id_of("[MASK]")
    framed = one.words().encode("the cat")
    before = framed.index(ids[0])
    by_hand = []
    for at, token in enumerate(ids):
        hidden = list(framed)
        hidden[before + at] = mask
        by_hand.append(log_probs(one, [hidden])[before + at, token].item())
    assert found.token_log_probs == pytest.approx(by_hand, abs=1e-5)
    assert (found.measure, found.bits_per_byte) == ("pseudo-log-likelihood", None)
    assert {"pseudo_perplexity"} <= found.to_json().keys()


@pytest.mark.parametrize("name", ["transformer-base", "bert-base", "gpt2", "lstm-lm", "rnnsearch"])
def test_a_text_has_the_same_score_alone_and_in_a_batch(name: str) -> None:
    one = model(
        name,
        "wordpiece" if name == "bert-base" else "characters",
        **({"target_vocab_size": None} if name == "rnnsearch" else {}),
    )
    sources = [text[::-1] for text in TEXTS] if one.config.family == "encoder-decoder" else None
    together = one.score(TEXTS, sources)
    alone = [one.score([text], sources and [sources[i]])[0] for i, text in enumerate(TEXTS)]
    for a, b in zip(together, alone, strict=True):
        assert a.token_log_probs == pytest.approx(b.token_log_probs, abs=1e-4)


def test_texts_are_prepared_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A masked model reads a text once per token: a list of long texts would fill the memory."""
    one, sizes, run = model("bert-base", "wordpiece"), [], TextScorer.run
    monkeypatch.setattr(TextScorer, "run", lambda self, rows, most: sizes.append(len(rows)) or run(self, rows, most))
    whole = one.score(TEXTS)
    monkeypatch.setattr("qkv.tasks.text_scores.GROUP", 0)
    apart = one.score(TEXTS)
    assert sizes[0] == sum(sizes[1:]) and len(sizes[1:]) >= len(TEXTS)
    for a, b in zip(whole, apart, strict=True):
        assert a.tokens == b.tokens and a.token_log_probs == pytest.approx(b.token_log_probs, abs=1e-4)


def test_totals_are_those_of_one_long_list() -> None:
    one = model("gpt2")
    found = one.score([*TEXTS, "", "x" * 10])
    whole = total(found)
    assert whole.log_prob == pytest.approx(sum(score.log_prob for score in found))
    assert len(whole.tokens) == sum(len(score.tokens) for score in found)
    assert whole.bytes == sum(len(text) for text in TEXTS) + 10


# --- long texts, inexact tokens, missing begin tokens


@pytest.mark.parametrize(("tokens", "most"), [(5, 8), (9, 8), (40, 8), (41, 7), (8, 8)])
def test_every_token_of_a_long_text_is_scored_once_with_at_least_half_a_context(tokens: int, most: int) -> None:
    ids = list(range(100, 100 + tokens))
    rows = chain_rows(ids, 1, most)
    scored = [(target, at) for row in rows for at, target in enumerate(row.targets) if target >= 0]
    assert [target for target, _ in scored] == ids[1:]
    assert all(at + 1 >= most // 2 or target < 100 + most for target, at in scored)
    assert max(len(row.inputs) for row in rows) <= most


def test_a_long_text_is_scored_in_windows_and_a_recurrent_model_needs_none() -> None:
    text = "the cat sat on the mat " * 8
    for name in ("gpt2", "lstm-lm"):
        one = model(name)
        assert one.config.max_length < len(text)
        (found,) = one.score([text])
        assert len(found.tokens) == len(text)


def test_bits_per_byte_are_given_where_the_tokens_are_the_text() -> None:
    assert model("gpt2").score(["the cat"])[0].bits_per_byte is not None
    lossy = model("gpt2").score(["THE cat ß"])[0]  # unknown characters
    assert lossy.tokens and lossy.bits_per_byte is None


def test_without_a_begin_token_the_first_token_is_given() -> None:
    one = model("gpt2")
    bare = Model(one.config.changed(bos_id=None), one.network, one.tokenizer, "cpu")
    (found,) = bare.score(["the cat"])
    assert (found.unscored, len(found.tokens), found.bits_per_byte) == (["t"], 6, None)
    assert "nothing to predict" in bare.score(["t"])[0].problem


# --- what cannot be scored


@pytest.mark.parametrize(
    ("name", "changes", "arguments", "message"),
    [
        ("electra-small", {}, (["a"],), "head is 'replaced'"),
        ("transformer-base", {}, (["a"],), "given its source"),
        ("transformer-base", {}, (["a"], ["a", "b"]), "1 texts but 2 sources"),
        ("gpt2", {"causal": False}, (["a"],), "sees the tokens that it predicts"),
        ("gpt2", {}, ("a",), r"pass \[text\]"),
        ("bert-base", {}, (["a"], ["b"]), "without a source"),
    ],
)
def test_what_has_no_probability_is_an_error(
    name: str, changes: dict[str, Any], arguments: tuple[Any, ...], message: str
) -> None:
    one = model(name, "wordpiece" if name == "bert-base" else "characters", **changes)
    with pytest.raises(QkvError, match=message):
        one.score(*arguments)


def test_a_text_that_does_not_fit_says_so_and_the_others_are_scored() -> None:
    one = model("transformer-base")
    long, short = one.score(["x" * 200, "a dog"], ["the cat", "the cat"])
    assert "at most" in long.problem and not long.tokens
    assert short.tokens and not short.problem


# --- transformers


def test_transformers_gives_the_same_loss(tmp_path: Path) -> None:
    hf = pytest.importorskip("transformers")
    one = model("gpt2")
    one.export(tmp_path / "hf")
    theirs = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    ids = torch.tensor([[1, *one.words().plain(["the cat sat"])[0]]])
    with torch.no_grad():
        loss = theirs(ids, labels=ids).loss.item()
    (found,) = one.score(["the cat sat"])
    assert math.log(found.perplexity) == pytest.approx(loss, abs=1e-5)


def test_transformers_gives_the_same_loss_of_a_target(tmp_path: Path) -> None:
    hf = pytest.importorskip("transformers")
    one = model("t5-small", start_id=0)
    one.export(tmp_path / "hf")
    theirs = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf")
    source, target = one.words().plain(["the cat", "a dog"])
    with torch.no_grad():
        loss = theirs(torch.tensor([[*source, 2]]), labels=torch.tensor([[*target, 2]])).loss.item()
    (found,) = one.score(["a dog"], ["the cat"])
    assert math.log(found.perplexity) == pytest.approx(loss, abs=1e-5)


# --- the command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "gpt"
    model("gpt2").save(path)
    return path


def test_the_command_scores_texts_files_and_standard_input_alike(run: Run, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("the cat\n\na dog\n")
    code, out, err = run("score", folder, file)
    first, blank, second = out.split("\n")[:3]
    assert code == 0 and blank == "" and first.endswith("\tthe cat") and second.split("\t")[1] == "5"
    assert "2 texts, 12 tokens: log-probability" in err and "bits per byte" in err
    assert run("score", folder, "the cat", "a dog")[1].split() == out.split()
    assert float(first.split("\t")[0]) == pytest.approx(qkv.load(folder).score(["the cat"])[0].log_prob, abs=1e-3)


def test_the_command_prints_tokens_and_json(run: Run, folder: Path) -> None:
    lines = run("score", folder, "the cat", "--tokens")[1].splitlines()
    assert [line.split("\t")[1] for line in lines[1:8]] == ["t", "h", "e", "␣", "c", "a", "t"]
    one, whole = map(json.loads, run("score", folder, "the cat", "--json", "--tokens", "--end")[1].splitlines())
    assert sum(token["log_prob"] for token in one["scores"]) == pytest.approx(one["log_prob"])
    assert len(one["scores"]) == one["tokens"] == 8
    assert whole["total"]["log_prob"] == pytest.approx(one["log_prob"]) and whole["total"]["texts"] == 1


def test_the_command_reads_pairs(run: Run, folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "pairs.txt"
    table.write_text("the\tcat\nwithout a tab\n")
    code, out, err = run("score", folder, table, "--pairs")
    assert code == 1 and out.split("\t")[1] == "4" and "line 2 is not scored" in err
    sources, targets = tmp_path / "a.en", tmp_path / "a.de"
    sources.write_text("The dog sleeps.\nThe cat sleeps.\n")
    targets.write_text("Der Hund schläft.\nDie Katze schläft.\n")
    code, out, _ = run("score", "example", sources, targets)
    assert code == 0 and [line.split("\t")[3] for line in out.splitlines()] == [
        "Der Hund schläft.",
        "Die Katze schläft.",
    ]
    targets.write_text("Der Hund schläft.\n")
    assert "different numbers of lines" in run("score", "example", sources, targets)[2]
    assert "a source and a target" in run("score", "example", "one text")[2]
