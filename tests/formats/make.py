"""Write the files of this version of qkv into a folder: runs with checkpoints, models, word vectors, and their outputs.

    python tests/formats/make.py tests/formats/5
    python tests/formats/make.py tests/formats/5 sharded    # only a run of two workers with sharded checkpoints

Run it once for every new format, with the code that writes the new format first; the folder is then kept forever and opened by
tests/test_old_formats.py. Never rewrite an existing folder: the test is that old files can be opened. Only features of every
version of qkv are used here, so that the script also runs on an old checkout.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import qkv

TRANSLATOR = """
[model]
family = "encoder-decoder"
d_model = 8
n_layers = 1
n_heads = 2
d_ff = 16
tie = "all"
norm_order = "pre"
dropout = 0.0
[data]
train = [{ files = ["text.en", "text.de"] }]
valid = { files = ["text.en", "text.de"] }
tokenizer = "characters"
vocab_size = 40
batch_tokens = 200
[train]
steps = 8
learning_rate = 1e-2
schedule = "constant"
warmup = 2
ema = 0.9
save_every = 4
evaluate_every = 4
keep = 2
"""
LSTM = """
task = "language"
[model]
family = "decoder"
recurrent = "lstm"
d_model = 8
n_layers = 1
position = "none"
dropout = 0.0
[data]
train = [{ files = ["text.en"] }]
valid = { files = ["text.en"] }
tokenizer = "characters"
vocab_size = 40
max_length = 32
batch_tokens = 64
carry = true
[train]
steps = 8
learning_rate = 1e-2
schedule = "constant"
warmup = 2
save_every = 4
evaluate_every = 4
keep = 2
"""
WORD2VEC = """
task = "vectors"
[data]
train = [{ files = ["text.en"] }]
[vectors]
width = 4
min_count = 1
sample = 0.0
epochs = 1
workers = 1
"""
ENGLISH = ["the man reads a book", "the woman reads", "a dog sleeps", "the man sees the dog", "a child sees a book"] * 4
GERMAN = [
    "der Mann liest ein Buch",
    "die Frau liest",
    "ein Hund schläft",
    "der Mann sieht den Hund",
    "ein Kind sieht ein Buch",
] * 4
NOT_KEPT = ("tensorboard", "curves.svg", "README.md", "results.json", ".lock", "corpus.ids")
"""What an ended run has besides: without results the run goes on."""
IDS, TARGET_IDS = [[5, 6, 7, 8], [9, 5, 6, 7]], [[4, 6, 7], [4, 8, 9]]


def train(name: str, *settings: str, processes: tuple[str, str] = ("--threads", "1")) -> None:
    command = [sys.executable, "-m", "qkv", "train", f"{name}.toml", "--out", name, *processes]
    subprocess.run([*command, *(part for one in settings for part in ("--set", one))], check=True)


def losses(name: str) -> list[float]:
    return [json.loads(line)["loss"] for line in Path(name, "log.jsonl").read_text().splitlines()]


def answers(folder: str) -> list[object]:
    """Logits of a model for some ids."""
    model = qkv.load(folder)
    both = (IDS, TARGET_IDS) if model.config.family == "encoder-decoder" else (IDS,)
    return model.logits(*both).tolist()  # type: ignore[no-any-return]


def cut(name: str) -> None:
    """Leave a run as if it had been killed before its last checkpoint: the log and best/ are ahead of it."""
    for other in NOT_KEPT:
        path = Path(name, other)
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    saved = sorted(Path(name).glob("checkpoint-*"))
    for newer in saved[1:]:
        shutil.rmtree(newer)


def make(folder: Path, sharded: bool = False) -> None:
    """Write everything, or the sharded run alone, into a new folder."""
    folder.mkdir(parents=True)
    os.chdir(folder)
    Path("text.en").write_text("\n".join(ENGLISH) + "\n")
    Path("text.de").write_text("\n".join(GERMAN) + "\n")
    expected = make_sharded() if sharded else make_all()
    Path("expected.json").write_text(json.dumps({"qkv": qkv.__version__, **expected}) + "\n")


def make_sharded() -> dict[str, object]:
    """Train a translator by two workers, of which each writes a shard."""
    Path("sharded.toml").write_text(TRANSLATOR.lstrip() + 'sharding = "full"\n')
    train("sharded", processes=("--workers", "2"))
    expected = {"losses": losses("sharded"), "logits": answers("sharded")}
    cut("sharded")
    return {"sharded": expected}


def make_all() -> dict[str, object]:
    """Train everything that one process trains."""
    expected = {}
    for name, recipe in (("translator", TRANSLATOR), ("lstm", LSTM)):
        Path(f"{name}.toml").write_text(recipe.lstrip())
        train(name)
        expected[name] = {"losses": losses(name), "logits": answers(name)}
        cut(name)
    Path("word2vec.toml").write_text(WORD2VEC.lstrip())
    train("word2vec")
    shutil.copytree("word2vec", "longer")
    Path("longer.toml").write_text(WORD2VEC)
    train("longer", "vectors.epochs=2")
    expected["word2vec"] = {"losses": losses("longer"), "dog": vector("word2vec")}
    cut("word2vec")
    shutil.rmtree("longer")
    Path("longer.toml").unlink()
    if hasattr(qkv, "quantize"):
        qkv.load("translator", precision="int8").save("int8")
        expected["int8"] = {"logits": answers("int8")}
    return expected


def vector(folder: str) -> list[float]:
    """The word vector of "dog"."""
    from qkv.convert.files import read_json, read_tensors

    words = read_json(Path(folder, "best", "vocabulary.json"))["words"]
    return read_tensors(Path(folder, "best", "vectors.safetensors"))["input"][words.index("dog")].tolist()  # type: ignore[no-any-return]


if __name__ == "__main__":
    make(Path(sys.argv[1]).resolve(), sys.argv[2:] == ["sharded"])
