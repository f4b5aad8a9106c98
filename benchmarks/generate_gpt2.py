"""Generating with GPT-2 small (random weights): tokens per second of `Model.generate`, beside Hugging Face's `generate`.

A prompt of 128 tokens and 128 new ones, greedy, one text at a time, in float32. Both have the same weights and must generate
the same tokens before anything is timed. `python benchmarks/generate_gpt2.py [--threads 1 2] [--repeats 5]`. Runs alternate, so
that another process disturbs both; medians of wall time, and of CPU time of the process, are printed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import qkv

PROMPT, NEW, REQUIRED = 128, 128, 2.5
"""Tokens, and how many times the speed of Hugging Face is required."""


def build() -> dict[str, Callable[[], list[int]]]:
    """Both systems as functions that generate the new tokens."""
    torch.manual_seed(0)
    # weights larger than GPT-2's initial ones: the tokens differ, and no two logits are nearly equal
    peer = GPT2LMHeadModel(GPT2Config(initializer_range=0.1)).eval()
    peer.generation_config.pad_token_id = peer.generation_config.eos_token_id
    ids = torch.randint(50_000, (1, PROMPT))
    with tempfile.TemporaryDirectory() as folder:
        peer.save_pretrained(folder)
        model = qkv.load(folder, device="cpu")

    def hugging_face() -> list[int]:
        with torch.inference_mode():
            found = peer.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=NEW,
                                  max_new_tokens=NEW)  # fmt: skip
        return found[0, PROMPT:].tolist()  # type: ignore[no-any-return]

    def ours() -> list[int]:
        return list(model.generate(ids.tolist(), max_new_tokens=NEW))

    return {"Hugging Face generate": hugging_face, "qkv Model.generate": ours}


def measure(systems: dict[str, Callable[[], list[int]]], repeats: int) -> dict[str, tuple[float, float]]:
    """Tokens per second of wall time and of CPU time: medians of alternating runs."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
    for _ in range(repeats):
        for name, generate in systems.items():
            wall, cpu = time.perf_counter(), time.process_time()
            generate()
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {
        name: (NEW / statistics.median(w for w, _ in own), NEW / statistics.median(c for _, c in own))
        for name, own in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    systems = build()
    peer, ours = (generate() for generate in systems.values())
    if peer != ours:
        raise SystemExit(f"qkv generates other tokens than Hugging Face:\n{ours}\n{peer}")
    print("| threads | system | tokens/s | tokens per second of CPU time |\n|---|---|---|---|")
    for threads in options.threads:
        torch.set_num_threads(threads)
        found = measure(systems, options.repeats)
        for name, (wall, cpu) in found.items():
            print(f"| {threads} | {name} | {wall:.1f} | {cpu:.1f} |", flush=True)
        (slow, _), (fast, _) = found.values()
        print(f"| {threads} | ratio, required {REQUIRED} | {fast / slow:.2f} | |", flush=True)


if __name__ == "__main__":
    main()
