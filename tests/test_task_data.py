"""The records of every task: files, tables, named data sets, the standard library, the grammar; exact, resumable, split."""

from __future__ import annotations

import gzip
import json
import lzma
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config import CorpusConfig, DataConfig, validate
from qkv.data import documents, glue, textsets
from qkv.data.corpora import Share, corpus, take_share, training
from qkv.data.documents import Documents
from qkv.data.grammar import split_of
from qkv.data.grammar_tasks import GrammarRecords
from qkv.data.lines import MAX_LINE
from qkv.data.sources import Corpus, InMemorySource, PartialRecord, Record
from qkv.data.stdlib import StandardLibrary
from qkv.data.stdlib import split_of as module_split
from qkv.data.tagged import ConllSource
from qkv.errors import ConfigError, FileError
from tests.schemas import TEXTS, schema_of
from tests.test_datasets import Server, zipped

SPLITS = ("train", "valid", "test")


def made(task: str, split: str = "train", root: Path | str = "", **fields: Any) -> Corpus:
    """The corpus of a configuration with these fields."""
    c = CorpusConfig(**fields)
    return corpus(c, DataConfig(train=(c,), valid=c, root=str(root)), split, schema_of(task))


def records(source: Corpus) -> list[Record]:
    return [record for _, record in source.read()]


def goes_on(source: Corpus) -> None:
    """Reading from behind any record = having read up to there."""
    everything = list(source.read())
    numbers = [number for number, _ in everything]
    assert numbers == sorted(set(numbers))
    for number in numbers[:: max(1, len(numbers) // 7)]:
        assert list(source.read(number)) == [(n, r) for n, r in everything if n > number]


# --- documents of text files


def blank_parts_left_out(texts: list[str], low: float, high: float) -> str:
    """What is between two shares of all characters; of a file in which that is blank, nothing."""
    size = len("".join(texts))
    begins = accumulate(map(len, texts), initial=0)
    bounds = int(low * size), int(high * size)
    parts = [text[max(bounds[0] - at, 0) : max(bounds[1] - at, 0)] for at, text in zip(begins, texts, strict=False)]
    return "".join(part for part in parts if part.strip())


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(
        st.lists(st.sampled_from(["a", "b ", "ü\n", "\n\nx", "😀\r\n"]), max_size=30).map("".join),
        min_size=1,
        max_size=4,
    ),
    piece=st.integers(5, 20),  # a document of blanks is left out where it is not longer than a piece
    shares=st.lists(st.floats(0.01, 0.99), max_size=3),
)
def test_files_keep_every_character_and_shares_cut_them(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], piece: int, shares: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    paths = [folder / f"{i}.txt" for i in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PIECE", piece)
        for low, high in [(0.0, 1.0), *pairwise([0.0, *sorted(set(shares)), 1.0])]:
            source = take_share(Documents(paths), (low, high))
            wanted = blank_parts_left_out(texts, low, high)
            if not wanted:
                with pytest.raises(FileError, match=r"no text (at all|in this share)"):
                    records(source)
                continue
            found = records(source)
            assert "".join(text for (text,) in found) == wanted
            assert all(0 < len(text) < 2 * piece for (text,) in found)
            assert not isinstance(found[-1], PartialRecord)  # the last of a document is marked by being none
            goes_on(source)
        if any(text.strip() for text in texts):
            ends = sum(not isinstance(record, PartialRecord) for record in records(Documents(paths)))
            assert ends == sum(bool(text.strip()) for text in texts)


def test_what_a_document_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("\ufeffone\ntwo\r\n\n\nthree\n", encoding="utf-8", newline="")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"four"))
    files = ("a.txt", "b.txt.gz")
    whole, blocks = [("one\ntwo\r\n\n\nthree\n",), ("four",)], [("one\ntwo",), ("three",), ("four",)]
    lines = [("one",), ("two",), ("three",), ("four",)]
    for task in (task for task in TEXTS if schema_of(task).plain):
        assert records(made(task, root=tmp_path, files=files)) == (whole if task == "language" else blocks)
        for by, wanted in (("file", whole), ("blank", blocks), ("lines", lines)):
            source = made(task, root=tmp_path, files=files, documents=by)
            assert records(source) == wanted
            assert source.skipped == ({"an empty document": 2} if by == "lines" else {})
            goes_on(source)
    monkeypatch.setattr(documents, "PIECE", 3)
    found = records(made("language", root=tmp_path, files=("b.txt.gz",), documents="lines"))
    assert found == [("fou",), ("r",)] and [isinstance(r, PartialRecord) for r in found] == [True, False]


