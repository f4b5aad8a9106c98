"""Speculative decoding: the same tokens when greedy, the same distribution in sampling, and fewer calls of the network."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qkv.api import Model
from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.engine.pack import pack
from qkv.errors import QkvError
from qkv.generate.logits_processor import LogitsProcessor
from qkv.generate.sampling import GREEDY, SamplingParams, make_generators
from qkv.generate.search import greedy, sample
from qkv.generate.sequence import Sampler
from qkv.generate.speculative import (
    Draft,
    DraftModel,
    NgramLookup,
    SpeculativeDecoder,
    choose,
    draw,
    rewind,
    verify,
)  # fmt: skip
from qkv.models.build import build
from qkv.parts.state import State
from qkv.text.train import train_tokenizer

SIZES: dict[str, Any] = {"family": "decoder", "vocab_size": 23, "d_model": 16, "n_layers": 2, "n_heads": 4, "d_ff": 32,
                         "max_length": 64, "init_std": 0.4, "norm_order": "pre"}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "learned": {"position": "learned"},
    "rotary, grouped heads": {"position": "rotary", "n_kv_heads": 2, "norm": "rms", "feedforward": "swiglu"},
    "alibi": {"position": "alibi"},
    "window": {"position": "rotary", "mixer": ("window",), "window": 3},
    "t5": {"position": "t5"},
}
PENALTIES = LogitsProcessor(repetition_penalty=1.3, frequency_penalty=0.2, no_repeat_ngram=4)


def network_of(seed: int = 0, **fields: Any) -> nn.Module:
    torch.manual_seed(seed)
    return build(ModelConfig(**{**SIZES, "position": "learned", **fields})).eval()


def prompt_of(seed: int, length: int = 6) -> list[int]:
    return torch.randint(23, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def noisy(network: nn.Module, amount: float) -> nn.Module:
    """A copy whose predictions are often, but not always, those of the network."""
    torch.manual_seed(3)
    other = copy.deepcopy(network)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn_like(weight) * amount)
    return other


def count_calls(network: nn.Module) -> list[int]:
    """The number of tokens of each call of the network from now on."""
    calls: list[int] = []
    network.embed.register_forward_hook(lambda module, inputs, output: calls.append(inputs[0].size(1)))
    return calls


# --- greedy


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_are_those_without_a_draft(name: str) -> None:
    """With a draft that is often right, one that never is, and n-grams; with penalties and an end token; packed or not."""
    for seed in range(2):
        network = network_of(seed, **FAMILIES[name])
        drafters = [
            DraftModel(noisy(network, 0.05)),
            DraftModel(network_of(seed + 10, **FAMILIES[name])),
            NgramLookup(),
        ]
        fast, prompt = pack(network) if seed else network, prompt_of(seed)
        batch = Batch(inputs=torch.tensor([prompt]))
        for rules in (LogitsProcessor(), PENALTIES.for_prompt(prompt, (3,))):
            wanted = greedy(network, batch, 16, (3,), rules)[0]
            for drafter in drafters:
                decoder = SpeculativeDecoder(fast, drafter, 3)
                sampler = Sampler(16, (3,), processor=rules)
                assert list(decoder.generate(prompt, sampler)) == wanted == sampler.ids
                assert decoder.stats.tokens == len(wanted) and 0 <= decoder.stats.acceptance_rate <= 1


def test_a_perfect_draft_is_accepted_whole() -> None:
    """1 call for the prompt and the first token, then 5 tokens per call; the draft reads each token once."""
    network = network_of(position="rotary")
    other = copy.deepcopy(network)
    calls, drafting = count_calls(network), count_calls(other)
    decoder = SpeculativeDecoder(network, DraftModel(other), 4)
    tokens = list(decoder.generate(prompt_of(1), Sampler(21, ())))
    assert calls == [6, 5, 5, 5, 5] and decoder.stats.drafted == decoder.stats.accepted == 16
    assert decoder.stats.tokens == 21 and decoder.stats.calls == 5 and decoder.stats.acceptance_rate == 1
    assert drafting == [7, 1, 1, 1, *[2, 1, 1, 1] * 3]
    assert tokens == greedy(network, Batch(inputs=torch.tensor([prompt_of(1)])), 21)[0]


def test_a_perfect_draft_is_accepted_in_sampling_too() -> None:
    network = network_of()
    decoder = SpeculativeDecoder(network, DraftModel(copy.deepcopy(network)), 4)
    sampler = Sampler(40, (), SamplingParams(1.2, top_k=9, top_p=0.9), 4)
    assert len(list(decoder.generate(prompt_of(2), sampler))) == 40 and decoder.stats.acceptance_rate == 1


def test_ngrams_of_repeated_text_are_accepted() -> None:
    """A network that repeats a text of five tokens; n-grams predict it from the second time on."""
    period = [4, 8, 15, 16, 7]

    class Repeats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = network_of(), nn.Identity()

        def step(self, ids: torch.Tensor, state: Any, mask: Any = None) -> Any:
            state = self.inner.step(ids, state, mask)[1]
            following = [period[(period.index(token) + 1) % 5] for token in ids[0].tolist()]
            return nn.functional.one_hot(torch.tensor([following]), 23).float() * 9, state

    decoder = SpeculativeDecoder(Repeats(), NgramLookup(), 4)
    text = list(decoder.generate(period, Sampler(41, ())))
    assert text == period * 8 + period[:1]
    assert decoder.stats.accepted >= 0.9 * decoder.stats.drafted and decoder.stats.calls <= 10


def test_ngram_lookup_copies_the_last_occurrence_of_the_longest_ngram() -> None:
    lookup, sampler = NgramLookup(), Sampler(9, ())
    assert lookup.propose([1, 2, 3, 4, 5], sampler, 3).tokens == []
    assert lookup.propose([1, 2, 3, 4, 5, 2, 3], sampler, 3).tokens == [4, 5, 2]
    assert lookup.propose([1, 2, 3, 4, 5, 2, 3, 9, 3], sampler, 2).tokens == [9, 3]
    assert lookup.propose([1, 2, 3, 4, 5, 2, 3, 9, 3, 2, 3], sampler, 1).tokens == [9]
    assert lookup.propose([6, 7, 7], sampler, 4).tokens == [7, 7, 7, 7]  # another text; its repetition goes on
    assert lookup.propose([6, 7, 7, 8], sampler, 4).tokens == []


def test_rejected_tokens_leave_no_trace_in_the_cache() -> None:
    """After rejections the state is that of reading the text at once, and rewinding copies nothing."""
    network = network_of(position="rotary")
    fast = pack(network)
    decoder = SpeculativeDecoder(fast, DraftModel(network_of(9, position="rotary")), 4)
    buffers = set()
    for _ in decoder.generate(prompt_of(3), Sampler(14, ())):
        buffers.add(id(decoder.known[1].layers[0]["cache"].buffer))
    ids, state = decoder.known
    assert decoder.stats.accepted < decoder.stats.drafted and len(buffers) <= 2  # one grows once
    more = torch.tensor([[5, 6]])
    with torch.no_grad():
        wanted = network(Batch(inputs=torch.tensor([[*ids, 5, 6]]))).hidden[:, -2:]
        torch.testing.assert_close(fast.step(more, state)[0], wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("part", ["network", "draft"])
def test_an_interrupted_text_leaves_no_trace_in_the_cache(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the end of a call, when the KV cache has the tokens of another text already."""
    network = network_of(position="rotary")
    decoder = SpeculativeDecoder(pack(network), DraftModel(pack(network_of(9, position="rotary"))), 4)
    one, other = prompt_of(3), prompt_of(4)
    wanted = list(decoder.generate(one, Sampler(14, ())))
    owner: Any = decoder.network if part == "network" else decoder.drafter.network
    step = owner.step

    def interrupted(*arguments: Any) -> None:
        step(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, "step", interrupted)
        list(decoder.generate([*one[:2], *other], Sampler(14, ())))
    assert list(decoder.generate(one, Sampler(14, ()))) == wanted
    for known, packed in ((decoder.known, decoder.network), (decoder.drafter.known, decoder.drafter.network)):
        with torch.no_grad():
            hidden = packed.step(torch.tensor([known[0]]), State())[0][:, -1]
            again = packed.step(torch.tensor([known[0][-1:]]), rewind(known[1], len(known[0]) - 1))[0][:, -1]
        torch.testing.assert_close(again, hidden, atol=1e-5, rtol=1e-4)


