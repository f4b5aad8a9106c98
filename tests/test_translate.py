"""Translating: order kept, a bad line costs only itself, alignments and scores are exact, any folder with a tokenizer."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import processors
from tracing import ROOT, Crossing, crossed

import qkv
from qkv import recipes
from qkv.api import Model
from qkv.batch import Batch
from qkv.config import load_recipe
from qkv.errors import QkvError
from qkv.generate.alignment import attention, links, pharaoh, taps, token_spans, words_at
from qkv.generate.beam import BeamParams
from qkv.generate.continuous_batching import ContinuousBatch
from qkv.generate.logits_processor import LogitsProcessor
from qkv.generate.parallel import TextQueue, run_batches
from qkv.generate.search import greedy
from qkv.generate.sequence import Generation
from qkv.generate.translate import TranslationParams, make_batches
from qkv.models.build import build
from qkv.parts.tap import record
from qkv.presets import tiny
from qkv.tasks.translation import TranslationTask
from qkv.text.train import train_tokenizer

TEXTS = [
    "a man rides a bicycle", "the dog runs", "two women sit on a bench in the park, and a child plays", "a man sleeps.",
    "über den </s> Zaun",
]  # fmt: skip
Run = Callable[..., tuple[int, str, str]]


def make(name: str = "transformer-base", kind: str = "bpe", **fields: object) -> Model:
    torch.manual_seed(3)
    tokenizer = train_tokenizer(TEXTS * 20, kind, 90)
    c = tiny(name).changed(
        vocab_size=tokenizer.size, target_vocab_size=None, pad_id=0, bos_id=1, eos_id=2, start_id=None, **fields
    )
    network = build(c)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return Model(c, network, tokenizer, "cpu")


@pytest.fixture(scope="module")
def model() -> Model:
    return make(output_bias=True)


def test_one_text_written_token_by_token_is_its_greedy_translation(model: Model) -> None:
    """`generate` reads a source as `translate` does, with its end token."""
    text = "a b c"
    (greedy,) = model.translate([text], beam=1, scores=True, max_length=12)
    assert "".join(model.generate(text, max_new_tokens=12)).split() == greedy.text.split()
    assert model.prompt_ids(text)[-1] in model.config.eos_ids


# --- the library


@pytest.mark.parametrize("name", ["transformer-base", "rnnsearch", "lstm-seq2seq"])
def test_order_is_kept_and_each_text_is_translated_as_if_alone(name: str) -> None:
    model = make(name)
    texts = [TEXTS[i % 5] + " " + TEXTS[(3 * i) % 5] * (i % 3) for i in range(7)]
    together = model.translate(texts, scores=True, batch_tokens=60)
    assert len({one.text for one in together}) > 3
    for text, one in zip(texts, together, strict=True):
        (lone,) = model.translate([text], scores=True)
        assert lone.text == one.text and lone.score == pytest.approx(one.score, abs=1e-4)
        assert one.score == pytest.approx(one.log_prob / len(one.tokens), abs=1e-5)
        assert sum(one.token_log_probs) == pytest.approx(one.log_prob, abs=1e-5)
        assert len(one.tokens) == len(one.token_log_probs) > 0
    assert model.translate(texts) == [one.text for one in together]
    plain = model.translate(texts, fast=False, scores=True)
    assert [one.text for one in plain] == [one.text for one in together]


def test_a_beam_of_one_is_greedy(model: Model) -> None:
    """Source = its ids and the end token, target = start token first: as the network was trained."""
    c = model.config
    for text in TEXTS:
        source = [*model.tokenizer.plain([text])[0], 2]
        batch = Batch(inputs=torch.tensor([[1]]), source=torch.tensor([source]))
        limit = min(2 * len(source) + 20, c.max_length)
        rules = LogitsProcessor(suppressed=(0, 1))  # padding and the start token are never written in a translation
        ids = greedy(model.network, batch, limit, c.eos_ids, rules)[0]
        assert model.translate([text], beam=1) == [model.tokenizer.decode([t for t in ids if t != 2])]


def test_validation_decodes_each_text_as_translate_does_in_any_batch(model: Model) -> None:
    """Texts of an untrained model reach their length limits, which depend on the text alone."""
    recipe = load_recipe(recipes.find("demo"))
    task = TranslationTask.__new__(TranslationTask)
    task.recipe, task.config, task.source, task.target = recipe, model.config, model.words(), model.target_words()
    texts = [" ".join(TEXTS[: 1 + i % 4]) for i in range(8)]
    together = task.greedy_texts(model.network, texts)
    assert len({len(text) for text in together}) > 2
    assert together == [task.greedy_texts(model.network, [text])[0] for text in texts]
    extra = recipe.decode.extra_length
    params = TranslationParams(BeamParams(1), extra_length=extra)
    assert together == [one.text for one in model.translator(fast=False).translate(texts, params)]


def test_a_translated_line_crosses_few_files_and_functions() -> None:
    """From `Model.translate` to its text, outside the network's own layers (parts/) and kernels (engine/)."""
    model = qkv.load("example", device="cpu")
    lines = ["I ate an apple.", "The dog sleeps.", "She sees the cat.", "We like the house.", "A man reads a book."]
    model.translate(lines[:1])  # packs the network
    crossing = crossed(lambda: model.translate(lines[:1]), lambda: [model.translate([line]) for line in lines], 4)
    inner = tuple(str(ROOT / room) for room in ("parts", "engine"))
    outside = Crossing(tuple(each for each in crossing.functions if not each[0].startswith(inner)))
    assert len(outside.files) <= 20 and len(outside.functions) <= 60, str(outside)


