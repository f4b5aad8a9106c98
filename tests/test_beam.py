"""Beam beam_search: exact beside brute force, the same alone or in a batch, and every control does what it says."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.engine.pack import pack
from qkv.errors import QkvError
from qkv.generate.beam import BeamGroup, BeamParams, BeamSearch
from qkv.generate.constraints import matched_length, next_tokens, occurs, progress
from qkv.generate.logits_processor import LogitsProcessor, repeated_tokens
from qkv.generate.sampling import SamplingParams
from qkv.generate.search import beam_search, greedy, sample
from qkv.generate.sequence import Hypothesis, NextTokens
from qkv.models.build import build

START, END = 1, 2
SIZES = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32, "max_length": 64}
KINDS = {
    "transformer": {"family": "encoder-decoder", "norm_order": "pre"},
    "t5": {"family": "encoder-decoder", "position": "t5", "norm": "rms", "norm_order": "pre"},
    "rnnsearch": {
        "family": "encoder-decoder",
        "recurrent": "gru",
        "bidirectional": True,
        "decoder_attention": "additive",
    },
    "luong": {"family": "encoder-decoder", "recurrent": "lstm", "decoder_attention": "dot", "input_feeding": True},
    "seq2seq": {"family": "encoder-decoder", "recurrent": "lstm"},
    "rnnenc": {"family": "encoder-decoder", "recurrent": "gru", "fixed_context": True},
    "decoder": {"family": "decoder", "position": "rotary", "norm_order": "pre"},
}


def make(kind: str, vocab: int = 23, sharp: float = 1.0, seed: int = 0) -> nn.Module:
    """A network whose texts differ and end now and then."""
    torch.manual_seed(seed)
    position = {"position": "none"} if "recurrent" in KINDS[kind] else {}
    network = build(ModelConfig(vocab_size=vocab, output_bias=True, **SIZES, **{**position, **KINDS[kind]})).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.5 if parameter.dim() > 1 else 0.2))
        network.head.weight.mul_(sharp)
        network.head.bias[END] += 0.5
    return network


def sources(network: nn.Module, rows: int = 5, vocab: int = 23, ragged: bool = True) -> Batch:
    generator = torch.Generator().manual_seed(3)
    ids, lengths = torch.randint(3, vocab, (rows, 6), generator=generator), torch.arange(rows) % 4 + 3
    mask = torch.arange(6) < lengths[:, None] if ragged else None
    if hasattr(network, "encoder"):
        return Batch(inputs=torch.full((rows, 1), START), source=ids, source_mask=mask)
    return Batch(inputs=ids, mask=mask)


def alone(batch: Batch, row: int) -> Batch:
    """One row without its padding."""
    one = batch.rows(slice(row, row + 1))
    if one.source is not None:
        return Batch(
            inputs=one.inputs, source=one.source[:, one.source_mask[0]] if one.source_mask is not None else one.source
        )
    return Batch(inputs=one.inputs if one.mask is None else one.inputs[:, one.mask[0]])


@torch.no_grad()
def everywhere(network: nn.Module, one: Batch, ids: list[int]) -> torch.Tensor:
    """(tokens + 1, V): the log-probabilities before each token and after the last, the whole text read at once."""
    inputs = torch.cat([one.inputs, torch.tensor([ids], dtype=torch.long)], 1)
    return network(replace(one, inputs=inputs)).logits[0, one.inputs.size(1) - 1 :].log_softmax(-1)


def forced(network: nn.Module, one: Batch, ids: list[int]) -> list[float]:
    """What the network gives each token of a text."""
    return everywhere(network, one, ids[:-1]).gather(-1, torch.tensor(ids)[:, None])[:, 0].tolist()


def texts(results: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[h.ids for h in own] for own in results]


def close(a: list[list[Hypothesis]], b: list[list[Hypothesis]]) -> None:
    assert texts(a) == texts(b)
    for x, y in zip((h for own in a for h in own), (h for own in b for h in own), strict=True):
        assert x.score == pytest.approx(y.score, abs=1e-4) and x.log_prob == pytest.approx(y.log_prob, abs=1e-4)


# --- brute force


def everything(network: nn.Module, one: Batch, vocab: int, longest: int, alpha: float, formula: str = "power"
               ) -> list[tuple[float, list[int]]]:  # fmt: skip
    """All texts that end within `longest` tokens, best first."""
    words = [token for token in range(vocab) if token != END]
    every = [[*ids, END] for n in range(longest) for ids in product(words, repeat=n)]
    base = {"power": lambda n: n, "gnmt": lambda n: (5 + n) / 6}[formula]
    scored = [(sum(forced(network, one, ids)) / base(len(ids)) ** alpha, ids) for ids in every]
    return sorted(scored, key=lambda pair: -pair[0])


@pytest.mark.parametrize("alpha, formula", [(-1.0, "power"), (0.0, "power"), (0.6, "power"), (1.0, "power"), (2.0, "power"),
                                            (0.6, "gnmt"), (-1.0, "gnmt")])  # fmt: skip
@pytest.mark.parametrize("kind", ["transformer", "rnnsearch", "decoder"])
def test_a_wide_beam_finds_what_brute_force_finds(kind: str, alpha: float, formula: str) -> None:
    """Beam >= V^L: the exact n-best list in the exact order with the exact scores."""
    vocab, longest, n = 4, 4, 30
    network = make(kind, vocab)
    batch = sources(network, 2, vocab, ragged=False)
    found = beam_search(network, batch, longest, [END], BeamParams(vocab**longest, alpha, n, length_formula=formula))
    for row, own in enumerate(found):
        wanted = everything(network, alone(batch, row), vocab, longest, alpha, formula)[:n]
        assert [h.ids for h in own] == [ids for _, ids in wanted]
        assert [h.score for h in own] == pytest.approx([score for score, _ in wanted], abs=1e-5)
        assert all(h.ended for h in own)


def naive(network: nn.Module, one: Batch, longest: int, size: int) -> list[tuple[float, list[int]]]:
    """Beam beam_search from the textbook, on whole texts: every text that ended, (log-probability, ids)."""
    live, ended = [(0.0, list[int]())], []
    for _ in range(longest):
        after = [everywhere(network, one, ids)[-1].tolist() for _, ids in live]
        pairs = zip(live, after, strict=True)
        every = [(total + gain, [*ids, t]) for (total, ids), gains in pairs for t, gain in enumerate(gains)]
        every.sort(key=lambda pair: -pair[0])
        ended += [(total, ids) for total, ids in every[:size] if ids[-1] == END]
        live = [(total, ids) for total, ids in every if ids[-1] != END][:size]
    return ended


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_narrow_beam_is_the_textbook_s(size: int) -> None:
    network = make("transformer", 9)
    with torch.no_grad():
        network.head.bias[END] += 3
    batch, found = sources(network, 4, 9), 0
    for row, own in enumerate(beam_search(network, batch, 6, [END], BeamParams(size, 0.8, size))):
        ended = sorted(naive(network, alone(batch, row), 6, size), key=lambda pair: -pair[0] / len(pair[1]) ** 0.8)
        wanted = [ids for _, ids in ended[:size]]
        assert [h.ids for h in own if h.ended] == wanted
        found += len(wanted)
    assert found > size


def test_an_ending_does_not_narrow_the_beam() -> None:
    """Where each hypothesis likes the ends best, `size` others go on beside them."""
    network = make("transformer")
    with torch.no_grad():
        network.head.bias[[END, 7]] += 20
    rows = []
    network.head.register_forward_hook(lambda module, inputs, output: rows.append(inputs[0].size(0)))
    beam_search(network, sources(network), [4] * 5, [END, 7], BeamParams(4, 3.0, 4))
    assert rows == [5, 20, 20, 20]


# --- when to stop


def toy(ids: list[int], seed: int) -> NextTokens:
    """Continuations out of thin air, cheap ones too, so that a long text may yet be the best."""
    r = random.Random(hash((tuple(ids), seed)))
    gains = sorted((-r.expovariate(r.choice([0.3, 1, 30])) for _ in range(5)), reverse=True)
    return NextTokens(r.sample(range(5), 5), gains, gains)


def toy_search(beam: BeamParams, longest: int, seed: int) -> tuple[list[Hypothesis], int]:
    sentence, steps = BeamSearch(beam, longest, [END]), 0
    while sentence.live:
        sentence.advance([toy(h.ids, seed) for h in sentence.live])
        steps += 1
    return sentence.results(), steps


@pytest.mark.parametrize("alpha", [-3.0, -1.0, 0.0, 0.5, 1.0, 2.0])
def test_stopping_early_enough_and_never_too_early(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """On many small random trees: the same n best as without stopping, in fewer steps."""
    saved = 0
    for seed in range(150):
        beam, longest = BeamParams(1 + seed % 4, alpha, 1 + seed % 2 * (seed % 4 > 0)), 4 + seed % 9
        stopped, steps = toy_search(beam, longest, seed)
        with monkeypatch.context() as patch:
            patch.setattr(BeamGroup, "is_done", lambda self: False)
            everything, all_steps = toy_search(beam, longest, seed)
        assert [h.ids for h in stopped if h.ended] == [h.ids for h in everything if h.ended]
        saved += all_steps - steps
    assert saved > 30


@pytest.mark.parametrize("alpha", [-2.0, -0.5, 0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("kind", ["transformer", "luong", "decoder"])
def test_stopping_never_cuts_a_better_one(kind: str, alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same texts as a beam_search that goes on to the longest length, in fewer steps unless length is rewarded."""
    network = make(kind, sharp=2.0)
    with torch.no_grad():
        network.head.bias[END] += 3  # texts of one token compete with long ones
    batch, steps = sources(network, 8), [0]
    network.head.register_forward_hook(lambda *_: steps.__setitem__(0, steps[0] + 1))
    for n in (1, 3):
        stopped = beam_search(network, batch, 25, [END], BeamParams(4, alpha, n))
        taken, steps[0] = steps[0], 0
        with monkeypatch.context() as patch:
            patch.setattr(BeamGroup, "is_done", lambda self: False)
            close(stopped, beam_search(network, batch, 25, [END], BeamParams(4, alpha, n)))
        assert steps[0] == 25 and (taken < 12 or alpha > 0.5)
        steps[0] = 0


