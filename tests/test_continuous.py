"""Continuous batching: whoever joins and leaves, each text becomes what it becomes alone."""

from __future__ import annotations

import random

import pytest
import torch

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.engine.pack import pack
from qkv.generate.beam import BeamParams, BeamSearch
from qkv.generate.continuous_batching import ContinuousBatch, make_batch
from qkv.generate.logits_processor import LogitsProcessor
from qkv.generate.sampling import GREEDY, SamplingParams
from qkv.generate.search import beam_search, greedy, sample
from qkv.generate.sequence import Generation, Sampler
from qkv.models.build import build
from qkv.parts.state import State
from qkv.presets import tiny

DECODERS = ("gpt2", "llama-7b", "bloom-560m", "lstm-lm", "gla-340m", "mamba-130m", "based", "packed", "packed-llama")
TRANSLATORS = ("transformer-base", "t5-small", "rnnsearch", "lstm-seq2seq", "packed", "packed-t5")
SAMPLING = SamplingParams(temperature=1.3, top_k=20)


def network_of(name: str, family: str) -> tuple[ModelConfig, torch.nn.Module]:
    """A tiny network with weights large enough that texts differ; "packed": the fast twin of one that native.cpp knows,
    "packed-llama" and "packed-t5" of some that it does not."""
    native = {"decoder": "gpt2", "encoder-decoder": "transformer-base"}[family]
    plain = {"packed": native, "packed-llama": "llama-7b", "packed-t5": "t5-small"}.get(name, name)
    c = tiny(plain)
    torch.manual_seed(1)
    network = build(c).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return c, pack(network) if name.startswith("packed") else network


@pytest.mark.parametrize("name", ["gpt2", "packed", "packed-llama"])
def test_a_busy_batch_holds_little_padding(name: str) -> None:
    """Texts of equal length that join one by one: the state is hardly longer than one of them, however long it goes on."""
    _, network = network_of(name, "decoder")
    running = ContinuousBatch(network)
    for _ in range(60):
        running.join(make_batch([[5, 6, 7]]), [Sampler(13, ())])
        running.step()
        assert running.state.padding <= running.state.length // 8
    assert len(running.running) == 12 and running.state.length <= 17
    state = running.state
    running.move(range(12), [[0]] * 12, 1)
    assert running.state is state  # nobody moved: nothing is copied


def prompts(c: ModelConfig, count: int, longest: int = 9) -> list[list[int]]:
    draw = random.Random(7)
    return [[draw.randrange(3, c.vocab_size) for _ in range(1 + draw.randrange(longest))] for _ in range(count)]


def crowd(network: torch.nn.Module, given: list[tuple[list[int], list[int] | None, Generation]], seed: int = 0) -> None:
    """Texts join by ones and twos at random steps, others leave unfinished; returns when all that stay have ended."""
    draw, running, waiting = random.Random(seed), ContinuousBatch(network), list(given)
    while waiting or running.running:
        if waiting and (not running.running or draw.random() < 0.5):
            some, waiting = waiting[:2], waiting[2:]
            sources = [source for _, source, _ in some if source is not None]
            running.join(make_batch([inputs for inputs, _, _ in some], sources), [text for _, _, text in some])
            if draw.random() < 0.4:  # a guest that leaves before its end
                guest = Sampler(50, ())
                running.join(make_batch([some[0][0] * 3], sources[:1]), [guest])
                running.step()
                running.remove([guest])
                assert guest not in running.running
        running.step()
    assert running.state.length == 0


# --- states


