"""Pre-training: what is hidden, and that it can be put back; masks that are fresh and yet exact to resume; a small model of each
kind learns; gaps are filled as transformers fills them."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Run
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import qkv
from qkv import recipes
from qkv.batch import IGNORED
from qkv.config import ModelConfig, Recipe, load_recipe
from qkv.convert import folder as ours
from qkv.data import corrupt
from qkv.data.corrupt import Marks
from qkv.errors import ConfigError, QkvError
from qkv.models.build import build
from qkv.presets import preset
from qkv.tasks import electra
from qkv.tasks.base import Task, task_of
from qkv.tasks.electra import ReplacedTask, sample_tokens
from qkv.tasks.fill import Filler
from qkv.tasks.gaps import marks_of, mask_token, sentinels_of
from qkv.tasks.pretraining import MaskedTask
from qkv.text.tokenizer import Tokenizer
from qkv.text.train import train_tokenizer
from qkv.train import run as training
from qkv.train.report import Report
from qkv.train.step import LossModule, gradients

MARKS = Marks(mask=4, plain=range(5, 100), special=frozenset(range(5)), inside=frozenset(range(50, 100)))
TEXT = st.lists(st.integers(5, 99), min_size=2, max_size=60)
SEED = st.integers(0, 10**6)
SENTINELS = list(range(200, 300))
few = settings(max_examples=60, deadline=None)


# --- masked words


@few
@given(ids=st.lists(st.integers(0, 99), min_size=1, max_size=60), seed=SEED, rate=st.floats(0.05, 0.6))
def test_masks_hide_only_what_is_asked_for(ids: list[int], seed: int, rate: float) -> None:
    marks = MARKS._replace(inside=())
    inputs, targets = corrupt.mask_tokens(ids, random.Random(seed), rate, marks)
    ordinary = [i for i in ids if i not in MARKS.special]
    asked = [place for place, target in enumerate(targets) if target != IGNORED]
    assert [t if t != IGNORED else i for i, t in zip(inputs, targets, strict=True)] == ids  # the targets mend it
    assert all(ids[place] not in MARKS.special for place in asked)
    assert len(asked) == min(max(1, round(rate * len(ordinary))), len(ordinary))


def test_eight_of_ten_are_masks_one_another_word_and_one_stays() -> None:
    r, ids, kinds = random.Random(0), [5 + i % 45 for i in range(200)], Counter[str]()
    for _ in range(200):
        for seen, target in zip(*corrupt.mask_tokens(ids, r, 0.15, MARKS), strict=True):
            if target != IGNORED:
                kinds["mask" if seen == MARKS.mask else "same" if seen == target else "other"] += 1
    shares = {kind: count / kinds.total() for kind, count in kinds.items()}
    assert shares == pytest.approx({"mask": 0.8, "same": 0.1, "other": 0.1}, abs=0.02)


@few
@given(ids=TEXT, seed=SEED)
def test_whole_words_are_hidden_whole(ids: list[int], seed: int) -> None:
    _, targets = corrupt.mask_tokens(ids, random.Random(seed), 0.3, MARKS)
    hidden = [target != IGNORED for target in targets]
    assert any(hidden)
    for place in range(1, len(ids)):
        if ids[place] in MARKS.inside:
            assert hidden[place] == hidden[place - 1]


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "byte-bpe"])
def test_inner_pieces_are_those_of_the_tokenizer_s_words(kind: str) -> None:
    """Letters only: what the tokenizer calls a word then is what stands between spaces."""
    tokenizer = train_tokenizer(["the cats were sleeping in gardens", "a dog sleeps and eats"] * 3, kind, 60)
    inside = corrupt.inner_pieces(tokenizer.backend.get_vocab())
    found = tokenizer.backend.encode("the sleeping dogs eating a cat", add_special_tokens=False)
    begins = [word != before for word, before in zip(found.word_ids, [None, *found.word_ids], strict=False)]
    # the first piece begins a word wherever it comes from: byte-level BPE writes no space before it
    assert [i not in inside for i in found.ids[1:]] == begins[1:] and not all(begins)


# --- spans


def put_back(inputs: Sequence[int], target: Sequence[int], sentinels: Sequence[int]) -> list[int]:
    """The text again: each sentinel of the input replaced by what stands behind it in the target."""
    meaning: dict[int, list[int]] = {}
    last: list[int] = []
    for token in target:
        if token in sentinels:
            last = meaning.setdefault(token, [])
        else:
            last.append(token)
    return [t for token in inputs for t in (meaning.get(token, []) if token in sentinels else [token])]


@few
@given(ids=TEXT, seed=SEED, rate=st.floats(0.05, 0.9), mean=st.floats(1, 6))
def test_spans_put_back_are_the_text(ids: list[int], seed: int, rate: float, mean: float) -> None:
    inputs, target = corrupt.spans(ids, random.Random(seed), rate, mean, SENTINELS)
    used = [i for i in inputs if i in SENTINELS]
    assert put_back(inputs, target, SENTINELS) == ids
    assert used == SENTINELS[: len(used)] and [i for i in target if i in SENTINELS] == SENTINELS[: len(used) + 1]
    hidden = len(target) - len(used) - 1
    assert hidden == min(max(round(rate * len(ids)), 1), len(ids) - 1)
    assert all(a not in SENTINELS or b not in SENTINELS for a, b in pairwise(inputs))


def test_a_single_span_is_anywhere() -> None:
    ids = list(range(5, 15))
    places = {corrupt.spans(ids, random.Random(seed), 0.1, 3.0, SENTINELS)[0].index(200) for seed in range(300)}
    assert places == set(range(10))


def test_spans_are_as_long_as_asked_for() -> None:
    r, ids = random.Random(1), list(range(5, 100)) * 4
    for mean in (1.0, 3.0, 5.0):
        _, target = corrupt.spans(ids, r, 0.15, mean, SENTINELS)
        count = sum(i in SENTINELS for i in target) - 1
        assert (len(target) - count - 1) / count == pytest.approx(mean, rel=0.1)


# --- denoising


@few
@given(ids=TEXT, seed=SEED, rate=st.floats(0.05, 0.9), mean=st.floats(1, 5))
def test_infilling_keeps_the_order_of_what_stays(ids: list[int], seed: int, rate: float, mean: float) -> None:
    distinct = list(range(1000, 1000 + len(ids)))
    found = corrupt.infill(distinct, random.Random(seed), rate, mean, MARKS.mask)
    stay = [i for i in found if i != MARKS.mask]
    assert stay == sorted(stay) and set(stay) <= set(distinct) and len(found) <= len(ids)
    assert len(ids) - len(stay) <= round(rate * len(ids))


def test_infilling_hides_its_share_in_poisson_spans() -> None:
    r, ids, away, masks = random.Random(3), list(range(1000, 1200)), 0, 0
    for _ in range(200):
        found = corrupt.infill(ids, r, 0.3, 3.0, MARKS.mask)
        masks += found.count(MARKS.mask)
        away += len(ids) - (len(found) - found.count(MARKS.mask))
    assert away / (200 * 200) == pytest.approx(0.3, abs=0.005)
    assert away / masks == pytest.approx(3.0, rel=0.1)
    draws = [corrupt.poisson(3.0, r) for _ in range(5000)]
    mean = sum(draws) / len(draws)
    assert mean == pytest.approx(3, rel=0.05)
    assert sum((d - mean) ** 2 for d in draws) / len(draws) == pytest.approx(3, rel=0.1)  # a Poisson's variance


def test_sentences_change_places_whole() -> None:
    ids = [10, 11, 1, 12, 1, 13, 14, 15, 1, 16]
    orders = {tuple(corrupt.permute_sentences(ids, random.Random(seed), {1})) for seed in range(40)}
    whole = [(10, 11, 1), (12, 1), (13, 14, 15, 1), (16,)]
    assert len(orders) > 10
    for order in orders:
        assert sorted(order) == sorted(ids)
        assert all(any(order[at : at + len(s)] == s for at in range(len(ids))) for s in whole)


# --- pairs of sentences


def test_half_of_the_second_parts_follow() -> None:
    documents = [(d, [[100 * d + s, 100 * d + s] for s in range(4)]) for d in range(1, 9)]
    r, follow, total = random.Random(0), 0, 0
    for _ in range(100):
        for (number, _), pair in zip(documents, corrupt.sentence_pairs(documents, r), strict=True):
            assert pair.first[0] == 100 * number and len(pair.first) + len(pair.second) <= 20 and pair.second
            same = pair.second[0] // 100 == number
            assert same == pair.follows and (not same or pair.second[0] == pair.first[-1] + 1)
            follow, total = follow + same, total + 1
    assert follow / total == pytest.approx(0.5, abs=0.06)
    alone = corrupt.sentence_pairs(documents[:1] * 3, r)
    assert all(pair.follows for pair in alone)  # there is no other document


def unlike_documents(r: random.Random, room: int) -> list[tuple[int, list[list[int]]]]:
    """Groups of sentences of 3 to 20 tokens, the last of which is 1, sorted by length as in batches."""
    groups = []
    for document in range(100):
        sentences = [[5] * r.randint(2, 19) + [1] for _ in range(r.randint(2, 12))]
        groups += [(document, group) for group in corrupt.groups(sentences, room) if len(group) > 1]
    return sorted(groups, key=lambda group: sum(map(len, group[1])))


def test_no_length_and_no_end_tells_which_parts_follow() -> None:
    """The best guess from any length (of half of the pairs) is no better than a coin (on the other half)."""
    r, room = random.Random(0), 60
    pairs = [pair for _ in range(40) for groups in [unlike_documents(r, room)] for at in range(0, len(groups), 16)
             for pair in corrupt.sentence_pairs(groups[at : at + 16], r)]  # fmt: skip
    r.shuffle(pairs)
    half = len(pairs) // 2
    seen: dict[str, Any] = {
        "the first part": lambda p: len(p.first),
        "the second part": lambda p: len(p.second),
        "the row": lambda p: len(p.first) + len(p.second),
        "a full row": lambda p: len(p.first) + len(p.second) == room,
        "a whole last sentence": lambda p: p.second[-1] == 1,
        "the row and its end": lambda p: (len(p.first) + len(p.second), p.second[-1] == 1),
    }
    assert half > 2000
    for name, look in seen.items():
        counts = Counter[Any]()
        for pair in pairs[:half]:
            counts[look(pair)] += 1 if pair.follows else -1
        right = sum((counts[look(pair)] > 0) == pair.follows for pair in pairs[half:])
        assert right / (len(pairs) - half) < 0.53, name


def test_a_pair_has_the_same_lengths_whichever_way_the_coin_falls() -> None:
    groups, found = unlike_documents(random.Random(1), 60)[:200], []
    for coin in (0.1, 0.9):
        r = random.Random(2)
        r.random = lambda coin=coin: coin  # type: ignore[method-assign]
        pairs = corrupt.sentence_pairs(groups, r)
        assert {pair.follows for pair in pairs} == {coin < 0.5}
        found.append([(pair.first, len(pair.second)) for pair in pairs])
    assert found[0] == found[1] and all(len(first) + length <= 60 for first, length in found[0])


@few
@given(lengths=st.lists(st.integers(0, 30), max_size=20), room=st.integers(4, 40))
def test_groups_are_all_sentences_in_order_and_have_room(lengths: list[int], room: int) -> None:
    sentences = [[number] * length for number, length in enumerate(lengths)]
    found = list(corrupt.groups(sentences, room))
    assert all(sum(map(len, group)) <= room for group in found)
    assert [s[0] for group in found for s in group] == [n for n, length in enumerate(lengths) if length]


# --- the tasks


def recipe(name: str, **changes: object) -> Recipe:
    """A recipe of the package, with little of everything."""
    small: dict[str, object] = {"data.train": "[{ grammar = 300 }]", "data.valid.grammar": 40, "model.d_model": 32,
             "model.d_ff": 48, "model.n_layers": 1, "model.n_heads": 4, "data.vocab_size": 300, "train.steps": 4,
             "train.schedule": '"constant"',
             "train.evaluate_every": 2, "train.save_every": 2, **changes}  # fmt: skip
    if name != "replaced":
        small["data.test.grammar"] = 20
    return load_recipe(recipes.find(name), [f"{key}={value}" for key, value in small.items()])


NEXT = {"model.head": '"masked-next"', "model.n_segments": 2}
KINDS: dict[str, tuple[str, dict[str, object]]] = {
    "masked": ("masked", {}),
    "masked, bpe": ("masked", {"data.tokenizer": '"bpe"'}),
    "masked-next": ("masked", NEXT),
    "replaced": ("replaced", {}),
    "spans": ("spans", {}),
    "denoising": ("denoising", {}),
}


def begun(r: Recipe) -> Task:
    kind = task_of(r)
    kind.possible(r)
    words = kind.prepare(r, lambda _: None)
    return kind(r, kind.fitted(r, words), words)


@pytest.mark.parametrize("kind", KINDS)
def test_micro_batches_are_one_batch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the task's own objective: gradients of two halves = those of the whole (the same masks, no dropout). ELECTRA's
    generator gives the likeliest word, since what it draws depends on how the batch is cut."""
    monkeypatch.setattr(electra, "sample_tokens", lambda output, hidden: output.head(output.hidden[hidden]).argmax(-1))
    name, changes = KINDS[kind]
    task = begun(recipe(name, **changes))
    torch.manual_seed(0)
    network = task.network().eval()
    batch = task.collate(next(iter(task.batches))[:6])
    halves = [batch.rows(slice(0, 2)), batch.rows(slice(2, 6))]
    found = []
    for parts in ([batch], halves):
        loss = gradients(LossModule(network, task.objective), parts)
        found.append((loss, [p.grad.clone() for p in network.parameters() if p.grad is not None]))
    (whole, a), (cut, b) = found
    assert whole.count == cut.count == batch.count > 0
    torch.testing.assert_close(whole.sum, cut.sum, rtol=1e-4, atol=1e-4)
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_each_reading_of_a_text_has_masks_of_its_own(kind: str) -> None:
    name, changes = KINDS[kind]
    task = begun(recipe(name, **changes))
    examples = next(iter(task.batches))
    one, other = task.collate(examples), task.collate(examples)
    read = lambda batch: (batch.inputs if batch.source is None else batch.source).tolist()  # noqa: E731
    assert read(one) != read(other)


