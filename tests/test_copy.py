"""Pointer-generator: the mixture and its gradient, all contracts, every search, and words that were never written in training."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv import objectives
from qkv.batch import IGNORED, Batch
from qkv.check import check
from qkv.config import ModelConfig
from qkv.engine.pack import pack
from qkv.errors import ConfigError, QkvError
from qkv.generate.beam import BeamParams
from qkv.generate.continuous_batching import ContinuousBatch, make_batch
from qkv.generate.search import beam_search, greedy
from qkv.generate.sequence import Sampler
from qkv.models.build import build
from qkv.objectives import cross_entropy
from qkv.tasks import losses

FIELDS: dict[str, Any] = {"family": "encoder-decoder", "vocab_size": 30, "d_model": 16, "n_layers": 1, "max_length": 64, "dropout": 0.0,
                          "init_std": 0.4, "bos_id": 1, "eos_id": 2, "copy_source": True}  # fmt: skip
TRANSFORMER = {"n_heads": 2, "d_ff": 32, "norm_order": "pre", "position": "rotary"}
NETWORKS = {
    "transformer": TRANSFORMER,
    "tied": {**TRANSFORMER, "tie": "all", "d_embed": 8, "output_bias": True},
    "recurrent": {"recurrent": "lstm", "bidirectional": True, "decoder_attention": "additive", "position": "none"},
    "wide": {"recurrent": "gru", "decoder_attention": "additive", "d_encoder": 24, "position": "none"},
    "luong": {"recurrent": "gru", "decoder_attention": "bilinear", "input_feeding": True, "position": "none"},
}  # fmt: skip
SOURCES = [[5, 6, 7, 8, 6, 2], [9, 2], [5, 5, 5, 5, 5, 5, 5, 2], [20, 21, 22, 2]]


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(1)
    return build(ModelConfig(**{**FIELDS, **NETWORKS[request.param]})).eval()


def config(name: str = "transformer", **fields: Any) -> ModelConfig:
    return ModelConfig(**{**FIELDS, **NETWORKS[name], **fields})


def pairs() -> Batch:
    """Sources and targets of several lengths, padded."""
    batch = make_batch([[1, 3, 4, 5]] * 4, SOURCES)
    targets = torch.tensor([[6, 7, 30 - 1, 2], [9, 2, IGNORED, IGNORED], [5, 5, 3, 2], [20, 2, IGNORED, IGNORED]])
    return Batch(batch.inputs, batch.mask, targets, batch.source, batch.source_mask)


def readable_mixture(network: Any, batch: Batch) -> Tensor:
    """p(w), word by word, from the definition."""
    hidden, memory, head = network(batch).hidden, network.encode(batch), network.head
    found = torch.zeros(*hidden.shape[:2], 30)
    for b, source in enumerate(SOURCES):
        m = memory.vectors[b, : len(source)]  # (S, C)
        for t, h in enumerate(hidden[b]):
            a = (m @ head.query(h) * m.size(1) ** -0.5).softmax(0)
            g = head.gate(torch.cat([h, a @ m])).sigmoid()
            found[b, t] = g * super(type(head), head).forward(h).softmax(-1)
            for i, word in enumerate(source):
                found[b, t, word] += ((1 - g) * a[i]).item()
    return found


def test_the_mixture_is_that_of_the_paper(network: Any) -> None:
    batch = pairs()
    with torch.no_grad():
        found = network(batch).logits
        torch.testing.assert_close(found.exp(), readable_mixture(network, batch), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(found.exp().sum(-1), torch.ones(4, 4))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_and_its_gradient_in_chunks(
    network: Any, smoothing: float, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, weights = pairs(), torch.rand(4, 4) if weighted else None
    assert batch.targets is not None
    gradients, totals = [], []
    for chunk in (4, 8, 512, None):
        network.zero_grad()
        output = network(batch)
        if chunk is None:
            log_probs = output.logits.log_softmax(-1)
            real = batch.targets != IGNORED
            chosen = log_probs.gather(2, batch.targets.clamp_min(0)[..., None]).squeeze(2)
            terms = -(1 - smoothing) * chosen - smoothing * log_probs.mean(2)
            total = ((terms if weights is None else terms * weights) * real).sum()
        else:
            monkeypatch.setattr(objectives, "CHUNK", chunk)
            found = cross_entropy(output, batch.targets, smoothing, weights)
            assert found.count == 12
            total = found.sum
        total.backward()
        totals.append(total.item())
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
    assert totals == pytest.approx([totals[-1]] * 4, rel=1e-5) and gradients[-1].isfinite().all()
    for one in gradients[:-1]:
        torch.testing.assert_close(one, gradients[-1], atol=1e-5, rtol=1e-4)


def test_losses_of_single_tokens(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pairs()
    assert batch.targets is not None
    monkeypatch.setattr(losses, "ROWS", 8)
    with torch.no_grad():
        output = network(batch)
        alone = [
            -output.logits[b, t, batch.targets[b, t]].item() for b, t in (batch.targets != IGNORED).nonzero().tolist()
        ]
        assert losses.token_losses(output, batch.targets).tolist() == pytest.approx(alone, rel=1e-5)


def test_a_word_far_from_the_vocabulary_but_in_the_source_has_a_finite_gradient() -> None:
    torch.manual_seed(0)
    network = build(config(output_bias=True))
    with torch.no_grad():
        network.head.bias[20] = -1e4  # its softmax is 0 in float32
    batch = pairs()
    loss = cross_entropy(network(batch), batch.targets)
    loss.sum.backward()
    assert loss.sum.isfinite() and loss.sum < 100
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_contracts_hold(name: str) -> None:
    torch.manual_seed(0)
    c = config(name)
    results = {result.contract: result for result in check(build(c), c)}
    assert not [result for result in results.values() if result.status == "broken"]
    for contract in ("causal", "padding", "batch", "cache", "accumulate", "resume", "export"):
        assert results[contract].status == "holds", contract


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("beam", [1, 3])
def test_searches_find_the_same_alone_and_together(network: Any, packed: bool, beam: int) -> None:
    fast = pack(network) if packed else network
    found = beam_search(fast, make_batch([[1]] * 4, SOURCES), 9, (2,), BeamParams(beam, n_best=beam))
    for source, together in zip(SOURCES, found, strict=True):
        alone = beam_search(network, make_batch([[1]], [source]), 9, (2,), BeamParams(beam, n_best=beam))[0]
        assert [h.ids for h in together] == [h.ids for h in alone]
        assert [h.log_prob for h in together] == pytest.approx([h.log_prob for h in alone], abs=1e-4)
        ids = together[0].ids  # and as one pass scores it
        batch = make_batch([[1, *ids[:-1]]], [source])
        with torch.no_grad():
            table = network(batch).logits[0]
        assert together[0].log_probs == pytest.approx([table[t, i].item() for t, i in enumerate(ids)], abs=1e-4)


def test_texts_that_join_a_running_batch(network: Any) -> None:
    """Longer and shorter sources join and leave: what is copied is always of the text's own source."""
    running, samplers = ContinuousBatch(pack(network)), []
    for source in SOURCES:
        samplers.append(Sampler(9, (2,)))
        running.join(make_batch([[1]], [source]), samplers[-1:])
        running.step()
    while running.running:
        running.step()
    for source, sampler in zip(SOURCES, samplers, strict=True):
        assert sampler.ids == greedy(network, make_batch([[1]], [source]), 9, (2,))[0]


