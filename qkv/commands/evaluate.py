"""`qkv evaluate`: the scores of a model on a test set, or of a file of translations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.commands.common import Device, DeviceOption, Json
from qkv.errors import ConfigError

WHAT = typer.Argument(
    metavar="MODEL|HYPOTHESES", help="A run, a model, or a file of translations to score.", show_default=False
)
DATA = typer.Option(
    "--data", "-d", show_default=False,
    help="Evaluate the model on this file instead of its own test set: a table (.tsv, .csv, .jsonl) of texts and labels, pairs "
    "or questions; CoNLL or .conllu; text; SQuAD's .json; a folder of pictures. Twice for two parallel files.",
)  # fmt: skip
COLUMNS = typer.Option(
    "--columns", show_default=False,
    help="With a table as --data: its columns by name, or number from 0, such as text,label. Default: those that the run was "
    "trained with, else by its header, else the first ones.",
)  # fmt: skip
CONFUSION = typer.Option("--confusion", help="Draw the confusion matrix into this .svg file.", show_default=False)
REFERENCES = typer.Option(
    "--references", "-r", show_default=False,
    help="Correct translations, one per line; repeat it for several. Default: those of the run that is given.",
)  # fmt: skip
SOURCE = typer.Option(help="Translation models: source texts, one per line; requires --references.", show_default=False)
METRICS = typer.Option("--metrics", help="Translations only: comma-separated list of bleu, chrf, ter.")
TOKENIZE = typer.Option("--tokenize", help="How BLEU cuts words: 13a, intl, char, zh, none.")
LOWER = typer.Option("--lower", help="Ignore case in BLEU and chrF.")
SENTENCES = typer.Option(
    "--sentences", help="Of translations: one line per sentence with number, scores, hypothesis, reference."
)
BEAM = typer.Option(
    "--beam",
    min=1,
    help="With a translator: beam size; 1 = greedy. Default: the run's own, else 4.",
    show_default=False,
)
PENALTY = typer.Option(
    "--length-penalty",
    help="Translation models: divide scores by length to this power. Default: the run's own, else 1.",
    show_default=False,
)
SIMILARITY = typer.Option(
    "--similarity", help="Word vectors: a file of word pairs with judgements; may be repeated.", show_default=False
)
ANALOGIES = typer.Option(
    "--analogies", help="Word vectors: a file of analogies, four words a line.", show_default=False
)
OUTPUT = typer.Option("--output", help="Also write the translations to this file.", show_default=False)
BOOTSTRAP = typer.Option(
    "--bootstrap", min=0, help="Translations only: bootstrap samples for the confidence intervals; 0 = none."
)

References = Annotated[list[Path] | None, REFERENCES]
Metrics = Annotated[str, METRICS]
Tokenize = Annotated[str, TOKENIZE]
Lower = Annotated[bool, LOWER]
Data = Annotated[list[Path] | None, DATA]
Columns = Annotated[str | None, COLUMNS]


def run(
    what: Annotated[Path, WHAT],
    data: Data = None,
    columns: Columns = None,
    confusion: Annotated[Path | None, CONFUSION] = None,
    references: References = None,
    source: Annotated[Path | None, SOURCE] = None,
    metrics: Metrics = "bleu,chrf,ter",
    beam: Annotated[int | None, BEAM] = None,
    length_penalty: Annotated[float | None, PENALTY] = None,
    output: Annotated[Path | None, OUTPUT] = None,
    bootstrap: Annotated[int, BOOTSTRAP] = 1000,
    tokenize: Tokenize = "13a",
    lower: Lower = False,
    sentences: Annotated[bool, SENTENCES] = False,
    similarity: Annotated[list[Path] | None, SIMILARITY] = None,
    analogies: Annotated[Path | None, ANALOGIES] = None,
    as_json: Json = False,
    device: DeviceOption = Device.auto,
) -> None:
    """Score a model of any task on its run's test set, or on a file of yours.

    Classes, tags and pictures: also precision, recall and F1 of every class or
    entity, and the confusion matrix. Translations: BLEU, chrF2 and TER by
    sacreBLEU, with intervals, signatures and BLEU by length.

    [dim]qkv evaluate runs/my                                 # its own test set[/]
    [dim]qkv evaluate runs/topics --data new.tsv --columns text,label[/]
    [dim]qkv evaluate runs/topics --data new.tsv --confusion confusion.svg[/]
    [dim]qkv evaluate runs/tags --data new.conllu --json[/]
    [dim]qkv evaluate runs/demo --data test.en --data test.de[/]
    [dim]qkv evaluate runs/lm --data book.txt                 # bits per byte[/]
    [dim]qkv evaluate hypotheses.txt --references test.de[/]
    [dim]qkv evaluate runs/word2vec --similarity wordsim353.tsv[/]
    """
    from qkv.vectors.store import holds_vectors

    told = {"--source": source, "--output": output, "--beam": beam, "--length-penalty": length_penalty,
            "--sentences": sentences or None}  # fmt: skip
    unused = [name for name, value in told.items() if value is not None]
    if similarity or analogies or (not references and not data and holds_vectors(what)):
        of_networks(unused, references, {"--data": data, "--columns": columns, "--confusion": confusion})
        word_vectors(what, list(similarity or []), analogies, as_json)
        return
    no_tables(*([source] if source else []), *(references or []))
    belong_together(data, source, references, columns, confusion)
    task = "translation" if references else task_of(what, bool(data))
    if task != "translation":
        if unused:
            raise ConfigError(f"{unused[0]} is for translations, and {what} is of the task {task!r}: leave it out")
        other_task(what, list(data or []), columns, confusion, as_json, device)
        return
    if confusion:
        raise ConfigError("--confusion is for classes and tags: translations have no confusion matrix")
    sources, targets = test_set(what, source, references, data, columns)
    hypotheses = translated(what, sources, beam, length_penalty, output, device)
    how: dict[str, Any] = {"tokenize": tokenize, "lowercase": lower}
    tell_scores(hypotheses, targets, metrics.split(","), how, bootstrap, sentences, as_json)


def of_networks(unused: list[str], references: list[Path] | None, asked: dict[str, Any]) -> None:
    """Options that mean nothing to word vectors."""
    if unused or references:
        raise ConfigError(f"{(*unused, '--references')[0]} is for translations, not for word vectors: leave it out")
    if wrong := [name for name, value in asked.items() if value]:
        raise ConfigError(f"{wrong[0]} is for networks: word vectors take --similarity FILE and --analogies FILE")


def belong_together(data: list[Path] | None, source: Path | None, references: list[Path] | None, columns: str | None,
                    confusion: Path | None) -> None:  # fmt: skip
    """Options that contradict or need each other."""
    if data and (source or references):
        raise ConfigError("--data contains both inputs and references: leave out --source and --references")
    if columns and not data:
        raise ConfigError("--columns are those of a table: give it with --data FILE")
    if confusion and confusion.suffix != ".svg":
        raise ConfigError(f"--confusion draws an .svg file, given {confusion}: give it that ending")


def to_stderr(text: str) -> None:
    """What is worth knowing beside the scores."""
    from rich.console import Console

    Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)


def no_tables(*paths: Path) -> None:
    """A table has several columns: its rows are no sentences."""
    from qkv.data.sources import TABLES, ending

    for path in paths:
        if ending(path) in TABLES:
            raise ConfigError(
                f"{path} is a table, and --source and --references are text files with one sentence per line: give it as "
                f"--data {path}, with --columns SOURCE,TARGET where these are not the first two"
            )


def task_of(what: Path, required: bool) -> str:
    """The task of a run or a model; whatever has no recipe and no --data is scored as translations."""
    from qkv.train.rescore import task_name

    return task_name(what) if required or what.is_dir() else "translation"


def chosen(columns: str | None) -> list[int | str]:
    """text,label or 0,2 -> names and numbers."""
    return [int(name) if name.isdecimal() else name for name in map(str.strip, (columns or "").split(",")) if name]


def test_set(what: Path, source: Path | None, references: list[Path] | None, data: list[Path] | None,
             columns: str | None) -> tuple[list[str] | None, list[list[str]]]:  # fmt: skip
    """What is translated (None: `what` is a file of translations) and one list per reference."""
    from qkv.evaluate.scores import read_sentences
    from qkv.train.rescore import read_pairs

    if data:
        pairs = read_pairs(what, to_stderr, data, chosen(columns))
        return [pair[0] for pair in pairs], [[pair[1] for pair in pairs]]
    if not references:
        references, source = [of_run(what, "ref")], source or of_run(what, "src")
    targets = [read_sentences(path) for path in references]
    if what.is_dir() and source is None:
        raise ConfigError(f"{what} is a model: give its source texts with --source FILE")
    if source is not None and not what.is_dir():
        raise ConfigError(f"--source and --output are for a model, and {what} is not a folder")
    return None if source is None else read_sentences(source), targets


def tell_scores(hypotheses: list[str], targets: list[list[str]], names: list[str], how: dict[str, Any], bootstrap: int,
                sentences: bool, as_json: bool) -> None:  # fmt: skip
    """Of each sentence, or of all together and by their length."""
    from qkv.evaluate.scores import by_length, score, sentence_scores

    if sentences:
        print_sentences(hypotheses, targets, sentence_scores(hypotheses, targets, names, **how), as_json)
        return
    scores = score(hypotheses, targets, names, bootstrap, **how)
    buckets = by_length(hypotheses, targets, **how)
    if as_json:
        found = {"sentences": len(hypotheses), "scores": [s.to_json() for s in scores]}
        print(json.dumps({**found, "bleu_by_length": [vars(b) for b in buckets]}, indent=2, ensure_ascii=False))
        return
    for s in scores:
        print(f"{s!s:<32} {s.details}".rstrip())
    for s in scores:
        print(f"  {s.name}|{s.signature}")
    print("\nreference words   sentences   BLEU")
    for b in buckets:
        print(f"{f'{b.shortest}-{b.longest}':>15} {b.sentences:11,} {b.bleu:6.1f}")


def word_vectors(what: Path, similarity: list[Path], analogies: Path | None, as_json: bool) -> None:
    """Word vectors asked what is given, or else what their run was asked."""
    from qkv.commands.train import score_lines
    from qkv.config.vectors import load_vectors_recipe
    from qkv.vectors.evaluate import evaluation_files, score_vectors
    from qkv.vectors.space import load_vectors

    if not similarity and not analogies and (what / "recipe.toml").is_file():
        similarity, analogies = evaluation_files(load_vectors_recipe(what / "recipe.toml").vectors)
    found = score_vectors(load_vectors(what), similarity, analogies)
    if found is None:
        raise ConfigError(
            f"{what} holds word vectors: say what to ask them with --similarity FILE and --analogies FILE"
        )
    print(json.dumps(found, indent=2, ensure_ascii=False) if as_json else "\n".join(score_lines({"test": found})))


def other_task(what: Path, data: list[Path], columns: str | None, confusion: Path | None, as_json: bool,
               device: Device) -> None:  # fmt: skip
    """A model of any other task, on its own test set or on files."""
    from qkv.convert.files import write_text
    from qkv.train.evaluation import Evaluation
    from qkv.train.rescore import rescore

    found = Evaluation.from_json(rescore(what, to_stderr, data, chosen(columns), device.value))
    if confusion is not None:
        picture = found.picture()
        if picture is None:
            raise ConfigError(f"--confusion draws up to 50 classes, and {what} has {classes(found)}: leave it out")
        write_text(confusion, picture)
    print(json.dumps(found.to_json(), indent=2, ensure_ascii=False) if as_json else found)


def classes(found: Any) -> str:
    return "none" if found.report is None else f"{len(found.report.rows):,}"


def of_run(folder: Path, which: str) -> Path:
    """The test set that `qkv train` leaves in a run's folder: src, ref or hyp."""
    from qkv.convert.detect import find_run

    path = (find_run(folder) or folder) / f"test.{which}.txt"
    if not path.is_file():
        raise ConfigError(
            f"{folder} is not the folder of a run with a test set: give one with --data FILE, or say what is correct with "
            "--references FILE"
        )
    return path