def test_what_cannot_be_translated_costs_only_itself(model: Model) -> None:
    good = model.translate(TEXTS)
    mixed = [TEXTS[0], "", "word " * 500, TEXTS[1], "  \t ", "\ud800 broken", TEXTS[2], TEXTS[3], TEXTS[4]]
    found = model.translate(mixed, scores=True)
    assert [found[i].text for i in (0, 3, 6, 7, 8)] == good
    assert [found[i].text for i in (1, 2, 4, 5)] == [""] * 4
    assert [bool(one.problem) for one in found] == [False, False, True, False, False, True, False, False, False]
    assert "at most 64" in found[2].problem and "cannot be tokenized" in found[5].problem
    assert model.translate([]) == []


def test_names_of_special_tokens_are_text(model: Model) -> None:
    """ "</s>" in a text must not end it for the model."""
    job = model.translator().encode(0, "a </s> <pad> man", TranslationParams())
    assert job.source.count(2) == 1 and job.source[-1] == 2 and 0 not in job.source
    assert model.tokenizer.decode(job.source) == "a </s> <pad> man"


def test_n_best(model: Model) -> None:
    for one in model.translate(TEXTS, beam=5, n_best=3, length_penalty=0.5):
        assert len(one.n_best) == 3 and one.n_best[0].text == one.text and one.n_best[0].score == one.score
        assert len({tuple(each.tokens) for each in one.n_best}) == 3
        for each in one.n_best:
            assert each.score == pytest.approx(each.log_prob / len(each.tokens) ** 0.5, abs=1e-5)


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "characters"])
def test_prefixes_and_constraints(kind: str) -> None:
    model = make(kind=kind, max_length=200)
    prefixes = ["the dog", "", "a man", "two women", "the"]
    for text, prefix in zip(model.translate(TEXTS, prefix=prefixes), prefixes, strict=True):
        assert text.startswith(prefix)
    assert all(text.startswith("a child") for text in model.translate(TEXTS, prefix="a child", beam=1))
    wanted = [["bench"], ["a man", "park"], [], ["the dog runs"], ["on"]]
    free = model.translate(TEXTS)
    assert not all(word in text for text, words in zip(free, wanted, strict=True) for word in words)
    for text, words in zip(model.translate(TEXTS, constraints=wanted, max_length=80), wanted, strict=True):
        assert all(word in text for word in words), (text, words)
    for one in model.translate(TEXTS, constraints=wanted, prefix=prefixes, max_length=4, scores=True):
        assert one.problem == "" or "raise max_length" in one.problem


def test_bad_calls_are_errors_in_words(model: Model) -> None:
    with pytest.raises(QkvError, match="list of texts"):
        model.translate("a man")
    with pytest.raises(QkvError, match="n_best"):
        model.translate(TEXTS, beam=2, n_best=3)
    with pytest.raises(QkvError, match="one per text"):
        model.translate(TEXTS, prefix=["a"])
    with pytest.raises(QkvError, match="max_length"):
        model.translate(TEXTS, max_length=0)
    with pytest.raises(QkvError, match="family 'decoder'"):
        c = tiny("gpt2")
        Model(c, build(c), model.tokenizer).translate(TEXTS)
    with pytest.raises(QkvError, match="tokenizer"):
        Model(model.config, model.network).translate(TEXTS)
    with pytest.raises(QkvError, match="cannot align"):
        make("lstm-seq2seq").translate(TEXTS, alignments=True)


