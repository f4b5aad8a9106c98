"""Encoder-decoders: the 2017 Transformer, T5, BART, Marian, and with recurrent stacks LSTM seq2seq and RNNsearch."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from qkv.batch import Batch
from qkv.models.output import Output
from qkv.parts.masks import Mask
from qkv.parts.state import EncoderOutput, State


class EncoderDecoder(nn.Module):
    """The encoder reads the source once; every layer of the decoder attends to it while the target is predicted."""

    def __init__(self, source: nn.Module, encoder: nn.Module, target: nn.Module, decoder: nn.Module, head: nn.Module,
                 n_patches: int = 0, causal: bool = True):  # fmt: skip
        super().__init__()
        self.source = source
        self.encoder = encoder
        self.target = target
        self.decoder = decoder
        self.head = head
        self.copies = getattr(head, "copies", False)
        self.n_patches = n_patches
        self.causal = causal
        """False: in `forward` each target position sees all others, those to predict included."""

    def forward(self, batch: Batch) -> Output:
        """Predict all target positions at once, with teacher forcing."""
        assert batch.inputs is not None and batch.documents is None, "pairs are not packed"
        memory = self.encode(batch)
        mask = Mask(batch.inputs.size(1), batch.mask, causal=self.causal, device=batch.inputs.device)
        hidden, _ = self.decoder(self.target(batch.inputs, mask), mask, memory)
        return Output(hidden, self.head.bind(memory) if self.copies else self.head, batch.mask)  # type: ignore[operator]

    def encode(self, batch: Batch) -> EncoderOutput:
        """Encode the source into the memory that the decoder attends to, vectors (B, S, C)."""
        x: Any = batch.images if batch.source is None else batch.source
        # an image is 1 + n_patches vectors: [class] and its patches
        mask = Mask(1 + self.n_patches if batch.source is None else x.size(1), batch.source_mask, device=x.device)
        vectors, state = self.encoder(self.source(x, mask), mask)
        return EncoderOutput(vectors, batch.source_mask, state, batch.source if self.copies else None)

    def start(self, batch: Batch) -> State:
        """Return the state before the first target token, with the encoded source."""
        return State(memory=self.encode(batch))

    def step(self, ids: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        """Decode T more target tokens: ids (B, T) -> hidden vectors (B, T, C), which `head` turns into logits, and the new state."""
        length = ids.size(1)  # T
        seen = Mask(length, state.seen(length, mask), state.length + length, causal=True, device=ids.device)
        return self.decoder(self.target(ids, seen), seen, state.memory, state)  # type: ignore[no-any-return]
