"""Beam search on `network.start` and `network.step`: batched, cached, the same for attention and recurrent networks.

The network computes for all live hypotheses of all sentences at once (continuous.py), sentence by sentence and K to each;
which of them live on is decided in hypotheses.py. Nothing of one sentence depends on the others in its batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from qkv.batch import Batch
from qkv.generate.constraints import Phrase
from qkv.generate.continuous import Continuous, Text
from qkv.generate.hypotheses import Beam, Hypothesis, Sentence
from qkv.generate.logits_processor import Rules
from qkv.generate.sampling import best
from qkv.generate.search import FREE, Writer, write


def search(network: Writer, batch: Batch, longest: int | Sequence[int], ends: Sequence[int], beam: Beam,
           rules: Rules = FREE, phrases: Sequence[Sequence[Phrase]] = ()) -> list[list[Hypothesis]]:  # fmt: skip
    """The `beam.n_best` texts of each row, best first: those that ended, then what was cut off at `longest` tokens.

    `phrases` has for each row the token sequences that must occur in its text. A beam of 1 is greedy.
    """
    assert batch.inputs is not None
    limits = [longest] * batch.inputs.size(0) if isinstance(longest, int) else longest
    if beam.size == 1 and not any(phrases):
        return [[text] for text in greedy_search(network, batch, limits, ends, beam, rules)]
    return beam_search(network, batch, limits, ends, beam, rules, phrases)


def beam_search(network: Writer, batch: Batch, limits: Sequence[int], ends: Sequence[int], beam: Beam,
                rules: Rules = FREE, phrases: Sequence[Sequence[Phrase]] = ()) -> list[list[Hypothesis]]:  # fmt: skip
    """All sentences join at once; finished ones leave the batch."""
    sentences = [Sentence(beam, limit, ends, phrases[i] if phrases else ()) for i, limit in enumerate(limits)]
    running = Continuous(network)
    running.join(batch, [Text(sentence, rules, number) for number, sentence in enumerate(sentences)])
    while running.going:
        running.step()
    return [sentence.results() for sentence in sentences]


def greedy_search(network: Writer, batch: Batch, limits: Sequence[int], ends: Sequence[int], beam: Beam,
                  rules: Rules = FREE) -> list[Hypothesis]:  # fmt: skip
    """The most probable token each time, and its log-probability; penalties act on the logits, as in `steps`."""
    texts: list[list[int]] = [[] for _ in limits]
    log_probs: list[list[float]] = [[] for _ in limits]

    def choice(scores: Tensor, rows: list[int]) -> Tensor:
        own = scores.float().log_softmax(-1) if rules.reweigh else scores  # (R, V): what the model gives
        if not rules.idle:
            rules.apply(scores, [texts[row] for row in rows], rows)
        tokens = best(scores, 1)[1]  # (R, 1)
        for row, token, log_prob in zip(
            rows, tokens[:, 0].tolist(), own.gather(-1, tokens)[:, 0].tolist(), strict=True
        ):
            texts[row].append(token)
            log_probs[row].append(log_prob)
        return tokens[:, 0]

    for _ in write(network, batch, limits, choice, ends, log_probs=not rules.reweigh):
        pass
    totals = [sum(own) for own in log_probs]
    return [
        Hypothesis(ids, own, total, beam.score(total, len(ids)), ids[-1] in ends)
        for ids, own, total in zip(texts, log_probs, totals, strict=True)
    ]
