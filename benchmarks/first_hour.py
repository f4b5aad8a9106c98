"""A stranger's first hour: five journeys with data that this script makes, through the real commands, in an empty folder.

    python benchmarks/first_hour.py                     # all journeys, about 15 minutes
    python benchmarks/first_hour.py --only labels tags --folder /tmp/hour

Pairs of sentences, labelled texts, a CoNLL file, plain text, pictures in folders: split, train, evaluate on new files, compare,
extend, adapt, export, open the export in transformers, serve. Each journey has at most two commands of preparation before it
trains. A journey fails when a command fails or when what it prints is not what a user needs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

# --- data


SUBJECTS = {
    "the man": "der Mann",
    "the woman": "die Frau",
    "the child": "das Kind",
    "my brother": "mein Bruder",
    "a farmer": "ein Bauer",
}
VERBS = {"sees": "sieht", "buys": "kauft", "likes": "mag", "finds": "findet", "paints": "malt"}
COLOURS = {"red": "rote", "green": "grüne", "old": "alte", "small": "kleine", "new": "neue"}
THINGS = {"flower": "Blume", "lamp": "Lampe", "bag": "Tasche", "clock": "Uhr", "bottle": "Flasche", "cat": "Katze"}
PLACES = {"in the garden": "im Garten", "at home": "zu Hause", "today": "heute", "in the city": "in der Stadt", "": ""}


def sentence(r: random.Random) -> tuple[str, str]:
    """An English sentence and its German translation."""
    (s, s2), (v, v2), (c, c2), (t, t2), (p, p2) = (
        r.choice(list(d.items())) for d in (SUBJECTS, VERBS, COLOURS, THINGS, PLACES)
    )
    english = f"{s} {v} the {c} {t} {p}".strip()
    german = " ".join(f"{s2} {v2} {p2} die {c2} {t2}".split())
    return english[0].upper() + english[1:] + ".", german[0].upper() + german[1:] + "."


def pairs_file(path: Path, count: int, seed: int, formal: bool = False) -> None:
    """A TSV with a header; `formal` sentences end in another way: a domain of its own."""
    r = random.Random(seed)
    rows = [sentence(r) for _ in range(count)]
    rows = [(a[:-1] + ", sir.", b[:-1] + ", mein Herr.") if formal else (a, b) for a, b in rows]
    path.write_text("en\tde\n" + "".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")


TOPICS = {
    "weather": "rain snow wind storm sun cloud temperature forecast cold warm".split(),
    "sport": "goal match team player coach score ball league win final".split(),
    "food": "bread soup recipe oven salt butter kitchen taste dinner cook".split(),
    "travel": "train ticket hotel airport luggage map bus passport trip border".split(),
}
FILLER = "the a this we they was very today about with more and that for people said".split()


def labelled_file(path: Path, count: int, seed: int) -> None:
    """A CSV of texts and topics; some topic words are of another topic, so that it is not trivial."""
    r = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        for _ in range(count):
            label = r.choice(list(TOPICS))
            words = [r.choice(FILLER) for _ in range(r.randint(4, 9))] + r.sample(TOPICS[label], 2)
            words += [r.choice(TOPICS[r.choice(list(TOPICS))])] if r.random() < 0.3 else []
            r.shuffle(words)
            table.writerow([", ".join(words) if r.random() < 0.2 else " ".join(words), label])


def conll_file(path: Path, count: int, seed: int) -> None:
    """Words and entity tags, a blank line between sentences."""
    r = random.Random(seed)
    names, cities = "Anna Peter Maria Omar Lena Ivan".split(), "Berlin Paris Oslo Rome Cairo Lima".split()
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            first, last = r.choice(names), r.choice(["Schmidt", "Rossi", "Hansen", "Silva"])
            words = [(first, "B-PER"), (last, "I-PER")] if r.random() < 0.5 else [(first, "B-PER")]
            words += [(w, "O") for w in r.choice(["lives in", "travels to", "works in", "comes from"]).split()]
            words += [(r.choice(cities), "B-LOC"), (".", "O")]
            file.write("".join(f"{word} {tag}\n" for word, tag in words) + "\n")


def text_file(path: Path, count: int, seed: int) -> None:
    r = random.Random(seed)
    path.write_text("\n".join(sentence(r)[0] for _ in range(count)) + "\n", encoding="utf-8")


def picture_folders(path: Path, count: int, seed: int) -> None:
    """circles/, squares/ and stripes/ with PNG files."""
    from PIL import Image, ImageDraw

    r = random.Random(seed)
    for kind in ("circles", "squares", "stripes"):
        (path / kind).mkdir(parents=True)
        for number in range(count):
            image = Image.new("L", (16, 16), 0)
            draw, x, y, size = ImageDraw.Draw(image), r.randint(1, 5), r.randint(1, 5), r.randint(6, 9)
            box = (x, y, x + size, y + size)
            if kind == "stripes":
                for line in range(y, 16, 4):
                    draw.line((0, line, 15, line), fill=255)
            else:
                (draw.ellipse if kind == "circles" else draw.rectangle)(box, outline=255)
            image.save(path / kind / f"{number}.png")


# --- commands


HERE = {"PYTHONPATH": str(Path(__file__).parents[1])}
"""The package beside this script, wherever a command runs."""


class Failed(Exception):
    """A command did not do what its user needs."""


class Journey:
    """A row of commands in one folder; everything they print is kept in log.txt."""

    def __init__(self, folder: Path):
        self.folder, self.count = folder, 0
        folder.mkdir(parents=True, exist_ok=True)

    def qkv(self, *arguments: str, expect: str = "", code: int = 0, given: str = "") -> str:
        """Run `qkv ARGUMENTS`; what it prints must hold `expect`, a regular expression."""
        start = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "qkv", *arguments], cwd=self.folder, input=given, text=True,
                              capture_output=True, env={**os.environ, **HERE})  # fmt: skip
        said = done.stdout + done.stderr
        line = f"qkv {shlex.join(arguments)}"
        with (self.folder / "log.txt").open("a") as log:
            log.write(f"$ {line}\n{said}\n")
        print(f"  {line[:110]:<110} {time.monotonic() - start:5.0f} s", flush=True)
        if done.returncode != code or "Traceback" in said or not re.search(expect, said):
            raise Failed(f"{line}\nexit code {done.returncode}, expected {code} and {expect!r}\n{said[-3000:]}")
        self.count += 1
        return said

    def transformers(self, code: str, expect: str) -> None:
        """Run Python code that knows transformers and not qkv."""
        done = subprocess.run([sys.executable, "-c", code], cwd=self.folder, text=True, capture_output=True,
                              env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"})  # fmt: skip
        if done.returncode or expect not in done.stdout:
            raise Failed(f"{code}\nexpected {expect!r}\n{done.stdout}{done.stderr[-2000:]}")
        print("  opened by transformers: the same output", flush=True)

    def results(self, run: str) -> dict:
        return json.loads((self.folder / run / "results.json").read_text())


def sets(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


# --- journeys


def pairs(folder: Path) -> None:
    """Own TSV of sentence pairs: a translator, extended, compared, adapted, exported, served."""
    j = Journey(folder)
    pairs_file(folder / "pairs.tsv", 3000, 1)
    pairs_file(folder / "new.tsv", 100, 2)
    pairs_file(folder / "formal.tsv", 300, 3, formal=True)
    j.qkv("split", "pairs.tsv", "--out", "data", expect="train")
    small = sets(
        "data.vocab_size=300", "data.batch_tokens=1024", "model.d_model=64", "model.d_ff=256", "train.warmup=50"
    )
    tables = sets('data.train=[{ table = "data/train.tsv" }]', 'data.valid={ table = "data/valid.tsv" }',
                  'data.test={ table = "data/test.tsv" }')  # fmt: skip
    j.qkv("train", "demo", "--out", "runs/one", *small, *tables, *sets("train.steps=150"), expect="BLEU")
    j.qkv(
        "train",
        "demo",
        "--out",
        "runs/one",
        *small,
        *tables,
        *sets("train.steps=300"),
        expect=r"train\.steps 150 -> 300",
    )
    j.qkv(
        "train", "demo", "--out", "runs/two", *small, *tables, *sets("train.steps=150", "train.seed=2"), expect="BLEU"
    )
    j.qkv("evaluate", "runs/one", "--data", "new.tsv", expect="BLEU")
    j.qkv("compare", "runs/two", "runs/one", "--data", "new.tsv", expect="difference")
    j.qkv("split", "formal.tsv", "--out", "formal", expect="train")
    adapted = sets('data.train=[{ table = "formal/train.tsv", weight = 3 }, { table = "data/train.tsv" }]',
                   'data.valid={ table = "formal/valid.tsv" }', 'data.extra_valid={ general = { table = "data/valid.tsv" } }',
                   "data.test={ table = \"formal/test.tsv\" }", "tune.start=runs/one", "train.steps=100",
                   "train.learning_rate=1e-3")  # fmt: skip
    j.qkv("train", "demo", "--out", "runs/formal", *small, *adapted, expect="general BLEU")
    scores = j.results("runs/formal")
    print(
        f"  adapted: formal {scores['valid']['value']:.1f} BLEU, general {scores['extra_valid']['general']['scores']['bleu']:.1f}"
    )
    j.qkv("export", "runs/one", "exported", expect="wrote exported")
    ours = j.qkv("translate", "runs/one", given="The man sees the red flower.\n", expect="rote Blume").splitlines()[0]
    j.transformers("from transformers import AutoTokenizer, AutoModelForSeq2SeqLM\n"
                   "t, m = AutoTokenizer.from_pretrained('exported'), AutoModelForSeq2SeqLM.from_pretrained('exported')\n"
                   "x = t('The man sees the red flower.', return_tensors='pt')\n"
                   "x.pop('token_type_ids', None)\n"
                   "print(t.decode(m.generate(**x)[0], skip_special_tokens=True))", ours)  # fmt: skip
    serve(j, "runs/one", ours)


def serve(j: Journey, run: str, expected: str) -> None:
    server = subprocess.Popen([sys.executable, "-m", "qkv", "serve", run, "--port", "0", "--languages", "one=en-de"], cwd=j.folder,
                              stderr=subprocess.PIPE, text=True, env={**os.environ, **HERE})  # fmt: skip
    try:
        assert server.stderr is not None
        address = next((m[0] for line in server.stderr if (m := re.search(r"http://[\d.]+:\d+", line))), "")
        body = json.dumps({"q": "The man sees the red flower.", "source": "en", "target": "de"}).encode()
        request = urllib.request.Request(f"{address}/translate", body, {"Content-Type": "application/json"})
        answer = json.load(urllib.request.urlopen(request))["translatedText"]
        page = urllib.request.urlopen(f"{address}/").read().decode()
        if answer != expected or "<html" not in page.lower():
            raise Failed(f"served {answer!r}, expected {expected!r}")
        print("  served: page and LibreTranslate's API", flush=True)
    finally:
        server.terminate()
        server.wait()


def labels(folder: Path) -> None:
    """Own CSV of texts and labels: a classifier beside a TF-IDF baseline."""
    j = Journey(folder)
    labelled_file(folder / "texts.csv", 1500, 1)
    labelled_file(folder / "new.csv", 200, 2)
    j.qkv("split", "texts.csv", "--stratify", "label", "--out", "data", expect="train")
    tables = sets('data.train=[{ table = "data/train.csv" }]', 'data.valid={ table = "data/valid.csv" }',
                  'data.test={ table = "data/test.csv" }')  # fmt: skip
    exportable = sets("model.bigram_buckets=0", "model.feedforward=gelu")  # what the first lines of the recipe name
    for name, steps in (("short", 20), ("long", 150)):
        j.qkv("train", "classify-small", "--out", f"runs/{name}", *tables, *exportable,
              *sets(f"train.steps={steps}", "train.warmup=10"), expect="(?i)tf-idf")  # fmt: skip
    report = r"weather +0\.\d+|weather +\d"  # a row of precision, recall and F1
    j.qkv("evaluate", "runs/long", "--data", "new.csv", "--confusion", "confusion.svg", expect=report)
    j.qkv("compare", "runs/short", "runs/long", "--data", "new.csv", expect="McNemar|p")
    j.qkv("classify", "runs/long", given="the team won the match with a late goal\n", expect="sport")
    j.qkv("export", "runs/long", "exported", expect="wrote exported")
    j.transformers("from transformers import AutoModel, AutoTokenizer\n"
                   "t, m = AutoTokenizer.from_pretrained('exported'), AutoModel.from_pretrained('exported')\n"
                   "print(m(**t('the team won', return_tensors='pt')).last_hidden_state.shape)", "torch.Size([1, ")  # fmt: skip


def tags(folder: Path) -> None:
    """Own CoNLL file: a tagger with scores by entity."""
    j = Journey(folder)
    conll_file(folder / "entities.conll", 600, 1)
    conll_file(folder / "new.conll", 60, 2)
    j.qkv("split", "entities.conll", "--out", "data", expect="train")
    corpora = sets('data.train=[{ files = ["data/train.conll"] }]', 'data.valid={ files = ["data/valid.conll"] }',
                   'data.test={ files = ["data/test.conll"] }')  # fmt: skip
    j.qkv(
        "train",
        "tags",
        "--out",
        "runs/tags",
        *corpora,
        *sets("train.steps=150", "train.warmup=20"),
        expect="best validation",
    )
    j.qkv("evaluate", "runs/tags", "--data", "new.conll", expect="PER")
    j.qkv("tag", "runs/tags", given="Anna Rossi lives in Oslo .\n", expect="B-LOC")
    j.qkv("export", "runs/tags", "exported", expect="wrote exported")
    j.transformers("from transformers import AutoTokenizer, AutoModelForTokenClassification\n"
                   "t, m = AutoTokenizer.from_pretrained('exported'), AutoModelForTokenClassification.from_pretrained('exported')\n"
                   "x = t('Anna lives in Oslo .', return_tensors='pt')\n"
                   "print([m.config.id2label[i] for i in m(**x).logits[0].argmax(-1).tolist()])", "B-LOC")  # fmt: skip


def text(folder: Path) -> None:
    """Own plain text: a language model."""
    j = Journey(folder)
    text_file(folder / "book.txt", 4000, 1)
    text_file(folder / "new.txt", 200, 2)
    j.qkv("split", "book.txt", "--format", "lines", "--out", "data", expect="train")
    corpora = sets('data.train=[{ files = ["data/train.txt"], documents = "lines" }]',
                   'data.valid={ files = ["data/valid.txt"], documents = "lines" }',
                   'data.test={ files = ["data/test.txt"], documents = "lines" }', "data.vocab_size=300")  # fmt: skip
    j.qkv("train", "grammar-lm", "--out", "runs/lm", *corpora, *sets("train.steps=150"), expect="best validation")
    j.qkv("evaluate", "runs/lm", "--data", "new.txt", expect="(?i)bits.per.byte")
    j.qkv("generate", "runs/lm", "The man sees", "--max-new-tokens", "12", expect=r"\w")
    j.qkv("export", "runs/lm", "exported", expect="wrote exported")
    ours = j.qkv("generate", "runs/lm", "The man sees", "--max-new-tokens", "5").splitlines()[-1].strip()
    j.transformers("from transformers import AutoTokenizer, AutoModelForCausalLM\n"
                   "t, m = AutoTokenizer.from_pretrained('exported'), AutoModelForCausalLM.from_pretrained('exported')\n"
                   "x = t('The man sees', return_tensors='pt')\n"
                   "x.pop('token_type_ids', None)\n"
                   "y = m.generate(**x, max_new_tokens=5, do_sample=False)[0]\n"
                   "print(t.decode(y, skip_special_tokens=True))", ours)  # fmt: skip


def pictures(folder: Path) -> None:
    """Own pictures in folders: an image classifier."""
    j = Journey(folder)
    for name, count, seed in (("train", 150, 1), ("valid", 20, 2), ("test", 20, 3), ("new", 20, 4)):
        picture_folders(folder / name, count, seed)
    corpora = sets('data.train=[{ images = "train" }]', 'data.valid={ images = "valid" }', 'data.test={ images = "test" }',
                   "model.image_size=16", "model.patch_size=4")  # fmt: skip
    j.qkv("train", "digits", "--out", "runs/shapes", *corpora, *sets("train.steps=200"), expect="best validation")
    j.qkv("evaluate", "runs/shapes", "--data", "new", "--confusion", "confusion.svg", expect="circles")
    j.qkv("classify", "runs/shapes", "new/circles/0.png", expect="circles|squares|stripes")
    j.qkv("export", "runs/shapes", "exported", expect="wrote exported")
    j.transformers("from transformers import AutoModelForImageClassification\n"
                   "print(type(AutoModelForImageClassification.from_pretrained('exported')).__name__)", "ViT")  # fmt: skip


JOURNEYS: dict[str, Callable[[Path], None]] = {
    "pairs": pairs,
    "labels": labels,
    "tags": tags,
    "text": text,
    "pictures": pictures,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=JOURNEYS, default=list(JOURNEYS))
    parser.add_argument("--folder", type=Path, help="keep everything here; default: a temporary folder")
    arguments = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.only:
            print(f"{name}: {JOURNEYS[name].__doc__}", flush=True)
            start = time.monotonic()
            try:
                JOURNEYS[name]((arguments.folder or Path(temporary)) / name)
            except Failed as error:
                failed.append(name)
                print(f"FAILED: {error}", flush=True)
            print(
                f"  {name}: {'failed' if name in failed else 'passed'} after {time.monotonic() - start:.0f} s",
                flush=True,
            )
    print(f"{len(arguments.only) - len(failed)} passed, {len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
