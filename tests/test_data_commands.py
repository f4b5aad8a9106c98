"""`qkv data` and `qkv tokenizer`: what is wrong with a corpus is found and counted; text goes to numbers and back."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.grammar import pairs
from qkv.data.inspect import Lengths, inspect, leaks, script, words
from qkv.data.sources import InMemorySource
from qkv.text.train import KINDS

Run = Callable[..., tuple[int, str, str]]
PAIRS = list(dict.fromkeys((p.source, p.target) for p in islice(pairs("train"), 300)))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Two files in step."""
    for side, name in enumerate(("x.en", "x.de")):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in PAIRS))
    return tmp_path / "x.en", tmp_path / "x.de"


# --- lengths


@given(st.lists(st.integers(0, 400), min_size=1))
def test_lengths_agree_with_the_list_of_them(values: list[int]) -> None:
    lengths = Lengths(Counter(values))
    values.sort()
    assert lengths.mean == pytest.approx(sum(values) / len(values))
    for share in (0.05, 0.5, 0.95, 1.0):
        found = lengths.quantile(share)
        assert found in values and sum(v <= found for v in values) >= share * len(values)
        assert sum(v < found for v in values) < share * len(values)
    rows = lengths.histogram()
    assert sum(count for *_, count in rows) == len(values) and len(rows) <= 11
    for low, high, count in rows:
        assert count == sum(low <= v <= high for v in values)


# --- what seems wrong


def test_each_kind_of_suspicious_line_is_found_where_it_is() -> None:
    wrong = {
        "both sides are the same": ("I am here today", "I am here today"),
        "one side much longer": ("Yes.", "Das ist ein sehr langer Satz, der nicht zu dem anderen gehört."),
        "markup": ("A <b>bold</b> word.", "Ein fettes Wort."),
        "control or invisible characters": ("A b\u200bell.", "Eine Glocke."),
        "empty side": ("Nothing.", " "),
        "target in cyrillic script, not latin": ("A cat sits.", "Кошка сидит."),
        "source in cjk script, not latin": ("猫が座る。", "Eine Katze sitzt."),
    }
    records = PAIRS[:100] + list(wrong.values()) + [PAIRS[5], ("R &amp; D is here.", "F und E ist hier.")]
    report = inspect(InMemorySource(records), "x", [words])
    assert report.suspicious == {**dict.fromkeys(wrong, 1), "duplicate": 1, "markup": 2}
    for reason, record in wrong.items():
        assert (records.index(record) + 1, record) in report.shown[reason]
    assert report.shown["duplicate"] == [(108, PAIRS[5])]
    assert [record for _, record in report.shown["examples"]] == records[:3]


def test_ordinary_text_is_not_suspicious() -> None:
    report = inspect(InMemorySource(PAIRS), "x", [words])
    assert not report.suspicious and report.records == len(PAIRS) and not report.partial
    assert report.lengths[1].counts == Counter(len(target.split()) for _, target in PAIRS)


def test_the_limit_bounds_what_is_read() -> None:
    for limit, partial in ((10, True), (len(PAIRS), False), (len(PAIRS) + 1, False)):
        report = inspect(InMemorySource(PAIRS), "x", [words], limit=limit)
        assert (report.records, report.partial) == (min(limit, len(PAIRS)), partial)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello", "LATIN"),
        ("Grüße, œuvre", "LATIN"),
        ("Привет", "CYRILLIC"),
        ("東京タワー", "CJK"),
        ("123 …", ""),
        ("γεια", "GREEK"),
        ("한국", "HANGUL"),
    ],
)
def test_scripts(text: str, expected: str) -> None:
    assert script(text) == expected


def test_leaks_are_counted() -> None:
    held = {"valid": InMemorySource([("a", "x"), ("b", "y"), ("a", "z")]), "test": InMemorySource([("q", "x")])}
    assert leaks([InMemorySource([("a", "1")]), InMemorySource([("c", "2")])], held) == {"valid": 2, "test": 0}


# --- qkv data


def test_inspect_files_of_every_kind(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    code, out, _ = run("data", "inspect", *files, "--json")
    expected = json.loads(out)["corpora"][0]
    assert code == 0 and expected["records"] == len(PAIRS) and expected["suspicious"] == {}
    assert expected["lengths"][0]["total"] == sum(len(source.split()) for source, _ in PAIRS)
    (tmp_path / "x.tsv.gz").write_bytes(
        gzip.compress("".join(f"{i}\t{a}\t{b}\n" for i, (a, b) in enumerate(PAIRS)).encode())
    )
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"s": a, "t": b}) + "\n" for a, b in PAIRS))
    for arguments in ((tmp_path / "x.tsv.gz", "--columns", "1,2"), (tmp_path / "x.jsonl", "--columns", "s,t")):
        code, out, _ = run("data", "inspect", *arguments, "--json")
        assert code == 0 and json.loads(out)["corpora"][0]["lengths"] == expected["lengths"]
    code, out, _ = run("data", "inspect", files[0])
    assert code == 0 and f"{len(PAIRS):,} records" in out and "text:" in out and "target" not in out and "█" in out


