"""Reading text from outside, and batches: equal in tokens, complete, exact to resume, shared out to workers."""

import gzip
import json
import lzma
from collections import Counter
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data import batching
from qkv.data import lines as line_module
from qkv.data import sources as source_module
from qkv.data.batching import Batches, Position
from qkv.data.distinct import Distinct
from qkv.data.lines import MAX_LINE, Lines, lines
from qkv.data.mixture import Mixture
from qkv.data.sources import Corpus, GrammarSource, InMemorySource, Parallel, TableSource
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


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
@settings(deadline=None, max_examples=30)
@given(
    texts=st.lists(st.sampled_from(["", "a", "b" * 300, "c" * (MAX_LINE + 5), "\0", "ü\r"]), max_size=12),
    last=st.booleans(),
)
def test_passing_over_lines_is_reading_and_dropping_them(ending: str, texts: list[str], last: bool) -> None:
    """From any start, also behind lines that are too long, whether or not the last one has an end."""
    with TemporaryDirectory() as place:
        path = Path(place) / f"x{ending}"
        text = "\n".join(texts) + ("\n" if last and texts else "")
        {"": open, ".gz": gzip.open, ".xz": lzma.open}[ending](path, "wb").write(text.encode())
        whole = list(lines(path))
        for start in range(len(texts) + 2):
            reader = Lines(path, start=start)
            assert list(reader) == whole[start:] and reader.number == max(len(whole), 0)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_bytes("\ufeffen\tde\na\tA\n".encode())
    assert records(TableSource(tmp_path / "x.tsv", ["en", "de"])) == [("a", "A")]
    (tmp_path / "x").write_bytes("\ufeff\ufeffa\n\ufeffb".encode())
    assert list(lines(tmp_path / "x")) == ["\ufeffa", "\ufeffb"]


