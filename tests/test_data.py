"""Reading text from outside, and batches: equal in tokens, complete, exact to resume, shared out to workers."""

import gzip
import lzma
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data.batching import Batches, Position
from qkv.data.lines import MAX_LINE, lines
from qkv.data.sources import GrammarSource, Memory, Parallel, Table
from qkv.errors import FileError, QkvError


def records(source) -> list:  # noqa: ANN001
    return [record for _, record in source.read()]


# --- lines and sources


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_compressed_or_not_the_lines_are_the_same(tmp_path: Path, ending: str) -> None:
    text, path = "eins\nzwei\r\n\ndrei ü", tmp_path / f"x.txt{ending}"
    {"": open, ".gz": gzip.open, ".xz": lzma.open}[ending](path, "wb").write(text.encode())
    assert list(lines(path)) == ["eins", "zwei", "", "drei ü"]


def test_bad_lines_cost_only_themselves_and_are_counted(tmp_path: Path) -> None:
    path, skipped = tmp_path / "x", Counter[str]()
    path.write_bytes(b"good\n\xff\xfe\nnul\0\n" + b"x" * (MAX_LINE * 12) + b"\nlast")
    assert list(lines(path, skipped)) == ["good", None, None, None, "last"]
    assert skipped == {"not UTF-8": 1, "NUL bytes": 1, "longer than 100,000 bytes": 1}


def test_a_damaged_archive_is_said_to_be_so(tmp_path: Path) -> None:
    whole = gzip.compress(b"many lines\n" * 10000)
    (tmp_path / "x.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileError, match="damaged or cut short"):
        list(lines(tmp_path / "x.gz"))
    with pytest.raises(FileError, match="cannot read"):
        list(lines(tmp_path / "absent"))


def test_parallel_files_stay_in_step_and_unequal_ones_are_refused(tmp_path: Path) -> None:
    (tmp_path / "en").write_bytes(b"a\n\xff\nc\n")
    (tmp_path / "de").write_bytes(b"A\nB\nC\n")
    source = Parallel([tmp_path / "en", tmp_path / "de"])
    assert records(source) == [("a", "A"), ("c", "C")] and source.skipped == {"not UTF-8": 1}
    assert list(source.read(2)) == [(3, ("c", "C"))]
    (tmp_path / "de").write_bytes(b"A\nB\n")
    with pytest.raises(FileError, match="ends after line 2"):
        records(source)
    (tmp_path / "en").write_bytes(b"")
    with pytest.raises(FileError, match="no lines"):
        records(Parallel([tmp_path / "en"]))


def test_tables(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text('a "b\tB\nonly one\nc\tC\td\n')
    table = Table(tmp_path / "x.tsv", [0, 1])
    assert records(table) == [('a "b', "B"), ("c", "C")] and table.skipped == {"too few columns": 1}
    (tmp_path / "x.csv").write_text('id,en,de\n1,"a, b",A\n')
    assert records(Table(tmp_path / "x.csv", ["de", "en"])) == [("A", "a, b")]
    (tmp_path / "x.jsonl").write_text('{"en": "a", "de": "A"}\nno\n{"en": 1}\n')
    table = Table(tmp_path / "x.jsonl", ["en", "de"])
    assert records(table) == [("a", "A")] and sum(table.skipped.values()) == 2
    with pytest.raises(FileError, match="no column 'fr'; its header is id, en, de"):
        records(Table(tmp_path / "x.csv", ["fr"]))


def test_the_grammar_source_goes_on_where_it_stopped() -> None:
    source = GrammarSource("train", 30, seed=2)
    everything = list(source.read())
    assert len(everything) == 30 and list(source.read(12)) == everything[12:]
    reverse = GrammarSource("train", 30, seed=2, reverse=True)
    assert [r[::-1] for r in records(reverse)] == [r for _, r in everything]


# --- batches

TEXTS = [("x" * (1 + (7 * i) % 13),) for i in range(50)]


def stream(pool: int = 1000, rank: int = 0, world: int = 1, seed: int = 0, texts: list = TEXTS) -> Batches:
    return Batches(Memory([(t[0] + f"#{i}",) for i, t in enumerate(texts)]), lambda rows: [r[0] for r in rows], len, 40,
                   pool, seed, rank, world)  # fmt: skip


def epoch(batches: Batches, number: int = 0) -> list[list[str]]:
    taken = []
    for batch in batches:
        if batches.position.epoch > number:
            break
        taken.append(batch)
        if sum(len(b) for b in taken) == 50 * (number + 1):
            break
    return taken


@pytest.mark.parametrize("pool", [7, 1000])
def test_an_epoch_has_every_example_once_in_batches_of_equal_tokens(pool: int) -> None:
    batches = epoch(stream(pool))
    assert sorted(x for b in batches for x in b) == sorted(t[0] + f"#{i}" for i, t in enumerate(TEXTS))
    for batch in batches:
        assert len(batch) * max(map(len, batch)) <= 40
    assert max(map(len, batches)) > 1


def test_order_changes_with_the_epoch_and_the_seed_only() -> None:
    two_epochs = list(islice(stream(), 2 * len(epoch(stream()))))
    half = len(two_epochs) // 2
    assert two_epochs[:half] != two_epochs[half:]
    assert list(islice(stream(), 20)) == list(islice(stream(), 20)) != list(islice(stream(seed=1), 20))


@settings(deadline=None, max_examples=60)
@given(stop=st.integers(0, 60), pool=st.sampled_from([7, 25, 1000]), world=st.sampled_from([1, 2]))
def test_a_resumed_stream_goes_on_with_the_very_next_batch(stop: int, pool: int, world: int) -> None:
    whole = list(islice(stream(pool, world=world), stop + 10))
    first = stream(pool, world=world)
    iterator = iter(first)
    for _ in range(stop):
        next(iterator)
    second = stream(pool, world=world)
    second.position = Position(**first.position.to_json())
    assert list(islice(second, 10)) == whole[stop:]


def test_workers_share_one_stream() -> None:
    alone = list(islice(stream(), 10))
    shards = [list(islice(stream(rank=r, world=2), 5)) for r in range(2)]
    assert [b for pair in zip(*shards, strict=True) for b in pair] == alone


def test_no_example_left_and_too_many_workers_are_said() -> None:
    nothing = Batches(Memory([("a",)]), lambda rows: [None for _ in rows], len, 40)
    with pytest.raises(QkvError, match="no example is left"):
        next(iter(nothing))
    with pytest.raises(QkvError, match="1 batches for 4 workers"):
        next(iter(stream(world=4, texts=TEXTS[:2])))