@pytest.mark.parametrize("kind", ["masked", "masked, bpe", "masked-next", "replaced"])
def test_what_is_asked_is_what_was_there(kind: str) -> None:
    """Targets and inputs together give the text back; special tokens are never asked for; padding is marked."""
    name, changes = KINDS[kind]
    task: Any = begun(recipe(name, **changes))
    examples = next(iter(task.batches))
    batch = task.collate(examples)
    special = sorted(marks_of(task.tokenizer).special)
    asked = batch.targets[batch.targets != IGNORED]
    assert not torch.isin(asked, torch.tensor(special)).any() and len(asked) > 0
    mended = torch.where(batch.targets == IGNORED, batch.inputs, batch.targets)
    mask = torch.ones_like(mended).bool() if batch.mask is None else batch.mask
    assert (batch.inputs == task.config.pad_id).equal(~mask) and (batch.targets[~mask] == IGNORED).all()
    rows = [row[real].tolist() for row, real in zip(mended, mask, strict=True)]
    if kind != "masked-next":
        begin, end = task.gaps
        assert rows == [[*begin, *example, *end] for example in examples]
        return
    begin, between, end = task.gaps
    for row, segments, answer, group in zip(rows, batch.segments.tolist(), batch.answers, examples, strict=True):
        cut = segments.index(1)
        first, second = row[len(begin) : cut - len(between)], row[cut : len(row) - len(end)]
        assert row == [*begin, *first, *between, *second, *end]
        behind = [after for before, after in halves(group) if before == first]
        assert behind  # `first` is some sentences of its group, `second` what follows them, or comes from elsewhere
        if answer == 1:
            behind = [after for one in examples if one.document != group.document for _, after in halves(one)]
        assert second and any(second == after[: len(second)] for after in behind)


