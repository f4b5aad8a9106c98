"""Penalties on repetition: the same edit of the logits in every loop, equal to transformers' logits processors."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from served import language_model, served

from qkv.api import Model
from qkv.base_model import BaseModel
from qkv.batch import Batch
from qkv.errors import QkvError
from qkv.generate.beam import BeamParams
from qkv.generate.continuous_batching import ContinuousBatch, make_batch
from qkv.generate.logits_processor import LogitsProcessor
from qkv.generate.sampling import SamplingParams, make_generators, sample_tokens
from qkv.generate.search import beam_search, greedy, sample
from qkv.generate.sequence import Sampler
from qkv.serve.scheduling.served_model import ServedModel

PENALTIES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.6},
    {"repetition_penalty": 0.7, "presence_penalty": 1.5},
    {"presence_penalty": 0.8, "frequency_penalty": 0.6},
    {"no_repeat_ngram": 2, "repetition_penalty": 1.2},
    {"no_repeat_ngram": 1},
]


def rows(count: int, longest: int, vocabulary: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(vocabulary) for _ in range(draw.randrange(1, longest))] for _ in range(count)]


# --- one step


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3, 5.0])
def test_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    processors = pytest.importorskip("transformers.generation.logits_process")
    prompts, written = rows(6, 9, 12, 1), rows(6, 5, 12, 2)
    logits = torch.randn(6, 12, generator=torch.Generator().manual_seed(3))  # of both signs
    ours = logits.clone()
    LogitsProcessor(repetition_penalty=penalty, prompts=prompts).process(ours, written, range(6))
    for row, (before, ids) in enumerate(zip(prompts, written, strict=True)):
        theirs = processors.RepetitionPenaltyLogitsProcessor(penalty)(
            torch.tensor([before + ids]), logits[row : row + 1]
        )
        assert torch.equal(ours[row], theirs[0])


@pytest.mark.parametrize("n", [1, 2, 3])
def test_ngram_blocking_is_that_of_transformers(n: int) -> None:
    processors = pytest.importorskip("transformers.generation.logits_process")
    prompts, written = rows(20, 12, 4, 4), rows(20, 9, 4, 5)
    ours, blocked = torch.zeros(20, 4), 0
    LogitsProcessor(no_repeat_ngram=n, prompts=prompts).process(ours, written, range(20))
    for row, (before, ids) in enumerate(zip(prompts, written, strict=True)):
        theirs = processors.NoRepeatNGramLogitsProcessor(n)(torch.tensor([before + ids]), torch.zeros(1, 4))
        assert torch.equal(ours[row], theirs[0])
        blocked += int(theirs.isinf().sum())
    assert blocked > 3


@pytest.mark.parametrize("min_p", [0.05, 0.3, 1.0])
def test_min_p_keeps_the_tokens_that_transformers_keeps(min_p: float) -> None:
    processors = pytest.importorskip("transformers.generation.logits_process")
    logits = torch.tensor([[2.0, 1.5, 1.0, 0.0, -1.0, -3.0]])
    kept = processors.MinPLogitsWarper(min_p)(None, processors.TemperatureLogitsWarper(0.8)(None, logits)) > -torch.inf
    drawn = sample_tokens(logits.expand(3000, -1), SamplingParams(0.8, min_p=min_p), make_generators(0, 3000))
    assert set(drawn.tolist()) == set(kept[0].nonzero().flatten().tolist())


def test_presence_and_frequency_count_what_was_generated() -> None:
    """OpenAI: logit - presence * [count > 0] - frequency * count; the prompt is not counted."""
    logits = torch.zeros(1, 5)
    rules = LogitsProcessor(presence_penalty=0.5, frequency_penalty=0.25, prompts=[[4, 4, 0]])
    rules.process(logits, [[1, 2, 1, 1]], [0])
    assert logits.tolist() == [[0, -0.5 - 0.75, -0.5 - 0.25, 0, 0]]


@pytest.mark.parametrize(
    "bad", [{"presence_penalty": 2.1}, {"frequency_penalty": float("nan")}, {"repetition_penalty": 0}]
)
def test_impossible_penalties_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(QkvError, match=next(iter(bad))):
        LogitsProcessor(**bad)


# --- whole texts


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart"])
def test_greedy_texts_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Model.generate: a decoder's prompt counts, of an encoder-decoder what the decoder reads."""
    hf_models = pytest.importorskip("hf_models", reason="transformers is not installed")
    theirs = hf_models.make(name)
    config, _, network = hf_models.open_ours(hf_models.save(theirs, tmp_path))
    theirs.generation_config.eos_token_id = theirs.generation_config.forced_eos_token_id = None
    ours, texts = BaseModel(config.changed(eos_id=None), network, device="cpu"), []
    prompt = torch.randint(3, 50, (1, 6), generator=torch.Generator().manual_seed(4))
    for how in ({}, {"repetition_penalty": 1.4}, {"no_repeat_ngram": 2}):
        named = {"no_repeat_ngram_size" if k == "no_repeat_ngram" else k: v for k, v in how.items()}
        ids = theirs.generate(prompt, max_new_tokens=14, do_sample=False, **named)[0].tolist()
        texts.append(list(ours.generate(prompt, 14, **how)))
        assert texts[-1] == ids[-14:]
    assert texts[0] != texts[1] and texts[0] != texts[2]


