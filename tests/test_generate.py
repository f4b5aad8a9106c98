"""Writing: the same text alone or in a batch, with or without a state, and sampling that does what it says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.errors import QkvError
from qkv.generate.detokenize import cut_at_stop, detokenize
from qkv.generate.sampling import SamplingParams, make_generators, sample_tokens, token_probs, top_k
from qkv.generate.search import greedy, make_samplers, sample, stream
from qkv.models.build import build

SIZES = {"vocab_size": 23, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32, "max_length": 64, "init_std": 0.4}
CONFIGS = {
    "rotary": ModelConfig(family="decoder", position="rotary", norm_order="pre", **SIZES),
    "learned": ModelConfig(family="decoder", position="learned", norm_order="pre", **SIZES),
    "recurrent": ModelConfig(family="decoder", position="none", recurrent="lstm", **SIZES),
    "translation": ModelConfig(family="encoder-decoder", **SIZES),
}


@pytest.fixture(params=CONFIGS)
def network(request):
    torch.manual_seed(1)
    network = build(CONFIGS[request.param]).eval()
    for name, parameter in network.named_parameters():
        if "cells" in name:  # fresh recurrent weights are so small that every prompt ends in the same text
            torch.nn.init.normal_(parameter)
    return network


def prompts(network, rows=4, ragged=True):
    """Prompts of lengths 2..5 padded on the right; an encoder-decoder gets them as its source."""
    torch.manual_seed(2)
    ids, lengths = torch.randint(23, (rows, 5)), torch.arange(rows) % 4 + 2
    mask = torch.arange(5) < lengths[:, None] if ragged else None
    if hasattr(network, "encoder"):
        return Batch(inputs=torch.ones(rows, 1, dtype=torch.long), source=ids, source_mask=mask)
    return Batch(inputs=ids, mask=mask)


def alone(batch, row):
    """One row without its padding."""
    one = batch.rows(slice(row, row + 1))
    if one.source is not None:
        real = one.source_mask[0]
        return Batch(inputs=one.inputs, source=one.source[:, real])
    return Batch(inputs=one.inputs[:, one.mask[0]])


def test_a_batch_writes_what_each_row_writes_alone(network):
    batch = prompts(network)
    together = greedy(network, batch, 12)
    assert len({tuple(row) for row in together}) > 1
    for row, text in enumerate(together):
        assert greedy(network, alone(batch, row), 12)[0] == text


def test_with_state_as_without(network):
    """Each step equals reading everything so far from the start."""
    batch = prompts(network, ragged=False)
    known = batch.inputs
    for step in greedy_columns(network, batch, 10):
        logits = network(Batch(inputs=known, source=batch.source)).logits[:, -1]
        assert logits.argmax(-1).tolist() == step
        known = torch.cat([known, torch.tensor(step)[:, None]], 1)


def greedy_columns(network, batch, count):
    return list(stream(network, batch, make_samplers(batch, count)))


def test_rows_end_at_an_end_token_and_leave_the_others_alone(network):
    batch = prompts(network)
    free = greedy(network, batch, 12)
    eos = free[0][3]  # what row 0 writes fourth, at the latest
    for text, ended in zip(free, greedy(network, batch, 12, (eos,)), strict=True):
        cut = text.index(eos) + 1 if eos in text else len(text)
        assert ended == text[:cut]


def test_sampling_in_a_batch_draws_what_it_draws_alone(network):
    batch, how = prompts(network), SamplingParams(1.3, top_k=9, top_p=0.95)
    together = sample(network, batch, 10, (), how, seed=5)
    assert together == sample(network, batch, 10, (), how, seed=5)
    assert together != sample(network, batch, 10, (), how, seed=6)
    for row, text in enumerate(together):
        assert sample(network, alone(batch, row), 10, (), how, seed=5 + row)[0] == text


@pytest.mark.parametrize(
    "how", [SamplingParams(0.0), SamplingParams(2.0, top_k=1), SamplingParams(2.0, top_p=1e-9), SamplingParams(1e-6)]
)
def test_narrow_sampling_is_greedy(network, how):
    batch = prompts(network)
    assert sample(network, batch, 8, (), how, seed=3) == greedy(network, batch, 8)


def test_only_the_last_vector_goes_through_the_head(network):
    widths = []
    network.head.register_forward_hook(lambda module, inputs, output: widths.append(tuple(inputs[0].shape)))
    greedy(network, prompts(network), 4)
    assert widths == [(4, 16)] * 4


# --- choosing


LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, -3.0])


def frequencies(how, count=4000):
    drawn = sample_tokens(LOGITS.expand(count, -1), how, make_generators(0, count))
    return torch.bincount(drawn, minlength=5) / count


def test_plain_sampling_follows_the_distribution():
    assert torch.allclose(frequencies(SamplingParams(1.0)), LOGITS.softmax(-1), atol=0.03)


def test_temperature_flattens():
    assert torch.allclose(frequencies(SamplingParams(3.0)), (LOGITS / 3).softmax(-1), atol=0.03)


def test_top_k_keeps_the_k_best_in_proportion():
    kept = frequencies(SamplingParams(1.0, top_k=2))
    assert kept[2:].sum() == 0 and torch.allclose(kept[:2], LOGITS[:2].softmax(-1), atol=0.03)


def test_top_p_keeps_the_fewest_that_reach_p():
    """softmax = .61 .22 .14 .03 .004: two tokens reach 0.7, and the second is the one that reaches it."""
    kept = frequencies(SamplingParams(1.0, top_p=0.7))
    assert kept[2:].sum() == 0 and torch.allclose(kept[:2], LOGITS[:2].softmax(-1), atol=0.03)


def test_min_p_keeps_what_has_a_share_of_the_best():
    """softmax = .61 .22 .14 .03 .004: a fifth of .61 keeps three; of the first alone, everything below falls."""
    kept = frequencies(SamplingParams(1.0, min_p=0.2))
    assert kept[3:].sum() == 0 and torch.allclose(kept[:3], LOGITS[:3].softmax(-1), atol=0.03)
    assert frequencies(SamplingParams(1.0, min_p=1.0))[0] == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 3000), st.integers(0, 1000))
def test_the_best_in_chunks_are_the_best(rows, count, size, seed):
    scores = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))
    values, places = top_k(scores, count, chunk=8)
    wanted = scores.sort(-1, descending=True)
    assert torch.equal(values, wanted.values[:, :count]) and torch.equal(places, wanted.indices[:, :count])


WAYS = [SamplingParams(1.0), SamplingParams(0.7, top_k=9), SamplingParams(1.2, top_p=0.9), SamplingParams(1.0, min_p=0.02),
        SamplingParams(0.9, top_k=300, top_p=0.8, min_p=0.01)]  # fmt: skip


def sorted_probs(logits, how):
    """The definition: softmax over the whole sorted vocabulary, then top-k, top-p and min-p."""
    values, ids = (logits / how.temperature).sort(dim=-1, descending=True, stable=True)
    probs = values.softmax(-1)
    probs[:, how.top_k or probs.size(1) :] = 0
    probs = probs / probs.sum(-1, keepdim=True)
    kept = (probs.cumsum(-1) - probs < how.top_p) & (probs >= how.min_p * probs[:, :1])
    return probs * kept / (probs * kept).sum(-1, keepdim=True), ids


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_tokens_are_those_of_a_sort_of_the_whole_vocabulary(how, spread):
    """Flat and peaked rows of 5,000 tokens, which need many or a few ranked tokens."""
    logits = torch.randn(40, 5000, generator=torch.Generator().manual_seed(1)) * spread
    probs, ids = sorted_probs(logits, how)
    draws = torch.stack([torch.rand(1, generator=g) for g in make_generators(7, 40)])
    wanted = ids.gather(-1, (probs.cumsum(-1) <= draws).sum(-1, keepdim=True)).squeeze(-1)
    assert sample_tokens(logits, how, make_generators(7, 40)).tolist() == wanted.tolist()
    assert torch.allclose(token_probs(logits, how), torch.zeros_like(logits).scatter(-1, ids, probs), atol=1e-6)


def test_token_probs_are_the_frequencies_of_draws():
    for how in (SamplingParams(0.0), SamplingParams(2.0, top_k=1), SamplingParams(1.5, top_p=0.8)):
        assert torch.allclose(frequencies(how), token_probs(LOGITS[None], how)[0], atol=0.03)


@settings(max_examples=100, deadline=None)
@given(st.floats(0.01, 100), st.integers(0, 6), st.floats(1e-6, 1), st.floats(0, 1), st.integers(0, 1000))
def test_a_choice_is_always_among_those_kept(temperature, top_k, top_p, min_p, seed):
    logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(seed)) * 20
    chosen = sample_tokens(logits, SamplingParams(temperature, top_k, top_p, min_p), make_generators(seed, 3))
    rank = (logits > logits.gather(1, chosen[:, None])).sum(1)
    assert (rank < (top_k or 6)).all()


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.5},
    ],
)
def test_impossible_settings_are_refused(bad):
    with pytest.raises(QkvError, match=next(iter(bad))):
        SamplingParams(**bad)


# --- tokens to text


class Bytes:
    """A tokenizer whose tokens are bytes, the hardest case for writing whole characters."""

    def decode(self, ids):
        return bytes(ids).decode("utf-8", "replace")


@given(st.text(max_size=12))
def test_pieces_are_whole_characters_and_make_the_text(text):
    given_out = list(detokenize(text.encode(), Bytes()))
    assert "".join(given_out) == text
    assert all(piece == "" or "\ufffd" not in piece or "\ufffd" in text for piece in given_out)


def test_broken_characters_come_at_the_end():
    assert "".join(detokenize("ü".encode()[:1], Bytes())) == "\ufffd"


@given(st.lists(st.text("ab.", max_size=4), max_size=6), st.lists(st.text("ab.", min_size=1, max_size=3), max_size=2))
def test_a_stop_string_ends_the_text_wherever_the_pieces_break(texts, stop):
    """The stop string that is complete first ends it."""
    whole = "".join(texts)
    cut = min([(whole.find(end) + len(end), whole.find(end)) for end in stop if end in whole], default=(0, len(whole)))[
        1
    ]
    assert "".join(cut_at_stop(texts, stop)) == whole[:cut]


def test_pieces_before_a_stop_string_are_not_held_back_for_long():
    assert list(cut_at_stop(["ab", "c", "d"], ["cx"])) == ["ab", "cd"]