def test_the_longest_translation(model: Model) -> None:
    """Twice the source and 20, or so many tokens more than it; with a bound of its own too, the smaller one."""
    longest, source = model.translator().max_tokens, [5] * 7
    assert longest(source, TranslationParams()) == 34
    assert longest(source, TranslationParams(extra_length=0)) == 7
    assert (
        longest(source, TranslationParams(extra_length=5))
        == longest(source, TranslationParams(max_length=30, extra_length=5))
        == 12
    )
    assert longest(source, TranslationParams(max_length=9, extra_length=5)) == 9
    assert longest(source, TranslationParams(extra_length=10**8)) == model.config.max_length


def test_a_packed_copy_follows_the_weights() -> None:
    model = make()
    assert model.packed() is model.packed()
    before, old = model.packed(), model.translate(TEXTS)
    with torch.no_grad():
        model.network.head.weight.mul_(-1)
    assert model.packed() is not before
    assert model.translate(TEXTS) == model.translate(TEXTS, fast=False) != old


def test_two_vocabularies() -> None:
    torch.manual_seed(0)
    source, target = train_tokenizer(TEXTS * 5, "bpe", 90), train_tokenizer(["ÄÖÜ ßß", "ÜÜ Ä"] * 5, "characters", 30)
    ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "start_id": None}
    c = tiny("transformer-base").changed(vocab_size=source.size, target_vocab_size=target.size, tie="output", **ids)
    found = Model(c, build(c), source, target_tokenizer=target).translate(TEXTS, alignments=True)
    assert all(set(one.text) <= set("ÄÖÜß ") for one in found) and any(one.text.strip() for one in found)


def test_batches_hold_every_job_once_and_few_tokens() -> None:
    from types import SimpleNamespace

    jobs = [SimpleNamespace(source=[0] * n) for n in (3, 9, 1, 4, 4, 30, 2, 7)]
    made = list(make_batches(jobs, 12, 2))
    assert sorted(map(id, (job for some in made for job in some))) == sorted(map(id, jobs))
    for some in made:
        assert len(some) == 1 or len(some) * max(len(job.source) for job in some) <= 12
        assert len(some) <= 2
    assert len(made) < len(jobs)


def test_a_queue_hands_out_each_text_once_and_the_longest_first() -> None:
    """Two batches of beams of 2, whose texts leave at random: none has too many tokens, and both get about as many texts."""
    draw, sizes = random.Random(0), sorted(random.Random(1).choices(range(3, 40), k=200))
    queue, running, taken = (
        TextQueue(sizes, 120, rows=2, batches=2),
        [list[int](), list[int]()],
        [list[int](), list[int]()],
    )
    assert list(queue.take(0, 0)) == [197, 198, 199] and list(queue.take(0, 3)) == []
    queue = TextQueue(sizes, 120, rows=2, batches=2)
    while sum(map(len, taken)) < 200 or any(running):
        for batch in (0, 1):
            before = len(running[batch])
            new = list(queue.take(batch, before))
            assert not new or (2 * before <= 32 and (before + len(new)) * sizes[new[-1]] <= 120)
            taken[batch] += new
            running[batch] = [text for text in (*running[batch], *new) if draw.random() < 0.7]
    assert sorted(taken[0] + taken[1]) == list(range(200)) and min(map(len, taken)) > 70
    assert taken[0][0] == 197


