"""Question: the one number of an output that patching, ablation and attribution explain."""

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
class Question:
    """How much does the network want answer `answer` at `position`: its logit, or how far that is above another one's."""

    answer: int
    """A word, tag or class."""
    position: int | None = -1
    """The token at which it is asked; None where there is one answer for all of the input (classes)."""
    instead: int | None = None
    """Measure the logit of `answer` minus that of this one."""

    def __call__(self, output: Output) -> Tensor:
        """(B,): the number, for every row. Only one vector of each row goes through a head of words."""
        logits = answers(output, self.position)  # (B, V)
        wanted = logits[:, self.answer]
        return wanted if self.instead is None else wanted - logits[:, self.instead]


def of_the_whole(head: nn.Module) -> bool:
    """Whether a head has one answer for all of the input, or one for each token."""
    if isinstance(head, Nothing | Pooler):
        raise QkvError("this head gives vectors, not answers: there is nothing to ask; compare its vectors instead")
    return isinstance(head, Classes)


def answers(output: Output, position: int | None) -> Tensor:
    """(B, V): the logits at one position, or of the whole input."""
    if position is None:
        return output.logits
    found = output.head(output.hidden[:, position, None], None)[:, 0]
    # ELECTRA has one number z; its two answers, original and replaced, lie z apart, and each can be explained
    return torch.stack([-found / 2, found / 2], -1) if isinstance(output.head, Replaced) else found


def probabilities(head: nn.Module, logits: Tensor) -> Tensor:
    """How likely each answer is: (B, T, n), or of the whole input (B, n), from what the head says of all T tokens.

    A softmax over words, tags or classes. ELECTRA's one number tells original from replaced; where a span begins (and ends) is
    one choice among the tokens of one input; a regression has no probability, but a score, which stays as it is.
    """
    logits = logits.float()
    if isinstance(head, Replaced):
        return torch.stack([-logits, logits], -1).sigmoid()
    if isinstance(head, Classes) and logits.size(-1) == 1:
        return logits
    return logits.softmax(1 if isinstance(head, Span) else -1)


def measure(head: nn.Module) -> str:
    """What `probabilities` gives of a head: a regression, whose one class is a number, has a score."""
    return "score" if isinstance(head, Classes) and head.output.out_features == 1 else "probability"


def chances(output: Output, position: int | None) -> Tensor:
    """(B, n): the probabilities of all answers at one position, or of the whole input."""
    if position is None or isinstance(output.head, Span):
        found = probabilities(output.head, output.logits)
        return found if position is None else found[:, position]
    return probabilities(output.head, output.head(output.hidden[:, position, None], None))[:, 0]


@torch.no_grad()
def question(network: Any, batch: Batch, position: int | None = None, answer: int | None = None,
             instead: int | None = None, output: Output | None = None) -> Question:  # fmt: skip
    """The question, checked and filled in: at the last token where none is said, about what the network itself answers. `output`
    is that of the network for this batch, where it is known already."""
    output = network(batch) if output is None else output
    whole, length = of_the_whole(output.head), output.hidden.size(1)
    if whole and position is not None:
        raise QkvError("this model has one answer for all of its input: ask without a position")
    position = None if whole else -1 if position is None else position
    if position is not None and not -length <= position < length:
        raise QkvError(f"there is no token {position}: they go from 0 to {length - 1}")
    logits = answers(output, position)  # (B, V)
    for one in (answer, instead):
        if one is not None and not 0 <= one < logits.size(1):
            raise QkvError(f"there is no answer {one}: they go from 0 to {logits.size(1) - 1}")
    return Question(int(logits[0].argmax()) if answer is None else answer, position, instead)


def repeated(batch: Batch, rows: int) -> Batch:
    """The one input of a batch, `rows` times."""
    return batch.rows(torch.zeros(rows, dtype=torch.long))


def one_input(batch: Batch) -> None:
    """Several at once are an error."""
    count = next(x.size(0) for x in (batch.inputs, batch.source, batch.images) if x is not None)
    if count != 1:
        raise QkvError(f"one input is looked at, given {count}: give one row")