def test_the_split_of_nanogpt(tmp_path: Path) -> None:
    text = "".join(f"{i}: to be or not to be\n" for i in range(20_001))
    (tmp_path / "input.txt").write_text(text)
    train, valid = (
        "".join(t for (t,) in records(made("language", s, dataset="tinyshakespeare", path=str(tmp_path))))
        for s in SPLITS[:2]
    )
    assert (train, valid) == (text[: int(0.9 * len(text))], text[int(0.9 * len(text)) :])
    one = {"files": (str(tmp_path / "input.txt"),)}
    assert "".join(t for (t,) in records(made("language", **one, share=(0.0, 0.9)))) == train
    half = made("language", "valid", dataset="tinyshakespeare", path=str(tmp_path), share=(0.0, 0.5))
    assert "".join(t for (t,) in records(half)) == valid[: len(valid) // 2]
    with pytest.raises(ConfigError, match="tinyshakespeare has no split 'test'"):
        made("language", "test", dataset="tinyshakespeare", path=str(tmp_path))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"good\n\xff\n", "is not UTF-8 text"),
        (b"good\nb\0d\n", "is no text file: it has NUL"),
        (b" \n\n", "no text at all"),
        (None, "cannot read .*No such file"),
    ],
)
def test_a_file_that_is_no_text(tmp_path: Path, data: bytes | None, message: str) -> None:
    if data is not None:
        (tmp_path / "x.txt").write_bytes(data)
    for by in ("file", "blank", "lines"):
        with pytest.raises(FileError, match=message):
            records(made("language", root=tmp_path, files=("x.txt",), documents=by))
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"line\n" * 10_000)[:-20])
    with pytest.raises(FileError, match="damaged or cut short"):
        records(made("language", root=tmp_path, files=("x.gz",)))


# --- words and tags

CONLLU = """# newdoc
# text = Don't go .
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
3.1\tgone\tgo\tVERB\tVB\t_\t_\t_\t_\t_
4\t.\t.\tPUNCT\t.\t_\t3\tpunct\t_\t_

# text = #1 1-2
1\t#1\t#1\tNOUN\tNN\t_\t0\troot\t_\t_
2\t1-2\t1-2\tNUM\tCD\t_\t1\tnummod\t_\t_
"""


def test_conllu(tmp_path: Path) -> None:
    (tmp_path / "x.conllu.gz").write_bytes(gzip.compress(CONLLU.encode()))
    source = made("tagging", root=tmp_path, files=("x.conllu.gz",))
    assert records(source) == [("Do\tn't\tgo\t.", "AUX\tPART\tVERB\tPUNCT"), ("#1\t1-2", "NOUN\tNUM")]
    goes_on(source)
    other = records(made("tagging", root=tmp_path, files=("x.conllu.gz",), columns=(2, 4)))
    assert other[0] == ("do\tnot\tgo\t.", "VB\tRB\tVB\t.")


