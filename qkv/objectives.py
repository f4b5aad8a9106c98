"""Training objectives: (output, batch) -> Loss, a sum over the targets that count.

The expensive one is the cross-entropy over a vocabulary: N x V logits, larger than all other activations together.
`cross_entropy` never has all of them in memory; `readable_cross_entropy` is the same in three lines, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from qkv.batch import IGNORED, Batch, Loss
from qkv.config import ModelConfig
from qkv.models.output import Output

NO_TARGETS = "this objective needs targets"
CHUNK = 512
"""Rows whose logits are in memory at once; 512 was as fast as or faster than 128 and 256 for 10,000 and 32,000 words."""


def causal(output: Output, batch: Batch) -> Loss:
    """Causal language modelling (GPT): the loss of the next token at every position."""
    return cross_entropy(output, batch.targets)


def masked_lm(output: Output, batch: Batch) -> Loss:
    """Masked language modelling (BERT): the loss of the tokens under the masks; the targets of all others are IGNORED."""
    return cross_entropy(output, batch.targets)


def translation(output: Output, batch: Batch, smoothing: float = 0.1) -> Loss:
    """The next target token given the source, with label smoothing (Vaswani et al. 2017, 5.4)."""
    return cross_entropy(output, batch.targets, smoothing, batch.weights)


def classification(output: Output, batch: Batch, smoothing: float = 0.0) -> Loss:
    """One class per sequence: logits (B, n), targets (B,)."""
    return class_loss(output.logits, batch.targets, smoothing)


def tagging(output: Output, batch: Batch) -> Loss:
    """One tag per token: logits (B, T, n), targets (B, T)."""
    return class_loss(output.logits, batch.targets)


def replaced_token_detection(output: Output, batch: Batch) -> Loss:
    """Replaced token detection (ELECTRA): logits and targets (B, T), 1 = replaced."""
    targets = batch.targets
    assert targets is not None, NO_TARGETS
    real = targets != IGNORED  # (B, T)
    logits, answers = output.logits[real], targets[real]  # (N,) each
    return Loss(F.binary_cross_entropy_with_logits(logits, answers.to(logits.dtype), reduction="sum"), answers.numel())


def regression(output: Output, batch: Batch) -> Loss:
    """One number per sequence: (score - target)^2, scores (B, 1), targets (B,) float, which are never IGNORED."""
    assert batch.targets is not None, NO_TARGETS
    errors = output.logits.squeeze(-1).float() - batch.targets  # (B,)
    return Loss(errors.square().sum(), errors.numel())


def span(output: Output, batch: Batch) -> Loss:
    """The first and the last token of an answer: logits (B, T, 2), targets (B, 2) positions; padding has probability 0."""
    logits = output.logits if output.keys is None else output.logits.masked_fill(~output.keys[..., None], -torch.inf)
    return class_loss(logits.transpose(1, 2), batch.targets)  # (B, 2, T), (B, 2)


def masked_next(output: Output, batch: Batch, weight: float = 10.0, smoothing: float = 0.0) -> Loss:
    """BERT's two objectives: the masked tokens, and whether the second sentence follows the first, answers (B,).

    The count is that of the masked tokens; `weight` is how many of them one answer counts for. If it is the number of masked
    tokens per row, this is the paper's sum of the two means; a fixed weight makes the loss a sum over rows, whatever the batch.
    """
    assert batch.answers is not None, "this objective needs answers"
    head: Any = output.head
    words = cross_entropy(replace(output, head=head.words), batch.targets, smoothing)
    following = class_loss(head.next(output.hidden, output.keys), batch.answers)
    return Loss(words.sum + weight * following.sum, words.count)


def classes_words(output: Output, batch: Batch, auxiliary: float = 0.5, smoothing: float = 0.0) -> Loss:
    """Classification plus `auxiliary` times the next-token loss, averaged over each sequence (GPT, Radford et al. 2018, eq. 5)."""
    found = classification(output, batch, smoothing) if output.logits.size(-1) > 1 else regression(output, batch)
    if auxiliary == 0:
        return found
    head: Any = output.head
    following = next_words(batch)  # (B, T)
    lengths = (following != IGNORED).sum(1, keepdim=True)  # (B, 1)
    words = cross_entropy(replace(output, head=head.words), following, weights=(1 / lengths).expand_as(following))
    return Loss(found.sum + auxiliary * words.sum, found.count)


def next_words(batch: Batch) -> Tensor:
    """Return the token after each token, (B, T); IGNORED where there is none."""
    assert batch.inputs is not None
    following = batch.inputs.roll(-1, 1)
    following[:, -1] = IGNORED
    if batch.mask is None:
        return following
    both = batch.mask & batch.mask.roll(-1, 1)  # (B, T): the token and the next one are real
    return following.masked_fill(~both, IGNORED)


def objective(c: ModelConfig) -> Callable[[Output, Batch], Loss]:
    """Return the objective for a network's family and head, unless a task has its own."""
    if c.head == "vocabulary":
        return translation if c.family == "encoder-decoder" else causal
    if c.head == "classes" and c.n_classes == 1:
        return regression
    return {
        "masked": masked_lm, "masked-next": masked_next, "replaced": replaced_token_detection, "classes": classification,
        "classes-words": classes_words, "tags": tagging, "span": span,
    }[c.head]  # fmt: skip


