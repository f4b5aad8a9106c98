"""One training step of a translator, forward + backward + AdamW: source and target tokens per second, beside the peers.

Label smoothing 0.1, dropout 0.1, tied embeddings. "qkv" drops where the 2017 paper does (embeddings, sublayer outputs);
"qkv dropout everywhere" also drops attention weights and inner activations, as all the peers here do.
"+keep" is a peer whose allocator keeps freed memory, which qkv's training does by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from harness import Work, compare, table, verdict, worker
from torch import Tensor, nn

CASES: dict[str, dict[str, Any]] = {
    "tiny": {
        "d": 128,
        "ff": 256,
        "h": 4,
        "layers": 4,
        "words": 10_000,
        "tokens": 4096,
        "mean": 15,
        "sd": 5,
        "batches": 4,
    },
    "base": {
        "d": 512,
        "ff": 2048,
        "h": 8,
        "layers": 6,
        "words": 32_000,
        "tokens": 2048,
        "mean": 25,
        "sd": 9,
        "batches": 1,
    },
}
SYSTEMS = ["torch.nn.Transformer", "torch.nn.Transformer+keep", "HF Marian sdpa", "HF Marian sdpa+keep", "x-transformers",
           "x-transformers+keep", "qkv", "qkv dropout everywhere"]  # fmt: skip
PAD, BOS, EOS = 1, 2, 3
Triple = tuple[Tensor, Tensor, Tensor]
"""Source, target shifted right, target: (B, S), (B, T), (B, T)."""


def batches(c: dict[str, Any]) -> list[Triple]:
    """Pairs of normally distributed, correlated lengths, sorted by length and cut into batches of equal target tokens."""
    random = np.random.default_rng(0)
    n, longest = c["tokens"] // c["mean"] * 16, 4 * c["mean"]
    source = np.clip(np.round(random.normal(c["mean"], c["sd"], n)), 3, longest).astype(int)
    target = np.clip(np.round(source * random.normal(1, 0.15, n)), 3, longest).astype(int)
    order = np.lexsort((source, target))
    which = np.cumsum(target[order]) // c["tokens"]  # the batch each pair falls into
    chosen = [int((k + 0.5) * which[-1] / c["batches"]) for k in range(c["batches"])]
    return [triple(random, source[rows], target[rows], c["words"]) for k in chosen for rows in [order[which == k]]]


def triple(random: np.random.Generator, source: np.ndarray, target: np.ndarray, words: int) -> Triple:
    def sentences(lengths: np.ndarray) -> Tensor:
        ids = torch.full((len(lengths), int(lengths.max())), PAD)
        for row, length in enumerate(lengths):
            ids[row, :length] = torch.tensor([*random.integers(4, words, length - 1), EOS])
        return ids

    read, written = sentences(source), sentences(target)
    shifted = torch.cat([torch.full((len(written), 1), BOS), written[:, :-1]], 1)
    return read, shifted.masked_fill(shifted == EOS, PAD), written


def build(system: str, c: dict[str, Any]) -> Work:
    torch.manual_seed(0)
    make = {"torch.nn.Transformer": TorchTransformer, "HF Marian sdpa": Marian, "x-transformers": XTransformers}
    name = system.split("+")[0]
    model, data = make[name](c) if name in make else Qkv(c, "everywhere" in name), batches(c)
    model.train()
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, betas=(0.9, 0.98))

    def unit() -> None:
        for one in data:
            optimiser.zero_grad(set_to_none=True)
            model(*one).backward()
            optimiser.step()

    real = sum(int((source != PAD).sum() + (target != PAD).sum()) for source, _, target in data)
    return Work(unit, real, warmup=1 if c["d"] > 256 else 2)


# --- the systems: each a module (source, shifted, target) -> mean loss


def loss(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    logits = F.linear(hidden, weight).flatten(0, 1)
    return F.cross_entropy(logits, target.flatten(), ignore_index=PAD, label_smoothing=0.1)


class Qkv(nn.Module):
    def __init__(self, c: dict[str, Any], everywhere: bool):
        super().__init__()
        from qkv.config import ModelConfig
        from qkv.memory import keep_freed_memory
        from qkv.models.build import build

        keep_freed_memory()
        inside = 0.1 if everywhere else 0.0
        self.network = build(
            ModelConfig(family="encoder-decoder", vocab_size=c["words"], d_model=c["d"], n_layers=c["layers"],
                        n_heads=c["h"], d_ff=c["ff"], embed_scale=True, tie="all", dropout=0.1,
                        attention_dropout=inside, ffn_dropout=inside, pad_id=PAD)
        )  # fmt: skip

    def forward(self, source: Tensor, shifted: Tensor, target: Tensor) -> Tensor:
        from qkv.batch import IGNORED, Batch
        from qkv.objectives import translation

        batch = Batch(shifted, shifted != PAD, target.masked_fill(target == PAD, IGNORED), source, source != PAD)
        return translation(self.network(batch), batch).mean


class TorchTransformer(nn.Module):
    def __init__(self, c: dict[str, Any]):
        super().__init__()
        self.words = nn.Embedding(c["words"], c["d"], padding_idx=PAD)
        nn.init.normal_(self.words.weight, std=c["d"] ** -0.5)
        self.register_buffer("positions", torch.randn(256, c["d"]) * 0.02)
        layers = c["layers"]
        self.transformer = nn.Transformer(c["d"], c["h"], layers, layers, c["ff"], dropout=0.1, batch_first=True)
        self.dropout = nn.Dropout(0.1)

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.words(ids) * self.words.embedding_dim**0.5 + self.positions[: ids.size(1)])  # type: ignore[index]

    def forward(self, source: Tensor, shifted: Tensor, target: Tensor) -> Tensor:
        hidden_keys, length = source == PAD, shifted.size(1)
        # target padding stands last: the causal mask hides it from real positions, and the loss ignores its rows
        out = self.transformer(
            self.embed(source), self.embed(shifted), tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            src_key_padding_mask=hidden_keys, memory_key_padding_mask=hidden_keys, tgt_is_causal=True,
        )  # fmt: skip
        return loss(out, self.words.weight, target)


class Marian(nn.Module):
    def __init__(self, c: dict[str, Any]):
        super().__init__()
        from transformers import MarianConfig, MarianMTModel

        config = MarianConfig(
            vocab_size=c["words"], d_model=c["d"], encoder_layers=c["layers"], decoder_layers=c["layers"],
            encoder_ffn_dim=c["ff"], decoder_ffn_dim=c["ff"], encoder_attention_heads=c["h"], decoder_attention_heads=c["h"],
            dropout=0.1, attention_dropout=0.1, activation_dropout=0.1, max_position_embeddings=256, pad_token_id=PAD,
            eos_token_id=EOS, bos_token_id=BOS, decoder_start_token_id=PAD, forced_eos_token_id=EOS,
            activation_function="relu", scale_embedding=True, tie_word_embeddings=True, share_encoder_decoder_embeddings=True,
        )  # fmt: skip
        self.model = MarianMTModel._from_config(config, attn_implementation="sdpa")

    def forward(self, source: Tensor, shifted: Tensor, target: Tensor) -> Tensor:
        mask = (source != PAD).long()
        logits = self.model(input_ids=source, attention_mask=mask, decoder_input_ids=shifted, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=0.1)


class XTransformers(nn.Module):
    def __init__(self, c: dict[str, Any]):
        super().__init__()
        from x_transformers import XTransformer

        options = {"num_tokens": c["words"], "depth": c["layers"], "heads": c["h"], "max_seq_len": 256,
                   "attn_dim_head": c["d"] // c["h"], "ff_mult": c["ff"] // c["d"], "attn_dropout": 0.1,
                   "ff_dropout": 0.1, "emb_dropout": 0.1, "attn_flash": True}  # fmt: skip
        both = {f"{side}_{key}": value for side in ("enc", "dec") for key, value in options.items()}
        model = XTransformer(dim=c["d"], tie_token_emb=True, pad_value=PAD, ignore_index=PAD, **both)
        self.encoder, self.decoder = model.encoder, model.decoder.net
        self.decoder.to_logits = nn.Identity()  # the output is tied, as in the others

    def forward(self, source: Tensor, shifted: Tensor, target: Tensor) -> Tensor:
        mask = source != PAD
        memory = self.encoder(source, mask=mask, return_embeddings=True)
        out = self.decoder(shifted, context=memory, context_mask=mask, return_embeddings=True)
        return loss(out, self.decoder.token_emb.emb.weight, target)


def report(repeats: int = 5) -> Iterator[str]:
    peers = [system for system in SYSTEMS if not system.startswith("qkv")]
    stock = [system for system in peers if not system.endswith("+keep")]  # as their users have them
    for name, asked in (("tiny", 1.6), ("base", 1.3)):
        for threads in (2, 1):
            rows = compare(__file__, SYSTEMS, CASES[name], threads, repeats)
            found = verdict(rows, stock, asked if threads == 2 else None) + verdict(rows, peers, 1.0)
            yield table(f"{name}, {threads} threads", "source + target tokens/s", rows) + found


if __name__ == "__main__":
    worker(build) if "--worker" in sys.argv else print(*report(), sep="\n")