@pytest.mark.parametrize("name", DECODERS)
def test_joined_states_go_on_as_each_alone(name: str) -> None:
    """join: the shorter one padded on the left; trimmed: nothing changes but the empty places go."""
    _, network = network_of(name, "decoder")
    long, short = torch.randint(3, 60, (2, 9)), torch.randint(3, 60, (3, 4))
    next_ids = torch.randint(3, 60, (5, 3))
    with torch.no_grad():
        states = [network.step(ids, network.start(Batch(ids)))[1] for ids in (long, short)]
        alone = torch.cat(
            [network.step(part, state)[0] for part, state in zip(next_ids.split([2, 3]), states, strict=True)]
        )
        states = [network.step(ids, network.start(Batch(ids)))[1] for ids in (long, short)]
        both = states[0].join(states[1])
        torch.testing.assert_close(network.step(next_ids, both)[0], alone, atol=1e-5, rtol=1e-4)
        only = states[0].join(states[1]).select(torch.tensor([2, 3, 4])).trimmed()
        assert only.length == 4 and only.keys is None
        torch.testing.assert_close(network.step(next_ids[2:], only)[0], alone[2:], atol=1e-5, rtol=1e-4)


def test_joined_sources_are_padded_and_cut_again() -> None:
    _, network = network_of("packed", "encoder-decoder")
    batches = [Batch(torch.full((n, 1), 1), source=torch.randint(3, 50, (n, s))) for n, s in ((1, 8), (2, 3))]
    with torch.no_grad():
        states = [network.step(batch.inputs, network.start(batch))[1] for batch in batches]
        both = states[0].join(states[1])
        assert both.memory is not None and both.memory.vectors.shape[:2] == (3, 8)
        rest = both.select(torch.tensor([1, 2])).trimmed()
    assert rest.memory is not None and rest.memory.vectors.shape[:2] == (2, 3) and rest.memory.mask is None
    torch.testing.assert_close(rest.memory.vectors, states[1].memory.vectors)


# --- texts


@pytest.mark.parametrize("name", DECODERS)
def test_drawn_texts_are_the_same_alone_and_in_a_crowd(name: str) -> None:
    c, network = network_of(name, "decoder")
    given = prompts(c, 7)
    limits = [5 + 3 * i for i in range(7)]
    texts = [Sampler(limit, (5, 6), SAMPLING if i % 2 else GREEDY, 100 + i) for i, limit in enumerate(limits)]
    crowd(network, [(ids, None, text) for ids, text in zip(given, texts, strict=True)])
    for i, (ids, text) in enumerate(zip(given, texts, strict=True)):
        batch = Batch(torch.tensor([ids]))
        alone = (
            sample(network, batch, limits[i], (5, 6), SAMPLING, 100 + i)
            if i % 2
            else greedy(network, batch, limits[i], (5, 6))
        )
        assert isinstance(text, Sampler)
        assert text.ids == alone[0]


@pytest.mark.parametrize("name", TRANSLATORS)
def test_beams_are_the_same_alone_and_in_a_crowd(name: str) -> None:
    """Beams of several sizes, with groups and rules, between texts that are drawn."""
    c, network = network_of(name, "encoder-decoder")
    sources, start = prompts(c, 7), [1]
    beams = [
        BeamParams(4, n_best=2),
        BeamParams(4, n_best=2),
        BeamParams(3),
        BeamParams(4, groups=2),
        BeamParams(1),
        BeamParams(4, n_best=2),
        BeamParams(2),
    ]
    rules = [LogitsProcessor((2,), (0, 1), no_repeat_ngram=2 * (i % 2)) for i in range(7)]
    texts = [
        BeamSearch(beam, 12, (2,), (), rule) if i != 4 else Sampler(12, (2,), SAMPLING, 4, processor=rule)
        for i, (beam, rule) in enumerate(zip(beams, rules, strict=True))
    ]
    crowd(network, [(start, source, text) for source, text in zip(sources, texts, strict=True)], seed=3)
    for i, (source, text) in enumerate(zip(sources, texts, strict=True)):
        batch = Batch(torch.tensor([start]), source=torch.tensor([source]))
        if isinstance(text, Sampler):
            alone = sample(network, batch, 12, (2,), SAMPLING, 4, rules[i])
            assert text.ids == alone[0]
            continue
        (wanted,) = beam_search(network, batch, [12], (2,), beams[i], rules[i])
        found = text.results()
        assert [h.ids for h in found] == [h.ids for h in wanted]
        assert [h.score for h in found] == pytest.approx([h.score for h in wanted], abs=1e-4)


