"""Decoder-only language models: GPT, LLaMA, and with a recurrent stack the RNN language model."""

from __future__ import annotations

from torch import Tensor, nn

from qkv.batch import Batch
from qkv.errors import QkvError
from qkv.models.output import Output
from qkv.parts.masks import Mask
from qkv.parts.state import State


class Decoder(nn.Module):
    """Predict at each position the next token from the tokens up to it.

    With `causal` off, a position sees all tokens that are given at once, the ones to predict included; steps with a state are
    causal nonetheless, as later tokens do not exist yet. With a `separator`, the tokens before the first one of a row (a source)
    see each other in both directions; a first step with a state must then contain all of them.
    """

    def __init__(self, embed: nn.Module, stack: nn.Module, head: nn.Module, causal: bool = True,
                 separator: int | None = None):  # fmt: skip
        super().__init__()
        self.causal = causal
        self.separator = separator
        """Id of the token between source and target; None = no prefix mask."""
        self.embed = embed
        self.stack = stack
        self.head = head

    def forward(self, batch: Batch, state: State | None = None) -> Output:
        """Compute all positions at once, for training; `state` continues a text, and without one (a new text) none is returned."""
        assert batch.inputs is not None
        if state is not None and batch.fresh is not None:
            state = state.forget(batch.fresh)
        hidden, state = self.read(batch.inputs, batch.mask, state, batch.documents)
        return Output(hidden, self.head, batch.mask, state)

    def start(self, batch: Batch) -> State:
        """Return the state before the first token."""
        return State()

    def step(self, ids: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        """Read T more tokens (B, T); return their hidden vectors (B, T, C), which `head` turns into logits, and the new state."""
        hidden, new = self.read(ids, mask, state)
        assert new is not None
        return hidden, new

    def read(self, ids: Tensor, mask: Tensor | None, state: State | None, documents: Tensor | None = None
             ) -> tuple[Tensor, State | None]:  # fmt: skip
        """Embed ids (B, T) and run the stack: hidden vectors (B, T, C) and the new state. `mask` (B, T) marks real tokens."""
        past = State() if state is None else state
        length = ids.size(1)  # T
        causal = self.causal or state is not None
        prefix = self.source_part(ids, mask, documents) if past.length == 0 else None
        attention_mask = Mask(
            length, past.seen(length, mask), past.length + length, causal, ids.device, documents, prefix
        )
        return self.stack(self.embed(ids, attention_mask), attention_mask, None, state)

    def source_part(self, ids: Tensor, mask: Tensor | None, documents: Tensor | None) -> Tensor | None:
        """Return which real tokens are before the first separator of their row, (B, T); None where no row has a separator."""
        if self.separator is None:
            return None
        if documents is not None:
            raise QkvError("prefix_mask = true takes one text per row: texts cannot be packed")
        ends = ids == self.separator if mask is None else (ids == self.separator) & mask
        prefix = (ends.cumsum(-1) == 0) & ends.any(-1, keepdim=True)
        prefix = prefix if mask is None else prefix & mask
        return prefix if bool(prefix.any()) else None
