"""Translate with a Transformer-base (random weights): output tokens per second, beside CTranslate2 and transformers.

    python benchmarks/translate.py --peers FOLDER                          # 8 minutes
    python benchmarks/translate.py --threads 2 --cases "beam 4" --systems qkv --systems int8

Sources of 25 tokens, translations forced to 25: all systems do the same work with the same weights. In float32 they must
generate the same tokens before anything is timed. "1 x 2" and "2 x 1" are workers x threads per worker (`inter_threads` and
`intra_threads`) of CTranslate2, which translates a batch of 32 with 2 x 1 as two batches of 16 at once, as qkv does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import weights
from harness import RATE, Options, Verdict, Work, compare_all, judge, load_qkv, main, table
from weights import LENGTH, Texts

TITLE = "Translating with Transformer-base"
CASES: list[dict[str, Any]] = [
    {"rows": rows, "beam": beam, "times": 3 if rows == 1 else 1} for rows in (1, 32) for beam in (1, 4)
]
SYSTEMS = {
    2: ["transformers", "CTranslate2 float32 1 x 2", "CTranslate2 float32 2 x 1", "CTranslate2 int8 1 x 2",
        "CTranslate2 int8 2 x 1", "qkv float32", "qkv int8"],
    1: ["transformers", "CTranslate2 float32 1 x 1", "CTranslate2 int8 1 x 1", "qkv float32", "qkv int8"],
}  # fmt: skip
"""By threads."""
REQUIRED = {1: (2.0, 2.5), 32: (1.0, 1.2)}
"""By rows: how many times the speed of CTranslate2's best configuration is required, and the goal."""


# --- the systems: each a function from sources to translations


def ctranslate2(system: str, folder: Path, beam: int) -> Callable[[Texts], Texts]:
    from ctranslate2 import Translator

    _, precision, inter, _, intra = system.split()
    workers = int(inter)
    model = Translator(str(folder / "ct2"), compute_type=precision, inter_threads=workers, intra_threads=int(intra))

    def translate(texts: Texts) -> Texts:
        size = -(-len(texts) // workers)  # one batch per worker
        found = model.translate_batch([[f"t{i}" for i in text] for text in texts], beam_size=beam, max_batch_size=size,
                                      min_decoding_length=LENGTH, max_decoding_length=LENGTH)  # fmt: skip
        return [[int(token[1:]) for token in one.hypotheses[0]] for one in found]

    return translate


def qkv(system: str, folder: Path, beam: int) -> Callable[[Texts], Texts]:
    import torch

    from qkv.generate.beam import BeamParams
    from qkv.generate.translate import EncodedText, TranslationParams, Translator

    model: Any = load_qkv(folder / "hf", system)
    translator = Translator(model.config, model.packed(), None, None)  # type: ignore[arg-type]  # ids need no tokenizers
    params = TranslationParams(BeamParams(beam), max_length=LENGTH, min_length=LENGTH + 1)

    @torch.inference_mode()
    def translate(texts: Texts) -> Texts:
        encoded = [EncodedText(i, "", text, [], [], []) for i, text in enumerate(texts)]
        return [found[0].ids for found in translator.search(encoded, params)]

    return translate


def transformers(system: str, folder: Path, beam: int) -> Callable[[Texts], Texts]:
    return weights.translate(folder / "hf", beam)


BUILDERS = {"transformers": transformers, "CTranslate2": ctranslate2, "qkv": qkv}


def build(system: str, case: dict[str, Any]) -> Work:
    folder, texts = Path(case["folder"]), weights.sources(case["rows"])
    translate = BUILDERS[system.split()[0]](system, folder, case["beam"])
    found, expected = translate(weights.sources(2)), json.loads((folder / f"beam{case['beam']}.json").read_text())
    if [len(text) for text in found] != [LENGTH] * 2 or "int8" not in system and found != expected:
        raise SystemExit(f"{system} generates other tokens than transformers:\n{found}\n{expected}")

    def unit() -> None:
        for _ in range(case["times"]):
            translate(texts)

    return Work(unit, case["rows"] * LENGTH * case["times"], warmup=1)


def report(options: Options) -> Iterator[str | Verdict]:
    folder = str(weights.ensure("marian", options.python))
    cases = {
        f"Transformer-base, batch {case['rows']}, beam {case['beam']}": {**case, "folder": folder} for case in CASES
    }
    for name, title, found in compare_all(__file__, SYSTEMS, cases, options):
        required, goal = REQUIRED[cases[name]["rows"]]
        peers = [row.system for row in found[RATE] if row.system.startswith("CTranslate2")]
        yield table(title, "output tokens/s", found[RATE])
        yield from judge(title, found[RATE], peers, required, goal)


if __name__ == "__main__":
    main(__doc__, "translate", TITLE, build, report)
