"""Shared beginnings of prompts are read once, in a batch and across requests, and no text changes by it."""

from __future__ import annotations

import random

import pytest
import torch
from served import language_model, served
from test_continuous import DECODERS, network_of
from torch import nn

from qkv.batch import Batch
from qkv.generate.continuous_batching import ContinuousBatch, make_batch
from qkv.generate.prefill import PromptCache, group_prompts, prefill
from qkv.generate.sampling import GREEDY, SamplingParams
from qkv.generate.scoring import continuation_log_probs
from qkv.generate.search import greedy, sample
from qkv.generate.sequence import Sampler
from qkv.parts.state import State
from qkv.serve.http.limits import Limits
from qkv.serve.scheduling.served_model import ServedModel

SAMPLING = SamplingParams(temperature=1.3, top_k=20)


def count_tokens(network: nn.Module) -> list[int]:
    """The number of tokens (rows times length) of each call of the network from now on."""
    calls: list[int] = []
    network.embed.register_forward_hook(lambda module, inputs, output: calls.append(inputs[0].numel()))
    return calls


def ids(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 60) for _ in range(length)]


def prompts(shared: int = 33) -> list[list[int]]:
    """Four that share a beginning, two that share another one, and two that share nothing, in any order."""
    first, second = ids(1, shared), ids(2, shared + 7)
    return [[*first, 5], ids(3, 6), [*second, 9, 8], [*first, *ids(4, 6)], [*first, 5, 7], ids(5, 40), [*second, 3],
            [*first, *ids(6, 3)]]  # fmt: skip


def alone(network: nn.Module, row: list[int]) -> tuple[torch.Tensor, object]:
    hidden, state = network.step(torch.tensor([row]), network.start(Batch(torch.tensor([row]))))
    return hidden[0, -1], state