def test_lines_of_a_file_join_a_batch_when_others_are_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the lines, each what it becomes alone, with and without a beam; every text is read once."""
    model, joins = make(d_model=256, n_heads=4, n_layers=1), list[tuple[int, int]]()
    lines, join = [" ".join(TEXTS[: 1 + n % 4])[: 5 + 3 * (n % 7)] for n in range(24)], ContinuousBatch.join

    def record_join(self: ContinuousBatch, batch: Batch, generations: Sequence[Generation], state: Any = None) -> None:
        joins.append((len(self.running), len(generations)))
        join(self, batch, generations, state)

    monkeypatch.setattr(ContinuousBatch, "join", record_join)
    for beam in (1, 3):
        joins.clear()
        found = model.translate(lines, beam=beam, batch_tokens=80, max_length=12)
        assert sum(new for _, new in joins) == 24 and any(running for running, _ in joins)
        assert found == [model.translate([line], beam=beam, max_length=12)[0] for line in lines]


def test_streams_write_what_one_thread_writes(model: Model) -> None:
    """Order kept, the number of threads given back, and a mistake in one of them not lost."""
    texts = TEXTS * 4
    alone = model.translate(texts, beam=2)
    torch.set_num_threads(2)
    try:
        assert model.translate(texts, beam=2) == alone
        assert run_batches(str, [3, 1, 2]) == ["3", "1", "2"]
        with pytest.raises(ValueError, match="invalid"):
            run_batches(int, ["1", "x", "3"])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


# --- alignments


def test_links_of_a_handmade_attention() -> None:
    """Three source words in five tokens and an end token, two target words in three tokens and an end token."""
    source, target = [0, 0, 1, 2, 2, None], [0, 1, 1]
    weights = torch.tensor([
        [0.1, 0.1, 0.3, 0.0, 0.1, 0.4],   # the end token has most, but is no word; then word 1
        [0.2, 0.3, 0.1, 0.2, 0.2, 0.0],   # alone this token would go to word 0 ...
        [0.0, 0.0, 0.0, 0.5, 0.4, 0.1],   # ... together the two go to word 2
    ])  # fmt: skip
    # source word 0 is nobody's first choice: it goes to target word 1, whose tokens give it 0.25 on average
    assert links(weights, source, target) == [(0, 1), (1, 0), (2, 1)]
    uneven = torch.tensor([[0.4, 0.6], [0.2, 0.8], [0.2, 0.8], [0.2, 0.8]])  # the mean over a word's tokens counts
    assert links(uneven, [0, 1], [0, 1, 1, 1]) == [(0, 0), (1, 0), (1, 1)]
    assert pharaoh([(0, 0), (1, 2)]) == "0-0 1-2"
    assert links(weights, [None] * 6, target) == []


def test_words_of_tokens() -> None:
    assert words_at("Ein  Mann.", [(0, 3), (3, 4), (4, 7), (7, 9), (9, 10), (0, 0)]) == [0, None, 1, 1, 1, None]
    for kind in ("bpe", "byte-bpe", "unigram", "characters"):
        tokenizer = train_tokenizer(TEXTS * 20, kind, 120)
        for text in TEXTS:
            ids = tokenizer.plain([text])[0]
            found = [word for word in words_at(text, token_spans(ids, tokenizer)) if word is not None]
            assert found == sorted(found) and set(found) == set(range(len(text.split()))), (kind, text)
            encoded = [
                w
                for w in words_at(text, tokenizer.literal.encode(text, add_special_tokens=False).offsets)
                if w is not None
            ]
            # the same words, but for tokens of a space alone, which are part of no word in one of the two ways
            assert set(encoded) == set(found)


@pytest.mark.parametrize("name", ["transformer-base", "rnnsearch"])
def test_alignments_are_read_from_the_attention_of_the_whole_text(name: str) -> None:
    model = make(name, kind="characters")  # words of several tokens
    for text, one in zip(TEXTS, model.translate(TEXTS, alignments=True), strict=True):
        source = [*model.tokenizer.plain([text])[0], 2]
        ids = [model.tokenizer.id_of(token) for token in one.tokens]
        batch = Batch(inputs=torch.tensor([[1, *ids[:-1]]]), source=torch.tensor([source]))
        names = taps(model.network)
        with record(model.network, names) as kept, torch.no_grad():
            model.network(batch)
        looks = sum(kept[tap].mean(1)[0] for tap in names) / len(names)  # (T, S)
        torch.testing.assert_close(looks, attention(model.network, batch)[0])
        words = one.text.split()
        assert {target for _, target in one.alignment} == set(range(len(words)))
        written = [t for t in ids if t != 2]
        owners = words_at(one.text, token_spans(written, model.tokenizer))
        rows = [[i for i, word in enumerate(owners) if word == target] for target in range(len(words))]
        table = torch.tensor([[looks[own][:, columns(text, word)].sum(1).mean() for word in range(len(text.split()))]
                              for own in rows])  # fmt: skip  # (target words, source words)
        first = {(best, target) for target, best in enumerate(table.argmax(1).tolist())}
        assert first <= set(one.alignment)
        for at, target in set(one.alignment) - first:
            assert at not in {source for source, _ in first} and table[:, at].argmax() == target
        assert {at for at, _ in one.alignment} == set(range(len(text.split())))


def columns(text: str, word: int) -> list[int]:
    """The places of a word's characters, each of which is a token."""
    return [i for i, own in enumerate(words_at(text, [(i, i + 1) for i in range(len(text))])) if own == word]


