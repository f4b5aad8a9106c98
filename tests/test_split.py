"""`qkv split`: every record once, no text in two sets, the sizes that were asked for, files that training reads."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.commands import split as command
from qkv.config import DataConfig
from qkv.config.strict import validate
from qkv.data.corpora import corpus
from qkv.data.raw_records import RawRecords
from qkv.data.sources import Parallel, TableSource
from qkv.data.split import SPLITS, connect, plan
from qkv.data.tagged import ConllSource
from qkv.errors import QkvError
from tests.schemas import schema_of

Run = Callable[..., tuple[int, str, str]]

WORDS = st.sampled_from(["a", "b", "Good film", "good  film", "x y z", "", "no", "one, two", 'say "it"', "two\nlines"])
LABELS = st.sampled_from(["pos", "neg", "so"])
ROWS = st.lists(st.tuples(WORDS, LABELS, st.sampled_from(["u1", "u2", "u3", "u4", ""])), min_size=12, max_size=60)
SIZES = st.sampled_from([("0.1", "0.2"), ("10%", "2"), ("3", "0"), ("1", "1")])


def numbered(rows: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Every fourth text as it is, the others different."""
    return [(text if i % 4 == 0 else f"{text} number {i}", label, user) for i, (text, label, user) in enumerate(rows)]


def same(text: str) -> str:
    return " ".join(text.casefold().split())


def split_files(paths: list[Path], out: Path, **options: object) -> dict:
    """The report of `qkv split`."""
    screen = io.StringIO()
    with redirect_stdout(screen):
        command.run(paths, out=out, as_json=True, **options)  # type: ignore[arg-type]
    found: dict = json.loads(screen.getvalue())
    return found


def write_table(path: Path, rows: list[tuple[str, ...]], names: tuple[str, ...]) -> None:
    with open(path, "w", newline="") as file:
        if path.suffix == ".csv":
            csv.writer(file).writerows([names, *rows])
        elif path.suffix == ".jsonl":
            file.write("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
        else:
            file.write("".join("\t".join(row) + "\n" for row in (names, *rows)))


def read_splits(out: Path, ending: str, columns: tuple[str, ...]) -> dict[str, list]:
    found = {name: out / f"{name}{ending}" for name in SPLITS if (out / f"{name}{ending}").exists()}
    return {name: [record for _, record in TableSource(path, columns).read()] for name, path in found.items()}


# --- tables


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".jsonl"])
@settings(deadline=None, max_examples=25)
@given(rows=ROWS, sizes=SIZES, seed=st.integers(0, 3), grouped=st.booleans(), shuffle=st.booleans())
def test_every_row_is_in_one_set_and_no_text_in_two(
    ending: str, rows: list, sizes: tuple[str, str], seed: int, grouped: bool, shuffle: bool
) -> None:
    rows = numbered(rows)
    rows = [(a.replace("\n", " "), b, c) for a, b, c in rows] if ending == ".tsv" else rows
    rows = [row for row in rows if "".join(row).strip()]
    names = ("text", "label", "user")
    with TemporaryDirectory() as place:
        path, out = Path(place) / f"rows{ending}", Path(place) / "out"
        write_table(path, rows, names)
        try:
            report = split_files(
                [path],
                out,
                valid=sizes[0],
                test=sizes[1],
                seed=seed,
                group="user" if grouped else None,
                shuffle=shuffle,
            )
        except QkvError as error:
            assert "would be empty" in str(error) and (grouped or not shuffle or len(set(rows)) < len(rows))
            return
        found = read_splits(out, ending, names)
    assert Counter(row for some in found.values() for row in some) == Counter(rows)
    order = {row: i for i, row in enumerate(rows)}  # of equal rows the last
    for some in found.values():
        places = [order[row] for row in some if rows.count(row) == 1]
        assert places == sorted(places)  # the order of the file
    for column in (0, 2) if grouped else (0,):
        held = [{same(row[column]) for row in some} - {""} for some in found.values()]
        assert sum(map(len, held)) == len(set().union(*held))
    counts = {name: len(some) for name, some in found.items()}
    assert counts == {name: part["records"] for name, part in report["splits"].items()}