def test_stopping_does_stop() -> None:
    """Where texts end soon and length is not rewarded, the beam_search does not go on to the longest length."""
    network = make("transformer")
    with torch.no_grad():
        network.head.bias[END] += 8
    steps = [0]
    network.head.register_forward_hook(lambda *_: steps.__setitem__(0, steps[0] + 1))
    beam_search(network, sources(network), 60, [END], BeamParams(4, 0.0))
    assert steps[0] < 20


# --- scores and batches


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_what_the_network_gives_the_whole_text(kind: str) -> None:
    network = make(kind)
    batch = sources(network)
    for row, own in enumerate(beam_search(network, batch, 12, [END], BeamParams(4, 0.7, 4))):
        assert len({tuple(h.ids) for h in own}) == len(own) == 4
        for h in own:
            wanted = forced(network, alone(batch, row), h.ids)
            assert h.log_probs == pytest.approx(wanted, abs=1e-4)
            assert h.log_prob == pytest.approx(h.total, abs=1e-4) == sum(wanted)
            assert h.score == pytest.approx(sum(wanted) / len(h.ids) ** 0.7, abs=1e-4)
            assert h.ended == (h.ids[-1] == END) and END not in h.ids[:-1]
        ended = [h.score for h in own if h.ended]
        assert ended == sorted(ended, reverse=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("packed", [False, True])
def test_alone_as_in_a_batch(kind: str, packed: bool) -> None:
    plain = make(kind)
    network, batch = pack(plain) if packed else plain, sources(plain)
    limits = [12, 3, 12, 7, 12]
    together = beam_search(network, batch, limits, [END], BeamParams(4, 1.0, 3))
    assert len({tuple(own[0].ids) for own in together}) > 1
    assert len({len(own[0].ids) for own in together}) > 1  # they leave at different times
    for row, own in enumerate(together):
        close([own], beam_search(network, alone(batch, row), limits[row], [END], BeamParams(4, 1.0, 3)))
    order = torch.tensor([3, 0, 4, 1, 2])
    shuffled = beam_search(network, batch.rows(order), [limits[i] for i in order], [END], BeamParams(4, 1.0, 3))
    close(shuffled, [together[i] for i in order])


@pytest.mark.parametrize("kind", KINDS)
def test_a_beam_of_one_is_greedy(kind: str) -> None:
    network = make(kind)
    batch = sources(network)
    found = beam_search(network, batch, [9, 12, 3, 12, 12], [END], BeamParams(1))
    assert [own[0].ids for own in found] == [
        ids[:limit] for ids, limit in zip(greedy(network, batch, 12, [END]), [9, 12, 3, 12, 12], strict=True)
    ]
    for row, (h,) in enumerate(found):
        assert h.log_probs == pytest.approx(forced(network, alone(batch, row), h.ids), abs=1e-4)
        assert h.score == pytest.approx(h.log_prob / len(h.ids), abs=1e-5)


def test_several_end_tokens() -> None:
    """With END and 7 both ending a text, brute force over both."""
    network = make("transformer", 9)
    batch = sources(network, 1, 9, ragged=False)
    words = [t for t in range(9) if t not in (END, 7)]
    every = [[*ids, end] for n in range(3) for ids in product(words, repeat=n) for end in (END, 7)]
    wanted = sorted(every, key=lambda ids: -sum(forced(network, batch, ids)) / len(ids))[:6]
    assert texts(beam_search(network, batch, 3, [END, 7], BeamParams(9**3, 1.0, 6)))[0] == wanted


def test_a_source_is_stored_once_for_all_beams() -> None:
    network = make("transformer")
    shapes = set()
    cross = network.decoder.blocks[0].cross.layer.mixer
    cross.register_forward_pre_hook(lambda module, inputs: shapes.add((inputs[0].size(0), inputs[1].size(0))))
    beam_search(network, sources(network), 6, [], BeamParams(4))
    assert shapes == {(5, 5)}  # 20 hypotheses, 5 sentences


# --- the lengths


def test_lengths() -> None:
    network = make("transformer")
    batch = sources(network)
    with torch.no_grad():
        network.head.bias[END] += 3
    free = beam_search(network, batch, 12, [END], BeamParams(4, 0.0))
    assert max(len(own[0].ids) for own in free) < 6
    rules = LogitsProcessor(eos_ids=(END,), min_length=6)
    for beam in (BeamParams(4, 0.0), BeamParams(1)):
        for (h,) in beam_search(network, batch, 12, [END], beam, rules):
            assert 6 <= len(h.ids) <= 12 and END not in h.ids[:5]
    short = beam_search(
        network, batch, 3, [END], BeamParams(4, n_best=4), LogitsProcessor(eos_ids=(END,), min_length=9)
    )
    assert all(len(h.ids) == 3 and not h.ended for own in short for h in own)


def test_finished_texts_come_before_cut_ones() -> None:
    network = make("transformer")
    for own in beam_search(network, sources(network), 4, [END], BeamParams(6, 1.0, 6)):
        flags = [h.ended for h in own]
        assert flags == sorted(flags, reverse=True) and len(own) == 6


# --- rules


def test_no_ngram_occurs_twice() -> None:
    network = make("transformer", vocab=7)
    batch = sources(network, vocab=7)

    def repeats(ids: list[int], n: int) -> bool:
        grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
        return len(set(grams)) < len(grams)

    for n in (1, 2, 3):
        rules = LogitsProcessor(eos_ids=(END,), no_repeat_ngram=n, min_length=14)
        plain = beam_search(network, batch, 14, [END], BeamParams(4), LogitsProcessor(eos_ids=(END,), min_length=14))
        assert any(repeats(own[0].ids, n) for own in plain)
        for beam in (BeamParams(4, n_best=4), BeamParams(1)):
            found = beam_search(network, batch, 14, [END], beam, rules)
            assert found and not any(repeats(h.ids, n) for own in found for h in own)
        for ids in sample(network, batch, 14, [END], SamplingParams(1.0), 0, rules):
            assert not repeats(ids, n)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=10), st.integers(1, 4), st.integers(0, 3))
