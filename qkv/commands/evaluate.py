"""`qkv evaluate`: score a model on a test set, or a file of translations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.commands.common import Device, DeviceOption, Json
from qkv.errors import ConfigError

WHAT = typer.Argument(
    metavar="MODEL|HYPOTHESES",
    help="A run or model folder, or a file of translations, one per line.",
    show_default=False,
)
DATA = typer.Option(
    "--data", "-d", show_default=False,
    help="Evaluate the model on this file instead of its own test set: a table (.tsv, .csv, .jsonl) of texts and labels, pairs "
    "or questions; CoNLL or .conllu; text; SQuAD's .json; a folder of images. Give it twice for two parallel files.",
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
Source = Annotated[Path | None, typer.Option(
    "--source", show_default=False, help="Translation models: source texts, one per line; requires --references.")]  # fmt: skip
MetricNames = Annotated[str, typer.Option("--metrics", help="Translations: comma-separated list of bleu, chrf, ter.")]
Tokenize = Annotated[str, typer.Option("--tokenize", help="BLEU tokenizer: 13a, intl, char, zh, none.")]
Lower = Annotated[bool, typer.Option("--lower", help="Ignore case in BLEU and chrF.")]
Sentences = Annotated[bool, typer.Option(
    "--sentences", help="Translations: one line per sentence with number, scores, hypothesis, reference.")]  # fmt: skip
Beam = Annotated[int | None, typer.Option(
    "--beam", min=1, show_default=False,
    help="Translation models: beam size; 1 = greedy. Default: the model's own, else 4.")]  # fmt: skip
LengthPenalty = Annotated[float | None, typer.Option(
    "--length-penalty", show_default=False,
    help="Translation models: divide scores by length to this power. Default: the model's own, else 1.")]  # fmt: skip
Similarity = Annotated[list[Path] | None, typer.Option(
    "--similarity", show_default=False,
    help="Word vectors: a file of word pairs with similarity ratings; may be repeated.")]  # fmt: skip
Analogies = Annotated[Path | None, typer.Option(
    "--analogies", show_default=False, help="Word vectors: a file of analogies, four words per line.")]  # fmt: skip
Shots = Annotated[int | None, typer.Option(
    "--shots", min=0, show_default=False,
    help="Language models: predict the labels of --data from a prompt with this many solved examples; nothing is trained.")]  # fmt: skip
ShotsFrom = Annotated[Path | None, typer.Option(
    "--shots-from", show_default=False,
    help="With --shots: the table of the solved examples, such as the training set. Default: the other rows of --data.")]  # fmt: skip
Template = Annotated[str | None, typer.Option(
    "--template", show_default=False,
    help="With --shots: one example as text, with {text}, {label} and for pairs {second}; \\n is a line end. chat: turns of a "
    "conversation. Default: Text: {text}\\nLabel: {label}\\n\\n")]  # fmt: skip
ShotsSeed = Annotated[int, typer.Option("--seed", help="With --shots: seed of the choice of examples.")]
Generate = Annotated[bool, typer.Option(
    "--generate", help="With --shots: generate answers instead of comparing the log-probabilities of the labels.")]  # fmt: skip
Output = Annotated[Path | None, typer.Option(
    "--output", show_default=False, help="Also write the translations to this file.")]  # fmt: skip
Bootstrap = Annotated[int, typer.Option(
    "--bootstrap", min=0, help="Translations: bootstrap samples for confidence intervals; 0 = none.")]  # fmt: skip
References = Annotated[list[Path] | None, REFERENCES]
Data = Annotated[list[Path] | None, DATA]
Columns = Annotated[str | None, COLUMNS]


def run(
    what: Annotated[Path, WHAT], data: Data = None, columns: Columns = None,
    confusion: Annotated[Path | None, CONFUSION] = None,
    references: References = None, source: Source = None, metrics: MetricNames = "bleu,chrf,ter",
    beam: Beam = None, length_penalty: LengthPenalty = None, output: Output = None,
    bootstrap: Bootstrap = 1000, tokenize: Tokenize = "13a", lower: Lower = False, sentences: Sentences = False,
    similarity: Similarity = None, analogies: Analogies = None,
    shots: Shots = None, shots_from: ShotsFrom = None, template: Template = None, seed: ShotsSeed = 0,
    generate: Generate = False, as_json: Json = False, device: DeviceOption = Device.auto,
) -> None:  # fmt: skip
    """Score a model of any task on its run's test set, or on your own file.

    Classes, tags and images: also precision, recall and F1 of every class or
    entity, and the confusion matrix. Translations: BLEU, chrF2 and TER by
    sacreBLEU, with intervals, signatures and BLEU by length.

    [dim]qkv evaluate runs/my                                 # its own test set[/]
    [dim]qkv evaluate runs/topics --data new.tsv --confusion confusion.svg[/]
    [dim]qkv evaluate runs/tags --data new.conllu --json[/]
    [dim]qkv evaluate runs/demo --data test.en --data test.de[/]
    [dim]qkv evaluate runs/lm --data book.txt                 # bits per byte[/]
    [dim]qkv evaluate runs/lm --data dev.tsv --shots 4 --shots-from train.tsv[/]
    [dim]qkv evaluate hypotheses.txt --references test.de[/]
    [dim]qkv evaluate runs/word2vec --similarity wordsim353.tsv[/]
    """
    of_texts = {"--source": source, "--output": output, "--beam": beam, "--length-penalty": length_penalty,
                "--sentences": sentences or None}  # fmt: skip
    unused = [name for name, value in of_texts.items() if value is not None]
    if shots is not None or shots_from or template or generate:
        refuse_with_shots(unused, {"--references": references, "--similarity": similarity, "--analogies": analogies})
        how = {"shots": shots, "shots_from": shots_from, "template": template or "", "seed": seed, "generate": generate}
        return score_few_shot(what, data, columns, how, confusion, as_json, device)
    if asks_for_vectors(what, data, references, similarity, analogies):
        refuse_for_vectors(unused, references, {"--data": data, "--columns": columns, "--confusion": confusion})
        return score_word_vectors(what, list(similarity or []), analogies, as_json)
    check_options(data, source, references, columns, confusion)
    task = "translation" if references else task_of(what, bool(data))
    refuse_for_task(task, unused, what, confusion)
    if task != "translation":
        return score_task(what, list(data or []), columns, confusion, as_json, device)
    sources, targets = test_set(what, source, references, data, columns)
    hypotheses = translate_source(what, sources, beam, length_penalty, output, device)
    scoring: dict[str, Any] = {"tokenize": tokenize, "lowercase": lower}
    return print_scores(hypotheses, targets, metrics.split(","), scoring, bootstrap, sentences, as_json)


def asks_for_vectors(what: Path, data: Any, references: Any, similarity: Any, analogies: Any) -> bool:
    """Return whether word vectors are to be scored."""
    from qkv.vectors.store import holds_vectors

    return bool(similarity or analogies or (not references and not data and holds_vectors(what)))


def refuse_with_shots(unused: list[str], others: dict[str, Any]) -> None:
    """Refuse options that do not apply to few-shot evaluation."""
    if wrong := [*unused, *(name for name, value in others.items() if value)]:
        raise ConfigError(f"{wrong[0]} does not apply with --shots: leave it out")


def refuse_for_task(task: str, unused: list[str], what: Path, confusion: Path | None) -> None:
    """Refuse options of translation models for another task, and a confusion matrix for translations."""
    if task == "translation" and confusion:
        raise ConfigError("--confusion is for classes and tags: translations have no confusion matrix")
    if task != "translation" and unused:
        raise ConfigError(f"{unused[0]} is for translations, and {what} is of the task {task!r}: leave it out")


def refuse_for_vectors(unused: list[str], references: list[Path] | None, others: dict[str, Any]) -> None:
    """Refuse options that do not apply to word vectors."""
    if unused or references:
        raise ConfigError(f"{(*unused, '--references')[0]} is for translations, not for word vectors: leave it out")
    if wrong := [name for name, value in others.items() if value]:
        raise ConfigError(f"{wrong[0]} is for networks: word vectors take --similarity FILE and --analogies FILE")


def check_options(data: list[Path] | None, source: Path | None, references: list[Path] | None, columns: str | None,
                  confusion: Path | None) -> None:  # fmt: skip
    """Refuse options that contradict or need each other, and tables in place of text files."""
    no_tables(*([source] if source else []), *(references or []))
    if data and (source or references):
        raise ConfigError("--data contains both inputs and references: leave out --source and --references")
    if columns and not data:
        raise ConfigError("--columns are those of a table: give it with --data FILE")
    if confusion and confusion.suffix != ".svg":
        raise ConfigError(f"--confusion draws an .svg file, given {confusion}: give it that ending")


def to_stderr(text: str) -> None:
    """Print a note on standard error."""
    from rich.console import Console

    Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)


def no_tables(*paths: Path) -> None:
    """Refuse a table where a text file is needed."""
    from qkv.data.sources import TABLES, ending

    for path in paths:
        if ending(path) in TABLES:
            raise ConfigError(
                f"{path} is a table, and --source and --references are text files with one sentence per line: give it as "
                f"--data {path}, with --columns SOURCE,TARGET where these are not the first two"
            )


def task_of(what: Path, required: bool) -> str:
    """Return the task of a run or model; a file without --data holds translations."""
    from qkv.train.rescore import task_name

    return task_name(what) if required or what.is_dir() else "translation"


def parse_columns(columns: str | None) -> list[int | str]:
    """Parse comma-separated column names, or numbers from 0."""
    return [int(name) if name.isdecimal() else name for name in map(str.strip, (columns or "").split(",")) if name]


def test_set(what: Path, source: Path | None, references: list[Path] | None, data: list[Path] | None,
             columns: str | None) -> tuple[list[str] | None, list[list[str]]]:  # fmt: skip
    """Return the source texts (None if `what` is a file of translations) and one list of texts per reference."""
    from qkv.evaluate.scores import read_sentences
    from qkv.train.rescore import read_pairs

    if data:
        pairs = read_pairs(what, to_stderr, data, parse_columns(columns))
        return [pair[0] for pair in pairs], [[pair[1] for pair in pairs]]
    if not references:
        references, source = [of_run(what, "ref")], source or of_run(what, "src")
    targets = [read_sentences(path) for path in references]
    if what.is_dir() and source is None:
        raise ConfigError(f"{what} is a model: give its source texts with --source FILE")
    if source is not None and not what.is_dir():
        raise ConfigError(f"--source and --output are for a model, and {what} is not a folder")
    return None if source is None else read_sentences(source), targets


def print_scores(hypotheses: list[str], targets: list[list[str]], names: list[str], how: dict[str, Any], bootstrap: int,
                sentences: bool, as_json: bool) -> None:  # fmt: skip
    """Print the scores of each sentence, or of the whole set and by length."""
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


def score_word_vectors(what: Path, similarity: list[Path], analogies: Path | None, as_json: bool) -> None:
    """Score word vectors on the given files, or else on those of their run."""
    from qkv.commands.train import score_lines
    from qkv.config.vectors import load_vectors_recipe
    from qkv.vectors.evaluate import evaluation_files, score_vectors
    from qkv.vectors.space import load_vectors

    if not similarity and not analogies and (what / "recipe.toml").is_file():
        similarity, analogies = evaluation_files(load_vectors_recipe(what / "recipe.toml").vectors)
    found = score_vectors(load_vectors(what), similarity, analogies)
    if found is None:
        raise ConfigError(f"{what} holds word vectors: give --similarity FILE or --analogies FILE to score them on")
    print(json.dumps(found, indent=2, ensure_ascii=False) if as_json else "\n".join(score_lines({"test": found})))


def score_task(what: Path, data: list[Path], columns: str | None, confusion: Path | None, as_json: bool,
               device: Device) -> None:  # fmt: skip
    """Score a model of another task than translation, on its own test set or on files."""
    from qkv.train.evaluation import Evaluation
    from qkv.train.rescore import rescore

    found = Evaluation.from_json(rescore(what, to_stderr, data, parse_columns(columns), device.value))
    print_evaluation(found, what, confusion, as_json)


def score_few_shot(what: Path, data: list[Path] | None, columns: str | None, how: dict[str, Any], confusion: Path | None,
                   as_json: bool, device: Device) -> None:  # fmt: skip
    """Score a language model with prompts of solved examples."""
    from qkv.workflow import evaluate

    if how["shots"] is None:
        raise ConfigError("--shots-from, --template and --generate need --shots K")
    if not data or len(data) > 1:
        raise ConfigError("--shots needs one table of texts and labels: give it with --data FILE")
    found = evaluate(what, data[0], columns=parse_columns(columns), device=device.value, quiet=False, **how)
    print_evaluation(found, what, confusion, as_json)


def print_evaluation(found: Any, what: Path, confusion: Path | None, as_json: bool) -> None:
    """Print the scores of a model, and draw its confusion matrix."""
    from qkv.convert.files import write_text

    if confusion is not None:
        picture = found.picture()
        if picture is None:
            raise ConfigError(f"--confusion draws up to 50 classes, and {what} has {classes(found)}: leave it out")
        write_text(confusion, picture)
    print(json.dumps(found.to_json(), indent=2, ensure_ascii=False) if as_json else found)


def classes(found: Any) -> str:
    return "none" if found.report is None else f"{len(found.report.rows):,}"


def of_run(folder: Path, which: str) -> Path:
    """Return a file of the test set in a run folder: src, ref or hyp."""
    from qkv.convert.detect import find_run

    path = (find_run(folder) or folder) / f"test.{which}.txt"
    if not path.is_file():
        raise ConfigError(
            f"{folder} is not the folder of a run with a test set: give one with --data FILE, or say what is correct with "
            "--references FILE"
        )
    return path


def translate_source(what: Path, texts: list[str] | None, beam: int | None, length_penalty: float | None, output: Path | None,
               device: Device) -> list[str]:  # fmt: skip
    """Translate texts, with the model's own decoding settings unless given; without texts, read translations from a file."""
    from qkv.api import load
    from qkv.convert.files import write_text
    from qkv.evaluate.scores import read_sentences
    from qkv.tasks.translation import one_line

    if texts is None and output is not None:
        raise ConfigError(f"--source and --output are for a model, and {what} is not a folder")
    if texts is None:
        return read_sentences(what)
    model = load(what, device=device.value)
    found = [one_line(text) for text in model.translate(texts, beam=beam, length_penalty=length_penalty)]
    if output is not None:
        write_text(output, "".join(text + "\n" for text in found))
    return found


def print_sentences(hypotheses: list[str], references: list[list[str]], found: dict[str, list[float]],
                    as_json: bool) -> None:  # fmt: skip
    """Print one line per sentence, as tab-separated values or JSON."""
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