def halves(group: Any) -> list[tuple[list[int], list[int]]]:
    """All ways to cut a group of sentences in two."""
    cuts = range(1, len(group.sentences))
    return [([*chain(*group.sentences[:cut])], [*chain(*group.sentences[cut:])]) for cut in cuts]


def test_spans_of_a_batch_give_the_text_back() -> None:
    task = begun(recipe("spans"))
    examples = next(iter(task.batches))
    batch, end = task.collate(examples), task.config.eos_ids[0]
    for row, example in enumerate(examples):
        source = batch.source[row].tolist()
        target = [t for t in batch.targets[row].tolist() if t not in (IGNORED, end)]
        source = source[: source.index(end)]
        assert put_back(source, target, task.sentinels) == list(example)  # type: ignore[attr-defined]


def test_denoising_writes_the_text_itself() -> None:
    task = begun(recipe("denoising"))
    examples = next(iter(task.batches))
    batch, end = task.collate(examples), task.config.eos_ids[0]
    rows = [[t for t in row if t != IGNORED] for row in batch.targets.tolist()]
    assert rows == [[*example, end] for example in examples]
    assert (batch.source == task.mask).any()  # type: ignore[attr-defined]


def test_pairs_are_marked_by_segments_and_answered() -> None:
    task = begun(recipe("masked", **NEXT))
    batch = task.collate(next(iter(task.batches)))
    begin, between, _ = task.gaps  # type: ignore[attr-defined]
    assert batch.answers is not None and set(batch.answers.tolist()) == {0, 1}
    for ids, segments in zip(batch.inputs.tolist(), batch.segments.tolist(), strict=True):
        first = segments.index(1)
        assert ids[0] == begin[0] and ids[first - 1] == between[0]  # the first part ends with [SEP]