@settings(max_examples=40, deadline=None)
@given(
    sentences=st.lists(
        st.lists(st.tuples(st.text("ab#-1.", min_size=1, max_size=4), st.sampled_from("XYZ")), min_size=1, max_size=5),
        min_size=1, max_size=6,
    ),
    gap=st.sampled_from(["\t", " ", "\t_\t"]),
)  # fmt: skip
def test_words_and_tags_come_back(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[list[tuple[str, str]]], gap: str
) -> None:
    path = tmp_path_factory.mktemp("tags") / "x.tsv"
    path.write_text("\n\n".join("\n".join(word + gap + tag for word, tag in rows) for rows in sentences))
    assert records(ConllSource(path)) == [
        tuple("\t".join(side) for side in zip(*rows, strict=True)) for rows in sentences
    ]
    goes_on(ConllSource(path))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.conllu", CONLLU + "3\tlast\tlast\n", "line 13: 3 of 4 columns"),
        ("x.tsv", "-DOCSTART- -X- O\n\nEU\tORG\nrejects\n", "line 4: 1 of 2 columns"),
        ("x.tsv", "EU\tORG\n\nrejects\t\n", "line 3: the word or its tag is empty"),
        ("x.tsv", "EU ORG\n" * 10_001, "without a blank line"),
        ("x.tsv", "\n\n", "no sentence at all"),
        ("x.tsv", None, "cannot read"),
    ],
)
def test_a_tag_file_that_is_none_is_refused_with_its_line(
    run: Run, tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(FileError, match=message):
        records(made("tagging", root=tmp_path, files=(name,)))
    recipe = tmp_path / "tags.toml"
    recipe.write_text(
        'task = "tagging"\n[model]\nfamily = "encoder"\nhead = "tags"\nn_layers = 1\nvocab_size = 99\nd_model = 8\nn_heads = 1\nd_ff = 8\n'
        f'[data]\nroot = "{tmp_path}"\ntrain = [{{ files = ["{name}"] }}]\nvalid = {{ files = ["{name}"] }}\n'
    )
    code, _, err = run("data", "inspect", str(recipe))
    assert code == 2 and message.replace("no sentence at all", "no sentence") in " ".join(err.split())


# --- tables


def test_tables_of_every_task(tmp_path: Path) -> None:
    rows = {"q": "Who?", "c": "A man sleeps.", "a": "man", "n": 2, "w": "A man .", "t": "DET NOUN PUNCT"}
    bad = rows | {"a": "woman", "t": "DET NOUN"}
    for name in ("x.jsonl", "x.jsonl.gz", "x.jsonl.xz"):
        data = "".join(json.dumps(row) + "\n" for row in (rows, bad, rows)).encode()
        packed = {"gz": gzip.compress, "xz": lzma.compress}.get(name.rpartition(".")[2], bytes)(data)
        (tmp_path / name).write_bytes(packed)

        def read(task: str, *columns: str, name: str = name) -> tuple[list[Record], dict[str, int]]:
            source = made(task, root=tmp_path, table=name, columns=columns)
            found, skipped = records(source), dict(source.skipped)
            goes_on(source)
            return found, skipped

        assert read("classification", "c", "a")[0][1] == ("A man sleeps.", "woman")
        assert read("regression", "q", "c", "n")[0][0] == ("Who?", "A man sleeps.", "2")
        assert read("summary", "c", "q")[0][0] == ("A man sleeps.", "Who?")
        assert read("language", "c")[0] == [("A man sleeps.",)] * 3
        tags = ("A\tman\t.", "DET\tNOUN\tPUNCT")
        assert read("tagging", "w", "t") == ([tags] * 2, {"as many tags as words are needed": 1})
        answer = ("Who?", "A man sleeps.", "man", "2")
        for columns in ("qca", "qcan"):
            assert read("answering", *columns) == ([answer] * 2, {"the answer is not in the context": 1})


def test_pairs_in_the_other_order(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("a\tb\tyes\nc\td\tno\n")
    (tmp_path / "single.tsv").write_text("a\tyes\n")
    pairs = {"root": tmp_path, "table": "pairs.tsv", "columns": (0, 1, 2)}
    swapped = made("classification", swap=True, **pairs)
    assert records(swapped) == [("b", "a", "yes"), ("d", "c", "no")]
    with pytest.raises(ConfigError, match="single ones"):
        records(made("classification", root=tmp_path, table="single.tsv", swap=True))
    with pytest.raises(ConfigError, match="not for translation"):
        made("translation", root=tmp_path, table="single.tsv", swap=True)


def test_the_first_columns_are_the_default_and_their_number_is_the_tasks(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("a b c\tb\tc\td\n")
    first = {"language": ("a b c",), "classification": ("a b c", "b"), "summary": ("a b c", "b")}
    for task, wanted in first.items():
        assert records(made(task, root=tmp_path, table="x.tsv")) == [wanted]
    for task in TEXTS:
        with pytest.raises(ConfigError, match=rf"a table for {task} has .* columns, given \[0, 1"):
            made(task, root=tmp_path, table="x.tsv", columns=tuple(range(schema_of(task).most + 1)))


def test_a_long_text_in_a_row(tmp_path: Path) -> None:
    review = "good film\n" * (MAX_LINE // 5)
    (tmp_path / "x.jsonl").write_text(
        json.dumps({"text": review, "label": 1}) + "\n" + json.dumps({"text": "", "label": 0})
    )
    (tmp_path / "x.csv").write_text(f'text,label\n"{review}",1\n')
    for name in ("x.jsonl", "x.csv"):
        source = made("classification", root=tmp_path, table=name, columns=("text", "label"))
        assert records(source)[0] == (review, "1")
    source = made("masked", root=tmp_path, table="x.jsonl", columns=("text",))
    assert records(source) == [(review,)] and source.skipped == {"an empty document": 1}


# --- shares


@settings(max_examples=50, deadline=None)
@given(size=st.integers(0, 40), cuts=st.lists(st.floats(0.01, 0.99), max_size=4))
def test_shares_are_a_partition(size: int, cuts: list[float]) -> None:
    whole = InMemorySource([(f"{i}",) for i in range(size)])
    parts = [take_share(whole, pair) for pair in pairwise([0.0, *sorted(set(cuts)), 1.0])]
    assert [r for part in parts for r in records(part)] == whole.records
    for part in parts:
        goes_on(part)
    ninety = records(take_share(whole, (0.0, 0.9)))
    assert len(ninety) == int(0.9 * size)


def test_every_kind_of_corpus_has_shares(tmp_path: Path) -> None:
    (tmp_path / "x.conllu").write_text(CONLLU)
    (tmp_path / "x.tsv").write_text("".join(f"text {i}\tlabel\n" for i in range(11)) + "too few\n")
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("tagging", {"files": ("x.conllu",)}), ("classification", {"table": "x.tsv"}), ("summary", {"grammar": 9}),
        ("translation", {"grammar": 9}), ("language", {"files": ("x.tsv",), "documents": "lines"}),
        ("language", {"stdlib": True}),
    ]  # fmt: skip
    for task, fields in kinds:
        split = "test" if "stdlib" in fields else "train"
        parts = [made(task, split, tmp_path, **fields, share=share) for share in ((0.0, 0.5), (0.5, 1.0))]
        assert all(isinstance(part, Share) and records(part) for part in parts)
        assert [r for part in parts for r in records(part)] == records(made(task, split, tmp_path, **fields))
        goes_on(parts[1])


@pytest.mark.parametrize("share", [[0.5, 0.5], [0.9, 0.1], [-0.1, 1.0], [0.0, 1.1], [0.5]])
def test_shares_that_are_none(share: list[float]) -> None:
    with pytest.raises(ConfigError, match="share"):
        validate(CorpusConfig, {"grammar": 3, "share": share})


# --- GLUE


HEADERS = {
    "CoLA": "", "SST-2": "sentence\tlabel", "MRPC": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "STS-B": "index\tgenre\tsentence1\tsentence2\tscore", "QQP": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "MNLI": "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label", "QNLI": "index\tquestion\tsentence\tlabel",
    "RTE": "index\tsentence1\tsentence2\tlabel", "WNLI": "index\tsentence1\tsentence2\tlabel",
}  # fmt: skip
LABELS = {"label", "Quality", "score", "is_duplicate", "gold_label"}


def official(folder: str) -> dict[str, str]:
    """The files of a task in GLUE's own layout; cells are the names of their columns and the row."""
    columns = HEADERS[folder].split("\t") if HEADERS[folder] else ["source", "label", "star", "sentence"]
    unlabelled = ["index", *(c for c in columns if c not in LABELS | {"index"})]

    def text(header: list[str], head: bool = True) -> str:
        rows = [[c if i == 0 else f'{c} "{i}' for c in header] for i in range(5)]
        return "".join("\t".join(row) + "\n" for row in rows[0 if head else 1 :])

    parts = {"train": "train", "valid": "dev_matched" if folder == "MNLI" else "dev"}
    files = {f"{part}.tsv": text(columns, folder != "CoLA") for part in parts.values()}
    return files | {"test_matched.tsv" if folder == "MNLI" else "test.tsv": text(unlabelled)}


def texts_of(task: glue.GlueTask) -> list[str]:
    return [names[0] for names in task.texts]


@pytest.mark.parametrize("name", list(glue.TASKS))
def test_glue_in_its_own_layout(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = glue.TASKS[name]
    files = official(task.folder)
    inner = tmp_path / "all" / task.folder
    inner.mkdir(parents=True)
    for file, text in files.items():
        (inner / file).write_text(text)
    wanted = [(*(f'{text} "{i}' for text in texts_of(task)), f'{task.label} "{i}') for i in range(1, 5)]
    for path in (inner, inner.parent):  # its folder, or the folder of all tasks
        for split in ("train", "valid"):
            source = made("classification", split, dataset=f"glue/{name}", path=str(path))
            assert records(source) == wanted
            goes_on(source)
        assert records(made("regression", "submission", dataset=f"glue/{name}", path=str(path))) == [
            (*record[:-1], "") for record in wanted
        ]
        with pytest.raises(ConfigError, match=r'not public; use split = "valid"'):
            made("classification", "test", dataset=f"glue/{name}", path=str(path))
    assert records(made("masked", dataset=f"glue/{name}", path=str(inner)))[0] == ("\n".join(wanted[0][:-1]),)


def test_glue_in_the_layouts_of_its_sources(tmp_path: Path) -> None:
    """SST-2 with its labels first, CoLA without a test set, MRPC and STS-B as their authors hand them out."""

    def write(name: str, text: str) -> None:
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))

    def read(name: str, split: str) -> list[Record]:
        return records(made("classification", split, dataset=f"glue/{name}", path=str(tmp_path)))

    write("test.tsv.gz", 'label\tcontent\n0\tone long string\n1\ta "fine" film\n')
    assert read("sst2", "test") == [("one long string", "0"), ('a "fine" film', "1")]
    (tmp_path / "test.tsv.gz").unlink()
    write("dev.tsv.gz", "gj04\t0\t*\tThey drank the pub.\n")
    assert read("cola", "valid") == [("They drank the pub.", "0")]
    with pytest.raises(ConfigError, match=r"has no test set with labels: those of glue/cola are not public"):
        read("cola", "test")
    (tmp_path / "dev.tsv.gz").unlink()
    row = 'x\tMSRvid\t2012\t0001\t3.800\tA "man" plays.\tA man "sings.'
    write("sts-train.csv.gz", f"{row}\n{row}\tsource\tsource\n")
    write("sts-test.csv.gz", row + "\n")
    assert read("stsb", "train") == 2 * read("stsb", "test") == [('A "man" plays.', 'A man "sings.', "3.800")] * 2
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    write("msr_paraphrase_train.txt.gz", header + "".join(f"1\t2\t3\tfirst {i}\tsecond {i}\n" for i in range(1000)))
    write("msr_paraphrase_test.txt.gz", header + "0\t2\t3\tone\ttwo\n")
    train, valid = read("mrpc", "train"), read("mrpc", "valid")
    assert len(train) + len(valid) == 1000 and not set(train) & set(valid) and 60 < len(valid) < 140
    assert read("mrpc", "test") == [("one", "two", "0")]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of our own, an empty cache, and every data set's address turned to it."""
    found = Server()
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    for module, names in ((glue, ("GLUE", "SENTEVAL")), (textsets, ("UD", "SQUAD", "SHAKESPEARE"))):
        for name in names:
            monkeypatch.setattr(module, name, f"{found.url}/{name.lower()}")
    yield found
    found.http.shutdown()
    found.http.server_close()


def test_glue_is_fetched(server: Server) -> None:
    for name, task in glue.TASKS.items():
        if name != "mrpc":
            archive = f"/glue/{task.archive or task.folder}.zip"
            server.files[archive] = zipped({f"{task.folder}/{f}": text for f, text in official(task.folder).items()})
        else:
            text = "".join("\t".join(f"{c} {i}" for c in HEADERS["MRPC"].split("\t")) + "\n" for i in range(50))
            for part in ("train", "test"):
                server.files[f"/senteval/msr_paraphrase_{part}.txt"] = (HEADERS["MRPC"] + "\n" + text).encode()
        for split in ("train", "valid"):
            found = records(made("classification", split, dataset=f"glue/{name}"))
            assert found and all(r[0].startswith(texts_of(task)[0]) and r[-1].startswith(task.label) for r in found)
    assert len(server.asked) == len(glue.TASKS) + 1  # each once, MRPC in two files
    assert len(records(made("classification", "test", dataset="glue/mrpc"))) == 50


# --- the other sets


def test_imdb(tmp_path: Path) -> None:
    rows = [{"text": f"Film {i}.<br /><br />The end. Go!", "label": i % 2} for i in range(1000)]
    for part in ("train", "test"):
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        (tmp_path / f"{part}.jsonl.xz").write_bytes(lzma.compress(data))
    found = {
        s: records(made("classification", s, dataset="imdb", path=str(tmp_path))) for s in (*SPLITS, "train+valid")
    }
    names = ("negative", "positive")
    assert found["test"] == [(f"Film {i}.\nThe end. Go!", names[i % 2]) for i in range(1000)] == found["train+valid"]
    assert set(found["train"]) | set(found["valid"]) == set(found["test"]) and 20 < len(found["valid"]) < 90
    assert len(found["train"]) + len(found["valid"]) == 1000
    goes_on(made("classification", "valid", dataset="imdb", path=str(tmp_path)))
    text = records(made("masked-next", "test", dataset="imdb", path=str(tmp_path)))[3]
    assert text == ("Film 3.\nThe end.\nGo!",)  # a sentence per line
    for part, label, review in (("train", "pos", "Fine."), ("train", "neg", "Bad."), ("test", "pos", "Good.")):
        folder = tmp_path / "unpacked" / "aclImdb" / part / label
        folder.mkdir(parents=True)
        (folder / "0_9.txt").write_text(review)
    unpacked = str(tmp_path / "unpacked")
    assert records(made("classification", "test", dataset="imdb", path=unpacked)) == [("Good.", "positive")]
    both = [("Bad.", "negative"), ("Fine.", "positive")]
    assert records(made("classification", "train+valid", dataset="imdb", path=unpacked)) == both


def test_aeslc(tmp_path: Path) -> None:
    rows = [{"body": "Dear all,\nwe meet.", "subject": "Meeting"}, {"body": " ", "subject": "Nothing"}]
    (tmp_path / "dev.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(r) + "\n" for r in rows).encode()))
    source = made("summary", "valid", dataset="aeslc", path=str(tmp_path))
    assert records(source) == [("Dear all,\nwe meet.", "Meeting")] and source.skipped == {"an empty text": 1}


def test_treebanks_and_shakespeare_are_fetched(server: Server, tmp_path: Path) -> None:
    server.files["/ud/UD_English-EWT/master/en_ewt-ud-dev.conllu"] = CONLLU.encode()
    server.files["/shakespeare"] = b"To be\nor not to be\n"
    for _ in range(2):
        assert records(made("tagging", "valid", dataset="ud/en_ewt"))[1] == ("#1\t1-2", "NOUN\tNUM")
        assert records(made("language", "train", dataset="tinyshakespeare")) == [("To be\nor not to b",)]
    assert len(server.asked) == 2
    (tmp_path / "xx_yy-ud-test.conllu").write_text(CONLLU)
    assert records(made("tagging", "test", dataset="ud/xx_yy", path=str(tmp_path)))[1][1] == "NOUN\tNUM"
    with pytest.raises(ConfigError, match=r"ud/xx_yy is not fetched, only ud/en_ewt"):
        made("tagging", "test", dataset="ud/xx_yy")


def squad_file(impossible: bool) -> str:
    context = "The cat, a cat, sleeps."
    asked = [
        {
            "question": " What sleeps? ",
            "answers": [{"text": text, "answer_start": at} for text, at in (("cat", 11), ("a cat", 9), ("cat", 4))],
        }
    ]
    if impossible:
        asked += [{"question": "Why?", "is_impossible": True, "answers": [], "plausible_answers": [{"text": "cat"}]}]  # type: ignore[dict-item]
    return json.dumps({"version": "x", "data": [{"title": "Cats", "paragraphs": [{"context": context, "qas": asked}]}]})


def test_squad(server: Server, tmp_path: Path) -> None:
    (tmp_path / "dev-v2.0.json").write_text(squad_file(True))
    server.files["/squad/train-v1.1.json"] = squad_file(False).encode()
    first = ("What sleeps?", "The cat, a cat, sleeps.", "cat", "11", "a cat")  # the last one is accepted too
    assert records(made("answering", "train", dataset="squad")) == [first]
    source = made("answering", "valid", dataset="squad/2", path=str(tmp_path))
    assert records(source) == [first, ("Why?", first[1], "", "-1")]
    goes_on(source)
    for wrong in (
        "no json",
        '{"data": [{"paragraphs": 3}]}',
        squad_file(False).replace("11", "12"),
        squad_file(False).replace('"a cat"', "3"),
    ):
        (tmp_path / "dev-v2.0.json").write_text(wrong)
        with pytest.raises(FileError, match="is no file of SQuAD"):
            made("answering", "valid", dataset="squad/2", path=str(tmp_path))


@pytest.mark.parametrize(
    ("task", "name", "split", "message"),
    [
        ("classification", "glue/sst3", "train", "no data set 'glue/sst3': there are glue/cola, glue/sst2"),
        ("classification", "glue/sst2", "dev", "glue/sst2 has no split 'dev', but train"),
        (
            "classification",
            "imbd",
            "train",
            "no data set 'imbd' for classification: there are glue/cola.*imdb.*multi30k",
        ),
        ("classification", "imdb", "train", "imdb is not fetched: unpack aclImdb_v1.tar.gz"),
        ("classification", "imdb", "dev", "imdb has no split 'dev'"),
        ("summary", "aeslc", "train", "aeslc is not fetched: get it from"),
        ("tagging", "ud/../x", "train", "treebanks have names like 'ud/en_ewt'"),
        ("tagging", "imdb", "train", "the data set imdb has text and label, and tagging needs words and tags"),
        ("translation", "mutli30k", "train", "no data set 'mutli30k': there are multi30k.*glue/cola.*imdb"),
        ("summary", "multi30k", "train", "no data set 'multi30k' for summary: .* for translation multi30k"),
        ("answering", "squad", "test", "squad has no split 'test'"),
        ("answering", "squad/3", "train", "there are squad and squad/2"),
        ("images", "imdb", "train", "images reads images, and this is a corpus of texts"),
    ],
)
def test_names_that_are_none(server: Server, task: str, name: str, split: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(task, split, dataset=name)
    assert not server.asked
    if name == "glue/sst2":
        with pytest.raises(FileError, match="does not exist; correct the path"):
            made(task, "train", dataset=name, path="absent")


@pytest.mark.parametrize(
    ("task", "fields", "message"),
    [
        ("classification", {"files": ("x.txt",)}, "classification cannot read x.txt: give one table"),
        ("translation", {"files": ("x.txt",)}, "translation cannot read x.txt: give one table .* or two text files"),
        ("tagging", {"files": ("a.tsv", "b.tsv")}, "tagging cannot read a.tsv, b.tsv: give one .conllu"),
        ("tagging", {"files": ("a.tsv",), "columns": ("word", "tag")}, "columns by number, word and tag, given"),
        ("tagging", {"files": ("a.tsv",), "documents": "lines"}, "which tagging does not read: leave it out"),
        ("language", {"shapes": 3}, "this corpus has images, and language reads texts"),
        ("tagging", {"stdlib": True}, "the standard library has texts alone"),
    ],
)
def test_what_a_task_cannot_read(task: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(task, **fields)


# --- Python's own library


def test_the_standard_library() -> None:
    found = {split: StandardLibrary(split) for split in SPLITS}
    names = {split: set(source.modules()) for split, source in found.items()}
    assert not names["train"] & names["valid"] and not (names["train"] | names["valid"]) & names["test"]
    total = sum(map(len, names.values()))
    assert total > 100 and all(0.01 < len(names[s]) / total < 0.1 for s in ("valid", "test"))
    assert {"argparse.py", "json/decoder.py"} <= set().union(*names.values())
    assert not any("test" in name.split("/") or "site-packages" in name for s in SPLITS for name in names[s])
    goes_on(found["valid"])
    assert records(found["test"]) == records(made("language", "test", stdlib=True))


def test_the_standard_library_leaves_out_what_is_no_text(tmp_path: Path) -> None:
    for name, data in {
        "a.py": b"a = 1\r\n", "b/c.py": "ü = 2\n".encode(), "d.py": b"\xff", "e.py": b"\n", "test/f.py": b"f",
        "b/site-packages/g.py": b"g", "h.txt": b"h", "i.py": b"#" * 400_000,
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    texts, skipped = set[Record](), Counter[str]()
    for split in {module_split(name) for name in ("a.py", "b/c.py", "d.py", "e.py")}:
        source = StandardLibrary(split, tmp_path)
        texts |= set(records(source))
        skipped += source.skipped
    assert texts == {("a = 1\n",), ("ü = 2\n",)} and skipped == {"not UTF-8": 1, "an empty document": 1}
    with pytest.raises(FileError, match="comes without its library"):
        StandardLibrary("train", tmp_path / "absent").modules()


# --- the grammar, as other tasks see it

VIEWS = sorted({*TEXTS} - {"translation"})


@pytest.mark.parametrize("task", VIEWS)
def test_views_of_the_grammar_have_the_tasks_records(task: str) -> None:
    source = made(task, grammar=120)
    found = records(source)
    least, most = schema_of(task).least, schema_of(task).most
    assert len(found) == 120 == source.about() and all(least <= len(r) <= most and all(r) for r in found)
    assert list(source.read(50)) == list(source.read())[50:]
    assert records(made(task, "valid", grammar=5)) == records(GrammarRecords("valid", 5, schema_of(task).from_grammar))  # type: ignore[arg-type]
    held = {r for split in ("valid", "test") for r in records(made(task, split, grammar=5))}
    assert not held & set(found)
    assert all(a in (None, b) for a, b in ((split_of_first(r), s) for s in SPLITS for r in records(made(task, s, grammar=4))))  # fmt: skip


def split_of_first(record: Record) -> str | None:
    """The split of a record's first sentence, where that decides it."""
    text = record[0].replace("\n", " ")
    if text.startswith("["):  # a conversation
        text = json.loads(text)[0]["content"]
    if "\t" in text or text.endswith("?"):  # words; a question, which is about any sentence of a text
        told = ". " in text  # a sentence and a question about it
        return None if "\t" in text or len(record) == 4 else split_of(text.partition(". ")[0] + "." if told else text)
    return split_of(text.partition(". ")[0] + ("." if ". " in text else ""))


def test_tags_are_of_the_words_of_the_text() -> None:
    texts, tags = records(made("language", grammar=50)), records(made("tagging", grammar=50))
    for (text,), (words, names) in zip(texts, tags, strict=True):
        assert text.replace(",", " ,").replace(".", " .").replace("?", " ?").split() == words.split("\t")
        assert len(words.split("\t")) == len(names.split("\t")) and names.endswith("PUNCT")


def test_labels_say_what_the_sentences_are() -> None:
    for text, kind in records(made("classification", grammar=80)):
        assert (kind == "question") == text.endswith("?") and kind in ("statement", "question", "complex")
    for text, number in records(made("regression", grammar=30)):
        assert int(number) == len(text.split())


def test_a_question_has_one_answer() -> None:
    found = records(made("answering", grammar=200))
    for question, context, answer, start in found:
        assert context[int(start) :].startswith(answer) and context.count(answer) == 1
        assert question.endswith("?") and question.split()[0] in ("Who", "What", "Whom", "Where", "When")
    assert len({question.split()[0] for question, *_ in found}) == 5
    assert {context.count(".") for _, context, *_ in found} == {1, 2, 3}
    assert ("Who worked?", "Your friends should cry. I worked.", "I", "25") in found


def test_a_summary_is_the_core_of_the_first_sentence() -> None:
    for document, short in records(made("summary", grammar=100)):
        first = document.partition(".")[0]
        assert set(short.rstrip(".").split()) - {"a", "an", "A", "An"} <= set(first.split())
        assert 3 <= document.count(".") <= 5 and len(short) <= len(first) + 1


def test_sentences_of_a_document_are_about_one_person() -> None:
    for (text,) in records(made("masked-next", grammar=100)):
        first, *others = text.split("\n")
        assert 2 <= len(others) <= 4
        word = others[0].split()[1] if others[0].startswith("The ") else others[0].split()[0]
        assert all(word in line.split()[:2] for line in others) and word.lower() in first.lower()


def test_the_training_corpora_are_one() -> None:
    c = CorpusConfig(grammar=5)
    one = DataConfig(train=(c,), valid=c)
    assert [r for _, r in training(one, schema_of("classification")).read()] == records(
        made("classification", grammar=5)
    )
    two = DataConfig(train=(c, CorpusConfig(stdlib=True)), valid=c)
    sizes = {len(r) for _, (_, r) in zip(range(20), training(two, schema_of("language")).read(), strict=False)}
    assert sizes == {1}