@settings(deadline=None, max_examples=50)
@given(count=st.integers(10, 300), share=st.sampled_from(["0.1", "0.25", "5%", "7"]), seed=st.integers(0, 9))
def test_sizes_are_exact_where_no_text_recurs(count: int, share: str, seed: int) -> None:
    with TemporaryDirectory() as place:
        path = Path(place) / "x.txt"
        path.write_text("".join(f"line {i}\n" for i in range(count)))
        found = plan(RawRecords([path]), share, "2", seed)
    wanted = {"0.1": round(count * 0.1), "0.25": round(count * 0.25), "5%": max(1, round(count * 0.05)), "7": 7}[share]
    assert found.counts == {"train": count - wanted - 2, "valid": wanted, "test": 2}


def test_groups_fill_a_set_as_far_as_they_fit(tmp_path: Path) -> None:
    """Thirty groups of three: ten records are asked for, nine fit."""
    (tmp_path / "x.txt").write_text("".join(f"line {i % 30}\n" for i in range(90)))
    found = plan(RawRecords([tmp_path / "x.txt"]), "10", "10")
    assert found.counts == {"train": 72, "valid": 9, "test": 9} and found.repeated() == (30, 90, 3)


def test_a_seed_decides_and_nothing_else(tmp_path: Path) -> None:
    lines = [f"line {i}\n" for i in range(200)]
    (tmp_path / "x.txt").write_text("".join(lines))
    chosen = [plan(RawRecords([tmp_path / "x.txt"]), "0.2", "0.2", seed).split.tolist() for seed in (1, 1, 2)]
    assert chosen[0] == chosen[1] != chosen[2]
    (tmp_path / "y.txt").write_text("".join(reversed(lines)))  # the same records in another order
    assert plan(RawRecords([tmp_path / "y.txt"]), "0.2", "0.2", 1).split.tolist()[::-1] == chosen[0]
    known = Counter(chosen[0])
    assert known == {0: 120, 1: 40, 2: 40}
    halves = [sum(split == 2 for split in chosen[0][a : a + 100]) for a in (0, 100)]
    assert min(halves) > 8  # from the whole file


def test_without_shuffling_the_end_of_the_file_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("".join(f"line {i}\n" for i in range(20)))
    assert (
        plan(RawRecords([tmp_path / "x.txt"]), "3", "0.1", shuffle=False).split.tolist() == [0] * 15 + [1] * 3 + [2] * 2
    )
    (tmp_path / "x.txt").write_text("".join(f"line {i % 19}\n" for i in range(20)))  # the last one is the first again
    assert plan(RawRecords([tmp_path / "x.txt"]), "3", "2", shuffle=False).split.tolist() == [0] * 14 + [1] * 3 + [
        2
    ] * 2 + [0]


def test_stratified_sets_have_each_label_as_often(tmp_path: Path) -> None:
    labels = ["common"] * 160 + ["half"] * 80 + ["rare"] * 20
    write_table(tmp_path / "x.tsv", [(f"text {i}", label) for i, label in enumerate(labels)], ("text", "label"))
    found = plan(RawRecords([tmp_path / "x.tsv"], label="label"), "0.25", "0.1")
    for name, share in (("valid", 0.25), ("test", 0.1)):
        held = Counter(label for label, split in zip(labels, found.split, strict=True) if SPLITS[split] == name)
        for label, count in Counter(labels).items():
            assert abs(held[label] - share * count) <= 1