def test_layers_to_align_with(model: Model) -> None:
    cross = [f"decoder.blocks.{i}.cross.layer.mixer.tap_weights" for i in range(6)]
    assert taps(model.network) == [cross[1]]  # the upper half of two
    assert taps(model.network, 0) == taps(model.network, -2) == [cross[0]]
    assert taps(build(model.config.changed(n_layers=5))) == cross[2:5]
    assert taps(build(tiny("rnnsearch"))) == ["decoder.attention.tap_weights"]
    with pytest.raises(QkvError, match="2 layers"):
        taps(model.network, 2)


# --- Hugging Face folders


@pytest.mark.parametrize("name", ["marian", "t5", "bart"])
def test_a_hugging_face_folder_with_a_tokenizer(name: str, tmp_path: Path) -> None:
    """Its tokenizer ends a text by itself (and BART's begins it); translations are those of transformers."""
    hf_models = pytest.importorskip("hf_models", reason="transformers is not installed")
    theirs = hf_models.make(name)
    folder = hf_models.save(theirs, tmp_path)
    eos = theirs.config.eos_token_id
    eos, pad = eos if isinstance(eos, int) else eos[0], theirs.config.pad_token_id
    specials = {0: "<x0>", 1: "<x1>", 2: "<x2>"}
    vocab = {
        **{token: i for i, token in specials.items()},
        **{w: i + 3 for i, w in enumerate("abcdefghijklmnopqrstuvwxyz")},
    }
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token=specials[0]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(list(specials.values()))
    single = f"{specials[0]} $A {specials[eos]}" if name == "bart" else f"$A {specials[eos]}"
    backend.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(t, i) for i, t in specials.items()]
    )
    backend.save(str(folder / "tokenizer.json"))

    texts = ["a b c d", "q", "m n o p q r s t"]
    ours = qkv.load(folder).translate(texts, beam=3, n_best=3, max_length=15)
    for text, one in zip(texts, ours, strict=True):
        ids = torch.tensor([backend.encode(text).ids])
        assert ids[0, -1] == eos
        out = theirs.generate(
            input_ids=ids, num_beams=3, num_return_sequences=3, max_new_tokens=15, early_stopping="never",
            do_sample=False, bad_words_ids=[[pad]] if pad != eos else None, forced_bos_token_id=None, forced_eos_token_id=None,
        )  # fmt: skip
        theirs_best = [[t for t in row[1:] if t != pad or pad == eos] for row in out.tolist()]
        ended = [row for row in theirs_best if eos in row]
        mine = [
            [backend.token_to_id(t) if backend.token_to_id(t) is not None else -1 for t in each.tokens]
            for each in one.n_best
        ]
        known = lambda row: [t if t < 29 else -1 for t in row]  # noqa: E731
        if ended:
            assert mine[: len(ended)] == [known(row[: row.index(eos) + 1]) for row in ended]
        else:
            assert sorted(mine) == sorted(map(known, theirs_best))