def test_the_held_out_text_is_always_spoiled_alike() -> None:
    r = recipe("masked")
    a, b = begun(r), begun(r)
    torch.manual_seed(5)
    for x, y in zip(a.asked, b.asked, strict=True):  # type: ignore[attr-defined]
        assert torch.equal(x.inputs, y.inputs) and torch.equal(x.targets, y.targets)


def test_long_texts_are_windows_of_equal_length(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join([" ".join(["word"] * 100), "short one", "."]))
    r = recipe("masked", **{"data.max_length": 32})
    data = r.data.changed(train=[{"files": [str(tmp_path / "text.txt")]}], valid={"files": [str(tmp_path / "text.txt")]},
                          test=None)  # fmt: skip
    task = begun(r.changed(data=data))
    assert max(map(len, task.valid)) <= 30
    long = [len(window) for window in task.valid if len(window) > 5]
    assert max(long) - min(long) <= 1 and sum(map(len, task.valid)) == sum(
        map(len, task.tokenizer.plain((tmp_path / "text.txt").read_text().split("\n\n")))  # type: ignore[attr-defined]
    )


# --- runs


def trained(r: Recipe, folder: Path) -> training.Run:
    report = Report(Console(file=StringIO()))
    return training.run(r, r.model_dump_json(), folder, report)


