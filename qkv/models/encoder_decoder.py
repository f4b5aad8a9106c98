"""Both halves: the 2017 Transformer, T5, BART, Marian, and with recurrent stacks LSTM seq2seq and RNNsearch."""

from __future__ import annotations

from torch import Tensor, nn

from qkv.batch import Batch
from qkv.models.output import Output
from qkv.parts.masks import Mask
from qkv.parts.state import EncoderOutput, State


class EncoderDecoder(nn.Module):
    """The encoder reads the source once; the decoder writes the target, looking at the source at every layer."""

    def __init__(self, source: nn.Module, encoder: nn.Module, target: nn.Module, decoder: nn.Module, head: nn.Module,
                 n_patches: int = 0):  # fmt: skip
        super().__init__()
        self.source = source
        self.encoder = encoder
        self.target = target
        self.decoder = decoder
        self.head = head
        self.n_patches = n_patches

    def forward(self, batch: Batch) -> Output:
        """Training with teacher forcing: all target positions at once."""
        assert batch.inputs is not None and batch.documents is None, "pairs are not packed"
        hidden, _ = self.write(batch.inputs, batch.mask, State(memory=self.encode(batch)), keep=False)
        return Output(hidden, self.head, batch.mask)

    def encode(self, batch: Batch) -> EncoderOutput:
        """The source as the decoder sees it."""
        x = batch.images if batch.source is None else batch.source
        assert x is not None
        mask = Mask(1 + self.n_patches if batch.source is None else x.size(1), batch.source_mask, device=x.device)
        vectors, state = self.encoder(self.source(x, mask), mask)
        return EncoderOutput(vectors, batch.source_mask, state)

    def start(self, batch: Batch) -> State:
        """The state before the first target token: nothing written, the source read."""
        return State(memory=self.encode(batch))

    def step(self, ids: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        """T more target tokens (B, T) -> hidden vectors (B, T, C) and the new state; `head` turns them into logits."""
        return self.write(ids, mask, state, keep=True)

    def write(self, ids: Tensor, mask: Tensor | None, state: State, keep: bool) -> tuple[Tensor, State]:
        new = ids.size(1)
        seen = Mask(new, state.seen(new, mask), state.length + new, causal=True, device=ids.device)
        return self.decoder(self.target(ids, seen), seen, state.memory, state if keep else None)
