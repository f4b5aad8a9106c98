"""Speculative decoding: tokens per second with and without a draft, acceptance rate, tokens per call of the network.

    python benchmarks/speculative.py                                       # SmolLM2-135M with n-gram lookup, 2 minutes
    python benchmarks/speculative.py --model FOLDER --draft SMALLER --draft-tokens 2 4 6
    python benchmarks/speculative.py --precision float32 --draft CACHE/smollm2/q8_0.gguf   # drafts of the same model in q8_0

Three prompts, greedy: code to change, a text to repeat with a correction, a story to invent. The tokens must be those without a draft.
Both ways are timed in turn, on one thread and in processor seconds, without reading the prompt; the medians are printed.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import weights

CODE = """def area(width, height):
    return width * height


def perimeter(width, height):
    return 2 * (width + height)


def is_square(width, height):
    return width == height
"""
TEXT = (
    "The Transformer was introduced in 2017 by eight researchers at Google. It replaced recurrent networks by attention, so that "
    "all tokens of a text are processed at the same time. Within a few years it became the standard architecture for "
    "translation, language models and, with patches of pixels in place of words, for images too."
)
PROMPTS = {
    "change code": f"Rename the argument `width` to `w` in this Python code and return all of the code:\n\n{CODE}",
    "repeat a text": f"Repeat this text word for word, but write 2018 in place of 2017:\n\n{TEXT}",
    "invent a story": "Write a short story about a lighthouse keeper who finds a letter.",
}


def generate(model: Any, ids: list[int], count: int, **how: Any) -> tuple[list[int], float]:
    """Return the new tokens and the processor seconds from the first one to the last."""
    tokens = model.generate(ids, count, **how)
    first, start = next(tokens), time.process_time()
    return [first, *tokens], time.process_time() - start


def compare(model: Any, ids: list[int], draft: Any, sizes: list[int], count: int, repeats: int) -> list[str]:
    """Return a cell of a table for each number of drafted tokens: speed over that without a draft, and what was accepted."""
    wanted, _ = generate(model, ids, count)
    times: dict[int, list[float]] = {size: [] for size in (0, *sizes)}
    cells = {}
    for _ in range(repeats):
        for size, seconds in times.items():
            tokens, spent = generate(model, ids, count, **({"draft": draft, "draft_tokens": size} if size else {}))
            assert tokens == wanted, "other tokens than without a draft"
            seconds.append(spent)
            cells[size] = model.speculation if size else None
    plain = median(times[0])
    found = [f"{(len(wanted) - 1) / plain:.1f} tokens/s"]
    for size in sizes:
        stats = cells[size]
        rate = f"{100 * stats.acceptance_rate:.0f} % accepted, {stats.tokens / stats.calls:.2f} tokens per call"
        found.append(f"{plain / median(times[size]):.2f} x ({rate})")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a decoder; default: SmolLM2-135M-Instruct (q8_0)")
    parser.add_argument("--precision", help="of the model: float32 or int8; default: as it is stored")
    parser.add_argument("--draft", default="ngram", help="a smaller decoder with the same tokenizer, or ngram")
    parser.add_argument("--draft-tokens", type=int, nargs="+", default=[2, 4, 6])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    import torch

    import qkv

    torch.set_num_threads(1)
    model = qkv.load(given.model or weights.ensure("smollm2") / "q8_0.gguf", "cpu", given.precision)
    draft = given.draft if given.draft == "ngram" else qkv.load(given.draft, device="cpu")
    chat = model.words().chat_template is not None
    print(f"| prompt | no draft | {' | '.join(f'{size} drafted tokens' for size in given.draft_tokens)} |")
    print("|---" * (2 + len(given.draft_tokens)) + "|")
    for name, prompt in PROMPTS.items():
        ids = model.prompt_ids(prompt, chat=chat)
        cells = compare(model, ids, draft, given.draft_tokens, given.tokens, given.repeats)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