@pytest.mark.parametrize("kind", ["masked", "replaced", "denoising"])
def test_stopped_and_resumed_has_the_same_masks(kind: str, tmp_path: Path) -> None:
    name, changes = KINDS[kind]
    whole = trained(recipe(name, **changes), tmp_path / "whole")
    part = recipe(name, **{**changes, "train.steps": 2})
    half = training.open_run(part, tmp_path / "half", Report(Console(file=StringIO())))
    training.learn(half, Report(Console(file=StringIO())))
    torch.manual_seed(77)
    rest = trained_again(recipe(name, **changes), tmp_path / "half")
    for a, b in zip(whole.training.network.parameters(), rest.training.network.parameters(), strict=True):
        assert torch.equal(a, b)


def trained_again(r: Recipe, folder: Path) -> training.Run:
    found = training.open_run(r, folder, Report(Console(file=StringIO())))
    assert found.training.progress.step == 2
    training.learn(found, Report(Console(file=StringIO())))
    return found


WORDS = "apple bridge candle dragon engine forest garden hammer".split()
LEARNED: dict[str, dict[str, float]] = {
    "masked": {"accuracy": 90},
    "masked-next": {"accuracy": 80, "next_accuracy": 75},
    "replaced": {"generator_accuracy": 80, "recall": 75, "precision": 90},
    "spans": {"accuracy": 75},
    "denoising": {"accuracy": 65},
}
"""Per cent that each must reach. Whoever does not read the text around a gap guesses one word of eight."""


def one_word_each(path: Path) -> Path:
    """Documents of two or three sentences that say one word over and over: any part of one tells all of it."""
    r = random.Random(0)
    documents = [
        "\n".join(" ".join([word] * r.randint(3, 6)) for _ in range(r.randint(2, 3)))
        for word in r.choices(WORDS, k=300)
    ]
    path.write_text("\n\n".join(documents))
    return path