def test_inspect_counts_what_is_no_text_and_what_training_drops(run: Run, tmp_path: Path) -> None:
    good = "".join(a + "\n" for a, _ in PAIRS[:20]).encode()
    (tmp_path / "a").write_bytes(good + b"\xff\xfe\nnul\0\nshort\n" + b"word " * 40 + b"\n" + b"a b c\n\n")
    (tmp_path / "b").write_bytes(good + b"a\nb\n" + b"wort " * 25 + b"\n" + b"wort " * 40 + b"\n" + b"a b c\nx\n")
    code, out, _ = run("data", "inspect", tmp_path / "a", tmp_path / "b", "--max-length", "30", "--json")
    found = json.loads(out)["corpora"][0]
    assert code == 0 and found["unreadable"] == {"not UTF-8": 1, "NUL bytes": 1}
    assert sorted(found["dropped"].values()) == [1, 1, 1] and "more than 30 tokens" in found["dropped"]
    code, out, _ = run("data", "inspect", tmp_path / "a", tmp_path / "b", "--max-length", "30")
    assert "unreadable: 1 not UTF-8" in out and "training drops: 1 an empty side" in out


def test_inspect_a_recipe_counts_tokens_and_leaks(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(
        'preset = "transformer-base"\n[data]\n'
        f'root = "{tmp_path}"\nvocab_size = 400\ntrain = {{files = ["x.en", "x.de"]}}\nvalid = {{grammar = 20}}\n'
        'test = {files = ["x.en", "x.de"]}\n'
    )
    assert run("tokenizer", "train", *files, "--size", "300", "--out", tmp_path / "t.json")[0] == 0
    code, out, err = run("data", "inspect", tmp_path / "r.toml", "--tokenizer", tmp_path / "t.json", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [c["name"] for c in found["corpora"]] == ["train", "valid", "test"]
    assert [c["records"] for c in found["corpora"]] == [len(PAIRS), 20, len(PAIRS)]
    assert found["leaks"] == {"valid": 0, "test": len(PAIRS)}
    assert found["corpora"][0]["lengths"][0]["total"] > sum(len(source.split()) for source, _ in PAIRS)
    code, out, _ = run("data", "inspect", tmp_path / "r.toml")
    assert code == 0 and "scores on it will be too high" in out


def test_fetch_prints_the_pairs(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    for path in files:
        path.rename(path.with_name(path.name.replace("x", "val")))
    code, out, _ = run("data", "fetch", "multi30k", "--split", "valid", "--path", tmp_path)
    assert code == 0 and [tuple(line.split("\t")) for line in out.splitlines()] == PAIRS


# --- qkv tokenizer


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_tokenizer_takes_text_to_numbers_and_back(
    run: Run, files: tuple[Path, Path], tmp_path: Path, kind: str
) -> None:
    code, out, _ = run("tokenizer", "train", *files, "--kind", kind, "--size", "900", "--out", tmp_path / "t.json")
    assert code == 0 and kind in out
    code, ids, _ = run("tokenizer", "encode", tmp_path / "t.json", files[1])
    assert code == 0 and len(ids.splitlines()) == len(PAIRS)
    code, again, _ = run("tokenizer", "decode", tmp_path / "t.json", given=ids)
    targets = [target for _, target in PAIRS]
    assert code == 0 and len(again.splitlines()) == len(PAIRS)
    assert kind in ("wordpiece", "words") or again.splitlines() == targets
    code, pieces, _ = run("tokenizer", "encode", tmp_path / "t.json", "--pieces", given=targets[0])
    assert code == 0 and len(pieces.split()) == len(ids.splitlines()[0].split()) or kind == "characters"
    code, out, _ = run("tokenizer", "info", tmp_path / "t.json", "--json")
    found = json.loads(out)
    assert code == 0 and found["size"] <= 900 and len(found["special"]) >= 4


def test_a_line_that_is_no_text_costs_only_itself(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    run("tokenizer", "train", *files, "--size", "200", "--out", tmp_path / "t.json")
    (tmp_path / "mixed").write_bytes(b"the cat\n\xff\xff\nthe cat\n")
    code, out, err = run("tokenizer", "encode", tmp_path / "t.json", tmp_path / "mixed")
    first, second, third = out.split("\n")[:3]
    assert (
        code == 0 and first == third and first and second == "" and "1 line replaced by an empty one: not UTF-8" in err
    )


def test_bad_input_is_one_line(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "t.json").write_text("{}")
    (tmp_path / "t.model").write_text("no model")
    (tmp_path / "short").write_text("one line\n")
    (tmp_path / "no.toml").write_text('preset = "gpt2"\n')
    run("tokenizer", "train", *files, "--size", "200", "--out", tmp_path / "good.json")
    cases = [
        (("data", "inspect", tmp_path / "absent"), "cannot read"),
        (("data", "inspect", tmp_path / "empty"), "no lines at all"),
        (("data", "inspect", files[0], tmp_path / "short"), "ends after line 1"),
        (("data", "inspect", tmp_path / "no.toml"), "has no [data]"),
        (("data", "inspect", *files, "--tokenizer", tmp_path / "t.json"), "not a tokenizer"),
        (("data", "fetch", "multi31k"), "no data set 'multi31k'"),
        (("tokenizer", "train", tmp_path / "empty", "--out", tmp_path / "x"), "no text to learn"),
        (("tokenizer", "encode", tmp_path / "t.model"), "not a SentencePiece model"),
        (("tokenizer", "info", tmp_path), "has no tokenizer"),
        (("tokenizer", "decode", tmp_path / "good.json", tmp_path / "short"), "'one' is not a number from 0 to 199"),
    ]
    for arguments, message in cases:
        code, _, err = run(*arguments)
        assert code == 2 and message in err and err.count("\n") == 1, (arguments, err)


def test_each_verb_shows_an_example(run: Run) -> None:
    for verb in (
        "data inspect",
        "data fetch",
        "tokenizer train",
        "tokenizer encode",
        "tokenizer decode",
        "tokenizer info",
    ):
        code, out, _ = run(*verb.split(), "--help")
        assert code == 0 and out.count(f"qkv {verb}") >= 2, verb
