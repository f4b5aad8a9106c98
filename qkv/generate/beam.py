"""Beam search on `network.start` and `network.step`: batched, cached, the same for attention and recurrent networks.

The network computes for all live hypotheses of all sentences at once, sentence by sentence and K to each; which of them
live on is decided in hypotheses.py. Nothing of one sentence depends on the others in its batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.generate.choose import best
from qkv.generate.constraints import Phrase
from qkv.generate.hypotheses import Beam, Continuations, Hypothesis, Sentence
from qkv.generate.rules import Rules
from qkv.generate.search import FREE, Writer, last_real, write


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


@torch.no_grad()
def beam_search(network: Writer, batch: Batch, limits: Sequence[int], ends: Sequence[int], beam: Beam,
                rules: Rules = FREE, phrases: Sequence[Sequence[Phrase]] = ()) -> list[list[Hypothesis]]:  # fmt: skip
    sentences = [Sentence(beam, limit, ends, phrases[i] if phrases else ()) for i, limit in enumerate(limits)]
    assert batch.inputs is not None
    hidden, state = network.step(batch.inputs, network.start(batch), batch.mask)  # (B, T, C)
    going = list(range(len(sentences)))  # which sentences are in the batch
    width = beam.groups  # K: how many rows each of them has there
    first = torch.arange(len(sentences), device=hidden.device).repeat_interleave(width)
    last, state = last_real(hidden, batch.mask)[first], state.move(first)  # (B * K, C)
    while True:
        # only the last vector goes through the head: the vocabulary is the widest matrix of all
        scores = network.head.log_probs(last)  # type: ignore[operator]  # (B * K, V)
        rows = continuations(scores, [sentences[i] for i in going], going, width, beam.size + len(ends), rules)
        moves = [sentences[i].advance(own) for i, own in zip(going, rows, strict=True)]
        kept = [at for at, i in enumerate(going) if sentences[i].live]  # finished sentences leave the batch
        if not kept:
            return [sentence.results() for sentence in sentences]
        old_width, width = width, max(len(moves[at]) for at in kept)
        origins = [at * old_width + origin for at in kept for origin in filled(moves[at], width)]
        stay = None if len(kept) == len(going) else torch.tensor(kept, device=scores.device)
        going = [going[at] for at in kept]
        written = [token for i in going for token in filled([h.ids[-1] for h in sentences[i].live], width)]
        state = state.move(torch.tensor(origins, device=scores.device), stay)
        hidden, state = network.step(torch.tensor(written, device=scores.device)[:, None], state)  # (B * K, 1, C)
        last = hidden[:, -1]


def filled(own: list[int], width: int) -> list[int]:
    """`width` entries; a sentence with fewer hypotheses repeats its first, and nobody looks at the copies."""
    return own + own[:1] * (width - len(own))


def continuations(scores: Tensor, sentences: Sequence[Sentence], numbers: Sequence[int], width: int, count: int,
                  rules: Rules) -> list[list[Continuations]]:  # fmt: skip
    """For each live hypothesis of each sentence the `count` best tokens, and those that its constraints ask for."""
    log_probs = scores
    if not rules.idle:
        log_probs = scores.clone() if rules.reweigh else scores
        texts = [[h.ids for h in sentence.live] for sentence in sentences]
        written = [ids for own in texts for ids in own + own[:1] * (width - len(own))]
        rules.apply(scores, written, [number for number in numbers for _ in range(width)])
    gains, tokens = best(scores, count)  # (B * K, count)
    own = log_probs.gather(-1, tokens) if rules.reweigh else gains
    rows = [Continuations(*row) for row in zip(tokens.tolist(), gains.tolist(), own.tolist(), strict=True)]
    for at, sentence in enumerate(sentences):
        for index, token in sentence.wishes():
            row = rows[at * width + index]
            row.tokens.append(token)
            row.gains.append(scores[at * width + index, token].item())
            row.log_probs.append(log_probs[at * width + index, token].item())
    return [rows[at * width : at * width + len(sentence.live)] for at, sentence in enumerate(sentences)]


def greedy_search(network: Writer, batch: Batch, limits: Sequence[int], ends: Sequence[int], beam: Beam,
                  rules: Rules = FREE) -> list[Hypothesis]:  # fmt: skip
    """The most probable token each time, and its log-probability."""
    texts: list[list[int]] = [[] for _ in limits]
    log_probs: list[list[float]] = [[] for _ in limits]
    totals = [0.0] * len(limits)

    def choice(scores: Tensor, rows: list[int]) -> Tensor:
        own = scores.clone() if rules.reweigh else scores
        if not rules.idle:
            rules.apply(scores, [texts[row] for row in rows], rows)
        gains, tokens = best(scores, 1)  # (R, 1)
        columns = [x[:, 0].tolist() for x in (tokens, gains, own.gather(-1, tokens))]
        for row, token, gain, log_prob in zip(rows, *columns, strict=True):
            texts[row].append(token)
            totals[row] += gain
            log_probs[row].append(log_prob)
        return tokens[:, 0]

    for _ in write(network, batch, limits, choice, ends, log_probs=True):
        pass
    return [
        Hypothesis(ids, own, total, beam.score(total, len(ids)), ids[-1] in ends)
        for ids, own, total in zip(texts, log_probs, totals, strict=True)
    ]