def test_closing_tokens_are_those_that_repeat(ids: list[int], n: int, token: int) -> None:
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    last = tuple([*ids, token][-n:])
    assert (token in repeated_tokens(ids, n)) == (len(last) == n and last in grams)


def test_repetition_penalty_multiplies_and_the_model_s_own_numbers_stay() -> None:
    """Beam beam_search penalises log-probabilities, greedy beam_search logits (tests/test_penalties.py), as in Hugging Face."""
    network = make("transformer", vocab=9)
    batch = sources(network, vocab=9)
    rules = LogitsProcessor(eos_ids=(END,), repetition_penalty=1.7)
    for beam, factor in ((BeamParams(4, 0.5, 2), 1.7), (BeamParams(1, 0.5), 1)):
        for row, own in enumerate(beam_search(network, batch, 12, [END], beam, rules)):
            for h in own:
                true = forced(network, alone(batch, row), h.ids)
                dearer = [
                    p * (factor if token in h.ids[:i] else 1)
                    for i, (token, p) in enumerate(zip(h.ids, true, strict=True))
                ]
                assert h.log_probs == pytest.approx(true, abs=1e-4)
                assert h.total == pytest.approx(sum(dearer), abs=1e-4)
                assert h.score == pytest.approx(sum(dearer) / len(h.ids) ** 0.5, abs=1e-4)
    harsh = LogitsProcessor(eos_ids=(END,), repetition_penalty=9.0)
    for beam in (BeamParams(4), BeamParams(1)):
        assert texts(beam_search(network, batch, 12, [END], beam, harsh)) != texts(
            beam_search(network, batch, 12, [END], beam)
        )


