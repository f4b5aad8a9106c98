"""Reading with BERT-base (random weights): sequences per second, Hugging Face's sdpa beside qkv, plain and packed.

All systems hold the same weights, and must agree within 1e-4 before anything is timed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from harness import Work, compare, table, verdict, worker
from torch import Tensor

CASES: dict[str, dict[str, Any]] = {
    "32 x 128": {"rows": 32, "length": 128, "times": 1},
    "1 x 32": {"rows": 1, "length": 32, "times": 5},
    "32 x 16 to 128": {"rows": 32, "length": 128, "shortest": 16, "times": 1},
}
SYSTEMS = ["HF sdpa", "HF sdpa+keep", "qkv plain", "qkv packed"]


def inputs(case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Random ids (B, T) and which of them are real: all, or from `shortest` to T of each row."""
    torch.manual_seed(0)
    ids = torch.randint(5, 30_000, (case["rows"], case["length"]))
    lengths = torch.randint(case.get("shortest", case["length"]), case["length"] + 1, (case["rows"], 1))
    return ids, torch.arange(case["length"]) < lengths


def peer() -> Any:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    return BertModel._from_config(BertConfig(), attn_implementation="sdpa").eval()


def reader(system: str, bert: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """(ids, mask) -> last vectors (B, T, C)."""
    if system.startswith("HF"):
        return lambda ids, mask: bert(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    from qkv.batch import Batch
    from qkv.engine.pack import pack
    from qkv.memory import keep_freed_memory

    keep_freed_memory()
    network = imported(bert)
    network = pack(network) if system == "qkv packed" else network
    return lambda ids, mask: network(Batch(ids, None if mask.all() else mask)).hidden


def imported(bert: Any) -> Any:
    """qkv's BERT with the weights of Hugging Face's."""
    import tempfile

    from qkv.api import load

    with tempfile.TemporaryDirectory() as folder:
        bert.save_pretrained(folder)
        return load(folder).network.eval()


def build(system: str, case: dict[str, Any]) -> Work:
    bert, (ids, mask) = peer(), inputs(case)
    read = reader(system, bert)
    with torch.inference_mode():
        expected = reader("HF sdpa", bert)(ids[:2], mask[:2])
        apart = (read(ids[:2], mask[:2]) - expected)[mask[:2]].abs().max().item()
    if apart > 1e-4:
        raise SystemExit(f"{system} differs from Hugging Face by {apart}")

    @torch.inference_mode()
    def unit() -> None:
        for _ in range(case["times"]):
            read(ids, mask)

    return Work(unit, case["rows"] * case["times"])


ASKED = {"32 x 128": 1.05, "1 x 32": 1.3}
"""How many times Hugging Face's sdpa the better of ours must be."""


def report(repeats: int = 5) -> Iterator[str]:
    for name, case in CASES.items():
        for threads in (2, 1):
            rows = compare(__file__, SYSTEMS, case, threads, repeats)
            yield table(f"BERT-base, {name}, {threads} threads", "sequences/s", rows) + verdict(
                rows, ["HF sdpa"], ASKED.get(name)
            )


if __name__ == "__main__":
    worker(build) if "--worker" in sys.argv else print(*report(), sep="\n")
