"""Generate with GPT-2 small (random weights) and SmolLM2-135M (q8_0): tokens per second of prefill and of generation.

    python benchmarks/generate.py --peers FOLDER                           # 6 minutes
    python benchmarks/generate.py --threads 2 --cases GPT-2 --systems qkv --systems q8_0

A prompt of 128 tokens and 128 new ones, greedy, one text. All systems have the same weights: of GPT-2 a Hugging Face folder and
what CTranslate2 and llama.cpp make of it, of SmolLM2 one GGUF file. In float32 they must generate the same tokens of GPT-2 before
anything is timed. Prefill: prompt tokens divided by the time to the first token; generation: the other new tokens divided by the
time for them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import weights
from harness import Options, Verdict, Work, compare_all, judge, load_qkv, main, table, thread_count
from weights import NEW, PROMPT, Generate

TITLE = "Generating with GPT-2 small and SmolLM2-135M"
CASES = {"GPT-2 small": "gpt2", "SmolLM2-135M q8_0": "smollm2"}
SYSTEMS = {
    "gpt2": ["transformers", "CTranslate2 float32", "CTranslate2 int8", "llama.cpp f32", "llama.cpp q8_0", "llama.cpp q4_0",
             "qkv float32", "qkv int8"],
    "smollm2": ["llama.cpp q8_0", "qkv q8_0", "qkv float32"],
}  # fmt: skip
FLOAT32 = ("transformers", "CTranslate2 float32", "llama.cpp f32", "qkv float32")
"""Systems that must generate the same tokens."""
GENERATION, PREFILL = "generation", "prefill"
REQUIRED: dict[tuple[str, str], list[tuple[list[str], float, float | None]]] = {
    ("gpt2", GENERATION): [(["llama.cpp q8_0"], 1.3, 1.6)],
    ("gpt2", PREFILL): [(["CTranslate2 int8", "llama.cpp f32", "llama.cpp q8_0", "llama.cpp q4_0"], 1.0, None)],
    ("smollm2", GENERATION): [(["llama.cpp q8_0"], 1.2, None)],
}
"""By model and metric: how many times the speed of the best of these peers is required, and the goal."""


# --- the systems


def transformers(system: str, folder: Path) -> Generate:
    return weights.generate(folder / "hf")


def ctranslate2(system: str, folder: Path) -> Generate:
    from ctranslate2 import Generator

    model = Generator(str(folder / "ct2"), compute_type=system.split()[1], intra_threads=thread_count())

    def generate(ids: list[int], count: int) -> list[int]:
        found = model.generate_batch([[f"t{i}" for i in ids]], beam_size=1, sampling_topk=1, min_length=count,
                                     max_length=count, include_prompt_in_result=False)  # fmt: skip
        return list(found[0].sequences_ids[0])

    return generate


def llama_cpp(system: str, folder: Path) -> Generate:
    import llama_cpp
    import numpy

    threads = thread_count()
    model = llama_cpp.Llama(str(folder / f"{system.split()[1]}.gguf"), n_ctx=512, n_batch=512, n_threads=threads,
                            n_threads_batch=threads, flash_attn=True, verbose=False)  # fmt: skip
    words = model.n_vocab()

    def step(ids: list[int]) -> int:
        """Read these tokens and return the likeliest next one; the functions of C, without llama-cpp-python's own loop."""
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        if llama_cpp.llama_decode(model.ctx, llama_cpp.llama_batch_get_one(tokens, len(ids))):
            raise SystemExit("llama_decode failed")
        logits = llama_cpp.llama_get_logits_ith(model.ctx, -1)
        return int(numpy.ctypeslib.as_array(logits, shape=(words,)).argmax())

    def generate(ids: list[int], count: int) -> list[int]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(model.ctx), True)
        found = [step(ids)]
        while len(found) < count:
            found.append(step(found[-1:]))
        return found

    return generate


def qkv(system: str, folder: Path) -> Generate:
    model = load_qkv(folder / "hf" if (folder / "hf").exists() else folder / "q8_0.gguf", system)
    model.config = model.config.changed(eos_id=None)  # a forced length

    def generate(ids: list[int], count: int) -> list[int]:
        return list(model.generate([ids], max_new_tokens=count))

    return generate


BUILDERS = {"transformers": transformers, "CTranslate2": ctranslate2, "llama.cpp": llama_cpp, "qkv": qkv}


def build(system: str, case: dict[str, Any]) -> Work:
    folder, ids = Path(case["folder"]), weights.prompt()
    generate = BUILDERS[system.split()[0]](system, folder)
    found, path = generate(ids, NEW), folder / "tokens.json"
    if len(found) != NEW:
        raise SystemExit(f"{system} generates {len(found)} tokens in place of {NEW}")
    if path.exists() and system in FLOAT32 and found != (expected := json.loads(path.read_text())):
        raise SystemExit(f"{system} generates other tokens than transformers:\n{found}\n{expected}")

    def unit() -> dict[str, float]:
        times = [time.perf_counter()]
        for count in (1, NEW):
            generate(ids, count)
            times.append(time.perf_counter())
        first, all_new = times[1] - times[0], times[2] - times[1]
        return {GENERATION: (NEW - 1) / (all_new - first), PREFILL: PROMPT / first}

    return Work(unit, warmup=1)


def report(options: Options) -> Iterator[str | Verdict]:
    for name, model in CASES.items():
        if not options.chosen_cases({name: {}}):
            continue
        cases = {name: {"folder": str(weights.ensure(model, options.python))}}
        for _, title, found in compare_all(__file__, dict.fromkeys((1, 2), SYSTEMS[model]), cases, options):
            for metric, rows in found.items():
                yield table(f"{title}, {metric}", "tokens/s", rows)
                for peers, required, goal in REQUIRED.get((model, metric), []):
                    yield from judge(f"{title}, {metric}", rows, peers, required, goal)


if __name__ == "__main__":
    main(__doc__, "generate", TITLE, build, report)
