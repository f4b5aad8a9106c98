"""Reading texts of 16 to 128 tokens with BERT-base (random weights), fp32: texts per second.

Hugging Face's sdpa as its users run it: in the order of the file, 32 at a time, padded to the longest. "qkv" reads the same
32 at a time as one row without padding (engine/ragged.py). Both hold the same weights, and must agree within 1e-4 before
anything is timed; "+sorted" is the peer given the texts sorted by length, "+keep" with an allocator that keeps freed memory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from encode import imported, peer
from harness import Work, compare, table, verdict, worker
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

CASES: dict[str, int] = {"32 texts": 32, "256 texts": 256}
PEERS = ["HF sdpa", "HF sdpa+keep", "HF sdpa+sorted"]
TOGETHER = 32
ASKED = 1.4
"""How many times Hugging Face's sdpa, in file order, ours must be."""

Reader = Callable[[Tensor, Tensor], Tensor]
"""(ids, mask), (B, T) each -> vectors (B, T, C)."""


def texts(count: int) -> list[Tensor]:
    """Random ids, 16 to 128 of them; one text has all 128."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(16, 129, (count,), generator=draw)
    lengths[0] = 128
    return [torch.randint(5, 30_000, (int(length),), generator=draw) for length in lengths]


def batches(rows: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Padded ids and their masks, in the order given."""
    cut = [rows[at : at + TOGETHER] for at in range(0, len(rows), TOGETHER)]
    lengths = [torch.tensor([[len(row)] for row in some]) for some in cut]
    padded = [pad_sequence(some, batch_first=True) for some in cut]
    return [(ids, torch.arange(ids.size(1)) < n) for ids, n in zip(padded, lengths, strict=True)]


def reader(system: str, bert: Any) -> Reader:
    if system.startswith("HF"):
        return lambda ids, mask: bert(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    from qkv.batch import Batch
    from qkv.engine.ragged import without_padding
    from qkv.memory import keep_freed_memory

    keep_freed_memory()
    network = imported(bert)
    return lambda ids, mask: without_padding(network, Batch(ids, mask)).hidden


def build(system: str, case: dict[str, Any]) -> Work:
    bert, rows = peer(), texts(case["texts"])
    read, data = reader(system, bert), batches(sorted(rows, key=len) if "+sorted" in system else rows)
    ids, mask = (x[:3] for x in data[0])
    with torch.inference_mode():
        apart = (read(ids, mask) - reader("HF sdpa", bert)(ids, mask))[mask].abs().max().item()
    if apart > 1e-4:
        raise SystemExit(f"{system} differs from Hugging Face by {apart}")

    @torch.inference_mode()
    def unit() -> None:
        for one in data:
            read(*one)

    return Work(unit, len(rows), warmup=1 if len(data) > 1 else 2)


def report(repeats: int = 5, threads: int = 2) -> Iterator[str]:
    for name, count in CASES.items():
        rows = compare(__file__, [*PEERS, "qkv"], {"texts": count}, threads, repeats)
        title = f"BERT-base, {name} of 16 to 128 tokens, {threads} threads"
        yield table(title, "texts/s", rows) + verdict(rows, ["HF sdpa"], ASKED) + verdict(rows, PEERS, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for part in report(options.repeats, options.threads):
        print(part, flush=True)


if __name__ == "__main__":
    worker(build) if "--worker" in sys.argv else main()