# --- learning


def recipe(folder: Path, **model: Any) -> dict[str, Any]:
    """Pairs of a sentence and its first word, twice: in the test set all of these words are new as targets."""
    words, r = ["".join(parts) for parts in product("bdfghkmnpt", "aeiou", "lnrst")], random.Random(0)
    r.shuffle(words)
    for name, some in (("train", words[:200]), ("test", words[200:])):
        rows = []
        for _ in range(5000 if name == "train" else 40):
            said = r.choice(some)
            row = [said, *r.sample(words, 5)]
            rows.append(f"{' '.join(row)}\t{said} {said}")
        (folder / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    table = lambda name: {"table": str(folder / f"{name}.tsv"), "columns": [0, 1]}  # noqa: E731
    size = {"family": "encoder-decoder", "d_model": 32, "n_layers": 1, "max_length": 32, "dropout": 0.0}
    return {
        "task": "summary", "model": {**size, "tie": "embeddings", **model},
        "data": {"train": [table("train")], "valid": table("test"), "test": table("test"), "tokenizer": "words", "vocab_size": 300,
                 "max_length": 12, "target_length": 4, "batch_tokens": 512},
        "train": {"steps": 200, "learning_rate": 5e-3, "schedule": "cosine", "warmup": 10, "label_smoothing": 0.0,
                  "evaluate_every": 200, "save_every": 200},
        "decode": {"beam": 2},
    }  # fmt: skip


@pytest.mark.parametrize("name", ["transformer", "recurrent"])
def test_words_that_were_never_targets_are_copied(name: str, tmp_path: Path) -> None:
    fields = {**NETWORKS[name], **({"position": "learned"} if name == "transformer" else {})}
    scores = {}
    for copies in (True, False):
        run = qkv.train(recipe(tmp_path, **fields, copy_source=copies), tmp_path / str(copies), quiet=True)
        scores[copies] = run.scores["ROUGE-L"]
    assert scores[True] > 90 and scores[False] < 50, scores
    model = qkv.load(tmp_path / "True")
    row = (tmp_path / "test.tsv").read_text().split("\n")[0].split("\t")
    assert model.summarize(row[:1])[0].text == row[1]
    assert model.look(row[0]).lens().words  # of the vocabulary alone


# --- what is refused


@pytest.mark.parametrize(("fields", "message"), [
    ({"family": "decoder"}, "copies words of a source text"),
    ({"target_vocab_size": 40}, "needs one vocabulary"),
    ({"image_size": 8, "patch_size": 4, "vocab_size": 0, "target_vocab_size": 30}, "copies words of a source text"),
])  # fmt: skip
def test_impossible_configurations(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=message):
        ModelConfig(**{**FIELDS, **TRANSFORMER, **fields})


def test_impossible_recipes(tmp_path: Path) -> None:
    made = recipe(tmp_path, **TRANSFORMER, copy_source=True)
    with pytest.raises(QkvError, match=r"set data\.joint = true"):
        qkv.train(
            {**made, "data": {**made["data"], "joint": False}, "model": {**made["model"], "tie": "output"}},
            tmp_path / "a",
            quiet=True,
        )
    text = {"text": "a b c d e f g h"}
    denoising = {"task": "denoising", "model": made["model"], "data": {"train": [text], "valid": text}}
    with pytest.raises(QkvError, match=r"model\.copy_source does not apply to task 'denoising'"):
        qkv.train(denoising, tmp_path / "b", quiet=True)


def test_no_family_of_hugging_face_holds_it(tmp_path: Path) -> None:
    c = config(position="learned")
    with pytest.raises(QkvError, match="copy_source"):
        qkv.Model(c, build(c)).export(tmp_path / "hf", "hf")
