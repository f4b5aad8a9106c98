"""Word alignments: the source word that each generated word attends to most, from the cross-attention of a finished text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.errors import QkvError
from qkv.generate.detokenize import Decodes
from qkv.parts.tap import record

Link = tuple[int, int]
"""Source word, target word, both counted from 0."""
Span = tuple[int, int]
"""Characters of a text, from and to."""


def taps(network: nn.Module, layer: int | None = None) -> list[str]:
    """The taps of the decoder's attention to the source: of one layer, or of the upper half of them, where words are
    aligned best (the lower ones still find out what was written); a recurrent decoder has only one."""
    names = [name for name, _ in network.named_modules(remove_duplicate=False) if name.endswith("tap_weights")]
    found = [
        name
        for name in names
        if name.startswith("decoder.attention.") or (name.startswith("decoder.") and ".cross." in name)
    ]
    if not found:
        raise QkvError("this model has no attention between target and source: it cannot align words")
    if layer is not None and not -len(found) <= layer < len(found):
        raise QkvError(f"alignments come from one of {len(found)} layers, given {layer}")
    return found[len(found) // 2 :] if layer is None else [found[layer]]


@torch.no_grad()
def attention(network: nn.Module, batch: Batch, layer: int | None = None) -> Tensor:
    """(B, T, S): how much each written token of `batch` (its inputs are the start token and all tokens but the last)
    looks at each source token while it is being predicted: exact weights, the mean of the heads (and layers)."""
    names = taps(network, layer)
    with record(network, names) as kept:
        network(batch)
    return torch.stack([kept[name].mean(1) for name in names]).mean(0)  # heads (B, H, T, S), then layers


def links(weights: Tensor, source: Sequence[int | None], target: Sequence[int | None]) -> list[Link]:
    """Link each target word to the source word that its tokens attend to most, and each source word without a link to
    the target word that attends to it most: several words may stand for one, on either side.

    weights (T, S) of tokens; `source` and `target` say which word each token belongs to, None for special tokens.
    """
    sources, targets = numbers(source), numbers(target)
    if not sources or not targets:
        return []
    to_source, to_target = membership(source, sources), membership(target, targets)  # (S, m), (T, n)
    looks = (
        (to_target / to_target.sum(0)).T @ weights.double().cpu() @ to_source
    )  # (n, m): mean over rows, sum over columns
    found = {(sources[best], targets[word]) for word, best in enumerate(looks.argmax(1).tolist())}
    left = set(sources) - {word for word, _ in found}
    found |= {(i, targets[best]) for i, best in zip(sources, looks.argmax(0).tolist(), strict=True) if i in left}
    return sorted(found)


def numbers(words: Sequence[int | None]) -> list[int]:
    """The words that some token belongs to."""
    return sorted({word for word in words if word is not None})


def membership(words: Sequence[int | None], among: Sequence[int]) -> Tensor:
    """(tokens, words): 1 where the token belongs to the word."""
    return torch.tensor([[float(word == one) for one in among] for word in words], dtype=torch.float64)


def pharaoh(found: Sequence[Link]) -> str:
    """`0-0 1-2`: source word - target word."""
    return " ".join(f"{source}-{target}" for source, target in found)


# --- from tokens to words; a word is what stands between spaces


def words_at(text: str, spans: Sequence[Span]) -> list[int | None]:
    """The word that the first visible character of each span belongs to; None for a span without any."""
    numbers: list[int | None] = []
    count, inside = 0, False
    for character in text:
        count += not inside and not character.isspace()
        inside = not character.isspace()
        numbers.append(count - 1 if inside else None)
    return [next((word for word in numbers[start:end] if word is not None), None) for start, end in spans]


def token_spans(ids: Sequence[int], tokenizer: Decodes) -> list[Span]:
    """Which characters of the decoded text each token wrote: what is there with it and was not without it."""
    ends = [len(tokenizer.decode(ids[:n]).rstrip("\ufffd")) for n in range(len(ids) + 1)]
    # a token that completes no character (one byte of several) belongs to the character that comes next
    return [(start, max(end, start + 1)) for start, end in pairwise(ends)]
