"""Text corruption for pre-training: masked words and sentence pairs (BERT), spans (T5), denoising (BART).

Pure functions on lists of ids without special tokens around them; all randomness comes from the given random.Random.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from qkv.batch import IGNORED

Ids = Sequence[int]
SPACES = ("\u2581", "\u0120")
"""How a space is written in the pieces of SentencePiece and of byte-level BPE."""


class Marks(NamedTuple):
    """What a vocabulary has for masking."""

    mask: int
    """The token that hides another one."""
    plain: Sequence[int]
    """All that are no special tokens: what may stand in another one's place."""
    special: Collection[int]
    """What is never hidden: nothing can be learned from the unknown token."""
    inside: Collection[int] = ()
    """Pieces that go on with the word of the piece before; with them, words are hidden as a whole."""


def inner_pieces(names: Mapping[str, int]) -> frozenset[int]:
    """The pieces of a vocabulary that do not begin a word: ##ing beside begin, or, where beginnings are marked by a space
    (U+2581, Ġ), letters without one."""
    if any(name.startswith("##") for name in names):
        return frozenset(i for name, i in names.items() if name.startswith("##"))
    spaced = any(name.startswith(SPACES) for name in names)
    return frozenset(i for name, i in names.items() if spaced and not name.startswith(SPACES) and name.isalnum())


# --- BERT (Devlin et al. 2019, 3.1): the words under the masks


def mask_tokens(ids: Ids, r: random.Random, rate: float, marks: Marks, kept: float = 0.1,
           random_words: float = 0.1) -> tuple[list[int], list[int]]:  # fmt: skip
    """Inputs and targets. `rate` of the tokens are asked for; of those 80 % become the mask, 10 % a random token and 10 %
    stay, so that the network cannot know which of the tokens it sees are right."""
    words = places_of_words(ids, marks)
    wanted = max(1, round(rate * sum(map(len, words))))
    r.shuffle(words)
    inputs, targets, count = list(ids), [IGNORED] * len(ids), 0
    for group in words:
        if count and count + len(group) > wanted:
            continue  # too long a word; a shorter one may still fit
        count += len(group)
        for place in group:
            targets[place] = ids[place]
            chance = r.random()
            if chance >= kept + random_words:
                inputs[place] = marks.mask
            elif chance >= kept:
                inputs[place] = r.choice(marks.plain)
        if count >= wanted:
            break
    return inputs, targets


def places_of_words(ids: Ids, marks: Marks) -> list[list[int]]:
    """The places of each word's pieces."""
    found: list[list[int]] = []
    for place, token in enumerate(ids):
        if token in marks.special:
            continue
        if token in marks.inside and found and found[-1][-1] == place - 1:
            found[-1].append(place)
        else:
            found.append([place])
    return found


# --- BERT: does the second sentence follow?


def groups(sentences: Sequence[Ids], room: int) -> Iterator[list[Ids]]:
    """The sentences of a document, as many together as have room; one that has none by itself loses its end."""
    found: list[Ids] = []
    for sentence in (s[: max(1, room // 2)] for s in sentences if len(s)):
        if found and sum(map(len, found)) + len(sentence) > room:
            yield found
            found = []
        found.append(sentence)
    if found:
        yield found


class SentencePair(NamedTuple):
    first: list[int]
    second: list[int]
    follows: bool


def sentence_pairs(documents: Sequence[tuple[int, Sequence[Ids]]], r: random.Random) -> list[SentencePair]:
    """Each group of sentences, (number of its document, two or more sentences), is cut in two between sentences; half of
    the second parts are exchanged for one of another document, where there is another.

    Which one is taken must not show in anything but its meaning. So the candidates are alike: of the other second parts the
    one nearest in length, and the longer of the two loses its end, whether it is taken or not. (Exchanged as they are, the
    length of the row gives the answer away.)
    """
    cuts = [r.randint(1, len(sentences) - 1) for _, sentences in documents]
    parts = [(number, list(chain(*sentences[:cut])), list(chain(*sentences[cut:])))
             for (number, sentences), cut in zip(documents, cuts, strict=True)]  # fmt: skip
    candidates = r.sample(parts, len(parts))  # in any order: of equally long ones not always the same is the nearest
    found = []
    for number, first, second in parts:
        others = [other for its, _, other in candidates if its != number]
        other = min(others, key=lambda o: abs(len(o) - len(second)), default=second)
        length = min(len(second), len(other))
        follows = not others or r.random() < 0.5
        found.append(SentencePair(first, (second if follows else other)[:length], follows))
    return found


# --- T5 (Raffel et al. 2020, 3.1.4): spans


def spans(ids: Ids, r: random.Random, rate: float, mean: float, sentinels: Ids) -> tuple[list[int], list[int]]:
    """Input and target. Spans of about `mean` tokens, `rate` of all, are each replaced by a sentinel of their own; the target
    is each sentinel and what it stands for, and one more that says the end. Needs two tokens or more."""
    hidden = min(max(round(rate * len(ids)), 1), len(ids) - 1)
    shown = len(ids) - hidden
    count = min(max(round(hidden / mean), 1), hidden, shown + 1, len(sentinels) - 1)
    # two too many: before the first span and after the last may be none
    first, *between = parts(shown + 2, count + 1, r)
    inputs, target, at = list(ids[: first - 1]), [], first - 1
    for sentinel, away, stay in zip(sentinels, parts(hidden, count, r), between, strict=False):
        target += [sentinel, *ids[at : at + away]]
        inputs += [sentinel, *ids[at + away : at + away + stay]]
        at += away + stay
    return inputs, [*target, sentinels[count]]


def parts(total: int, count: int, r: random.Random) -> list[int]:
    """`total` as a sum of `count` numbers of at least 1, each such sum as likely as any other."""
    cuts = sorted(r.sample(range(1, total), count - 1))
    return [b - a for a, b in pairwise([0, *cuts, total])]


# --- BART (Lewis et al. 2020, 2.2): denoising


def infill(ids: Ids, r: random.Random, rate: float, mean: float, mask: int) -> list[int]:
    """Spans, their lengths drawn from a Poisson distribution, are replaced by a single mask each, so that the network has
    to find out how many tokens are missing; one of length 0 is a mask where nothing is. `rate` of all tokens go."""
    budget = round(rate * len(ids))
    lengths: list[int] = []
    while sum(lengths) < budget and len(lengths) < budget:
        lengths.append(min(poisson(mean, r), budget - sum(lengths)))
    while len(lengths) > sum(lengths):
        lengths.remove(0)  # it becomes no longer than it was
    slots = len(ids) - sum(lengths) + len(lengths)  # tokens that stay, and spans, in any order
    places = dict(zip(r.sample(range(slots), len(lengths)), lengths, strict=True))
    found, at = [], 0
    for slot in range(slots):
        found.append(mask if slot in places else ids[at])
        at += places.get(slot, 1)
    return found


def poisson(mean: float, r: random.Random) -> int:
    """k with probability mean^k exp(-mean) / k!, by counting how many uniform numbers it takes (Knuth)."""
    product, count, limit = r.random(), 0, math.exp(-mean)
    while product > limit:
        product *= r.random()
        count += 1
    return count


def permute_sentences(ids: Ids, r: random.Random, stops: Collection[int]) -> list[int]:
    """The sentences, each up to a token of `stops`, in another order."""
    sentences: list[list[int]] = [[]]
    for token in ids:
        sentences[-1].append(token)
        if token in stops:
            sentences.append([])
    r.shuffle(sentences)
    return list(chain(*sentences))