@pytest.mark.parametrize("kind", LEARNED)
def test_a_small_model_learns_to_read_what_stands_around_a_gap(kind: str, tmp_path: Path) -> None:
    name, changes = KINDS[kind]
    r = recipe(name, **{**changes, "train.steps": 60, "train.evaluate_every": 60, "train.save_every": 60,
                        "data.batch_tokens": 512, "train.warmup": 5})  # fmt: skip
    files = {"files": [str(one_word_each(tmp_path / "text.txt"))]}
    r = r.changed(data=r.data.changed(train=[files], valid=files, test=None if kind == "replaced" else files))
    network = trained(r, tmp_path / "run").training.network.eval()
    last = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])
    assert {metric: value for metric, value in LEARNED[kind].items() if last[f"valid_{metric}"] < value} == {}, last
    if r.model.family == "encoder-decoder":  # the words come from the source, not only from what is written already
        task: Any = begun(r)
        others = [replace(b, source=b.source.roll(1, 0), source_mask=None if b.source_mask is None else
                          b.source_mask.roll(1, 0)) for b in task.asked]  # fmt: skip
        assert task.measure(network, others)["loss"] > 2 * task.measure(network, task.asked)["loss"]
    config, _, tokenizer = ours.load(tmp_path / "run" / "best")
    assert config.head == r.model.head and tokenizer is not None
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert (results["test"] is None) == (kind == "replaced")


# --- ELECTRA


def test_the_generator_shares_the_words_and_only_the_discriminator_is_kept() -> None:
    task = begun(recipe("replaced"))
    network = task.network()
    assert network.generator.embed.tokens is network.discriminator.embed.tokens
    assert network.generator.head.words.weight is network.discriminator.embed.tokens.weight
    assert network.generator.stack.blocks[0].feedforward.layer.up.weight.size(1) == task.config.d_model // 4
    assert task.kept(network) is network.discriminator


@pytest.mark.parametrize(("name", "size", "expected"), [
    ("electra-small", 0.25, (64, 1, 256)), ("electra-base", 0.3333, (256, 4, 1024)), ("electra-large", 0.25, (256, 4, 1024)),
    ("electra-small", 1.0, (256, 4, 1024)),
])  # fmt: skip
def test_the_generator_has_the_size_that_the_paper_gives_it(name: str, size: float, expected: tuple[int, ...]) -> None:
    """Clark et al. 2020, table 6: a quarter, a third and a quarter of width, heads and inner width, all of the layers."""
    c = preset(name)
    generator = electra.generator_config(c, size)
    assert (generator.d_model, generator.n_heads, generator.d_ff) == expected
    assert generator.n_layers == c.n_layers and (generator.d_embed or generator.d_model) == (c.d_embed or c.d_model)


@pytest.mark.parametrize("size", [0.1, 0.3, 0.75])
def test_the_recipe_sets_the_size_of_the_generator(size: float) -> None:
    task = begun(recipe("replaced", **{"corrupt.generator_size": size}))
    up = task.network().generator.stack.blocks[0].feedforward.layer.up.weight
    assert up.size(0) == int(48 * size) and up.size(1) % 2 == 0 and up.size(1) <= max(2, 32 * size)


def test_replaced_tokens_are_those_that_differ() -> None:
    task = begun(recipe("replaced"))
    assert isinstance(task, ReplacedTask)
    network, batch = task.network().eval(), task.collate(next(iter(task.batches)))
    both = network(batch)
    original = torch.where(batch.targets == IGNORED, batch.inputs, batch.targets)
    real = both.batch.targets != IGNORED
    assert torch.equal(real, torch.ones_like(real) if batch.mask is None else batch.mask)
    assert torch.equal((both.batch.inputs != original)[real], (both.batch.targets == 1)[real])
    assert not (both.batch.inputs == task.marks.mask).all() and (both.batch.targets == 1).any()
    assert not sample_tokens(both.generator, batch.targets != IGNORED).requires_grad


def test_electra_s_loss_is_the_sum_of_two_means() -> None:
    """With as many tokens as the rate says; the paper's weights: 1 and 50."""
    task = begun(recipe("replaced"))
    network, batch = task.network().eval(), task.collate(next(iter(task.batches)))
    both = network(batch)
    loss = task.objective(both, batch)
    hidden = batch.targets != IGNORED
    words = torch.nn.functional.cross_entropy(both.generator.logits[hidden], batch.targets[hidden])
    real = both.batch.targets != IGNORED
    wrong = torch.nn.functional.binary_cross_entropy_with_logits(
        both.discriminator.logits[real], both.batch.targets[real].float())  # fmt: skip
    rate = hidden.sum() / real.sum()
    expected = words + 50 * wrong * task.corrupt.rate / rate  # type: ignore[attr-defined]
    torch.testing.assert_close(loss.mean, expected, rtol=1e-4, atol=1e-4)


