"""What came out of a run: the test set translated by the best weights and scored, once, and all numbers in results.json.

results.json           what was learned from, how long it took, the scores with their signatures
test.src.txt           the test set
test.ref.txt           its reference translations
test.hyp.txt           what the model makes of it; `sacrebleu test.ref.txt < test.hyp.txt` gives the same digits
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

import qkv
from qkv.config import DecodeConfig
from qkv.convert import folder as ours
from qkv.convert.files import read_json, read_tensors, write_json, write_text
from qkv.data.batching import Position
from qkv.data.translation import source_of
from qkv.engine.pack import pack
from qkv.evaluate.scores import METRICS, score
from qkv.generate.hypotheses import Beam
from qkv.generate.translate import Request, Translation, Translator
from qkv.train.report import Report
from qkv.train.translation import held_out

if TYPE_CHECKING:
    from qkv.train.run import Run

FILE = "results.json"
SOURCE, REFERENCE, HYPOTHESIS = "test.src.txt", "test.ref.txt", "test.hyp.txt"


def finish(r: Run, report: Report) -> dict[str, Any]:
    """The results of a run that has ended: those in its folder, if they are of these weights, or else made now."""
    place, key = r.folder / FILE, fingerprint(r)
    if place.exists() and (found := read_json(place)).get("fingerprint") == key:
        return found
    results = {
        "fingerprint": key,
        "training": training(r, report),
        "data": counts(r),
        "model": {"parameters": sum(p.numel() for p in r.training.network.parameters()), "family": r.config.family},
        "valid": {"sentences": len(r.task.valid), "search": "greedy", "bleu": r.training.progress.best,
                  "update": r.training.progress.best_step, "signature": score(["a"], ["a"])[0].signature},
        "test": test(r, report),
    }  # fmt: skip
    write_json(place, results)  # the last: who is stopped before does it again
    return results


def fingerprint(r: Run) -> str:
    """Of the best weights, and of all that decides what they are asked."""
    with open(r.folder / "best" / "model.safetensors", "rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(f"{weights} {r.recipe.model_dump_json()}".encode()).hexdigest()


def test(r: Run, report: Report) -> dict[str, Any] | None:
    """The test set through the best weights; None where the recipe has none."""
    assert r.recipe.data is not None
    if r.recipe.data.test is None:
        return None
    source = source_of(r.recipe.data.test, r.recipe.data, "test")
    records = held_out(source, "test")
    for reason, count in source.skipped.items():
        report.say(f"left out of the test set: {count:,} {reason}")
    sources, references = ([one_line(record[side]) for record in records] for side in (0, 1))
    decode = r.recipe.decode
    report.say(f"translating the test set: {len(sources):,} sentences, beam {decode.beam}")
    found = translations(r, sources)
    for problem, count in Counter(one.problem for one in found if one.problem).most_common():
        report.say(f"not translated, and scored as empty: {count:,} of {problem}")
    written = [one_line(one.text) for one in found]
    for name, texts in ((SOURCE, sources), (REFERENCE, references), (HYPOTHESIS, written)):
        write_text(r.folder / name, "".join(text + "\n" for text in texts))
    scores = [s.to_json() for s in score(written, references, METRICS)]
    return {"sentences": len(sources), "left_out": dict(source.skipped), "beam": decode.beam,
            "length_penalty": decode.length_penalty, "scores": scores}  # fmt: skip


def translations(r: Run, texts: list[str]) -> list[Translation]:
    """By the weights in best/, searched for as [decode] says."""
    best = r.folder / "best"
    device = next(r.training.network.parameters()).device
    network: Any = ours.fill(r.config, read_tensors(best), str(best)).to(device)
    network = pack(network) if device.type == "cpu" else network
    translator = Translator(r.config, network, r.source, r.target)
    return translator.translate(texts, request(r.recipe.decode))


def request(decode: DecodeConfig) -> Request:
    """A longest length only where the recipe sets one: otherwise it goes by the source, as in `qkv translate`."""
    longest = decode.max_length if "max_length" in decode.model_fields_set else None
    return Request(Beam(decode.beam, decode.length_penalty), max_length=longest, batch_tokens=decode.batch_tokens)


def one_line(text: str) -> str:
    """As a file of one sentence per line holds it."""
    return re.sub(r"[\r\n]+", " ", text).rstrip()


# --- what was done


def training(r: Run, report: Report) -> dict[str, Any]:
    progress, c = r.training.progress, r.recipe.train
    rate = {"target_tokens_per_second": round(report.rate)} if report.rate else {}
    return {
        "ended": r.why, "updates": progress.step, "epochs": progress.position.epoch, "minutes": progress.seconds / 60,
        **rate, "seed": c.seed, "threads": torch.get_num_threads(), "cores": os.cpu_count(), "qkv": qkv.__version__,
        "torch": str(torch.__version__), "python": platform.python_version(),
    }  # fmt: skip


def counts(r: Run) -> dict[str, Any]:
    """Pairs learned from and dropped. Exact where the corpus fits into a pool; of a larger one, what this process read."""
    batches, encode = r.task.batches, r.task.encode
    if batches.kept is None and not encode.read:  # the run had ended before: look again
        batches.position = Position()
        batches.read_pool()
    lost = encode.dropped + batches.source.skipped
    whole = {"pairs": len(batches.kept)} if batches.kept is not None else {"pairs_read": encode.read}
    return {**whole, "dropped": dict(lost.most_common())}