@pytest.mark.parametrize("name", DECODERS)
def test_prompts_read_together_continue_as_each_alone(name: str) -> None:
    """The vectors that predict the next token, and those of three more tokens; with a cache, also the second time."""
    _, network = network_of(name, "decoder")
    given, cache = prompts(), PromptCache(500)
    more = torch.randint(3, 60, (8, 3), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = [alone(network, row) for row in given]
        after = torch.cat([network.step(more[i : i + 1], state)[0] for i, (_, state) in enumerate(wanted)])
        for kept in (None, cache, cache):
            vectors, state = prefill(network, make_batch(given), kept)
            torch.testing.assert_close(vectors, torch.stack([v for v, _ in wanted]), atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(network.step(more, state)[0], after, atol=1e-5, rtol=1e-4)
    assert 0 < sum(map(len, cache.states)) <= 500


@pytest.mark.parametrize("name", ["gpt2", "lstm-lm"])
def test_a_shared_beginning_is_passed_through_the_network_once(name: str) -> None:
    """50 tokens shared by 8 prompts with 4 tokens of their own: 50 + 32, not 432; from a cache 32."""
    _, network = network_of(name, "decoder")
    calls, first = count_tokens(network), ids(1, 50)
    given = [[*first, *ids(10 + row, 4)] for row in range(8)]
    prefill(network, make_batch(given))
    assert calls == [50, 32]
    calls.clear()
    cache = PromptCache(200)
    for _ in range(2):
        prefill(network, make_batch(given), cache)
    assert calls == [50, 32, 32]
    prefill(network, make_batch([[*first, 1, 2, 3]]), cache)
    assert calls[3:] == [3]


def test_consecutive_requests_read_what_is_new() -> None:
    """A conversation: each prompt continues the last one. Then the same system message with another question."""
    _, network = network_of("gpt2", "decoder")
    calls, cache, text = count_tokens(network), PromptCache(400), ids(1, 40)
    for length in (5, 7, 9):
        prefill(network, make_batch([text]), cache)
        text = [*text, *ids(length, length)]
    assert calls == [40, 5, 7] and len(cache.states) == 1
    prefill(network, make_batch([[*text[:40], 9, 9]]), cache)
    assert calls[3:] == [2]
    prefill(network, make_batch([[*text[:40], 9, 9]]), cache)  # the same prompt again: its last token
    assert calls[4:] == [1]


def test_the_cache_holds_no_more_than_its_limit_and_drops_the_least_recently_used() -> None:
    _, network = network_of("gpt2", "decoder")
    cache = PromptCache(80)
    a, b, c = (ids(seed, 40) for seed in (1, 2, 3))
    for prompt in (a, b, a, c):
        prefill(network, make_batch([prompt]), cache)
    assert [list(key) for key in cache.states] == [a, c]
    cache.store(ids(4, 90), State())  # longer than the cache
    cache.store(ids(5, 10), State())  # too short to pay off
    assert [list(key) for key in cache.states] == [a, c]
    assert cache.find(a[:20])[0] == 20 and cache.find(b)[0] == 0 and cache.find([*c, 1])[0] == 40


def test_groups() -> None:
    given = prompts()
    found = sorted((length, sorted(rows)) for length, rows in group_prompts(given))
    assert found == [(0, [1, 5]), (33, [0, 3, 4, 7]), (40, [2, 6])]
    assert group_prompts([[1, 2], [1, 2]]) == [(0, [0, 1])]  # too short
    same = ids(1, 40)
    assert group_prompts([same, same]) == [(39, [0, 1])]
    # 17 tokens of all three would save less
    assert group_prompts([[*same, 1], [*same, 2], [*same[:17], 0]]) == [(40, [0, 1]), (0, [2])]
    assert group_prompts([[*same, 1], [*same, 2]], [40, 40]) == [(40, [0, 1])]
    # more of the second one is cached
    assert group_prompts([[*same, 1], [*same, 2, 2]], [40, 41]) == [(40, [0]), (41, [1])]
    assert group_prompts([ids(3, 50), ids(4, 5), ids(5, 6)], [0, 0, 0]) == [(49, [0]), (0, [1, 2])]
    assert group_prompts([ids(3, 20)], [0]) == [(19, [0])] and group_prompts([ids(3, 20)]) == [(0, [0])]


@pytest.mark.parametrize("name", ["gpt2", "packed", "packed-llama", "lstm-lm", "based"])
def test_texts_are_the_same_with_and_without_sharing(name: str) -> None:
    """Greedy and drawn texts of different lengths, joining in two batches, with a cache."""
    _, network = network_of(name, "decoder")
    given, cache = prompts(), PromptCache(300)
    texts = [Sampler(4 + 2 * row, (5, 6), SAMPLING if row % 2 else GREEDY, row) for row in range(8)]
    running = ContinuousBatch(network, prompt_cache=cache)
    for some in (slice(0, 5), slice(5, 8)):
        running.join(make_batch(given[some]), texts[some])
        running.step()
        running.step()
    while running.running:
        running.step()
    for row, (prompt, text) in enumerate(zip(given, texts, strict=True)):
        batch, how = Batch(torch.tensor([prompt])), (4 + 2 * row, (5, 6))
        wanted = sample(network, batch, *how, SAMPLING, row) if row % 2 else greedy(network, batch, *how)
        assert text.ids == wanted[0]


def test_log_probabilities_of_continuations_do_not_change() -> None:
    _, network = network_of("packed-llama", "decoder")
    given, labels, cache = prompts(), [[4], [5, 6], [7, 8, 9]], PromptCache(300)
    alone = [continuation_log_probs(network, [prompt], [labels])[0] for prompt in given]
    for _ in range(2):
        found = continuation_log_probs(network, given, [labels] * 8, cache=cache)
        torch.testing.assert_close(torch.tensor(found), torch.tensor(alone), atol=1e-4, rtol=1e-4)


def test_a_server_reads_a_system_message_once() -> None:
    """Chat completions with one system message, in turn and several at once: the same answers as without a cache, fewer tokens."""
    system = {"role": "system", "content": "two women sit on a bench in the park, and a child plays; who sees it?"}
    questions = ["the dog runs", "a man sleeps", "the cat eats"]
    found, read = [], []
    for cached in (0, 400):
        lm = language_model()
        calls = count_tokens(lm.packed())
        with served([ServedModel("lm", lm)], limits=Limits(cached_tokens=cached)) as client:
            for question in [*questions, *questions]:
                messages = [system, {"role": "user", "content": question}]
                body = {"model": "lm", "messages": messages, "max_tokens": 5, "n": 3, "temperature": 0.9, "seed": 4}
                choices = client.post("/v1/chat/completions", json=body).json()["choices"]
                found.append([one["message"]["content"] for one in choices])
        read.append(sum(calls))
    assert found[:6] == found[6:] and len({tuple(one) for one in found}) > 1
    prompt = lm.chat_ids([system, {"role": "user", "content": questions[0]}])
    assert len(prompt) > 30 and read[1] < read[0] - 4 * len(prompt)
