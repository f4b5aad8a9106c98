"""Golden losses: 20 updates of each family on embedded data. tests/test_golden.py compares them with every change of the code.

    python tests/golden/make.py               print the differences between the current losses and the files
    python tests/golden/make.py --write NAME  rewrite one file; --write all rewrites all

A refactoring must not change a loss. Rewrite a file only in a commit that intentionally changes what a recipe computes (initial
weights, an optimiser, a default, the embedded grammar, the order of examples), say so in CHANGELOG.md, and raise RULES in
train/state.py if an earlier run cannot be resumed exactly. A loss that changed for an unknown reason is a bug.

Sizes are tiny, dropout is 0, and texts are divided into characters or words, so that the numbers depend on neither the tokenizers
library nor the processor: kernels and instruction sets change them by less than TOLERANCE.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent
STEPS = 20
TOLERANCE = 1e-4
"""Relative. Without kernels or vector instructions losses differ by 2e-6 at most; with 1 % more learning rate by 8e-4 at least."""
TEXT = {
    "data.train": "[{ grammar = 300 }]",
    "data.valid": "{ grammar = 2 }",
    "data.tokenizer": "words",
    "data.vocab_size": 200,
}
MODEL = {"model.d_model": 16, "model.d_ff": 32, "model.n_heads": 2, "model.n_layers": 2, "model.dropout": 0.0}
TRAIN = {"train.steps": STEPS, "train.warmup": 5, "train.learning_rate": 5e-3, "train.evaluate_every": STEPS,
         "train.save_every": STEPS, "train.ema": 0.0, "train.optimizer": "adamw", "train.accumulate": 1}  # fmt: skip
RECURRENT = {key: value for key, value in MODEL.items() if key not in ("model.d_ff", "model.n_heads")}
CHARACTERS = {
    **TEXT,
    "data.tokenizer": "characters",
    "data.max_length": 32,
    "model.max_length": 32,
    "data.batch_tokens": 128,
}
TIMED = {"train.time_budget": 1000, "train.schedule": "constant"}
"""Of a recipe whose schedule follows the clock."""
SENTENCES = {**MODEL, **TEXT, **TRAIN, "data.batch_tokens": 200}
DOCUMENTS = {**MODEL, **CHARACTERS, **TRAIN}
RNN = {**RECURRENT, **TEXT, **TRAIN, **TIMED, "data.batch_tokens": 200, "data.source": "en", "data.target": "de"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer-pre-norm": ("demo", {**SENTENCES, "train.clip": 0.5}),
    "transformer-post-norm": ("demo", {**SENTENCES, "model.norm_order": "post", "train.schedule": "inverse-sqrt",
                                       "train.label_smoothing": 0.1, "train.accumulate": 2}),
    "gpt": ("gpt2-like", {**DOCUMENTS, "model.attention_dropout": 0.0}),
    "llama": ("llama-like", {**DOCUMENTS, "model.n_heads": 4}),
    "experts": ("grammar-lm", {**DOCUMENTS, "model.n_experts": 4}),
    "bert": ("masked", {**SENTENCES, "model.norm_order": "post", "model.position": "learned"}),
    "deberta": ("masked", {**SENTENCES, "model.position": "disentangled"}),
    "electra": ("replaced", SENTENCES),
    "t5": ("spans", SENTENCES),
    "bart": ("denoising", {**SENTENCES, "train.optimizer": "muon"}),
    "classification": ("sentences", SENTENCES),
    "tagging": ("tags", SENTENCES),
    "vit": ("shapes", {**{key: value for key, value in SENTENCES.items() if key not in TEXT}, "data.train": "[{ shapes = 64 }]",
                       "data.valid": "{ shapes = 2 }", "data.batch_tokens": 520, "model.n_decoder_layers": 1}),
    "rnnsearch": ("multi30k-rnnsearch", RNN),
    "lstm-seq2seq": ("multi30k-seq2seq", RNN),
    "lstm-carried": ("shakespeare-lstm", {**RECURRENT, **CHARACTERS, **TRAIN, **TIMED}),
    "mamba": ("shakespeare-mamba", {**{key: value for key, value in DOCUMENTS.items() if key not in ("model.d_ff", "model.n_heads")},
                                    **TIMED, "model.d_state": 4}),
    "gated-linear": ("shakespeare-gla", {**DOCUMENTS, **TIMED, "model.d_key": 4, "train.optimizer": "muon"}),
    "word2vec": ("word2vec", {"vectors.epochs": STEPS, "vectors.width": 16, "vectors.workers": 1,
                              "data.train": "[{ grammar = 500 }]"}),
}  # fmt: skip
"""Name -> the shipped recipe and what makes it small."""


def losses(name: str) -> list[float]:
    """Train one of the cases, and return the loss of each update (of each epoch of word2vec)."""
    from qkv.config import load_recipe
    from qkv.config.vectors import load_vectors_recipe
    from qkv.recipes import find
    from qkv.train.report import Report
    from qkv.train.run import run
    from qkv.vectors.run import run as run_vectors

    base, changes = CASES[name]
    settings = [f"{key}={value}" for key, value in changes.items()]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        if name == "word2vec":
            run_vectors(load_vectors_recipe(find(base), settings), "", folder, Report(quiet=True))
        else:
            recipe = load_recipe(find(base), settings)
            data = recipe.data.model_copy(update={"test": None})
            run(recipe.model_copy(update={"data": data}), "", folder, Report(quiet=True))
        return [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]


def golden(name: str) -> list[float]:
    """The losses that are kept."""
    return json.loads((GOLDEN / f"{name}.json").read_text())  # type: ignore[no-any-return]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--write", metavar="NAME", choices=[*CASES, "all"], help="write the file of a case anew")
    given = p.parse_args()
    for name in CASES if given.write in (None, "all") else [given.write]:
        found = losses(name)
        if given.write:
            (GOLDEN / f"{name}.json").write_text(json.dumps([float(f"{loss:.7g}") for loss in found]) + "\n")
        difference = max(abs(a / b - 1) for a, b in zip(found, golden(name), strict=True))
        print(f"{name}: {found[0]:.6f} ... {found[-1]:.6f}, relative difference {difference:.1e}", flush=True)


if __name__ == "__main__":
    main()
