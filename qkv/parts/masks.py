"""Attention masks: bool, True = may attend. One Mask describes a whole forward pass; every layer shares it."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.errors import QkvError
from qkv.parts.state import EncoderOutput


def causal(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Return the causal mask (T, S): each query sees its own key and those before; the queries are the last T of S keys."""
    rows = torch.arange(keys - queries, keys, device=device)[:, None]  # (T, 1): index of each query among the keys
    return torch.arange(keys, device=device)[None, :] <= rows  # (T, S)


def positions_in_documents(documents: Tensor, keys: Tensor | None) -> Tensor:
    """Return positions (B, S) that start from 0 in each document and do not count padding."""
    real = torch.ones_like(documents) if keys is None else keys.long()
    before = real.cumsum(-1) - real  # (B, S): number of real tokens before each
    # before * first is, at a document's first token, the number of real tokens before it; cummax copies it to the rest
    return before - (before * document_starts(documents)).cummax(-1).values


def document_starts(documents: Tensor) -> Tensor:
    """Return which tokens are the first of their document, (B, S)."""
    return F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)


class Mask:
    """Which keys each query may attend to in one pass: T queries, which are the last T of S keys in self-attention.

    `keys` (B, S) marks real tokens, None = all real. Padding and the causal rule are stored apart: the kernels, the window and
    the linear mixers need only these two facts and never the (T, S) table.

    `documents` (B, S) numbers the documents of a row where several are packed into it (T = S): the tokens of a document are
    adjacent, attend to no other document, and count their positions from its beginning. None = one document per row.

    `prefix` (B, S) marks tokens at the start of each row that all attend to each other although the mask is causal (T = S).
    """

    def __init__(self, queries: int, keys: Tensor | None = None, length: int | None = None, causal: bool = False,
                 device: torch.device | None = None, documents: Tensor | None = None, prefix: Tensor | None = None):  # fmt: skip
        self.queries = queries
        self.length = queries if length is None else length  # S
        self.keys = keys
        self.causal = causal
        self.documents = documents
        self.prefix = prefix
        self.device = device if keys is None else keys.device
        self.padded_right = keys is None or bool((keys[:, 1:] <= keys[:, :-1]).all())
        """Whether every row is real tokens first, padding after."""
        unreachable = keys is None or (causal and queries == self.length and self.padded_right)
        self.padding_hidden = documents is None and unreachable
        """Whether padding needs no mask: there is none, or all of it follows the real tokens and the causal rule hides it."""

    @classmethod
    def for_memory(cls, queries: int, memory: EncoderOutput) -> Mask:
        """Return the mask of cross-attention: every query sees every real key."""
        return cls(queries, memory.mask, memory.vectors.size(1), device=memory.vectors.device)

    def forbid_packing(self, layer: str) -> None:
        """Raise a QkvError if several documents are packed into a row, which `layer` (its name) cannot keep apart."""
        if self.documents is not None:
            raise QkvError(f"{layer} cannot keep documents apart that are packed into one row: use one row for each")

    @cached_property
    def key_positions(self) -> Tensor:
        """Position of each key among the real ones, (1 or B, S): padding on either side does not change it."""
        if self.documents is not None:
            return positions_in_documents(self.documents, self.keys)
        if self.keys is None or self.padded_right:
            return torch.arange(self.length, device=self.device)[None]
        return (self.keys.long().cumsum(-1) - 1).clamp(min=0)

    @property
    def positions(self) -> Tensor:
        """Positions of the queries, (1 or B, T)."""
        return self.key_positions[:, self.length - self.queries :]

    @cached_property
    def real(self) -> Tensor | None:
        """Which of the queries are real, (B, T); None = all."""
        real = None if self.keys is None else self.keys[:, self.length - self.queries :]
        return None if real is None or bool(real.all()) else real

    @cached_property
    def kernel(self) -> tuple[Tensor | None, bool]:
        """Return attn_mask (1 or B, 1, 1 or T, S; None = no mask) and is_causal of F.scaled_dot_product_attention.

        is_causal aligns the first query with the first key, so it is right only for T = S; a single last query sees all keys.
        """
        square = self.queries == self.length
        if self.prefix is None and self.padding_hidden and (not self.causal or square or self.queries == 1):
            return None, self.causal and square and self.queries > 1
        return self.dense if self.causal or self.documents is not None else self.visible_keys, False

    @property
    def visible_keys(self) -> Tensor:
        """Return the keys that every query sees where neither the causal rule nor documents hide some, (1 or B, 1, 1, S)."""
        if self.keys is None:
            return torch.ones(1, 1, 1, self.length, dtype=torch.bool, device=self.device)
        # in a row of padding only, every key is visible
        return (self.keys | ~self.keys.any(-1, keepdim=True))[:, None, None, :]

    @cached_property
    def dense(self) -> Tensor:
        """Return the whole table, (1 or B, 1, 1 or T, S). Every query has at least one key: a softmax over none would be 0 / 0."""
        if self.documents is not None:
            return self.within_documents[:, None]  # (B, 1, T, S)
        if not self.causal:
            return self.visible_keys
        table = causal(self.queries, self.length, self.device)[None, None]  # (1, 1, T, S)
        if self.prefix is not None:  # changes nothing for queries after the prefix: they see all of it anyway
            table = table | self.prefix[:, None, None, :]  # (B, 1, T, S)
        if self.keys is None:
            return table
        # a padded query sees itself
        diagonal = torch.eye(self.queries, self.length, dtype=torch.bool, device=self.device)
        return table & self.keys[:, None, None, :] | diagonal.roll(self.length - self.queries, 1)  # (B, 1, T, S)

    def spans(self, rows: int) -> Tensor | None:
        """Return row, first token and end of each span, (n, 3); None where only a table can express the mask.

        All tokens of a span see each other (or, causal, those before them) and no others.
        """
        if (
            self.queries != self.length
            or (self.documents is None and not self.padding_hidden)
            or self.prefix is not None
        ):
            return None
        if self.documents is not None:
            return None if self.keys is not None else self.document_spans
        return torch.tensor([[row, 0, self.length] for row in range(rows)])

    @cached_property
    def document_spans(self) -> Tensor:
        """Row, first token and end (exclusive) of each document, (n, 3)."""
        assert self.documents is not None
        starts = document_starts(self.documents).nonzero()  # (n, 2): row, token
        end = torch.full_like(starts[:, 1], self.length)  # (n,): where the next document of the row starts, or S
        end[:-1] = torch.where(starts[1:, 0] == starts[:-1, 0], starts[1:, 1], self.length)
        return torch.cat([starts, end[:, None]], 1).cpu()

    @property
    def within_documents(self) -> Tensor:
        """Return which tokens are in the same document, (B, T, S); a padded query sees itself."""
        assert self.documents is not None
        table = self.documents[:, :, None] == self.documents[:, None, :]
        table = table if self.keys is None else table & self.keys[:, None, :]
        table = table & causal(self.queries, self.length, self.device) if self.causal else table
        return table | torch.eye(self.length, dtype=torch.bool, device=self.device)

    def of(self, rows: Tensor) -> Mask:
        """Return the mask of some of the queries (r,) alone, without forming the (T, S) table."""
        return SomeRows(self, rows)


