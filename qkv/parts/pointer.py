"""Pointer-generator: the next word is generated from the vocabulary or copied from the source (See et al. 2017)."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.parts.heads import Vocabulary
from qkv.parts.state import EncoderOutput


class PointerGenerator(Vocabulary):
    """A vocabulary head that can copy words of the source.

        p(w) = g softmax(W h)_w + (1 - g) sum of a_i over the source tokens i that are w
        a = softmax_i(m_i . Q h / sqrt(M)),  c = sum_i a_i m_i,  g = sigmoid(u . [h; c] + b)

    h is the decoder's last vector (C), m_i the encoder's vector of source token i (width M, by default C). The attention a is
    computed by the head itself, so it is the same for Transformers and recurrent networks, whatever kernel their layers use.
    """

    copies = True
    memory: EncoderOutput | None = None
    """The encoded source; only a bound copy of the head has one."""

    def __init__(self, vocab_size: int, width: int, d_model: int, tied: nn.Parameter | None = None, bias: bool = False,
                 scale: float = 1.0, d_memory: int | None = None):  # fmt: skip
        super().__init__(vocab_size, width, d_model, tied, bias, scale)
        self.query = nn.Linear(d_model, d_memory or d_model, bias=False)
        self.gate = nn.Linear(d_model + (d_memory or d_model), 1)

    def bind(self, memory: EncoderOutput | None) -> PointerGenerator:
        """Return a shallow copy of the head, with the same weights, that reads the sources of one batch."""
        bound = copy.copy(self)
        bound.memory = memory
        return bound

    def forward(self, x: Tensor, keys: Tensor | None = None) -> Tensor:
        """Return log-probabilities, which serve as logits, (..., V); without a source the logits of the vocabulary alone."""
        return super().forward(x) if self.memory is None else self.log_probs(x)  # (..., V)

    def log_probs(self, x: Tensor) -> Tensor:
        """Return log p(w), (..., V), for vectors (N, K, C) or (N * K, C) of N sources: K target positions, or beams, per source."""
        memory = self.memory
        assert memory is not None and memory.ids is not None, "a head that copies needs a source"
        h = x.reshape(len(memory.vectors), -1, x.size(-1))  # (N, K, C)
        weights = self.copy_weights(h)  # (N, K, S)
        context = (weights.to(h.dtype) @ memory.vectors).to(h.dtype)  # (N, K, M)
        gate = self.gate(torch.cat([h, context], -1)).float()  # (N, K, 1)
        words = super().forward(h).float().log_softmax(-1) + F.logsigmoid(gate)  # (N, K, V)
        ids = memory.ids[:, None].expand_as(weights)  # (N, K, S)
        copied = torch.zeros_like(words).scatter_add(2, ids, weights)  # (N, K, V): 0 for words not in the source
        # the smallest number keeps the gradient of log finite where nothing is copied
        logs = torch.where(copied > 0, copied.clamp_min(torch.finfo(copied.dtype).tiny).log(), -torch.inf)
        return torch.logaddexp(words, logs + F.logsigmoid(-gate)).view(*x.shape[:-1], -1)  # (..., V), as x (..., C)

    def copy_weights(self, h: Tensor) -> Tensor:
        """Return the attention weights of vectors (N, K, C) over the source tokens, (N, K, S); padding has weight 0."""
        assert self.memory is not None
        vectors = self.memory.vectors  # (N, S, M)
        scores = (self.query(h) @ vectors.transpose(1, 2)).float() * vectors.size(-1) ** -0.5  # (N, K, S)
        if self.memory.mask is not None:
            scores = scores.masked_fill(~self.memory.mask[:, None], -torch.inf)
        return scores.softmax(-1)