def test_tokens_that_are_never_written() -> None:
    network = make("transformer", vocab=9)
    batch = sources(network, vocab=9)
    used = {t for own in beam_search(network, batch, 12, [END], BeamParams(4)) for h in own for t in h.ids} - {END}
    never = tuple(sorted(used))[:2]
    rules = LogitsProcessor(suppressed=never)
    assert not {
        t for own in beam_search(network, batch, 12, [END], BeamParams(4, n_best=4), rules) for h in own for t in h.ids
    } & set(never)
    assert not {t for ids in sample(network, batch, 12, [END], processor=rules) for t in ids} & set(never)
    assert not {t for ids in greedy(network, batch, 12, [END], rules) for t in ids} & set(never)


@pytest.mark.parametrize("kind", ["transformer", "rnnsearch", "decoder"])
def test_prefixes_are_kept_and_counted(kind: str) -> None:
    network = make(kind)
    batch = sources(network)
    prefixes = [[], [5], [6, 6, 6, 9], [4, 8], [7, 3, 5, 11, 12]]
    rules = LogitsProcessor(
        eos_ids=(END,), prefixes=prefixes, no_repeat_ngram=1
    )  # the prefix passes before the other rules
    for beam in (BeamParams(4, 1.0, 3), BeamParams(1)):
        together = beam_search(network, batch, 12, [END], beam, rules)
        for row, own in enumerate(together):
            one = LogitsProcessor(eos_ids=(END,), prefixes=[prefixes[row]], no_repeat_ngram=1)
            close([own], beam_search(network, alone(batch, row), 12, [END], beam, one))
            for h in own:
                assert h.ids[: len(prefixes[row])] == prefixes[row]
                assert h.log_probs == pytest.approx(forced(network, alone(batch, row), h.ids), abs=1e-4)
    for ids, prefix in zip(sample(network, batch, 12, [END], processor=rules), prefixes, strict=True):
        assert ids[: len(prefix)] == prefix


