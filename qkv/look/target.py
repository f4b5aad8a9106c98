"""Target: the one number of an output that patching, ablation and attribution explain: a logit or a logit difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.errors import QkvError
from qkv.models.output import Output
from qkv.parts.heads import Classes, Nothing, Pooler, Replaced, Span


@dataclass(frozen=True)
class Target:
    """The logit of `answer` at `position`, or its difference from the logit of `contrast`."""

    answer: int
    """The id of a token, tag or class."""
    position: int | None = -1
    """The position of the token; None where there is one answer for the whole input (classes)."""
    contrast: int | None = None
    """Subtract the logit of this answer."""

    def __call__(self, output: Output) -> Tensor:
        """Return the target of each row, (B,). Only one vector of each row goes through a language-model head."""
        logits = logits_at(output, self.position)  # (B, V)
        wanted = logits[:, self.answer]
        return wanted if self.contrast is None else wanted - logits[:, self.contrast]


def answers_whole_input(head: nn.Module) -> bool:
    """Return whether a head has one answer for the whole input rather than one for each token."""
    if isinstance(head, Nothing | Pooler):
        raise QkvError("this model has no output head, so it has no answers to explain: compare its vectors instead")
    return isinstance(head, Classes)


def logits_at(output: Output, position: int | None) -> Tensor:
    """Return the logits at one position, or of the whole input: (B, V)."""
    if position is None:
        return output.logits
    found = output.head(output.hidden[:, position, None], None)[:, 0]
    # ELECTRA has one logit z; its two answers, original and replaced, differ by z, and each can be explained
    return torch.stack([-found / 2, found / 2], -1) if isinstance(output.head, Replaced) else found


def probabilities(head: nn.Module, logits: Tensor) -> Tensor:
    """Convert the logits of all T tokens to probabilities: (B, T, n), or (B, n) of the whole input.

    This is a softmax over words, tags or classes; a sigmoid for ELECTRA's one logit (original or replaced); a softmax over the
    tokens for the start and the end of a span. A regression has a score, which is returned unchanged.
    """
    logits = logits.float()
    if isinstance(head, Replaced):
        return torch.stack([-logits, logits], -1).sigmoid()
    if isinstance(head, Classes) and logits.size(-1) == 1:
        return logits
    return logits.softmax(1 if isinstance(head, Span) else -1)


def measure(head: nn.Module) -> str:
    """Return what `probabilities` gives for a head: "score" for a regression (one output), else "probability"."""
    return "score" if isinstance(head, Classes) and head.output.out_features == 1 else "probability"


def probabilities_at(output: Output, position: int | None) -> Tensor:
    """Return the probabilities of all answers at one position, or of the whole input: (B, n)."""
    if position is None or isinstance(output.head, Span):
        found = probabilities(output.head, output.logits)
        return found if position is None else found[:, position]
    return probabilities(output.head, output.head(output.hidden[:, position, None], None))[:, 0]


@torch.no_grad()
def find_target(network: Any, batch: Batch, position: int | None = None, answer: int | None = None,
             contrast: int | None = None, output: Output | None = None) -> Target:  # fmt: skip
    """Return a checked target: by default the most probable answer at the last token.

    `output` is the network's output for this batch, where it is known already.
    """
    output = network(batch) if output is None else output
    whole, length = answers_whole_input(output.head), output.hidden.size(1)
    if whole and position is not None:
        raise QkvError("this model has one answer for the whole input: leave the position out")
    position = None if whole else -1 if position is None else position
    if position is not None and not -length <= position < length:
        raise QkvError(f"there is no token {position}: tokens are numbered 0 to {length - 1}")
    logits = logits_at(output, position)  # (B, V)
    for one in (answer, contrast):
        if one is not None and not 0 <= one < logits.size(1):
            raise QkvError(f"there is no answer {one}: answers are numbered 0 to {logits.size(1) - 1}")
    return Target(int(logits[0].argmax()) if answer is None else answer, position, contrast)


def repeat(batch: Batch, rows: int) -> Batch:
    """Repeat the one input of a batch `rows` times."""
    return batch.rows(torch.zeros(rows, dtype=torch.long))


def check_single_input(batch: Batch) -> None:
    """Raise an error unless the batch holds exactly one input."""
    count = next(x.size(0) for x in (batch.inputs, batch.source, batch.images) if x is not None)
    if count != 1:
        raise QkvError(f"expected one input, given {count}: pass a batch of one row")