def class_loss(logits: Tensor, targets: Tensor | None, smoothing: float = 0.0) -> Loss:
    """Sum the cross-entropy of a few classes, logits (..., n) and targets (...), with label smoothing."""
    assert targets is not None, NO_TARGETS
    total = F.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
    )
    return Loss(total, int((targets != IGNORED).sum()))


# --- cross-entropy over a vocabulary


def cross_entropy(
    output: Output, targets: Tensor | None, smoothing: float = 0.0, weights: Tensor | None = None
) -> Loss:
    """Sum -log p(target) over the real targets (B, T), each times its weight (B, T) if given.

    IGNORED positions are dropped before the product with the word matrix.
    """
    assert targets is not None, NO_TARGETS
    head: Any = output.head
    if head.copies:
        return copy_cross_entropy(output, targets, smoothing, weights)
    weights = None if weights is None else weights[targets != IGNORED]  # (N,)
    hidden, targets = real_rows(output.hidden, targets)  # (N, C), (N,)
    weight, bias = head.weight, head.bias
    if not torch.is_grad_enabled():  # else ChunkedCrossEntropy would compute gradients in its forward pass
        weight, bias = weight.detach(), None if bias is None else bias.detach()
    x = head.features(hidden).to(weight.dtype)
    with torch.autocast(x.device.type, enabled=False):  # a sum over all words needs all its digits
        total = ChunkedCrossEntropy.apply(x, weight, bias, targets, smoothing, weights)
    return Loss(total, targets.numel())


def readable_cross_entropy(output: Output, targets: Tensor, smoothing: float = 0.0) -> Loss:
    """Compute cross_entropy with all logits in memory."""
    hidden, targets = real_rows(output.hidden, targets)  # (N, C), (N,)
    total = F.cross_entropy(output.head(hidden), targets, reduction="sum", label_smoothing=smoothing)
    return Loss(total, targets.numel())


