"""Attention masks: bool, True = may attend. One Mask describes a whole forward pass; every layer shares it."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.parts.state import EncoderOutput


def causal(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Return the causal mask (T, S): each query attends to its own key and those before; the queries are the last T of S keys."""
    rows = torch.arange(keys - queries, keys, device=device)[:, None]  # (T, 1): index of each query among the keys
    return torch.arange(keys, device=device)[None, :] <= rows  # (T, S)


def positions_in_documents(documents: Tensor, keys: Tensor | None) -> Tensor:
    """Return positions (B, S) that start from 0 in each document and do not count padding."""
    real = torch.ones_like(documents) if keys is None else keys.long()
    before = real.cumsum(-1) - real  # (B, S): real tokens in front of each
    first = torch.ones_like(documents, dtype=torch.bool)
    first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    # before * first is, at a document's first token, the number of real tokens before the document; cummax carries it on
    return before - (before * first).cummax(-1).values


class Mask:
    """Which keys each query may attend to in one pass: T queries, which are the last T of S keys in self-attention.

    `keys` (B, S) marks real tokens, None = all real. Padding and the causal rule are kept apart because the kernels, the
    window and the linear mixers need only these two facts and never the (T, S) table.

    `documents` (B, S) numbers the documents of a row where several are packed into it (T = S): the tokens of one are
    adjacent, attend to no other, and count their positions from its beginning. None = one a row.

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
        """Whether the causal rule alone keeps real queries from padding, because all of it follows the real tokens."""

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
        """(1 or B, S): the position of each key among the real ones, so padding on either side changes nothing."""
        if self.documents is not None:
            return positions_in_documents(self.documents, self.keys)
        if self.keys is None or self.padded_right:
            return torch.arange(self.length, device=self.device)[None]
        return (self.keys.long().cumsum(-1) - 1).clamp(min=0)

    @property
    def positions(self) -> Tensor:
        """(1 or B, T): the positions of the queries."""
        return self.key_positions[:, self.length - self.queries :]

    @cached_property
    def real(self) -> Tensor | None:
        """(B, T): which of the queries are real; None = all."""
        real = None if self.keys is None else self.keys[:, self.length - self.queries :]
        return None if real is None or bool(real.all()) else real

    @cached_property
    def kernel(self) -> tuple[Tensor | None, bool]:
        """The arguments of torch's kernel: attn_mask (1 or B, 1, 1 or T, S), None where none is needed, and is_causal.

        is_causal aligns the first query with the first key, so it is right only for T = S; a single last query sees all keys.
        """
        square = self.queries == self.length
        if self.prefix is None and self.padding_hidden and (not self.causal or square or self.queries == 1):
            return None, self.causal and square and self.queries > 1
        return self.dense if self.causal or self.documents is not None else self.visible_keys, False

    @property
    def visible_keys(self) -> Tensor:
        """(1 or B, 1, 1, S): the keys that every query sees where neither a causal rule nor documents hide some."""
        if self.keys is None:
            return torch.ones(1, 1, 1, self.length, dtype=torch.bool, device=self.device)
        return (self.keys | ~self.keys.any(-1, keepdim=True))[:, None, None, :]  # all of a row that is only padding

    @cached_property
    def dense(self) -> Tensor:
        """(1 or B, 1, 1 or T, S): the whole table. Every query has at least one key: a softmax over none would be 0 / 0."""
        if self.documents is not None:
            return self.within_documents[:, None]  # (B, 1, T, S)
        if not self.causal:
            return self.visible_keys
        table = causal(self.queries, self.length, self.device)[None, None]  # (1, 1, T, S)
        if self.prefix is not None:  # for queries after the prefix this adds nothing: all of it is before them
            table = table | self.prefix[:, None, None, :]  # (B, 1, T, S)
        if self.keys is None:
            return table
        # a padded query sees itself
        diagonal = torch.eye(self.queries, self.length, dtype=torch.bool, device=self.device)
        return table & self.keys[:, None, None, :] | diagonal.roll(self.length - self.queries, 1)  # (B, 1, T, S)

    def spans(self, rows: int) -> Tensor | None:
        """(n, 3): row, first token and end of each stretch in which all tokens see each other (or, causal, those before
        them) and no others; None where only a table can express it."""
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
        """(n, 3): row, first token and end of each document."""
        assert self.documents is not None
        first = torch.ones_like(self.documents, dtype=torch.bool)
        first[:, 1:] = self.documents[:, 1:] != self.documents[:, :-1]
        starts = first.nonzero()  # (n, 2): row, token
        last = torch.full_like(starts[:, 1], self.length)
        last[:-1] = torch.where(starts[1:, 0] == starts[:-1, 0], starts[1:, 1], self.length)
        return torch.cat([starts, last[:, None]], 1).cpu()

    @property
    def within_documents(self) -> Tensor:
        """(B, T, S): tokens of the same document; a padded query may see itself."""
        assert self.documents is not None
        table = self.documents[:, :, None] == self.documents[:, None, :]
        table = table if self.keys is None else table & self.keys[:, None, :]
        table = table & causal(self.queries, self.length, self.device) if self.causal else table
        return table | torch.eye(self.length, dtype=torch.bool, device=self.device)

    def of(self, rows: Tensor) -> Mask:
        """Return the mask of some of the queries (r,) alone, without forming the (T, S) table."""
        return SomeRows(self, rows)


class SomeRows(Mask):
    """The mask of a few queries at any positions."""

    def __init__(self, whole: Mask, rows: Tensor):
        super().__init__(len(rows), whole.keys, whole.length, whole.causal, whole.device, whole.documents, whole.prefix)
        self.rows = rows + whole.length - whole.queries  # (r,): their indices among the keys

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