# --- parallel files, sentences, documents


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=12, max_size=60), st.integers(0, 3))
def test_parallel_files_stay_in_step_and_share_neither_side(pairs: list[tuple[int, int]], seed: int) -> None:
    pairs = [*pairs, *((100 + i, 100 + i) for i in range(20))]
    with TemporaryDirectory() as place:
        en, de, out = Path(place) / "c.en", Path(place) / "c.de", Path(place) / "out"
        en.write_text("".join(f"word {a}\n" for a, _ in pairs))
        de.write_text("".join(f"Wort {b}\n" for _, b in pairs))
        split_files([en, de], out, valid="4", test="4", seed=seed)
        found = {name: [r for _, r in Parallel([out / f"{name}.en", out / f"{name}.de"]).read()] for name in SPLITS}
    assert Counter(r for some in found.values() for r in some) == Counter((f"word {a}", f"Wort {b}") for a, b in pairs)
    for side in (0, 1):
        held = [{record[side] for record in some} for some in found.values()]
        assert sum(map(len, held)) == len(set().union(*held))
    assert len(found["valid"]) <= 4 and len(found["test"]) <= 4


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=30))
def test_components_are_those_of_a_walk_from_record_to_record(keys: list[tuple[int, int]]) -> None:
    """0 is no key."""
    number = list(range(len(keys)))
    for _ in keys:
        for i, a in enumerate(keys):
            for j, b in enumerate(keys):
                if any(x and x == y for x, y in zip(a, b, strict=True)):
                    number[i] = number[j] = min(number[i], number[j])
    found = connect(np.array(keys, np.uint64).T)
    assert found.tolist() == [sorted(set(number)).index(n) for n in number]


def test_sentences_are_copied_with_their_comments(tmp_path: Path) -> None:
    words = [[f"w{i % 25}", f"v{i % 25}"] for i in range(30)]
    blocks = [
        f"# sent_id = {i}\n" + "".join(f"{j}\t{w}\t_\tNOUN" + "\t_" * 6 + "\n" for j, w in enumerate(some, 1)) + "\n"
        for i, some in enumerate(words)
    ]
    (tmp_path / "t.conllu.gz").write_bytes(gzip.compress("".join(blocks).encode()))
    report = split_files([tmp_path / "t.conllu.gz"], tmp_path, valid="5", test="5")
    texts = {name: (tmp_path / f"{name}.conllu").read_text() for name in SPLITS}
    assert Counter(block + "\n" for text in texts.values() for block in text.split("\n\n")[:-1]) == Counter(
        block[:-1] for block in blocks
    )
    held = [{record[0] for _, record in ConllSource(tmp_path / f"{name}.conllu").read()} for name in SPLITS]
    assert sum(map(len, held)) == 25 and report["together"]["groups"] == 5


def test_documents_between_blank_lines_and_lines(run: Run, tmp_path: Path) -> None:
    (tmp_path / "d.txt").write_text("".join(f"line {i}\nmore {i}\n\n\n" for i in range(20)))
    code, out, _ = run("split", tmp_path / "d.txt", "--out", tmp_path / "o")
    assert code == 0 and out.startswith("20 documents of") and 'documents = "blank"' in out
    texts = [block for name in SPLITS for block in (tmp_path / f"o/{name}.txt").read_text().split("\n\n") if block]
    assert sorted(texts) == sorted(f"line {i}\nmore {i}" for i in range(20))
    code, out, _ = run("split", tmp_path / "d.txt", "--out", tmp_path / "p", "--format", "lines")
    assert code == 0 and out.startswith("40 lines of") and "left out: 40 blank" in out


# --- what comes out is what training reads


