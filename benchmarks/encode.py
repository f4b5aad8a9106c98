"""Encode with BERT-base (random weights): texts per second, beside ONNX Runtime, CTranslate2 and transformers.

    python benchmarks/encode.py --peers FOLDER                             # 12 minutes
    python benchmarks/encode.py --threads 2 --cases "16 to 128" --systems qkv --systems CTranslate2

Token ids in, the last vectors of all tokens out. All systems have the same weights; in float32 vectors must agree with those of
transformers within 1e-4, in int8 their mean cosine must be at least 0.99, before anything is timed. Texts of 16 to 128 tokens
are sorted by length, 32 at a time. "1 x 2" and "2 x 1" are workers x threads per worker: 2 x 1 encodes the halves of a batch
at once, and a single text with one thread. "+keep": glibc keeps freed memory, as it does for qkv.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import weights
from harness import RATE, Options, Verdict, Work, compare_all, judge, load_qkv, main, table
from weights import Texts

TITLE = "Encoding with BERT-base"
BATCH = 32
CASES: dict[str, dict[str, Any]] = {
    "BERT-base, 32 x 128": {"rows": 32, "shortest": 128, "longest": 128, "times": 1},
    "BERT-base, 1 x 32": {"rows": 1, "shortest": 32, "longest": 32, "times": 10},
    "BERT-base, 32 texts of 16 to 128 tokens": {"rows": 32, "shortest": 16, "longest": 128, "times": 1},
    "BERT-base, 256 texts of 16 to 128 tokens": {"rows": 256, "shortest": 16, "longest": 128, "times": 1},
}
SYSTEMS = {
    2: ["transformers+keep", "ONNX Runtime float32 1 x 2", "ONNX Runtime int8 1 x 2", "ONNX Runtime int8 2 x 1",
        "CTranslate2 float32 1 x 2", "CTranslate2 int8 1 x 2", "CTranslate2 int8 2 x 1", "qkv float32", "qkv int8"],
    1: ["ONNX Runtime float32 1 x 1", "ONNX Runtime int8 1 x 1", "CTranslate2 float32 1 x 1", "CTranslate2 int8 1 x 1",
        "qkv float32", "qkv int8"],
}  # fmt: skip
"""By threads."""
REQUIRED = {"32 x 128": ("ONNX Runtime int8", 1.0), "1 x 32": ("", 1.0), "16 to 128": ("CTranslate2 int8", 1.3)}
"""By the end of a case's name: how many times the speed of the best of the peers with this beginning is required."""


@dataclass
class Encoder:
    """A system: `prepare` turns texts into its inputs, `run` is timed, `vectors` turns its output into one array (T, C) per text."""

    prepare: Callable[[Texts], Any]
    run: Callable[[Any], Any]
    vectors: Callable[[Any], list[Any]]


def draw_texts(rows: int, shortest: int, longest: int) -> Texts:
    """Random ids, sorted by length; one text has the longest length."""
    draw = random.Random(0)
    lengths = sorted([longest, *(draw.randint(shortest, longest) for _ in range(rows - 1))])
    return weights.random_texts(lengths, 5, 30_000)


# --- the systems


def pad(texts: Texts, dtype: str) -> tuple[Any, Any]:
    """Ids (B, T), padded on the right, and lengths (B,)."""
    import numpy

    lengths = numpy.array([len(text) for text in texts], dtype)
    ids = numpy.zeros((len(texts), lengths.max()), dtype)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    return ids, lengths


def rows_of(vectors: Any, lengths: Sequence[int]) -> list[Any]:
    """(B, T, C) without padding, one array per text."""
    return [row[:length] for row, length in zip(vectors, lengths, strict=True)]


def transformers(system: str, folder: Path) -> Encoder:
    import torch
    from transformers import BertModel

    model = BertModel.from_pretrained(folder / "hf", attn_implementation="sdpa").eval()

    def prepare(texts: Texts) -> tuple[Any, Any]:
        ids, lengths = map(torch.tensor, pad(texts, "int64"))
        return ids, torch.arange(ids.size(1)) < lengths[:, None]

    @torch.inference_mode()
    def run(inputs: tuple[Any, Any]) -> Any:
        ids, mask = inputs
        return model(input_ids=ids, attention_mask=mask.long()).last_hidden_state, mask.sum(1)

    return Encoder(prepare, run, lambda found: rows_of(found[0].numpy(), found[1]))