# --- what can never work


@pytest.mark.parametrize(("name", "changes", "message"), [
    ("masked", {"model.head": '"tags"'}, "head 'masked' or 'masked-next'"),
    ("spans", {"model.family": '"decoder"', "model.tie": '"output"'}, "family 'encoder-decoder'"),
    ("masked", {"data.max_length": 1000}, "do not fit model.max_length"),
    ("replaced", {"data.test": "{ grammar = 5 }"}, "generator, which is not stored"),
    ("spans", {"corrupt.rate": 0.6, "corrupt.span": 1.0, "data.max_length": 40, "model.max_length": 40}, "makes up to 43"),
])  # fmt: skip
def test_impossible_recipes_are_refused(name: str, changes: dict[str, object], message: str) -> None:
    r = recipe(name, **changes)
    with pytest.raises(ConfigError, match=message):
        task_of(r).possible(r)


def test_a_discriminator_alone_cannot_be_measured() -> None:
    task = begun(recipe("replaced"))
    with pytest.raises(QkvError, match="its generator, which is not stored"):
        task.evaluate(task.kept(task.network()))


def test_no_two_documents_have_one_number() -> None:
    """However many are read together; else a part of another document would pass for one of the same."""
    task = begun(recipe("masked", **NEXT))
    records = [record for _, record in task.batches.source.read()][:7]
    groups = [*task.encode(records[:5]), *task.encode(records[5:])]
    assert len({group.document for group in groups if group}) == sum(len(r[0].split("\n")) > 1 for r in records) == 7


def test_a_vocabulary_without_marks_is_refused() -> None:
    plain = train_tokenizer(["some words to learn from"], "bpe", 60)
    with pytest.raises(QkvError, match="no mask token"):
        marks_of(plain)
    with pytest.raises(QkvError, match="no sentinels"):
        sentinels_of(plain)


def test_documents_of_one_sentence_have_no_next() -> None:
    r = recipe("masked", **NEXT)
    task = begun(r)
    assert isinstance(task, MaskedTask)
    (group,) = task.encode([("One sentence alone.",), ("Two of them.\nHere.",)])
    assert len(group.sentences) == 2
    assert list(task.dropped) == ["a document of one sentence: there is no next one"]


# --- filling gaps

SENTENCES = ["the old man sleeps in the garden .", "a young woman reads the book .", "the dog eats ."] * 4


def filler(kind: str = "wordpiece", **fields: Any) -> Filler:
    special = [] if kind == "wordpiece" else ["<mask>"]
    tokenizer = train_tokenizer(SENTENCES, kind, 90, special=special)
    torch.manual_seed(0)
    c = ModelConfig(family="encoder", head="masked", vocab_size=tokenizer.size, d_model=24, n_layers=2, n_heads=2,
                        d_ff=32, tie="output", max_length=20, bos_id=1, eos_id=2, **fields)  # fmt: skip
    network = build(c).eval()
    with torch.no_grad():
        network.embed.tokens.weight.mul_(4)
    return Filler(c, network, tokenizer)


def test_gaps_alone_and_in_a_batch_are_the_same() -> None:
    f = filler()
    texts = ["the old [MASK] sleeps .", "[MASK] eats the [MASK] in the garden .", "a [MASK]"]
    together = f.fill(texts, top_k=3)
    for text, found in zip(texts, together, strict=True):
        (alone,) = f.fill([text], top_k=3)
        assert alone.text == found.text and len(found.gaps) == text.count("[MASK]")
        for a, b in zip(alone.gaps, found.gaps, strict=True):
            assert [g.word for g in a] == [g.word for g in b] and len(a) == 3
            assert [g.probability for g in a] == pytest.approx([g.probability for g in b], abs=1e-5)
            assert 1 >= a[0].probability >= a[1].probability > 0