def test_log_probabilities_and_alternatives_are_the_models() -> None:
    c, network = network_of("gpt2", "decoder")
    ids = prompts(c, 1)[0]
    text = Sampler(6, (), SAMPLING, 2, top=3)
    crowd(network, [(ids, None, text), ([4, 9, 8], None, Sampler(9, ()))])
    assert isinstance(text, Sampler) and len(text.tokens) == 6
    written = text.ids
    with torch.no_grad():
        table = network(Batch(torch.tensor([ids + written]))).logits[0, len(ids) - 1 : -1].log_softmax(-1)
    for step, row in zip(text.tokens, table, strict=True):
        assert step.log_prob == pytest.approx(row[step.token].item(), abs=1e-4)
        values, tokens = row.topk(3)
        assert [token for token, _ in step.top] == tokens.tolist()
        assert [value for _, value in step.top] == pytest.approx(values.tolist(), abs=1e-4)


def test_places_of_those_who_left_are_given_back() -> None:
    """A long prompt makes the others' rows long; when it goes, they are short again."""
    _, network = network_of("packed", "decoder")
    running = ContinuousBatch(network)
    long, short = Sampler(50, ()), Sampler(50, ())
    running.join(make_batch([[7] * 40, [7] * 2]), [long, short])
    running.step()
    assert running.state.length == 40 and len(running.pending) == 2
    running.remove([long])
    assert running.state.length == 2 and running.state.keys is None and len(running.pending) == 1
    running.remove([short])
    assert not running.running and running.state == State() and running.pending is None


@pytest.mark.parametrize("name", TRANSLATORS)
def test_who_stays_is_not_touched_by_who_leaves(name: str) -> None:
    """Texts with a long source and many tokens go, and with them the places that only they needed."""
    c, network = network_of(name, "encoder-decoder")
    sources, limits = [[*range(3, 40)], *prompts(c, 3)], [14, 20, 20, 20]
    texts = [BeamSearch(BeamParams(3), limit, ()) for limit in limits]
    running = ContinuousBatch(network)
    running.join(make_batch([[1]], sources[:1]), texts[:1])
    for _ in range(11):
        running.step()
    running.join(make_batch([[1]] * 3, sources[1:]), texts[1:])
    while running.running:
        running.step()
        if len(running.running) == 3:  # the long one has left
            assert running.state.length < 10 and running.state.memory.vectors.size(1) < 12
            break
    while running.running:
        running.step()
    for source, text in zip(sources[1:], texts[1:], strict=True):
        batch = Batch(torch.tensor([[1]]), source=torch.tensor([source]))
        (wanted,) = beam_search(network, batch, [20], (), BeamParams(3))
        assert [h.ids for h in text.results()] == [h.ids for h in wanted]


def test_who_joins_takes_a_free_lane() -> None:
    """Nothing is copied while as many come as leave; and those who stay are what they would be without them."""
    c, network = network_of("packed", "encoder-decoder")
    sources = prompts(c, 8)
    longest = [4, 9, 14, 19, 24, 24, 24, 24]
    texts = [BeamSearch(BeamParams(3), most, ()) for most in longest]
    alone = [BeamSearch(BeamParams(3), most, ()) for most in longest]
    for source, text in zip(sources, alone, strict=True):
        running = ContinuousBatch(network)
        running.join(make_batch([[1]], [source]), [text])
        while running.running:
            running.step()
    running = ContinuousBatch(network)
    running.join(make_batch([[1]] * 4, sources[:4]), texts[:4])
    waiting, stores = list(range(4, 8)), list[int]()
    while running.running:
        ended = running.step()
        if waiting and ended:
            before = running.state.layers[0]["cache"].buffer
            at = waiting.pop(0)
            running.join(make_batch([[1]], [sources[at]]), [texts[at]])
            stores.append(running.state.layers[0]["cache"].buffer is before)
    assert len(stores) == 4 and any(stores)
    for one, other in zip(texts, alone, strict=True):
        assert [h.ids for h in one.results()] == [h.ids for h in other.results()]