def copy_cross_entropy(output: Output, targets: Tensor, smoothing: float = 0.0, weights: Tensor | None = None) -> Loss:
    """Compute cross_entropy for a head that copies from the source: -log of the mixture of its two distributions.

    A few rows at a time, about CHUNK positions; their log-probabilities are computed again for the gradient, so that nothing of
    size B x T x V is kept.
    """
    total = output.hidden.new_zeros((), dtype=torch.float32)
    for rows in torch.arange(len(targets), device=targets.device).split(max(1, CHUNK // targets.size(1))):
        losses = checkpoint(copy_losses, output, output.hidden[rows], targets[rows], rows, smoothing,
                            use_reentrant=False, preserve_rng_state=False)  # (b, T) # fmt: skip
        total = total + (losses if weights is None else losses * weights[rows]).sum()
    return Loss(total, int((targets != IGNORED).sum()))


def copy_losses(output: Output, hidden: Tensor, targets: Tensor, rows: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return -log p of each target (b, T) of some rows (b,) of a batch under a head that copies, (b, T); 0 for IGNORED ones."""
    head: Any = output.head
    log_probs = head.bind(head.memory.select(rows)).log_probs(hidden)  # (b, T, V)
    chosen = log_probs.gather(2, targets.clamp_min(0)[..., None]).squeeze(2)  # (b, T)
    losses = -chosen if smoothing == 0 else -(1 - smoothing) * chosen - smoothing * log_probs.mean(2)
    return losses.masked_fill(targets == IGNORED, 0.0)


def real_rows(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Select the positions whose target counts: (B, T, C), (B, T) -> (N, C), (N,)."""
    hidden, targets = hidden.flatten(0, 1), targets.flatten()
    rows = (targets != IGNORED).nonzero().squeeze(1)  # (N,)
    # index_select, not hidden[rows]: its gradient is a plain copy back
    return hidden.index_select(0, rows), targets[rows]


class ChunkedCrossEntropy(torch.autograd.Function):
    """sum_i w_i [ logsumexp(z_i) - (1 - e) z_i[y_i] - e/V sum_v z_i[v] ] with z = x W^T + b, smoothing e; CHUNK rows at a time.

    Without weights all w_i are 1. The gradient, dz = softmax(z) - (1 - e) onehot(y) - e/V, is computed in the forward pass, while
    the chunk's logits are in the CPU's cache, so that nothing of size N x V outlives its chunk. The term e/V is the same for every
    word: its products need only sum_v W_v and sum_i x_i, and no pass over the logits.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float,
                weights: Tensor | None = None) -> Tensor:  # fmt: skip
        """Compute the sum, (), and its gradients: x (N, C), weight (V, C), bias (V,), targets (N,), weights (N,)."""
        learning = any(ctx.needs_input_grad)
        even = smoothing / weight.size(0)  # e / V
        dx, dw = (torch.empty_like(x), torch.empty_like(weight)) if learning else (x, weight)
        db = torch.zeros_like(bias) if learning and bias is not None else None
        weighed, mass = (x, len(x)) if weights is None else (x * weights[:, None], weights.sum())
        total = -even * (weighed @ weight.sum(0)).sum() if smoothing else x.new_zeros(())
        if bias is not None:
            total -= even * mass * bias.sum()
        # rows at multiples of 16 floats: 1.3 x as fast as contiguous ones for 50,257 words
        buffer = x.new_empty(min(CHUNK, len(x)), (len(weight) + 15) // 16 * 16)
        for start in range(0, len(x), CHUNK):
            rows = slice(start, start + CHUNK)
            part, y = x[rows], targets[rows, None]  # (n, C), (n, 1)
            z = buffer[: len(part), : len(weight)]  # (n, V)
            torch.mm(part, weight.t(), out=z) if bias is None else torch.addmm(bias, part, weight.t(), out=z)
            largest, chosen = z.amax(1, keepdim=True), z.gather(1, y)  # (n, 1) each
            z.sub_(largest).exp_()
            norm = z.sum(1, keepdim=True)  # (n, 1)
            w = 1.0 if weights is None else weights[rows, None]  # (n, 1)
            total += (w * (largest + norm.log() - (1 - smoothing) * chosen)).sum()  # logsumexp(z) = largest + log norm
            if learning:
                norm = norm.div_(w)  # softmax(z) w = exp(z - largest) / (norm / w)
                dz = z.div_(norm).scatter_add_(1, y, torch.full_like(norm, smoothing - 1) * w)  # (n, V), without e/V
                torch.mm(dz, weight, out=dx[rows])
                dw.addmm_(dz.t(), part, beta=0.0 if start == 0 else 1.0)  # the first chunk does not read dw
                if db is not None:
                    db += dz.sum(0)
        if learning and len(x) == 0:  # no chunk has written dw
            dw.zero_()
        if learning and smoothing:  # the term -e/V of dz, times w
            dx -= even * weight.sum(0) if weights is None else even * torch.outer(weights, weight.sum(0))
            dw -= even * weighed.sum(0)
            if db is not None:
                db -= even * mass
        ctx.save_for_backward(dx, dw, db)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        dx, dw, db = ctx.saved_tensors
        return dx * scale, dw * scale, None if db is None else db * scale, None, None, None