def test_when_nothing_else_is_allowed_the_text_ends() -> None:
    network = make("transformer", vocab=6)
    rules = LogitsProcessor(eos_ids=(END,), no_repeat_ngram=1, min_length=30, suppressed=(0, 1))
    for beam in (BeamParams(3), BeamParams(1)):
        for (h,) in beam_search(network, sources(network, vocab=6), 30, [END], beam, rules):
            assert h.ended and sorted(h.ids) == [2, 3, 4, 5]
    for ids in sample(network, sources(network, vocab=6), 30, [END], processor=rules):
        assert sorted(ids) == [2, 3, 4, 5]


@pytest.mark.parametrize("bad", [{"repetition_penalty": 0.0}, {"no_repeat_ngram": -1}, {"min_length": -2}])
def test_impossible_rules_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(QkvError, match=next(iter(bad))):
        LogitsProcessor(**bad)


@pytest.mark.parametrize(
    "bad",
    [
        {"size": 0},
        {"n_best": 5},
        {"groups": 3},
        {"length_penalty": math.nan},
        {"length_penalty": 99.0},
        {"diversity": -1},
        {"length_formula": "square"},
    ],
)
def test_impossible_beams_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(QkvError):
        BeamParams(**bad)


# --- constraints


@pytest.mark.parametrize("size", [1, 4, 6])
@pytest.mark.parametrize("kind", ["transformer", "rnnsearch"])
def test_constraints_are_met_alone_and_in_batches(kind: str, size: int) -> None:
    network = make(kind)
    batch = sources(network)
    phrases = [[[11, 12]], [], [[5], [9, 9, 4]], [[20, 3, 20, 7]], [[8], [13], [17]]]
    free = beam_search(network, batch, 20, [END], BeamParams(size))
    assert not all(occurs(p, own[0].ids) for own, ps in zip(free, phrases, strict=True) for p in ps)
    together = beam_search(network, batch, 20, [END], BeamParams(size), phrases=phrases)
    for row, (own, wanted) in enumerate(zip(together, phrases, strict=True)):
        assert all(occurs(phrase, own[0].ids) for phrase in wanted), (own[0].ids, wanted)
        assert own[0].log_probs == pytest.approx(forced(network, alone(batch, row), own[0].ids), abs=1e-4)
        close([own], beam_search(network, alone(batch, row), [20], [END], BeamParams(size), phrases=[wanted]))
    if size > 1:
        assert texts(together)[1] == texts(free)[1]  # nothing is asked of this one