# --- the command


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(*arguments: str | Path, stdin: bytes = b"") -> tuple[int, str, str]:
        from qkv.cli import main

        monkeypatch.setattr(sys, "argv", ["qkv", "translate", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


@pytest.fixture(scope="module")
def folder(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "translator"
    model.save(path)
    return path


def test_of_a_table_the_source_column_is_translated(run: Run, folder: Path, tmp_path: Path) -> None:
    wanted = run(folder, stdin="".join(f"{text}\n" for text in TEXTS[:3]).encode())[1]
    for names, row in (("source\ttarget", "{}\tein Satz"), ("target\tsource", "ein Satz\t{}")):
        (tmp_path / "x.tsv").write_text(
            "".join(f"{line}\n" for line in (names, *(row.format(text) for text in TEXTS[:3])))
        )
        code, out, err = run(folder, tmp_path / "x.tsv")
        assert (code, out) == (0, wanted) and "reading column source" in err


def test_lines_in_lines_out(run: Run, folder: Path, model: Model, tmp_path: Path) -> None:
    texts = [TEXTS[i % 5] for i in range(40)]
    file = tmp_path / "text"
    file.write_text("\n".join(texts) + "\n")
    code, out, err = run(folder, file, "--device", "cpu")
    assert (code, err) == (0, "") and out.splitlines() == [" ".join(t.splitlines()) for t in model.translate(texts)]
    assert run(folder, "--device", "cpu", stdin=file.read_bytes())[:2] == (0, out)


def test_bad_lines_cost_only_themselves(run: Run, folder: Path, model: Model) -> None:
    good = [TEXTS[0], TEXTS[1], TEXTS[2]]
    text = b"\n".join(
        [
            good[0].encode(),
            b"\xff\xfe",
            b"",
            b"a\0b",
            b"x" * 1_000_000,
            good[1].encode(),
            b"word " * 300,
            good[2].encode(),
        ]
    )
    code, out, err = run(folder, stdin=text)
    first, *others = model.translate(good)
    assert code == 1
    assert out.split("\n") == [first, "", "", "", "", others[0], "", others[1], ""]
    said = err.splitlines()
    assert [line.split(":")[0] for line in said[:-1]] == [f"line {n} is not translated" for n in (2, 4, 5, 7)]
    assert "not UTF-8" in said[0] and "NUL" in said[1] and "100,000 bytes" in said[2] and "at most 64" in said[3]
    assert said[-1] == "4 of 8 lines are not translated"


def test_n_best_alignments_and_json(run: Run, folder: Path, model: Model) -> None:
    stdin = "\n".join([TEXTS[0], "", TEXTS[1]]).encode()
    wanted = model.translate([TEXTS[0], "", TEXTS[1]], n_best=2, alignments=True)
    code, out, _ = run(folder, "--n-best", "2", "--alignments", stdin=stdin)
    rows = [line.split(" ||| ") for line in out.splitlines()]
    assert code == 0 and [row[0] for row in rows] == ["0", "0", "1", "2", "2"]
    for row, one in zip(rows[:2], wanted[0].n_best, strict=True):
        assert (
            row[1] == one.text
            and float(row[2]) == pytest.approx(one.score, abs=1e-4)
            and row[3] == pharaoh(one.alignment)
        )
    alone = run(folder, "--alignments", stdin=stdin)[1].splitlines()
    assert alone[0] == f"{wanted[0].text} ||| {pharaoh(wanted[0].alignment)}" and alone[1] == " ||| "
    lines = [json.loads(line) for line in run(folder, "--json", "--n-best", "2", stdin=stdin)[1].splitlines()]
    assert [line["text"] for line in lines] == [one.text for one in wanted]
    assert lines[0]["token_log_probs"] == pytest.approx(wanted[0].token_log_probs, abs=1e-5)
    assert lines[0]["n_best"][1]["text"] == wanted[0].n_best[1].text
    assert "problem" in json.loads(run(folder, "--json", stdin=b"\xff")[1])


def test_settings_reach_the_search(run: Run, folder: Path, model: Model) -> None:
    stdin = TEXTS[2].encode()
    for options, how in [
        (["--beam", "1"], {"beam": 1}),
        (["--length-penalty", "-2"], {"length_penalty": -2.0}),
        (["--max-length", "3"], {"max_length": 3}),
        (["--prefix", "the dog"], {"prefix": "the dog"}),
    ]:
        assert run(folder, *options, stdin=stdin)[1] == model.translate([TEXTS[2]], **how)[0] + "\n"
    told = run(folder, "--constraints", stdin=stdin + b"\tbench\ta man")[1]
    assert told == model.translate([TEXTS[2]], constraints=[["bench", "a man"]])[0] + "\n"


def test_errors_are_one_line_and_exit_code_2(run: Run, folder: Path, tmp_path: Path) -> None:
    for arguments in [(folder, tmp_path / "none"), (tmp_path / "none",), (folder, "--beam", "2", "--n-best", "3")]:
        code, out, err = run(*arguments)
        assert (code, out) == (2, "") and err.startswith("error: ") and err.count("\n") == 1


def command(folder: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(qkv.__file__).parents[1])}
    line = [sys.executable, "-m", "qkv", "translate", str(folder), "--beam", "1"]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)


def test_whoever_types_gets_an_answer_and_a_closed_pipe_is_quiet(folder: Path, model: Model) -> None:
    process = command(folder)
    assert process.stdin and process.stdout and process.stderr
    try:
        for text in TEXTS[:2]:  # the second only after the answer to the first
            process.stdin.write(text.encode() + b"\n")
            process.stdin.flush()
            assert process.stdout.readline().decode() == model.translate([text], beam=1)[0] + "\n"
        process.stdout.close()
        process.stdin.write(b"a man\n" * 3000)
        process.stdin.close()
        assert process.wait(60) == 0 and process.stderr.read() == b""
    finally:
        process.kill()
        process.wait()