class SomeRows(Mask):
    """The mask of a few queries at any positions; a kernel gets it as a table."""

    def __init__(self, whole: Mask, rows: Tensor):
        super().__init__(len(rows), whole.keys, whole.length, whole.causal, whole.device, whole.documents, whole.prefix)
        self.rows = rows + whole.length - whole.queries  # (r,): their indices among the keys

    @property
    def kernel(self) -> tuple[Tensor | None, bool]:  # type: ignore[override]
        return self.dense, False

    def spans(self, rows: int) -> None:
        return None

    @property
    def positions(self) -> Tensor:
        return self.key_positions[:, self.rows]  # (1 or B, r)

    @property
    def real(self) -> Tensor | None:  # type: ignore[override]
        return None if self.keys is None else self.keys[:, self.rows]  # (B, r)

    @cached_property
    def dense(self) -> Tensor:
        """(1 or B, 1, 1 or r, S), as in the whole table."""
        if not self.causal and self.documents is None:
            return self.visible_keys
        columns, rows = torch.arange(self.length, device=self.rows.device), self.rows[:, None]
        table = (columns <= rows if self.causal else torch.ones_like(columns <= rows))[None]  # (1, r, S)
        table = table if self.prefix is None else table | self.prefix[:, None, :]  # (B, r, S)
        if self.documents is not None:
            table = table & (self.documents[:, self.rows, None] == self.documents[:, None, :])
        table = table if self.keys is None else table & self.keys[:, None, :]
        return (table | (columns == rows))[:, None]