def test_the_context_of_a_model_with_learned_positions_is_filled_and_not_exceeded() -> None:
    """As without a draft, the last token is predicted from a full context; a draft model with a smaller one stops drafting."""
    c = ModelConfig(**{**SIZES, "position": "learned", "max_length": 16})
    torch.manual_seed(0)
    model = Model(c, build(c), device="cpu")
    small = ModelConfig(**{**SIZES, "position": "learned", "max_length": 12})
    plain = list(model.generate(prompt_of(1), 100))
    assert len(plain) == 11
    for draft in (model, Model(small, build(small), device="cpu"), "ngram"):
        assert list(model.generate(prompt_of(1), 100, draft=draft)) == plain


# --- sampling


def chi_square(counts: torch.Tensor, probs: torch.Tensor) -> float:
    """sum (observed - expected)^2 / expected; an outcome that cannot occur must not."""
    expected = probs * counts.sum()
    assert counts[probs == 0].sum() == 0
    return float(((counts - expected) ** 2 / expected.clamp(min=1e-9))[probs > 0].sum())


@pytest.mark.parametrize("certain", [False, True])
def test_accepted_or_replaced_a_token_has_the_distribution_of_the_model(certain: bool) -> None:
    """2,000 draws of two tokens each; 99.9 % of chi-square values with 5 degrees of freedom are below 20.5."""
    scores = torch.tensor([[2.0, 1.0, 0.5, 0.0, -1.0, -3.0], [0.0, 2.0, 1.0, -1.0, 0.3, 0.1]])
    q = torch.tensor([0.1, 0.2, 0.1, 0.05, 0.5, 0.05])
    sampler = Sampler(2, (), SamplingParams(1.0), make_generators(1, 1)[0])
    first, second, accepted = torch.zeros(6), torch.zeros(6), 0
    for _ in range(2000):
        drafted = 1 if certain else draw(q, sampler.generator)
        tokens = verify(scores, Draft([drafted], None if certain else q[None]), sampler)
        first[tokens[0]] += 1
        if len(tokens) == 2:
            accepted, second[tokens[1]] = accepted + 1, second[tokens[1]] + 1
    p = scores.softmax(-1)
    assert chi_square(first, p[0]) < 20.5 and chi_square(second, p[1]) < 20.5
    rate = float(p[0, 1] if certain else p[0].minimum(q).sum())  # Leviathan et al.: sum of min(p, q)
    assert accepted / 2000 == pytest.approx(rate, abs=0.03)