def test_all_probabilities_sum_to_one_and_the_best_is_put_in() -> None:
    f = filler()
    (found,) = f.fill(["the [MASK] sleeps ."], top_k=10**6)
    assert sum(g.probability for g in found.gaps[0]) == pytest.approx(1, abs=1e-4)
    assert len(found.gaps[0]) == f.tokenizer.size
    assert found.text == f.tokenizer.decode(f.tokenizer.plain(["the"])[0] + [f.tokenizer.id_of(found.gaps[0][0].word)]
                                            + f.tokenizer.plain(["sleeps ."])[0])  # fmt: skip


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte-bpe", "unigram"])
def test_a_gap_takes_the_place_of_a_word(kind: str) -> None:
    """The ids of a text with a gap are those of the text with the pieces of that word exchanged for the mask."""
    f = filler(kind)
    begin, end = f.around
    words = "the old man sleeps".split()
    rows = [f.tokenizer.plain([" ".join(words[:n])])[0] for n in (1, 2, 4)]
    expected = [*begin, *rows[0], f.mask, *rows[2][len(rows[1]) :], *end]
    for name in ("[MASK]", "<mask>"):
        assert f.read(f"the {name} man sleeps") == expected


def test_what_cannot_be_filled_says_why() -> None:
    f = filler()
    none, long, good = f.fill(["no gap here", "the [MASK] " + "dog " * 30, "a [MASK]"])
    assert "write [MASK]" in none.problem and "at most 20" in long.problem and not good.problem
    with pytest.raises(QkvError, match=r"pass \[text\]"):
        f.fill("a [MASK]")
    c = f.config.changed(head="none")
    with pytest.raises(QkvError, match="cannot fill masks"):
        Filler(c, build(c), f.tokenizer)


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "RobertaForMaskedLM", "ElectraForMaskedLM"])
def test_gaps_are_filled_as_transformers_fills_them(kind: str, tmp_path: Path) -> None:
    hf = pytest.importorskip("transformers")
    wordpiece = kind != "RobertaForMaskedLM"
    tokenizer = train_tokenizer(SENTENCES, "wordpiece" if wordpiece else "byte-bpe", 300,
                                special=[] if wordpiece else ["<mask>"])  # fmt: skip
    names = {"mask_token": mask_token(tokenizer), "pad_token": "[PAD]" if wordpiece else "<pad>"}
    theirs = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend, **names)
    torch.manual_seed(0)
    more = {"embedding_size": 16} if "Electra" in kind else {}
    config = getattr(hf, kind.replace("ForMaskedLM", "Config"))(
        vocab_size=tokenizer.size, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=30, pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.3, **more)  # fmt: skip
    model = getattr(hf, kind)(config).eval()
    model.save_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path)
    text = f"the old{'' if not wordpiece else ' '}{names['mask_token']} sleeps in the garden ."
    (found,) = qkv.load(tmp_path).fill([text], top_k=4)
    ids = Filler(*opened(tmp_path)).read(text)
    with torch.no_grad():
        scores = model(torch.tensor([ids])).logits[0, ids.index(theirs.mask_token_id)].softmax(-1).topk(4)
    assert [g.probability for g in found.gaps[0]] == pytest.approx(scores.values.tolist(), abs=1e-5)
    assert [g.word for g in found.gaps[0]] == [
        theirs.decode([i]).strip() or theirs.convert_ids_to_tokens(i) for i in scores.indices.tolist()
    ]
    if wordpiece:  # the same ids too, specials included
        assert ids == theirs(text)["input_ids"]


def opened(folder: Path) -> tuple[Any, Any, Tokenizer]:
    model = qkv.load(folder)
    assert model.tokenizer is not None
    return model.config, model.network, model.tokenizer


def test_the_command_fills_a_text_a_file_and_says_what_it_cannot(tmp_path: Path, run: Run) -> None:
    f = filler()
    ours.save(tmp_path / "bert", f.config, f.network, f.tokenizer)
    code, out, _ = run("fill", str(tmp_path / "bert"), "the [MASK] sleeps .", "--top-k", "2")
    assert code == 0 and len(out.strip().splitlines()) == 2
    (tmp_path / "gaps.txt").write_text("a [MASK] and [MASK] .\nno gap\n")
    code, out, err = run("fill", str(tmp_path / "bert"), "--file", str(tmp_path / "gaps.txt"), "--json")
    first, second = map(json.loads, out.splitlines())
    assert code == 1 and len(first["gaps"]) == 2 and len(first["gaps"][0]) == 5 and "no gap" in second["problem"]
    assert "line 2 is not filled" in err
    code, _, err = run("fill", str(tmp_path / "bert"), "a [MASK]", "--file", str(tmp_path / "gaps.txt"))
    assert code == 2 and "not both" in err