def test_the_printed_lines_are_a_recipe_that_reads_the_files(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tomllib

    monkeypatch.chdir(tmp_path)
    rows = [(("pos", "neg")[i % 2], f"a film number {i},\nsaid he") for i in range(40)]
    write_table(tmp_path / "r.csv", rows, ("label", "text"))
    (tmp_path / "c.fr").write_text("".join(f"la ligne {i}\n" for i in range(40)))
    (tmp_path / "c.en").write_text("".join(f"the line {i}\n" for i in range(40)))
    cases = {("r.csv",): ("classification", [r[::-1] for r in rows]),
             ("c.fr", "c.en"): ("translation", [(f"la ligne {i}", f"the line {i}") for i in range(40)])}  # fmt: skip
    for files, (task, wanted) in cases.items():
        code, out, err = run("split", *files, "--out", f"data-{task}")
        assert code == 0, err
        data = validate(DataConfig, tomllib.loads(out[out.index("# in a recipe") :])["data"], "data")
        parts = [(data.train[0], "train"), (data.valid, "valid"), (data.test, "test")]
        read = [record for c, name in parts for _, record in corpus(c, data, name, schema_of(task)).read()]  # type: ignore[arg-type]
        assert sorted(read) == sorted(wanted)
    assert (data.source, data.target) == ("fr", "en")


def test_a_table_without_a_header_has_none_afterwards(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("".join(f"a film number {i}\tpos\n" for i in range(20)))
    code, out, _ = run("split", tmp_path / "x.tsv", "--out", tmp_path / "o")
    assert code == 0 and out.startswith("20 rows of") and "a header" not in out
    lines = [line for name in SPLITS for line in (tmp_path / f"o/{name}.tsv").read_text().splitlines()]
    assert len(lines) == 20
    code, out, _ = run("split", tmp_path / "x.tsv", "--out", tmp_path / "p", "--header")
    assert code == 0 and out.startswith("19 rows of")
    assert all((tmp_path / f"p/{name}.tsv").read_text().startswith("a film number 0\tpos\n") for name in SPLITS)


def test_pairs_in_a_table_share_neither_side_and_labels_may_recur(tmp_path: Path) -> None:
    (tmp_path / "p.tsv").write_text("".join(f"the line {i}\tdie Zeile {i % 15}\n" for i in range(30)))
    assert RawRecords([tmp_path / "p.tsv"]).text == [0]  # of 15 texts for 30 rows it is not sure
    (tmp_path / "p.tsv").write_text("".join(f"the line {i}\tdie Zeile {i % 25}\n" for i in range(30)))
    assert RawRecords([tmp_path / "p.tsv"]).text == [0, 1]
    assert plan(RawRecords([tmp_path / "p.tsv"]), "3", "3").repeated() == (5, 10, 2)
    write_table(tmp_path / "l.csv", [(f"{i}", "pos", f"a film {i}") for i in range(20)], ("id", "label", "text"))
    assert RawRecords([tmp_path / "l.csv"]).text == ["text"]


# --- what is refused


def test_nothing_is_overwritten_unasked(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("".join(f"line {i}\n" for i in range(20)))
    (tmp_path / "test.txt").write_text("mine\n")
    code, _, err = run("split", tmp_path / "x.txt")
    assert code == 2 and "test.txt exists" in err and len(err.splitlines()) == 1
    assert not (tmp_path / "train.txt").exists() and (tmp_path / "test.txt").read_text() == "mine\n"
    assert run("split", tmp_path / "x.txt", "--force")[0] == 0 and "mine" not in (tmp_path / "test.txt").read_text()
    code, _, err = run("split", tmp_path / "train.txt", "--force")
    assert code == 2 and "is the input file" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test.txt", "train.txt", "valid.txt", "x.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.tsv"], "cannot read absent.tsv"),
        (["-"], "standard input is read once"),
        (["x.tsv", "--valid", "1.5"], "a share below 1"),
        (["x.tsv", "--valid", "many"], "a share below 1"),
        (["x.tsv", "--valid", "15", "--test", "5"], "leave nothing to train on: there are 20 rows"),
        (["x.tsv", "--group", "author"], "no column 'author': it has text, label"),
        (["x.tsv", "--stratify", "label", "--no-shuffle"], "leave one out"),
        (["a.txt", "--group", "0"], "columns and headers are for tables"),
        (["x.tsv", "a.txt"], "several files are parallel ones"),
        (["a.txt", "b.txt"], "ends after line 20"),
        (["empty.txt"], "no lines to split"),
        (["same.txt"], "the test set would be empty"),
        (["tags.tsv"], "--format conll"),
        (["open.csv"], "a quotation that does not end"),
        (["bad.conllu"], "line 1: 1 of 2 columns"),
    ],
)
def test_bad_input_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "x.tsv", [(f"text number {i}", "pos") for i in range(20)], ("text", "label"))
    (tmp_path / "a.txt").write_text("".join(f"line {i}\n" for i in range(20)))
    (tmp_path / "b.txt").write_text("".join(f"line {i}\n" for i in range(21)))
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "same.txt").write_text("the same\n" * 20)
    (tmp_path / "tags.tsv").write_text("The\tDET\ndog\tNOUN\n\n" * 20)
    (tmp_path / "open.csv").write_text('text,label\n"a film,pos\n' + "b,neg\n" * 20)
    (tmp_path / "bad.conllu").write_text("word\n\n" * 20)
    before = sorted(path.name for path in tmp_path.iterdir())
    code, out, err = run("split", *arguments)
    assert code == 2 and out == "" and message in err and len(err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before
