"""One training step of a language model, forward + backward + AdamW: tokens per second, beside the peers.

The models of GPT-2: pre-norm, GELU, learned positions, tied words; dropout 0. Every peer forms all its logits, qkv never
does. "+keep" is a peer whose allocator keeps freed memory, which qkv's training does by itself; "+compile" is torch.compile
with the fused AdamW. x-transformers has GELU by erf and no biases in its attention: a few weights fewer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from harness import Work, compare, table, verdict, worker
from torch import Tensor, nn

CASES: dict[str, dict[str, int]] = {
    "characters": {"layers": 6, "d": 384, "h": 6, "context": 256, "rows": 16, "words": 65},
    "GPT-2 small": {"layers": 12, "d": 768, "h": 12, "context": 512, "rows": 2, "words": 50_257},
}
STOCK = ["HF GPT2 sdpa", "HF GPT2 eager", "HF GPT2 sdpa+compile", "x-transformers"]
KEPT = ["HF GPT2 sdpa+keep", "HF GPT2 sdpa+compile+keep", "x-transformers+keep"]
"""As their users have them, and with an allocator that keeps freed memory. Two tables, because the processes of one table
run side by side: five of GPT-2 small take 17 GB."""
ASKED = 1.0
"""How many times the best peer, as its users have it, qkv must be."""


def build(system: str, c: dict[str, Any]) -> Work:
    torch.manual_seed(0)
    make = {"HF": HuggingFace, "x-transformers": XTransformers, "qkv": Qkv}[system.split("+")[0].split()[0]]
    model = make(c, "eager" if "eager" in system else "sdpa").train()
    fused = "+compile" in system or system.startswith("qkv")
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused or None)
    loss = torch.compile(model) if "+compile" in system else model
    text = torch.randint(0, c["words"], (c["rows"], c["context"] + 1))
    read, wanted = text[:, :-1].contiguous(), text[:, 1:].contiguous()  # (B, T) each

    def unit() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss(read, wanted).backward()
        optimiser.step()

    return Work(unit, wanted.numel())


# --- the systems: each a module (words, next words) -> mean loss


class Qkv(nn.Module):
    def __init__(self, c: dict[str, int], kernel: str):
        super().__init__()
        from qkv.engine.training_kernels import quicken
        from qkv.memory import keep_freed_memory
        from qkv.models.build import build
        from qkv.presets import PRESETS

        keep_freed_memory()
        sizes = {"vocab_size": c["words"], "d_model": c["d"], "n_layers": c["layers"], "n_heads": c["h"], "d_ff": 4 * c["d"],
                 "max_length": c["context"], "dropout": 0.0, "attention_dropout": 0.0, "ffn_dropout": 0.0}  # fmt: skip
        self.network = quicken(build(PRESETS["gpt2"].model_copy(update=sizes)))

    def forward(self, read: Tensor, wanted: Tensor) -> Tensor:
        from qkv.batch import Batch
        from qkv.objectives import causal

        batch = Batch(read, targets=wanted)
        return causal(self.network(batch), batch).mean


class HuggingFace(nn.Module):
    def __init__(self, c: dict[str, int], kernel: str):
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=c["words"], n_positions=c["context"], n_embd=c["d"], n_layer=c["layers"], n_head=c["h"],
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        self.model = GPT2LMHeadModel._from_config(config, attn_implementation=kernel)

    def forward(self, read: Tensor, wanted: Tensor) -> Tensor:
        logits = self.model(input_ids=read, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())


class XTransformers(nn.Module):
    def __init__(self, c: dict[str, int], kernel: str):
        super().__init__()
        from x_transformers import Decoder, TransformerWrapper

        layers = Decoder(dim=c["d"], depth=c["layers"], heads=c["h"], attn_dim_head=c["d"] // c["h"], attn_flash=True)
        self.model = TransformerWrapper(
            num_tokens=c["words"], max_seq_len=c["context"], tie_embedding=True, attn_layers=layers
        )

    def forward(self, read: Tensor, wanted: Tensor) -> Tensor:
        return F.cross_entropy(self.model(read).flatten(0, 1), wanted.flatten())


def report(repeats: int = 5, threads: int = 2, only: str | None = None) -> Iterator[str]:
    for name, case in CASES.items():
        for peers, asked in ((STOCK, ASKED), (KEPT, None)):
            if only in (None, name):
                rows = compare(__file__, [*peers, "qkv"], case, threads, repeats)
                yield table(f"{name}, {threads} threads", "tokens/s", rows) + verdict(rows, peers, asked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--case", choices=list(CASES))
    options = parser.parse_args()
    for part in report(options.repeats, options.threads, options.case):
        print(part, flush=True)


if __name__ == "__main__":
    worker(build) if "--worker" in sys.argv else main()
