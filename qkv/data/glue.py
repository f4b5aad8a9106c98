"""GLUE (Wang et al. 2019): nine tasks of language understanding, from their TSV files.

A record is (sentence, label) or (sentence, second sentence, label); labels are as the files write them. The test sets of GLUE
have no public labels: their records, split "submission", end in an empty one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qkv.data.dataset_files import Held, Mapped, find, look_for
from qkv.data.fetch import cache, fetch
from qkv.data.lines import lines
from qkv.data.sources import Corpus, TableSource
from qkv.errors import ConfigError

GLUE = "https://dl.fbaipublicfiles.com/glue/data"
SENTEVAL = "https://dl.fbaipublicfiles.com/senteval/senteval_data"
MB = 1_000_000


@dataclass(frozen=True)
class GlueLayout:
    """Where a task's texts and labels are: names of columns, the first that the header has."""

    folder: str
    """Its name in GLUE's own layout."""
    texts: tuple[tuple[str, ...], ...]
    label: str = "label"
    headless: tuple[int, ...] = ()
    """Columns of files without a header: texts, label."""
    archive: str = ""
    """Its archive, where that is not FOLDER.zip."""
    train: tuple[str, ...] = ("train.tsv",)
    valid: tuple[str, ...] = ("dev.tsv",)
    test: tuple[str, ...] = ("test.tsv",)


PAIR = (("sentence1",), ("sentence2",))
TASKS = {
    "cola": GlueLayout("CoLA", (("sentence",),), headless=(3, 1)),
    "sst2": GlueLayout("SST-2", (("sentence", "content"),)),
    "mrpc": GlueLayout("MRPC", (("#1 String",), ("#2 String",)), "Quality", train=("train.tsv", "msr_paraphrase_train.txt"),
                 test=("msr_paraphrase_test.txt", "test.tsv")),
    "stsb": GlueLayout("STS-B", PAIR, "score", (5, 6, 4), train=("train.tsv", "sts-train.csv"),
                 valid=("dev.tsv", "sts-dev.csv"), test=("sts-test.csv", "test.tsv")),
    "qqp": GlueLayout("QQP", (("question1",), ("question2",)), "is_duplicate", archive="QQP-clean"),
    "mnli": GlueLayout("MNLI", PAIR, "gold_label", valid=("dev_matched.tsv",), test=("test_matched.tsv",)),
    "qnli": GlueLayout("QNLI", (("question",), ("sentence",)), archive="QNLIv2"),
    "rte": GlueLayout("RTE", PAIR),
    "wnli": GlueLayout("WNLI", PAIR),
}  # fmt: skip
MATCHED = ("dev_matched", "dev_mismatched", "test_matched", "test_mismatched")
"""MNLI's files, which can be asked for by name."""


def glue(name: str, split: str, local: Path | None) -> Corpus:
    """A split of a task: train, valid, test (where its labels are known), submission (the test set without them)."""
    if name not in TASKS:
        raise ConfigError(f"no data set 'glue/{name}': there are {', '.join('glue/' + task for task in TASKS)}")
    task = TASKS[name]
    wanted = {"train": task.train, "valid": task.valid, "test": task.test, "submission": task.test}.get(split)
    if name == "mnli" and split in MATCHED:
        wanted = (f"{split}.tsv",)
    if wanted is None:
        raise ConfigError(f"glue/{name} has no split {split!r}, but train, valid, test and submission")
    place = local or fetch_files(name)
    inner = [place / task.folder, place] if place.suffix != ".zip" else [place]
    if name == "mrpc" and split in ("train", "valid") and look_for(inner, task.valid) is None:
        return Held(table(task, find(inner, task.train), name), split, percent=10)
    if split == "test" and look_for(inner, wanted) is None and look_for(inner, task.valid) is not None:
        raise ConfigError(no_labels(name, f"{place} has no test set with labels"))
    found = find(inner, wanted if split != "submission" else tuple(reversed(wanted)))
    if split == "submission" or split.startswith("test_"):
        return Mapped(table(task, found, name, labelled=False), lambda record: (*record, ""))
    return table(task, found, name)


def fetch_files(name: str) -> Path:
    """The task's archive in the cache; MRPC, which GLUE does not hand out, as two files."""
    task = TASKS[name]
    if name != "mrpc":
        archive = f"{task.archive or task.folder}.zip"
        return fetch(f"{GLUE}/{archive}", cache() / "glue" / archive, 500 * MB)
    for part in ("train", "test"):
        file = f"msr_paraphrase_{part}.txt"
        fetch(f"{SENTEVAL}/{file}", cache() / "glue" / "MRPC" / file, 10 * MB)
    return cache() / "glue"


def table(task: GlueLayout, path: Path, name: str, labelled: bool = True) -> TableSource:
    """The columns of one file. A file of CoLA or STS-B without a header is known by its first line."""
    header = (next(lines(path), "") or "").split("\t")
    texts = [next((c for c in names if c in header), None) for names in task.texts]
    if None in texts and task.headless:
        return TableSource(path, task.headless if labelled else task.headless[:-1], kind=".tsv")
    if labelled and task.label not in header:
        raise ConfigError(no_labels(name, f"{path} has no labels"))
    columns = [c or names[0] for c, names in zip(texts, task.texts, strict=True)]
    return TableSource(path, [*columns, task.label] if labelled else columns, kind=".tsv")


def no_labels(name: str, what: str) -> str:
    return f'{what}: those of glue/{name} are not public; use split = "valid", or "submission" to answer it without'
