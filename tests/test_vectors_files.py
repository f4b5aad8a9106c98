"""What word vectors are used for: files that gensim reads too, nearest words, analogies, people's judgements; one-hot vectors."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from qkv.convert.manifest import seal
from qkv.errors import FileError, QkvError
from qkv.vectors.evaluate import evaluate_analogies, evaluate_similarity, score_vectors
from qkv.vectors.space import OneHot, Vectors, load_vectors
from qkv.vectors.store import export, save

# --- files


def some_vectors(count: int = 6, width: int = 5) -> Vectors:
    r = torch.Generator().manual_seed(0)
    words = ["the", "naïve", "don't", "犬", "new_york", *(f"w{i}" for i in range(count))][:count]
    return Vectors(words, torch.randn(count, width, generator=r), list(range(count, 0, -1)), torch.zeros(count, width))


@pytest.mark.parametrize("to", ["word2vec-text", "word2vec-binary", "qkv"])
def test_files_give_back_the_same_bits(tmp_path: Path, to: str) -> None:
    v, path = some_vectors(), tmp_path / "vectors"
    assert export(path, to, v) == 0
    again = load_vectors(path)
    assert again.words == v.words and torch.equal(again.vectors, v.vectors)
    assert again.counts == (v.counts if to == "qkv" else None)
    with pytest.raises(FileError, match="exists"):
        export(path, to, v)


@pytest.mark.parametrize("binary", [True, False])
def test_gensim_reads_ours_and_we_read_gensims(tmp_path: Path, binary: bool) -> None:
    keyed = pytest.importorskip("gensim.models", reason="gensim is not installed: pip install gensim").KeyedVectors
    v = some_vectors()
    export(tmp_path / "ours", "word2vec-binary" if binary else "word2vec-text", v)
    theirs = keyed.load_word2vec_format(str(tmp_path / "ours"), binary=binary)
    assert theirs.index_to_key == v.words and np.array_equal(theirs.vectors, v.vectors.numpy())
    theirs.save_word2vec_format(str(tmp_path / "theirs"), binary=binary)
    (tmp_path / "theirs.gz").write_bytes(gzip.compress((tmp_path / "theirs").read_bytes()))
    for name in ("theirs", "theirs.gz"):
        again = load_vectors(tmp_path / name)
        assert again.words == v.words and torch.equal(again.vectors, v.vectors)


WRONG = {
    "empty": (b"", "first line"),
    "no sizes": (b"the 0.1 0.2\n", "first line"),
    "too many": (b"99999999 3\n", "not possible"),
    "too wide": (b"2 999999\n", "not possible"),
    "nothing": (b"0 3\n", "not possible"),
    "cut short": (b"3 2\nthe 0.1 0.2\nof 0.3 0.4\n", "word 3 of 3"),
    "promises": (b"30000 300\nthe 0.1 0.2\n", "truncated"),
    "cut in a line": (b"3 2\nthe 0.1 0.2\nof 0.3", "truncated at word 2 of 3"),
    "too few numbers": (b"2 2\nthe 0.1 0.2\nof 0.3\n", "word 2 of 2"),
    "no numbers": (b"2 2\nthe 0.1 0.2\nof 0.3 much\n", "word 2 of 2"),
    "infinite": (b"1 2\nthe 0.1 inf\n", "infinite"),
    "cut binary": (b"2 2\nthe " + b"\0" * 8 + b"of " + b"\0" * 7, "word 2 of 2"),
    "no space": (b"1 2\n" + b"x" * 100, "damaged or truncated"),
    "not UTF-8": (b"1 1\n\xff\xfe \0\0\0\0", "not UTF-8"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + b"\0" * 64, "first line"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_an_error_of_one_line(tmp_path: Path, name: str) -> None:
    content, why = WRONG[name]
    (tmp_path / "wrong.bin").write_bytes(content)
    with pytest.raises(FileError, match=why) as error:
        load_vectors(tmp_path / "wrong.bin")
    assert "\n" not in str(error.value)


def test_of_a_word_that_is_there_twice_the_first_counts(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("3 2\na 1 2\nb 3 4\na 5 6\n")
    v = load_vectors(tmp_path / "v.txt")
    assert v.words == ["a", "b"] and v.vectors.tolist() == [[1, 2], [3, 4]]


def test_a_run_is_not_replaced_by_its_vectors(tmp_path: Path) -> None:
    """It holds vectors, in best/, and checkpoints beside them."""
    save(tmp_path / "run" / "best", some_vectors())
    (tmp_path / "run" / "recipe.toml").write_text("mine")
    with pytest.raises(FileError, match="not a folder of word vectors"):
        load_vectors(tmp_path / "run").save(tmp_path / "run")
    assert (tmp_path / "run" / "recipe.toml").exists()
    load_vectors(tmp_path / "run").save(tmp_path / "run" / "best")  # this is one


def test_wrong_folders(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="does not exist"):
        load_vectors(tmp_path / "nothing")
    with pytest.raises(FileError, match="no word vectors"):
        load_vectors(tmp_path)
    for damage, why in (('{"words": ["a"]}', "float32 of shape"), ('{"words": ["a", "a"]}', "distinct"), ("{}", "words"), ("[", "JSON"),
                        ('{"words": ["a", "b", "c"], "counts": [1]}', "count")):  # fmt: skip
        save(tmp_path / "mine", some_vectors(3))
        (tmp_path / "mine" / "vocabulary.json").write_text(damage)
        seal(tmp_path / "mine", ())
        with pytest.raises(FileError, match=why):
            load_vectors(tmp_path / "mine")
    broken = some_vectors(3)
    broken.vectors[1, 2] = torch.nan
    save(tmp_path / "mine", broken)
    with pytest.raises(FileError, match="not a number"):
        load_vectors(tmp_path / "mine")
    (tmp_path / "mine" / "note.txt").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "note.txt").write_text("mine")
    with pytest.raises(FileError, match="not a folder of word vectors"):
        save(tmp_path / "other", some_vectors())


# --- words as points


def points() -> Vectors:
    """Sex and rank are a direction each."""
    table = {
        "man": (1, 0, 0),
        "woman": (0, 1, 0),
        "king": (1, 0, 1),
        "queen": (0, 1, 1),
        "dog": (-1, -1, 0.5),
        "boy": (1, 0, -0.2),
    }
    return Vectors(list(table), torch.tensor(list(table.values())))


def test_nearest_and_analogy() -> None:
    v = points()
    assert v.analogy("man", "woman", "king")[0].word == "queen"
    assert v.analogy("man", "king", "woman", n=1)[0].word == "queen"
    assert [near.word for near in v.nearest("man", 2)] == ["boy", "king"]
    assert len(v.nearest("man", 100)) == 5 and len(v.analogy("man", "woman", "king", 100)) == 3
    assert v.similarity("man", "man") == pytest.approx(1) and v.similarity("man", "woman") == pytest.approx(0)
    assert v.similarity("man", "king") == pytest.approx(v.nearest("king")[0].similarity)
    assert torch.equal(v.vector("Queen"), v.vectors[3])  # small letters, where there are no others
    with pytest.raises(QkvError, match=r"'quen' is not in the vocabulary of 6 words: did you mean 'queen'"):
        v.nearest("quen")
    with pytest.raises(QkvError, match="at least 1, given 0"):
        v.nearest("man", 0)
    with pytest.raises(QkvError, match="word vectors"):
        v.translate(["a text"])  # type: ignore[operator]
    assert not hasattr(v, "config")


def test_many_answers_are_those_of_one_at_a_time() -> None:
    v = some_vectors(40)
    questions = torch.stack([torch.randperm(40)[:3] for _ in range(600)])
    alone = [v.index[v.analogy(*(v.words[i] for i in question), n=1)[0].word] for question in questions.tolist()]
    assert v.answers(questions).tolist() == alone


def test_one_hot_vectors_have_no_similarity(tmp_path: Path) -> None:
    """C21: any two different words are equally far from each other."""
    v = points()
    hot = OneHot(v.words)
    pairs = torch.cartesian_prod(torch.arange(6), torch.arange(6))
    table = torch.eye(6)
    assert torch.equal(hot.similarities(pairs), (table[pairs[:, 0]] * table[pairs[:, 1]]).sum(1))
    (tmp_path / "pairs.tsv").write_text("man\tboy\t9\nking\tqueen\t5\ndog\tman\t1\n")
    (tmp_path / "analogies.txt").write_text(": family\nman woman king queen\n")
    assert (
        evaluate_similarity(hot, tmp_path / "pairs.tsv").value
        == 0
        == evaluate_analogies(hot, tmp_path / "analogies.txt").value
    )
    found = score_vectors(v, [tmp_path / "pairs.tsv"], tmp_path / "analogies.txt")
    assert found is not None and [(s["name"], round(s["value"]), s["one_hot"]) for s in found["scores"]] == [
        ("pairs", 100, 0), ("analogies", 100, 0), ("family", 100, 0)]  # fmt: skip
    assert score_vectors(v, [], None) is None


# --- judgements


def test_files_of_judgements(tmp_path: Path) -> None:
    """WordSim's and SimLex' layouts, the original ones too; words that are not there are left out, and counted."""
    v, path = points(), tmp_path / "pairs.txt"
    for content in (
        "# a comment\nman\tboy\t9.5\nking\tqueen\t5\n\ndog\tman\t1\nman\tunicorn\t3\n",
        "Word 1,Word 2,Human (mean)\nman,boy,9.5\nking,queen,5\ndog,man,1\nman,unicorn,3\n",
        "word1\tword2\tPOS\tSimLex999\tconc\nman\tboy\tN\t9.5\t1\nking\tqueen\tN\t5\t2\ndog\tman\tN\t1\t3\nman\tunicorn\tN\t3\t3\n",
        "man boy 9.5\nking queen 5\ndog man 1\nman unicorn 3\n",
    ):
        path.write_text(content)
        found = evaluate_similarity(v, path)
        assert (found.value, found.asked, found.total) == (pytest.approx(100), 3, 4)
    path.write_text("man\tunicorn\t3\n")
    assert evaluate_similarity(v, path).asked == 0
    for nothing in ("", "# a comment\n\n", "one line of titles\n"):
        path.write_text(nothing)
        with pytest.raises(FileError, match="no pairs"):
            evaluate_similarity(v, path)
    path.write_bytes("man\tboy\t3\nK\xe4se\tman\t4\n".encode("latin-1"))
    with pytest.raises(FileError, match="line 2 is not UTF-8"):
        evaluate_similarity(v, path)
    path.write_text("man\tboy\t3\nman\tking\n")
    with pytest.raises(FileError, match="line 2"):
        evaluate_similarity(v, path)


def test_files_of_analogies(tmp_path: Path) -> None:
    path = tmp_path / "questions.txt"
    path.write_text(
        ": family\nMan Woman King Queen\nman king woman queen\n: animals\ndog dogs man men\nman boy king dog\n: none\na b c d\n"
    )
    found = evaluate_analogies(points(), path)
    assert [(s.name, s.asked, s.total) for s in found.sections] == [("family", 2, 2), ("animals", 1, 2), ("none", 0, 1)]
    assert found.sections[0].value == 100 and found.sections[1].value == 0 and found.value == pytest.approx(200 / 3)
    scores = (score_vectors(points(), [], path) or {})["scores"]
    assert [one["name"] for one in scores] == ["analogies", "family", "animals"]  # of "none" nothing was asked
    path.write_bytes("K\xe4se man woman dog\n".encode("latin-1"))
    with pytest.raises(FileError, match="line 1 is not UTF-8"):
        evaluate_analogies(points(), path)
    for wrong, why in (("man woman king\n", "line 1"), ("", "no analogies"), (": family\n", "no analogies")):
        path.write_text(wrong)
        with pytest.raises(FileError, match=why):
            evaluate_analogies(points(), path)


def test_the_scores_are_gensims(tmp_path: Path) -> None:
    keyed = pytest.importorskip("gensim.models", reason="gensim is not installed: pip install gensim").KeyedVectors
    v = Vectors(
        [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(60)],
        torch.randn(60, 8, generator=torch.Generator().manual_seed(1)),
    )
    theirs = keyed(8)
    theirs.add_vectors(v.words, v.vectors.numpy())
    r = np.random.default_rng(0)
    pairs, questions = tmp_path / "pairs.tsv", tmp_path / "questions.txt"
    chosen = [r.choice(62, 2, replace=False) for _ in range(50)]
    name = lambda i: v.words[i] if i < 60 else "unknown"  # noqa: E731
    pairs.write_text("".join(f"{name(a)}\t{name(b)}\t{r.random():.2f}\n" for a, b in chosen))
    asked = [r.choice(62, 3, replace=False) for _ in range(80)]
    ends = [
        name(int(v.answers(torch.tensor([q]))[0]) if max(q) < 60 and i % 3 else 5)
        for i, q in enumerate(map(list, asked))
    ]
    questions.write_text(
        ": all\n" + "".join(f"{' '.join(map(name, q))} {end}\n" for q, end in zip(asked, ends, strict=True))
    )
    (_, spearman, _), ours = theirs.evaluate_word_pairs(str(pairs)), evaluate_similarity(v, pairs)
    assert ours.value == pytest.approx(100 * spearman[0], abs=1e-4)
    score, sections = theirs.evaluate_word_analogies(str(questions))
    found = evaluate_analogies(v, questions)
    assert found.value == pytest.approx(100 * score) and 0 < score < 1
    assert found.asked == len(sections[-1]["correct"]) + len(sections[-1]["incorrect"])