def onnx_runtime(system: str, folder: Path) -> Encoder:
    import numpy
    import onnxruntime

    *_, precision, inter, _, intra = system.split()
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = int(intra), 1
    session = onnxruntime.InferenceSession(folder / f"{precision}.onnx", settings, providers=["CPUExecutionProvider"])

    def prepare(texts: Texts) -> dict[str, Any]:
        ids, lengths = pad(texts, "int64")
        return {"ids": ids, "mask": (numpy.arange(ids.shape[1]) < lengths[:, None]).astype("int64")}

    def run(inputs: dict[str, Any]) -> Any:
        return session.run(None, inputs)[0], inputs["mask"].sum(1)

    return in_parts(Encoder(prepare, run, lambda found: rows_of(*found)), int(inter))


def ctranslate2(system: str, folder: Path) -> Encoder:
    import ctranslate2
    import numpy

    _, precision, inter, _, intra = system.split()
    model = ctranslate2.Encoder(str(folder / "ct2"), compute_type=precision, inter_threads=int(inter),
                                intra_threads=int(intra))  # fmt: skip

    def prepare(texts: Texts) -> tuple[Any, ...]:
        arrays = pad(texts, "int32")
        return *map(ctranslate2.StorageView.from_array, arrays), arrays  # views of the arrays, which must stay

    def run(inputs: tuple[Any, ...]) -> Any:
        ids, lengths, arrays = inputs
        return model.forward_batch(ids, lengths).last_hidden_state, arrays[1]

    return in_parts(Encoder(prepare, run, lambda found: rows_of(numpy.array(found[0]), found[1])), int(inter))


def in_parts(one: Encoder, workers: int) -> Encoder:
    """Encode parts of a batch at once, each by one worker."""
    if workers == 1:
        return one
    pool = ThreadPoolExecutor(workers)

    def prepare(texts: Texts) -> list[Any]:
        size = -(-len(texts) // workers)
        return [one.prepare(texts[at : at + size]) for at in range(0, len(texts), size)]

    def vectors(found: list[Any]) -> list[Any]:
        return [row for part in found for row in one.vectors(part)]

    return Encoder(prepare, lambda parts: list(pool.map(one.run, parts)), vectors)


def qkv(system: str, folder: Path) -> Encoder:
    import torch

    from qkv.tasks.embed import Embedder

    model = load_qkv(folder / "hf", system)
    embedder = Embedder(model.config, model.network, None, batch_size=BATCH, packed=model.packed())

    @torch.inference_mode()
    def run(texts: Texts) -> dict[int, Any]:
        return dict(embedder.read(texts))

    return Encoder(lambda texts: texts, run, lambda found: [found[i].numpy() for i in range(len(found))])


BUILDERS = {"transformers+keep": transformers, "ONNX": onnx_runtime, "CTranslate2": ctranslate2, "qkv": qkv}


def build(system: str, case: dict[str, Any]) -> Work:
    folder = Path(case["folder"])
    encoder = BUILDERS[system.split()[0]](system, folder)
    check(system, encoder, folder)
    texts = draw_texts(case["rows"], case["shortest"], case["longest"])
    batches = [encoder.prepare(texts[at : at + BATCH]) for at in range(0, len(texts), BATCH)]

    def unit() -> None:
        for _ in range(case["times"]):
            for batch in batches:
                encoder.run(batch)

    return Work(unit, len(texts) * case["times"], warmup=1)


def check(system: str, encoder: Encoder, folder: Path) -> None:
    """Compare the vectors of two texts with those of transformers."""
    import numpy

    stored = numpy.load(folder / "expected.npz")
    expected = numpy.concatenate([stored[name] for name in stored.files])
    found = numpy.concatenate(encoder.vectors(encoder.run(encoder.prepare(weights.few_texts()))))
    apart = float(abs(found - expected).max())
    lengths = numpy.linalg.norm(found, axis=1) * numpy.linalg.norm(expected, axis=1)
    cosine = float(((found * expected).sum(1) / lengths).mean())
    if cosine < 0.99 or "int8" not in system and apart > 1e-4:
        raise SystemExit(f"{system} differs from transformers by {apart:.1e}, mean cosine {cosine:.4f}")


def report(options: Options) -> Iterator[str | Verdict]:
    folder = str(weights.ensure("bert", options.python))
    cases = {name: {**case, "folder": folder} for name, case in CASES.items()}
    for name, title, found in compare_all(__file__, SYSTEMS, cases, options):
        yield table(title, "texts/s", found[RATE])
        for part, (peer, required) in REQUIRED.items():
            if part in name:
                peers = [row.system for row in found[RATE] if row.system.startswith(peer) and "qkv" not in row.system]
                yield from judge(title, found[RATE], peers, required)


if __name__ == "__main__":
    main(__doc__, "encode", TITLE, build, report)
