"""`qkv evaluate`: score a model on a test set, or a file of translations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.commands.common import Device, DeviceOption, Json, PrecisionOption, parse_columns, to_stderr
from qkv.commands.workers import Workers, with_workers
from qkv.errors import ConfigError

WHAT = typer.Argument(
    metavar="MODEL|HYPOTHESES", help="A run or model folder, or a file of translations, one per line."
)
DATA = typer.Option(
    "--data", "-d",
    help="Evaluate the model on this file instead of its own test set: a table (.tsv, .csv, .jsonl) of texts and labels, pairs "
    "or questions; CoNLL or .conllu; text; SQuAD's .json; a folder of images. Repeat the option for two parallel files.",
)  # fmt: skip
COLUMNS = typer.Option(
    help="With a table as --data: its columns by name, or by number from 0, such as text,label. Default: those that the run was "
    "trained with, else those that its header names, else the first ones."
)
CONFUSION = typer.Option(help="Draw the confusion matrix into this .svg file.")
REFERENCES = typer.Option(
    "--references", "-r",
    help="Correct translations, one per line; repeat the option for several references. Default: those of the run.",
)  # fmt: skip
SOURCE = typer.Option(help="Translation models: source texts, one per line; requires --references.")
METRICS = typer.Option(help="Translations: comma-separated list of bleu, chrf, ter.")
BEAM = typer.Option(min=1, help="Translation models: beam size; 1 = greedy. Default: the model's own, else 4.")
LENGTH = typer.Option(
    help="Translation models: divide scores by length to this power. Default: the model's own, else 1."
)
OUTPUT = typer.Option(help="Also write the translations to this file.")
BOOTSTRAP = typer.Option(min=0, help="Translations: bootstrap samples for confidence intervals; 0 = none.")
SENTENCES = typer.Option(
    "--sentences", help="Translations: one line per sentence with number, scores, hypothesis, reference."
)
SIMILARITY = typer.Option(help="Word vectors: a file of word pairs with similarity ratings; may be repeated.")
ANALOGIES = typer.Option(help="Word vectors: a file of analogies, four words per line.")
SHOTS = typer.Option(
    min=0, help="Language models: predict the labels of --data from a prompt with this many solved examples; nothing is trained."
)  # fmt: skip
SHOTS_FROM = typer.Option(
    help="With --shots: the table of the solved examples, such as the training set. Default: the other rows of --data."
)
TEMPLATE = typer.Option(
    help="With --shots: format of one example, with {text}, {label} and, for pairs, {second}; \\n is a line break. chat: the examples "
    "are turns of a conversation. Default: Text: {text}\\nLabel: {label}\\n\\n"
)
SEED = typer.Option(help="With --shots: random seed for the choice of examples.")
GENERATE = typer.Option(
    "--generate", help="With --shots: generate answers instead of comparing the log-probabilities of the labels."
)
SAME_SHOTS = typer.Option(
    "--same-shots",
    help="With --shots: use the same examples for all rows, which is faster: their tokens are read once.",
)
Data = Annotated[list[Path] | None, DATA]
Columns = Annotated[str | None, COLUMNS]
References = Annotated[list[Path] | None, REFERENCES]
Tokenize = Annotated[str, typer.Option(help="BLEU tokenizer: 13a, intl, char, zh, none.")]
Lower = Annotated[bool, typer.Option("--lower", help="Ignore case in BLEU and chrF.")]
SHOT_OPTIONS = ("shots", "shots_from", "template", "seed", "generate", "same_shots")
NO_SHOTS: Mapping[str, Any] = {}


@with_workers
def run(
    what: Annotated[Path, WHAT], data: Data = None, columns: Columns = None,
    confusion: Annotated[Path | None, CONFUSION] = None, references: References = None,
    source: Annotated[Path | None, SOURCE] = None, metrics: Annotated[str, METRICS] = "bleu,chrf,ter",
    beam: Annotated[int | None, BEAM] = None, length_penalty: Annotated[float | None, LENGTH] = None,
    output: Annotated[Path | None, OUTPUT] = None, bootstrap: Annotated[int, BOOTSTRAP] = 1000,
    tokenize: Tokenize = "13a", lower: Lower = False, sentences: Annotated[bool, SENTENCES] = False,
    similarity: Annotated[list[Path] | None, SIMILARITY] = None, analogies: Annotated[Path | None, ANALOGIES] = None,
    shots: Annotated[int | None, SHOTS] = None, shots_from: Annotated[Path | None, SHOTS_FROM] = None,
    template: Annotated[str | None, TEMPLATE] = None, seed: Annotated[int, SEED] = 0,
    generate: Annotated[bool, GENERATE] = False, same_shots: Annotated[bool, SAME_SHOTS] = False, as_json: Json = False,
    workers: Workers = 1, device: DeviceOption = Device.auto, precision: PrecisionOption = None,
) -> None:  # fmt: skip
    """Score a model of any task on its run's test set, or on your own file.

    Classes, tags and images: also precision, recall and F1 of every class or
    entity, and the confusion matrix. Translations: BLEU, chrF2 and TER by
    sacreBLEU, with 95 % intervals, signatures and BLEU by length. Language
    models: with --shots, few-shot prompts on labelled texts.

    [dim]qkv evaluate runs/my                                 # its own test set[/]
    [dim]qkv evaluate runs/topics --data new.tsv --confusion confusion.svg[/]
    [dim]qkv evaluate runs/demo --data test.en --data test.de[/]
    [dim]qkv evaluate runs/lm --data book.txt                 # bits per byte[/]
    [dim]qkv evaluate runs/lm --data dev.tsv --shots 4 --shots-from train.tsv[/]
    [dim]qkv evaluate hypotheses.txt --references test.de[/]
    [dim]qkv evaluate runs/word2vec --similarity wordsim353.tsv[/]
    """
    from qkv.vectors.store import holds_vectors

    of_texts = {"--source": source, "--output": output, "--beam": beam, "--length-penalty": length_penalty is not None,
                "--sentences": sentences}  # fmt: skip
    if shots is not None or shots_from or template or generate or same_shots:
        refuse({**of_texts, "--references": references, "--similarity": similarity, "--analogies": analogies},
               "does not apply with --shots: leave it out")  # fmt: skip
        how = dict(zip(SHOT_OPTIONS, (shots, shots_from, template or "", seed, generate, same_shots), strict=True))
        return score_model(what, data, columns, confusion, as_json, device, precision, how)
    if similarity or analogies or (not references and not data and holds_vectors(what)):
        of_networks = {"--data": data, "--columns": columns, "--confusion": confusion}
        refuse_for_vectors({**of_texts, "--references": references}, of_networks)
        return score_word_vectors(what, list(similarity or []), analogies, as_json)
    check_options(data, source, references, columns, confusion)
    task = "translation" if references else task_of(what, bool(data))
    if task != "translation":
        refuse(of_texts, f"is for translations, and the task of {what} is {task!r}: leave it out")
        return score_model(what, data, columns, confusion, as_json, device, precision)
    refuse({"--confusion": confusion}, "is for classes and tags: translations have no confusion matrix")
    sources, targets = test_set(what, source, references, data, columns)
    hypotheses = translate_source(what, sources, beam, length_penalty, output, device, precision)
    return print_scores(hypotheses, targets, metrics.split(","), tokenize, lower, bootstrap, sentences, as_json)


def refuse(options: dict[str, Any], why: str) -> None:
    """Refuse the first of these options that is given."""
    if wrong := [name for name, value in options.items() if value]:
        raise ConfigError(f"{wrong[0]} {why}")


def refuse_for_vectors(of_texts: dict[str, Any], of_networks: dict[str, Any]) -> None:
    """Refuse options that do not apply to word vectors."""
    refuse(of_texts, "is for translations, not for word vectors: leave it out")
    refuse(of_networks, "is for networks: word vectors take --similarity FILE and --analogies FILE")


def check_options(data: list[Path] | None, source: Path | None, references: list[Path] | None, columns: str | None,
                  confusion: Path | None) -> None:  # fmt: skip
    """Refuse options that contradict or need each other, and tables in place of text files."""
    no_tables(*([source] if source else []), *(references or []))
    if data and (source or references):
        raise ConfigError("--data contains both inputs and references: leave out --source and --references")
    if columns and not data:
        raise ConfigError("--columns selects columns of a table: give the table with --data FILE")
    if confusion and confusion.suffix != ".svg":
        raise ConfigError(f"--confusion writes an .svg file, given {confusion}: use a name that ends in .svg")


def no_tables(*paths: Path) -> None:
    """Refuse a table where a text file is needed."""
    from qkv.data.sources import TABLES, ending

    for path in paths:
        if ending(path) in TABLES:
            raise ConfigError(
                f"{path} is a table, but --source and --references take text files with one sentence per line: give it as "
                f"--data {path}, with --columns SOURCE,TARGET unless these are the first two columns"
            )


def task_of(what: Path, required: bool) -> str:
    """Return the task of a run or model; a file without --data holds translations."""
    from qkv.train.rescore import task_name

    return task_name(what) if required or what.is_dir() else "translation"


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
    if not what.is_dir():
        refuse({"--source and --output": source}, f"are for a model, and {what} is not a folder")
    return None if source is None else read_sentences(source), targets


def print_scores(hypotheses: list[str], targets: list[list[str]], names: list[str], tokenize: str, lower: bool, bootstrap: int,
                 sentences: bool, as_json: bool) -> None:  # fmt: skip
    """Print the scores of each sentence, or of the whole set and by length."""
    from qkv.evaluate.scores import by_length, score, sentence_scores

    how: dict[str, Any] = {"tokenize": tokenize, "lowercase": lower}
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
    from qkv.config.vectors import load_vectors_recipe
    from qkv.train.evaluation import score_lines
    from qkv.vectors.evaluate import evaluation_files, score_vectors
    from qkv.vectors.space import load_vectors

    if not similarity and not analogies and (what / "recipe.toml").is_file():
        similarity, analogies = evaluation_files(load_vectors_recipe(what / "recipe.toml").vectors)
    found = score_vectors(load_vectors(what), similarity, analogies)
    if found is None:
        raise ConfigError(f"{what} contains word vectors: give --similarity FILE or --analogies FILE to score them on")
    print(json.dumps(found, indent=2, ensure_ascii=False) if as_json else "\n".join(score_lines({"test": found})))


def score_model(what: Path, data: list[Path] | None, columns: str | None, confusion: Path | None, as_json: bool,
                device: Device, precision: str | None = None, how: Mapping[str, Any] = NO_SHOTS) -> None:  # fmt: skip
    """Score a model of a task other than translation on its own test set or on files; a language model, if `how` has its
    shots, with prompts of solved examples. Print the scores and draw the confusion matrix."""
    from qkv.convert.files import write_text
    from qkv.distributed import is_rank_zero
    from qkv.workflow import evaluate

    if how and how["shots"] is None:
        raise ConfigError("--shots-from, --template, --generate and --same-shots need --shots K")
    if how and len(data or []) != 1:
        raise ConfigError("--shots needs one table of texts and labels: give it with --data FILE")
    found = evaluate(
        what, data, columns=parse_columns(columns), device=device.value, precision=precision, quiet=False, **how
    )
    if confusion is not None:
        picture = found.picture()
        if picture is None:
            classes = "none" if found.report is None else f"{len(found.report.rows):,}"
            raise ConfigError(f"--confusion draws up to 50 classes, but {what} has {classes}: leave it out")
        if is_rank_zero():
            write_text(confusion, picture)
    print(json.dumps(found.to_json(), indent=2, ensure_ascii=False) if as_json else found)


def of_run(folder: Path, which: str) -> Path:
    """Return a file of the test set in a run folder: src, ref or hyp."""
    from qkv.convert.detect import find_run

    path = (find_run(folder) or folder) / f"test.{which}.txt"
    if not path.is_file():
        raise ConfigError(
            f"{folder} is not a run with a test set: give a test set with --data FILE, or correct translations with "
            "--references FILE"
        )
    return path


def translate_source(what: Path, texts: list[str] | None, beam: int | None, length_penalty: float | None, output: Path | None,
               device: Device, precision: str | None = None) -> list[str]:  # fmt: skip
    """Translate texts, with the model's own decoding settings unless given; without texts, read translations from a file."""
    from qkv.api import load
    from qkv.convert.files import write_text
    from qkv.distributed import is_rank_zero
    from qkv.evaluate.scores import read_sentences
    from qkv.shared_work import shared_parts
    from qkv.tasks.translation import one_line

    if texts is None:
        refuse({"--source and --output": output}, f"are for a model, and {what} is not a folder")
        return read_sentences(what)
    model = load(what, device.value, precision)
    translate = lambda some: model.translate(some, beam=beam, length_penalty=length_penalty)  # noqa: E731
    found = [one_line(text) for text in shared_parts(translate, texts)]
    if output is not None and is_rank_zero():
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
