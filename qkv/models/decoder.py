"""The writing half alone: GPT, LLaMA, and with a recurrent stack the RNN language model."""

from __future__ import annotations

from torch import Tensor, nn

from qkv.batch import Batch
from qkv.models.output import Output
from qkv.parts.masks import Mask
from qkv.parts.state import State


class Decoder(nn.Module):
    """Each position predicts the next word from those up to it."""

    def __init__(self, embed: nn.Module, stack: nn.Module, head: nn.Module):
        super().__init__()
        self.embed = embed
        self.stack = stack
        self.head = head

    def forward(self, batch: Batch, state: State | None = None) -> Output:
        """Training: all positions at once, after the text that `state` remembers; None = no text, and none is kept."""
        assert batch.inputs is not None
        if state is not None and batch.fresh is not None:
            state = state.forget(batch.fresh)
        hidden, state = self.read(batch.inputs, batch.mask, state, batch.documents)
        return Output(hidden, self.head, batch.mask, state)

    def start(self, batch: Batch) -> State:
        """The state before the first token."""
        return State()

    def step(self, ids: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        """T more tokens (B, T) -> hidden vectors (B, T, C) and the new state; `head` turns them into logits."""
        hidden, new = self.read(ids, mask, state)
        assert new is not None
        return hidden, new

    def read(self, ids: Tensor, mask: Tensor | None, state: State | None, documents: Tensor | None = None
             ) -> tuple[Tensor, State | None]:  # fmt: skip
        past = State() if state is None else state
        new = ids.size(1)
        seen = Mask(new, past.seen(new, mask), past.length + new, True, ids.device, documents)
        return self.stack(self.embed(ids, seen), seen, None, state)