@pytest.mark.parametrize(
    ("drafter", "rules"),
    [("ngram", LogitsProcessor()), ("model", LogitsProcessor(repetition_penalty=1.5, presence_penalty=0.5))],
)
def test_sampled_texts_have_the_distribution_of_the_model(drafter: str, rules: LogitsProcessor) -> None:
    """Second and third token of 300 texts, against 300 drawn without a draft: 99.9 % of the values are below 52."""
    sizes = {"vocab_size": 5, "n_layers": 1, "position": "rotary"}
    network, prompt, params = network_of(2, **sizes), [1, 2, 3, 1, 2], SamplingParams(1.1, top_k=4, top_p=0.97)
    rules = rules.for_prompt(prompt, ())
    batch = Batch(inputs=torch.tensor([prompt] * 300))
    many = LogitsProcessor(repetition_penalty=rules.repetition_penalty, presence_penalty=rules.presence_penalty,
                           prompts=[prompt] * 300 if rules.prompts else ())  # fmt: skip
    plain = sample(network, batch, 3, (), params, 1000, many)
    decoder = SpeculativeDecoder(
        network, NgramLookup((2, 1)) if drafter == "ngram" else DraftModel(network_of(5, **sizes)), 2
    )
    counts = torch.zeros(2, 25)
    for seed in range(300):
        counts[0, plain[seed][1] * 5 + plain[seed][2]] += 1
        sampler = Sampler(3, (), params, seed, processor=rules)
        _, second, third = decoder.generate(prompt, sampler)
        counts[1, second * 5 + third] += 1
    assert 0.1 < decoder.stats.acceptance_rate < 0.95
    both = counts[:, counts.sum(0) > 0]
    assert ((both[0] - both[1]) ** 2 / both.sum(0)).sum() < 52  # two samples of equal size


def test_log_probabilities_and_alternatives_are_the_models() -> None:
    logits, sampler = torch.randn(3, 23, generator=torch.Generator().manual_seed(0)), Sampler(9, (), GREEDY, top=2)
    best = logits.argmax(-1).tolist()
    assert choose(logits, Draft([best[0], best[1]]), sampler) == best
    table = logits.log_softmax(-1)
    for step, row in zip(sampler.tokens, table, strict=True):
        assert step.log_prob == pytest.approx(float(row.max())) and step.top[0] == (step.token, step.log_prob)