def translated(what: Path, texts: list[str] | None, beam: int | None, length_penalty: float | None, output: Path | None,
               device: Device) -> list[str]:  # fmt: skip
    """What the model makes of some texts; a run searches as it did when it was scored, unless told otherwise. Without texts,
    the translations in a file."""
    from qkv.api import load
    from qkv.convert.files import write_text
    from qkv.evaluate.scores import read_sentences
    from qkv.tasks.translation import one_line

    if texts is None and output is not None:
        raise ConfigError(f"--source and --output are for a model, and {what} is not a folder")
    if texts is None:
        return read_sentences(what)
    model = load(what, device=device.value)  # which searches as its run did, unless told otherwise
    found = [one_line(text) for text in model.translate(texts, beam=beam, length_penalty=length_penalty)]
    if output is not None:
        write_text(output, "".join(text + "\n" for text in found))
    return found


def print_sentences(hypotheses: list[str], references: list[list[str]], found: dict[str, list[float]],
                    as_json: bool) -> None:  # fmt: skip
    """One line per sentence, as tab-separated values or JSON."""
    titles = ["line", *found, "hypothesis", *["reference"] * len(references)]
    if not as_json:
        print("\t".join(titles))
    for i, hypothesis in enumerate(hypotheses):
        numbers = {name: values[i] for name, values in found.items()}
        texts = [hypothesis, *(stream[i] for stream in references)]
        if as_json:
            row = {"line": i + 1, **numbers, "hypothesis": texts[0], "references": texts[1:]}
            print(json.dumps(row, ensure_ascii=False))
        else:
            cells = [f"{value:.2f}" for value in numbers.values()] + [text.replace("\t", " ") for text in texts]
            print("\t".join([str(i + 1), *cells]))