def test_constraints_of_a_wide_beam_are_brute_force_among_the_texts_that_have_them() -> None:
    vocab, longest = 4, 4
    network = make("transformer", vocab)
    batch = sources(network, 1, vocab, ragged=False)
    wanted = [ids for _, ids in everything(network, batch, vocab, longest, 1.0) if occurs([3, 1], ids)]
    found = beam_search(
        network, batch, longest, [END], BeamParams(vocab**longest, 1.0, len(wanted)), phrases=[[[3, 1]]]
    )
    assert texts(found)[0] == wanted


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(st.integers(0, 3), max_size=6),
)
def test_the_next_tokens_always_lead_to_all_constraints(phrases: list[list[int]], ids: list[int]) -> None:
    total = sum(map(len, phrases))
    for _ in range(total):
        if progress(phrases, ids) == total:
            break
        before, token = (
            progress(phrases, ids),
            max(next_tokens(phrases, ids), key=lambda t: progress(phrases, [*ids, t])),
        )
        ids = [*ids, token]
        assert progress(phrases, ids) > before
    assert progress(phrases, ids) == total and all(occurs(p, ids) for p in phrases) and not next_tokens(phrases, ids)


def test_begun_finds_the_longest_beginning() -> None:
    assert (
        matched_length([1, 1, 2], [0, 1, 1]) == 2
        and matched_length([1, 1, 2], [1, 1, 1]) == 2
        and matched_length([1, 2, 1, 3], [1, 2, 1]) == 3
    )


