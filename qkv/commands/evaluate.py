"""`qkv evaluate`: how good translations are, or a model that makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.commands.common import Device, DeviceOption, Json, search_of
from qkv.errors import ConfigError

WHAT = typer.Argument(
    metavar="HYPOTHESES|MODEL", help="A file of translations, or the model that makes them.", show_default=False
)
REFERENCES = typer.Option(
    "--references", "-r", show_default=False,
    help="Correct translations, one per line; repeat it for several. Default: those of the run that is given.",
)  # fmt: skip
METRICS = typer.Option("--metrics", help="Some of bleu, chrf, ter.")
TOKENIZE = typer.Option("--tokenize", help="How BLEU cuts words: 13a, intl, char, zh, none.")
LOWER = typer.Option("--lower", help="Ignore case in BLEU and chrF.")
SENTENCES = typer.Option("--sentences", help="Print one line per sentence: number, scores, hypothesis, reference.")
BEAM = typer.Option(
    "--beam",
    min=1,
    help="With a model: hypotheses kept; 1 = greedy. Default: the run's own, else 4.",
    show_default=False,
)
PENALTY = typer.Option(
    "--length-penalty", help="With a model: 0 favours short ones. Default: the run's own, else 1.", show_default=False
)
SIMILARITY = typer.Option(
    "--similarity", help="Word vectors: a file of word pairs with judgements; may be repeated.", show_default=False
)
ANALOGIES = typer.Option(
    "--analogies", help="Word vectors: a file of analogies, four words a line.", show_default=False
)
OUTPUT = typer.Option("--output", help="Also write the model's translations to this file.", show_default=False)

References = Annotated[list[Path] | None, REFERENCES]
Metrics = Annotated[str, METRICS]
Tokenize = Annotated[str, TOKENIZE]
Lower = Annotated[bool, LOWER]


def run(
    what: Annotated[Path, WHAT],
    references: References = None,
    source: Annotated[Path | None, typer.Option(help="With a model: what it translates.", show_default=False)] = None,
    metrics: Metrics = "bleu,chrf,ter",
    beam: Annotated[int | None, BEAM] = None,
    length_penalty: Annotated[float | None, PENALTY] = None,
    output: Annotated[Path | None, OUTPUT] = None,
    bootstrap: Annotated[int, typer.Option(min=0, help="Resampled test sets for the intervals; 0 = none.")] = 1000,
    tokenize: Tokenize = "13a",
    lower: Lower = False,
    sentences: Annotated[bool, SENTENCES] = False,
    similarity: Annotated[list[Path] | None, SIMILARITY] = None,
    analogies: Annotated[Path | None, ANALOGIES] = None,
    as_json: Json = False,
    device: DeviceOption = Device.auto,
) -> None:
    """Score translations with sacreBLEU (BLEU, chrF2, TER, with intervals, signatures and BLEU by length), or a run of any
    task with the metrics of that task.

    [dim]qkv evaluate hypotheses.txt --references test.de[/]
    [dim]qkv evaluate runs/demo          # the run's own test set, translated anew[/]
    [dim]qkv evaluate runs/tags          # any other task: its own test set[/]
    [dim]qkv evaluate my-model --source test.en --references test.de --beam 4 --json[/]
    [dim]qkv evaluate runs/word2vec --similarity wordsim353.tsv[/]
    [dim]qkv evaluate vectors.bin --analogies questions-words.txt   # word2vec's[/]
    """
    from qkv.evaluate.scores import read_sentences
    from qkv.vectors.store import holds_vectors

    told = {"--source": source, "--output": output, "--beam": beam, "--length-penalty": length_penalty}
    unused = [name for name, value in told.items() if value is not None]
    if similarity or analogies or (not references and holds_vectors(what)):
        if unused or references:
            raise ConfigError(f"{(*unused, '--references')[0]} is for translations, not for word vectors: leave it out")
        word_vectors(what, list(similarity or []), analogies, as_json)
        return
    if not references and (what / "recipe.toml").is_file() and (task := task_name(what)) != "translation":
        if unused:
            raise ConfigError(
                f"{unused[0]} is for translations, and {what} is a run of the task {task!r}: leave it out"
            )
        other_task(what, as_json)
        return
    if not references:
        references, source = [of_run(what, "ref")], source or of_run(what, "src")
    targets = [read_sentences(path) for path in references]
    if what.is_dir():
        hypotheses = translations(what, source, beam, length_penalty, output, device)
    elif source or output:
        raise ConfigError(f"--source and --output are for a model, and {what} is not a folder")
    else:
        hypotheses = read_sentences(what)
    how: dict[str, Any] = {"tokenize": tokenize, "lowercase": lower}
    tell_scores(hypotheses, targets, metrics.split(","), how, bootstrap, sentences, as_json)


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


def task_name(folder: Path) -> str:
    from qkv.train.again import recipe_of

    return recipe_of(folder).task


def word_vectors(what: Path, similarity: list[Path], analogies: Path | None, as_json: bool) -> None:
    """Word vectors asked what is given, or else what their run was asked."""
    from qkv.commands.train import score_lines
    from qkv.config.vectors import load_vectors_recipe
    from qkv.vectors.judge import questions, scored
    from qkv.vectors.store import open_vectors

    if not similarity and not analogies and (what / "recipe.toml").is_file():
        similarity, analogies = questions(load_vectors_recipe(what / "recipe.toml").vectors)
    found = scored(open_vectors(what), similarity, analogies)
    if found is None:
        raise ConfigError(
            f"{what} holds word vectors: say what to ask them with --similarity FILE and --analogies FILE"
        )
    print(json.dumps(found, indent=2, ensure_ascii=False) if as_json else "\n".join(score_lines({"test": found})))


def other_task(folder: Path, as_json: bool) -> None:
    """A run of any other task: its best model on its own test set."""
    from rich.console import Console

    from qkv.commands.train import score_lines
    from qkv.train.again import ask

    console = Console(stderr=True)
    found = ask(folder, [], lambda text: console.print(text, markup=False, highlight=False))
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        print("\n".join(score_lines({"test": found})))


def of_run(folder: Path, which: str) -> Path:
    """The test set that `qkv train` leaves in a run's folder: src, ref or hyp."""
    path = folder / f"test.{which}.txt"
    if not path.is_file():
        raise ConfigError(f"{folder} is not the folder of a run with a test set: say what is correct with --references")
    return path


def translations(folder: Path, source: Path | None, beam: int | None, length_penalty: float | None, output: Path | None,
                 device: Device) -> list[str]:  # fmt: skip
    """What the model makes of the source file; a run searches as it did when it was scored, unless told otherwise."""
    from qkv.api import load
    from qkv.convert.files import write_text
    from qkv.evaluate.scores import read_sentences
    from qkv.tasks.translation import one_line

    if source is None:
        raise ConfigError(f"{folder} is a model: say what it translates with --source FILE")
    texts, search = read_sentences(source), search_of(folder, beam, length_penalty)
    model = load(folder, device=device.value)
    found = [one_line(text) for text in model.translate(texts, **search)]
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