@pytest.fixture(scope="module")
def lm() -> Model:
    return language_model()


@pytest.mark.parametrize("penalties", PENALTIES)
@pytest.mark.parametrize("how", [SamplingParams(), SamplingParams(1.2, min_p=0.05)], ids=["greedy", "drawn"])
def test_every_loop_writes_the_same_text(lm: Model, how: SamplingParams, penalties: dict[str, Any]) -> None:
    """Model.generate, sliding, batches of fixed and of changing rows, and a beam of 1."""
    ends, given = lm.config.eos_ids, rows(3, 9, lm.config.vocab_size, 6)
    rules = LogitsProcessor(ends, prompts=given, **penalties)
    texts = [Sampler(20, ends, how, 5, processor=LogitsProcessor(**penalties).for_prompt(ids, ends)) for ids in given]
    running = ContinuousBatch(lm.network)
    running.join(make_batch(given), texts)
    while running.running:
        running.step()
    for row, ids in enumerate(given):
        batch, own = Batch(torch.tensor([ids])), LogitsProcessor(**penalties).for_prompt(ids, ends)
        (alone,) = sample(lm.network, batch, 20, ends, how, 5, own)
        assert texts[row].ids == alone
        text = [token for token in alone if token not in ends]
        settings = {"temperature": how.temperature, "min_p": how.min_p, "seed": 5, **penalties}
        assert list(lm.generate([ids], 20, **settings)) == text
        assert list(lm.generate([ids], 20, slide=True, **settings)) == text
        if not how.temperature:
            assert beam_search(lm.network, batch, 20, ends, BeamParams(1), own)[0][0].ids == alone
    plain = greedy(lm.network, make_batch(given), 20, ends)
    assert plain != greedy(lm.network, make_batch(given), 20, ends, rules) or how.temperature


def test_a_served_text_is_that_of_the_model(lm: Model) -> None:
    """Both APIs; tokens that are given as the beginning of an answer count as generated."""
    how = {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.3}
    text = "".join(lm.generate("the dog", 16, **how))
    assert text != "".join(lm.generate("the dog", 16))
    with served([ServedModel("lm", lm)]) as client:
        asked = {"model": "lm", "prompt": "the dog", "max_tokens": 16, "temperature": 0, **how}
        assert client.post("/v1/completions", json=asked).json()["choices"][0]["text"] == text
        whole = client.post("/api/generate", json=asked).json()
        assert whole["text"] == text
        for record, step in zip(whole["tokens"], lm.generate(lm.encode("the dog"), 16, **how), strict=True):
            assert record["id"] == step
        ids = [record["id"] for record in whole["tokens"]]
        for n in (1, 7):  # behind the first one, the model alone would repeat it
            rest = client.post("/api/generate", json=asked | {"prefix": ids[:n], "max_tokens": 16 - n}).json()
            assert [record["id"] for record in rest["tokens"]] == ids[n:]
        for bad in ({"presence_penalty": 2.5}, {"frequency_penalty": -3}, {"repetition_penalty": 0}, {"min_p": 2}):
            assert client.post("/v1/completions", json=asked | bad).status_code == 400
            assert client.post("/api/generate", json=asked | bad).status_code == 400