# --- models and commands


def test_models_that_cannot_go_back_and_other_vocabularies_are_refused() -> None:
    make = lambda **fields: Model(c := ModelConfig(**{**SIZES, **fields}), build(c), device="cpu")  # noqa: E731
    model = make(position="learned")
    recurrent, linear = make(recurrent="lstm", position="none"), make(mixer=("linear",), position="learned")
    hybrid, two = make(mixer=("softmax", "s4d"), position="none"), make(family="encoder-decoder", position="learned")
    for other, words in ((recurrent, "lstm"), (linear, "linear"), (hybrid, "s4d"), (two, "encoder-decoder")):
        with pytest.raises(QkvError, match=f"the draft model .*{words}"):
            model.generate([1, 2], draft=other)
    with pytest.raises(QkvError, match=r"KV cache.* the model has lstm"):
        recurrent.generate([1, 2], draft="ngram")
    with pytest.raises(QkvError, match="vocabulary of 24 tokens"):
        model.generate([1, 2], draft=make(position="learned", vocab_size=24))
    with pytest.raises(QkvError, match='a model or "ngram"'):
        model.generate([1, 2], draft="trigram")
    with pytest.raises(QkvError, match="slide"):
        model.generate([1, 2], draft="ngram", slide=True)
    with pytest.raises(QkvError, match="draft_tokens"):
        model.generate([1, 2], draft="ngram", draft_tokens=0)


TEMPLATE = "{% for m in messages %}<s>{{ m['role'][0] }}:{{ m['content'] }}</s>{% endfor %}<s>a:"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A chat model, a similar one, and one with another tokenizer of the same size."""
    place, sizes = tmp_path_factory.mktemp("drafts"), {"vocab_size": 270, "max_length": 96, "position": "rotary"}
    c, folders = ModelConfig(**{**SIZES, **sizes, "bos_id": 1, "eos_id": 2}), []
    first = network_of(1, **sizes, bos_id=1, eos_id=2)
    for name, network, word in (("one", first, "the"), ("two", noisy(first, 0.03), "the"), ("other", first, "zzz")):
        tokenizer = train_tokenizer([f"{word} {word} {word}"] * 3, "byte-bpe", 270)
        tokenizer.settings["chat_template"] = TEMPLATE
        Model(c, network, tokenizer, "cpu").save(place / name)
        folders.append(place / name)
    return folders


def test_the_command_writes_the_same_text_and_reports_what_was_accepted(run: Any, folders: list[Path]) -> None:
    how = ("generate", folders[0], "the cat", "--max-new-tokens", "20")
    plain = run(*how)
    for draft in (folders[1], "ngram"):
        code, out, err = run(*how, "--draft", draft, "--draft-tokens", "3")
        assert (code, out) == plain[:2] and "drafted tokens accepted" in err and "tokens per call" in err
    found = json.loads(run(*how, "--draft", folders[1], "--json")[1])
    assert found["tokens"] == 20 and 0 < found["accepted_tokens"] <= found["drafted_tokens"]


def test_the_command_refuses_other_models_in_one_line(run: Any, folders: list[Path], tmp_path: Path) -> None:
    code, out, err = run("generate", folders[0], "the cat", "--draft", folders[2])
    assert code == 2 and out == "" and "different tokenizer" in err and err.count("\n") == 1
    code, _, err = run("generate", "example", "The dog sees a cat.", "--draft", "ngram")
    assert code == 2 and "needs a decoder" in err and err.count("\n") == 1
    code, _, err = run("generate", folders[0], "the cat", "--draft", tmp_path / "none")
    assert code == 2 and err.count("\n") == 1


def test_a_conversation_with_a_draft_is_the_same_conversation(run: Any, folders: list[Path]) -> None:
    """Answers of several turns; each turn reads only what is new."""
    talk = "hello\nthe cat\nand the dog\n"
    plain = run("chat", folders[0], "--max-new-tokens", "8", given=talk)
    for draft in (folders[1], "ngram"):
        code, out, err = run("chat", folders[0], "--max-new-tokens", "8", "--draft", draft, given=talk)
        assert (code, out) == plain[:2] and "drafted tokens accepted" in err