def corpora(place: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> list[Corpus]:
    """The same records from every kind of source, with runs of 3."""
    for module in (line_module, source_module):
        monkeypatch.setattr(module, "RUN", 3)
    rows = [(f"en {i}", f"de {i}") for i in range(size)]
    for name, make in {"t.tsv": "\t".join, "t.csv": ",".join, "en": lambda r: r[0], "de": lambda r: r[1]}.items():
        (place / name).write_text("".join(make(row) + "\n" for row in rows))
    (place / "t.jsonl").write_text("".join(json.dumps(dict(zip(("a", "b"), row, strict=True))) + "\n" for row in rows))
    tables = [
        TableSource(place / "t.tsv", [0, 1]),
        TableSource(place / "t.csv", [0, 1]),
        TableSource(place / "t.jsonl", ["a", "b"]),
    ]
    return [Parallel([place / "en", place / "de"]), *tables, InMemorySource(rows)]


@pytest.mark.parametrize(("start", "stride"), [(0, 1), (7, 1), (0, 2), (0, 4), (5, 2), (50, 1)])
def test_a_sample_is_spread_over_the_whole_corpus(
    start: int, stride: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [n for n in range(start, 29) if (n - start) // 3 % stride == 0]
    for corpus in corpora(tmp_path, 29, monkeypatch):
        assert list(corpus.read(start, stride)) == [(n + 1, (f"en {n}", f"de {n}")) for n in wanted], corpus
        assert corpus.about() == pytest.approx(29, abs=1)


def test_unequal_files_are_noticed_where_lines_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parallel = corpora(tmp_path, 11, monkeypatch)[0]
    with open(tmp_path / "de", "a") as file:
        file.write("one more\n")
    with pytest.raises(FileError, match="ends after line 11"):
        list(parallel.read(0, 4))


def test_repetitions_are_left_out_wherever_reading_begins() -> None:
    rows = [(f"en {i % 7}", f"de {i % 5}") for i in range(100)]
    source = Distinct(InMemorySource(rows))
    everything = list(source.read())
    assert [r for _, r in everything] == list(dict.fromkeys(rows)) and source.skipped == {"a repetition": 65}
    assert list(source.read()) == everything  # an epoch later, too
    for start in (1, 20, 36, 99):
        assert list(source.read(start)) == [(n, r) for n, r in everything if n > start]


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
    table = TableSource(tmp_path / "x.tsv", [0, 1])
    assert records(table) == [('a "b', "B"), ("c", "C")] and table.skipped == {"too few columns": 1}
    (tmp_path / "x.csv").write_text('id,en,de\n1,"a, b",A\n')
    assert records(TableSource(tmp_path / "x.csv", ["de", "en"])) == [("A", "a, b")]
    (tmp_path / "open.csv").write_text('id,en,de\n1,"a\nb",A\n2,"c,C\n3,d,D\n')
    with pytest.raises(
        FileError, match=r"the row that begins in line 4: a quotation that does not end; is a quotation mark"
    ):
        records(TableSource(tmp_path / "open.csv", ["de", "en"]))
    (tmp_path / "marks.csv").write_text(
        '1,5" pipe,"a ""b"""\n2,x,"y\n"'
    )  # marks within a cell, and an end without a line end
    assert records(TableSource(tmp_path / "marks.csv", [1, 2])) == [('5" pipe', 'a "b"'), ("x", "y\n")]
    (tmp_path / "x.jsonl").write_text('{"en": "a", "de": "A"}\nno\n{"en": 1}\n')
    table = TableSource(tmp_path / "x.jsonl", ["en", "de"])
    assert records(table) == [("a", "A")] and sum(table.skipped.values()) == 2
    with pytest.raises(FileError, match="no column 'fr'; its header is id, en, de"):
        records(TableSource(tmp_path / "x.csv", ["fr"]))


def test_the_grammar_source_goes_on_where_it_stopped() -> None:
    source = GrammarSource("train", 30, seed=2)
    everything = list(source.read())
    assert len(everything) == 30 and list(source.read(12)) == everything[12:]
    reverse = GrammarSource("train", 30, seed=2, reverse=True)
    assert [r[::-1] for r in records(reverse)] == [r for _, r in everything]


# --- batches

TEXTS = [("x" * (1 + (7 * i) % 13),) for i in range(50)]


def stream(pool: int = 1000, seed: int = 0) -> Batches:
    return Batches(InMemorySource([(t[0] + f"#{i}",) for i, t in enumerate(TEXTS)]), lambda rows: [r[0] for r in rows], len, 40,
                   pool, seed)  # fmt: skip


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
@given(stop=st.integers(0, 60), pool=st.sampled_from([7, 25, 1000]))
def test_a_resumed_stream_goes_on_with_the_very_next_batch(stop: int, pool: int) -> None:
    whole = list(islice(stream(pool), stop + 10))
    first = stream(pool)
    iterator = iter(first)
    for _ in range(stop):
        next(iterator)
    second = stream(pool)
    second.position = Position(**first.position.to_json())
    assert list(islice(second, 10)) == whole[stop:]


def test_a_large_corpus_is_opened_once_per_epoch_and_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "CHUNK", 5)
    opened: list[int] = []

    class Watched(InMemorySource):
        def read(self, start: int = 0, stride: int = 1):  # noqa: ANN202
            opened.append(start)
            return super().read(start, stride)

    def batches() -> Batches:
        return Batches(Watched([(f"{i}",) for i in range(40)]), lambda rows: [r[0] for r in rows], len, 8, pool=10)

    first = batches()
    taken = [(batch, first.position) for batch in islice(first, 50)]
    assert first.kept is None and set(opened) == {0} and len(opened) == taken[-1][1].epoch + 1 > 1
    second = batches()
    second.position = taken[20][1]
    assert list(islice(second, 29)) == [batch for batch, _ in taken[21:]]


def test_a_corpus_of_which_nothing_is_usable_ends() -> None:
    """Also where it would go on for ever."""
    endless = Mixture([InMemorySource([("a",)]), InMemorySource([("b",)])], [1, 2])
    nothing = Batches(endless, lambda rows: [], len, 40, pool=10)
    with pytest.raises(QkvError, match="no example is left"):
        next(iter(nothing))
    with pytest.raises(QkvError, match="no record that can be read"):
        next(Mixture([InMemorySource([]), InMemorySource([])], [1, 1]).read())


def test_no_example_left_is_said() -> None:
    nothing = Batches(InMemorySource([("a",)]), lambda rows: [], len, 40)
    with pytest.raises(QkvError, match="no example is left"):
        next(iter(nothing))


def test_a_header_over_several_lines_is_shown_in_one(tmp_path):
    (tmp_path / "a.csv").write_text('"a man,\na dog",yes\nb,no\n')
    with pytest.raises(FileError, match="no column 'text'") as caught:
        list(TableSource(tmp_path / "a.csv", ("text", "label")).read())
    assert "\n" not in str(caught.value)
