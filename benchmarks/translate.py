"""Translating with a Transformer-base (random weights): output tokens per second, beside Hugging Face and CTranslate2.

Sources of 25 tokens, translations forced to 25: all systems do the same work, with the same weights in float32, and must
write the same tokens before anything is timed. `python benchmarks/translate.py [--threads 1] [--repeats 5]`.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from harness import Work, compare, table, verdict, worker

LENGTH, WORDS = 25, 32_000
END, PAD = 0, WORDS
CASES = [{"rows": rows, "beam": beam, "times": 3 if rows == 1 else 1} for rows in (1, 32) for beam in (1, 4)]
SYSTEMS = ["HF generate", "CTranslate2 float32", "qkv"]
ASKED = {"HF generate": 2.0, "CTranslate2 float32": 0.8}
"""How many times each peer's speed qkv must have."""
Texts = list[list[int]]
"""Ids of each sentence, sources with their end token, translations without the start token."""


def sources(rows: int) -> Texts:
    draw = random.Random(0)
    return [[draw.randrange(2, WORDS) for _ in range(LENGTH - 1)] + [END] for _ in range(rows)]


# --- the systems: each a function from sources to translations


def hugging_face(folder: Path, beam: int) -> Callable[[Texts], Texts]:
    from transformers import MarianMTModel

    model = MarianMTModel.from_pretrained(folder / "hf", attn_implementation="sdpa").eval()

    def translate(texts: Texts) -> Texts:
        ids = torch.tensor(texts)
        found = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), num_beams=beam, do_sample=False,
                               min_new_tokens=LENGTH, max_new_tokens=LENGTH)  # fmt: skip
        return found[:, 1:].tolist()

    return translate


def ctranslate2(folder: Path, beam: int) -> Callable[[Texts], Texts]:
    from ctranslate2 import Translator

    threads = torch.get_num_threads()
    model = Translator(str(folder / "ct2"), compute_type="float32", inter_threads=1, intra_threads=threads)

    def translate(texts: Texts) -> Texts:
        found = model.translate_batch([[f"t{i}" for i in text] for text in texts], beam_size=beam,
                                      min_decoding_length=LENGTH, max_decoding_length=LENGTH)  # fmt: skip
        return [[int(token[1:]) for token in one.hypotheses[0]] for one in found]

    return translate


def qkv(folder: Path, beam: int) -> Callable[[Texts], Texts]:
    from qkv.api import load
    from qkv.batch import Batch
    from qkv.generate.beam import BeamParams
    from qkv.generate.logits_processor import LogitsProcessor
    from qkv.generate.parallel import run_batches, share
    from qkv.generate.search import beam_search

    model = load(folder / "hf", device="cpu")
    network: Any = model.packed()
    rules = LogitsProcessor((END,), (PAD,), min_length=LENGTH + 1)

    def translate_batch(texts: Texts) -> Texts:
        batch = Batch(torch.full((len(texts), 1), PAD), source=torch.tensor(texts))
        return [one[0].ids for one in beam_search(network, batch, LENGTH, (END,), BeamParams(beam), rules)]

    def translate(texts: Texts) -> Texts:  # as Translator.translate: one stream per thread
        own = share(len(texts))
        parts = run_batches(translate_batch, [texts[at : at + own] for at in range(0, len(texts), own)])
        return [text for part in parts for text in part]

    return translate


BUILDERS = {"HF generate": hugging_face, "CTranslate2 float32": ctranslate2, "qkv": qkv}


def build(system: str, case: dict[str, Any]) -> Work:
    folder, texts = Path(case["folder"]), sources(case["rows"])
    translate = BUILDERS[system](folder, case["beam"])
    found, wanted = translate(sources(2)), json.loads((folder / f"beam{case['beam']}.json").read_text())
    if found != wanted:
        raise SystemExit(f"{system} writes other tokens than Hugging Face:\n{found}\n{wanted}")

    @torch.inference_mode()
    def unit() -> None:
        for _ in range(case["times"]):
            translate(texts)

    return Work(unit, case["rows"] * LENGTH * case["times"], warmup=1)


# --- the weights, made once


def make_models(folder: Path) -> None:
    """The same random Transformer-base for all, a Marian folder and CTranslate2's made from it, and what it writes."""
    import ctranslate2.converters.transformers as convert
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    size: dict[str, Any] = {f"{side}_{name}": n for side in ("encoder", "decoder")
                            for name, n in (("layers", 6), ("ffn_dim", 2048), ("attention_heads", 8))}  # fmt: skip
    config = MarianConfig(vocab_size=WORDS + 1, decoder_vocab_size=WORDS + 1, d_model=512, **size,
                          max_position_embeddings=256, pad_token_id=PAD, eos_token_id=END, bos_token_id=END,
                          decoder_start_token_id=PAD, forced_eos_token_id=None, activation_function="relu",
                          scale_embedding=True)  # fmt: skip
    model = MarianMTModel(config).eval()
    model.generation_config.forced_eos_token_id = None
    model.save_pretrained(folder / "hf")
    loader = convert.MarianMTLoader()
    spec = loader.get_model_spec(model)
    loader.set_vocabulary(spec, [f"t{i}" for i in range(WORDS)])
    spec.config.unk_token = "t1"
    spec.config.eos_token = spec.config.bos_token = spec.config.decoder_start_token = f"t{END}"
    spec.validate()
    spec.optimize(quantization="float32")
    (folder / "ct2").mkdir()
    spec.save(str(folder / "ct2"))
    for beam in {case["beam"] for case in CASES}:
        (folder / f"beam{beam}.json").write_text(json.dumps(hugging_face(folder, beam)(sources(2))))


def report(repeats: int = 5, threads: Sequence[int] = (2, 1)) -> Iterator[str]:
    folder = Path(tempfile.mkdtemp())
    try:
        # in a process of its own: a worker's peak memory begins with that of the process that started it
        subprocess.run([sys.executable, __file__, "--make", str(folder)], check=True)
        for count in threads:
            for case in CASES:
                rows = compare(__file__, SYSTEMS, {**case, "folder": str(folder)}, count, repeats, retries=2)
                title = f"Transformer-base, batch {case['rows']}, beam {case['beam']}, {count} threads"
                verdicts = [verdict(rows, [peer], asked) for peer, asked in ASKED.items()]
                yield table(title, "output tokens/s", rows) + "".join(verdicts)
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, choices=[1, 2], action="append")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--make", type=Path, metavar="FOLDER", help="only make the models there")
    options = parser.parse_args()
    if options.make:
        make_models(options.make)
    else:
        for part in report(options.repeats, options.threads or (2, 1)):
            print(part, flush=True)


if __name__ == "__main__":
    worker(build) if "--worker" in sys.argv else main()