# --- diverse groups


def test_groups_write_different_texts() -> None:
    network = make("transformer", sharp=2.0)
    batch = sources(network)
    plain = beam_search(network, batch, 12, [END], BeamParams(4, 1.0, 4))
    diverse = beam_search(network, batch, 12, [END], BeamParams(4, 1.0, 4, groups=4, diversity=50.0))
    first = lambda own: {h.ids[0] for h in own}  # noqa: E731
    assert all(len(first(own)) == 4 for own in diverse)  # so dear that no two groups begin alike
    assert any(len(first(own)) < 4 for own in plain)
    for row, own in enumerate(diverse):
        for h in own:
            assert h.log_probs == pytest.approx(forced(network, alone(batch, row), h.ids), abs=1e-4)
    one = greedy(network, batch, 12, [END])
    lone = beam_search(network, batch, 12, [END], BeamParams(4, 1.0, 4, groups=4, diversity=0.0, early=True))
    assert all(
        ids in [h.ids for h in own] for ids, own in zip(one, lone, strict=True)
    )  # each group then is a beam of 1


def test_groups_alone_as_in_a_batch() -> None:
    network, beam = make("rnnsearch"), BeamParams(6, 0.8, 6, groups=3, diversity=1.0)
    batch = sources(network)
    for row, own in enumerate(beam_search(network, batch, 10, [END], beam)):
        close([own], beam_search(network, alone(batch, row), 10, [END], beam))


# --- beside Hugging Face


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.6, 1.0, 1.8])
def test_parity_with_hugging_face(alpha: float, tmp_path: Path) -> None:
    """The same best texts with the same scores; lengths count the end token there too, and "never" is their name for the
    exact stop rule. Only what they cut off at the longest length, and rank among the finished ones, is left aside."""
    hf_models = pytest.importorskip("hf_models", reason="transformers is not installed")
    theirs = hf_models.make("marian")
    with torch.no_grad():
        theirs.model.shared.weight.mul_(0.5)
        theirs.final_logits_bias[0, 2] += 2.0
    _, _, network = hf_models.open_ours(hf_models.save(theirs, tmp_path))
    source = torch.randint(3, 60, (6, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(7) < torch.tensor([7, 5, 3, 7, 4, 6])[:, None]
    batch, lengths = Batch(inputs=torch.full((6, 1), 2), source=source, source_mask=mask), []
    for early in ("never", True):
        out = theirs.generate(
            input_ids=source, attention_mask=mask.long(), num_beams=4, num_return_sequences=4, max_new_tokens=40,
            early_stopping=early, length_penalty=alpha, do_sample=False, output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
        found = beam_search(network, batch, 40, [2], BeamParams(4, alpha, 4, early=early is True))
        written = [
            (ids[1:], score) for ids, score in zip(out.sequences.tolist(), out.sequences_scores.tolist(), strict=True)
        ]
        for row, own in enumerate(found):
            ended = [(ids[: ids.index(2) + 1], score) for ids, score in written[4 * row : 4 * row + 4] if 2 in ids]
            assert [h.ids for h in own[: len(ended)]] == [ids for ids, _ in ended]
            assert [h.score for h in own[: len(ended)]] == pytest.approx([score for _, score in ended], abs=1e-4)
            lengths += [len(ids) for ids, _ in ended]
    assert len(lengths) > 20 and len(set(lengths)) > 3
