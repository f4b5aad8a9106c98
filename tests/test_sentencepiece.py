"""SentencePiece .model files: the ids and texts of the sentencepiece library, and clear errors for what is no model."""

from __future__ import annotations

import base64
import io
import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.convert.tokenizer_files import read_tokenizer
from qkv.data.grammar import pairs
from qkv.errors import FileError, QkvError
from qkv.text.sentencepiece_file import fields, parse, read_sentencepiece, varint
from qkv.text.tokenizer import Tokenizer
from qkv.text.train import KINDS, train_tokenizer

sentencepiece = pytest.importorskip("sentencepiece")
TEXTS = [text for p in itertools.islice(pairs("train"), 1200) for text in (p.source, p.target)]
NAMES = ["<s>", "</s>", "<unk>", "<pad>", "<0x41>"]
VARIANTS = {
    "plain": {},
    "bytes": {"byte_fallback": True, "vocab_size": 700},
    "no prefix": {"add_dummy_prefix": False},
    "all spaces": {"remove_extra_whitespaces": False},
    "identity": {"normalization_rule_name": "identity"},
    "case folded": {"normalization_rule_name": "nmt_nfkc_cf"},
    "across words": {"split_by_whitespace": False},
    "own symbols": {"user_defined_symbols": ["<mask>", "Hund"], "pad_id": 3},
}
CASES = [(kind, name) for kind in ("unigram", "bpe") for name in VARIANTS]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """One trained model per kind and variant."""
    folder, found = tmp_path_factory.mktemp("models"), {}
    for kind, name in CASES:
        made = io.BytesIO()
        options = {"vocab_size": 400, "model_type": kind, "minloglevel": 2, "num_threads": 1, **VARIANTS[name]}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS), model_writer=made, **options)
        found[kind, name] = folder / f"{kind} {name}.model"
        found[kind, name].write_bytes(made.getvalue())
    return found


def probes() -> list[str]:
    """Ordinary text, spaces of all kinds, other scripts, composed and decomposed letters, names of special pieces."""
    r = random.Random(0)
    letters = sorted(set("".join(TEXTS))) + list("<>/s▁ ☃éñ½ﬁ雪\u00a0")
    odd = ["", " ", "  a  b ", "\ta\u00a0b\n", "▁", "a▁b▁", "snow ☃ 雪だるま", "e\u0301te\u0301 A\u030a", "ﬁne ½ Ⅳ", "ﾊﾞｶ", "한국", "👨‍👩‍👧",
           "a\u0303b\u0301", "\u0301a", "…“”", "a\u200bb", "aaaaaaaa", *NAMES, *(f"Ein Hund {n} läuft{n}." for n in NAMES)]  # fmt: skip
    noise = ["".join(r.choice(letters) for _ in range(r.randint(1, 25))) for _ in range(400)]
    return TEXTS[::40] + odd + noise


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_ids_and_texts_are_sentencepieces(files: dict[tuple[str, str], Path], kind: str, name: str) -> None:
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(files[kind, name]))
    ours = read_sentencepiece(files[kind, name])
    assert ours.size == theirs.vocab_size()
    texts = probes()
    expected = theirs.encode(texts)
    for text, ids, found in zip(texts, expected, ours.plain(texts), strict=True):
        assert found == ids, text
        assert ours.decode(ids) == theirs.decode(ids), text
    r = random.Random(1)
    usable = [i for i in range(ours.size) if not theirs.is_byte(i)]  # half a character in bytes is shown otherwise
    for _ in range(200):  # ids that no text would give: control pieces and unknowns in a row
        ids = r.choices(usable[:20] + usable, k=r.randint(1, 8))
        assert ours.decode(ids) == theirs.decode(ids), theirs.id_to_piece(ids)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_own_symbols_stay_whole(files: dict[tuple[str, str], Path], kind: str) -> None:
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(files[kind, "own symbols"]))
    texts = ["<mask>", "der<mask>Hund", "ein Hund<mask> läuft", "Hunde Hund", "<mask><mask>"]
    ours = read_sentencepiece(files[kind, "own symbols"])
    assert ours.plain(texts) == theirs.encode(texts)
    assert ours.plain(["x<mask>"])[0][-1] == theirs.piece_to_id("<mask>")


def test_the_names_of_special_tokens_and_a_copy_in_our_format(
    files: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    ours = read_tokenizer(files["unigram", "own symbols"])
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    assert ours.special_names() == names
    assert [ours.id_of(names[f"{n}_token"]) for n in ("unk", "bos", "eos", "pad")] == [0, 1, 2, 3]
    assert ours.encode("</s>")[-1] == 2  # read as the token where tokens are read, as in chat templates
    (tmp_path / "tokenizer.json").write_text(ours.to_json())
    again = read_tokenizer(tmp_path / "tokenizer.json")
    assert again.plain(probes()) == ours.plain(probes())


# --- files that are no model


def test_broken_files_are_said_to_be_so(files: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    whole = files["bpe", "bytes"].read_bytes()
    path = tmp_path / "x.model"
    cases = [
        b"",
        b"\0" * 100,
        b"hello, this is text",
        whole[:-3],
        whole[: len(whole) // 2],
        b"\x0a\xff\xff\xff\xff\x7f",
        whole * 2,
    ]
    cases += [b"\xff" * 40, b"\x0b" + whole, whole + b"\x0f", whole + b"\x0a\x04\x0a\x02\xff\xfe"]
    for data in cases:
        path.write_bytes(data)
        with pytest.raises(FileError, match=r"x\.model"):
            read_sentencepiece(path)
    with pytest.raises(FileError, match="cannot read"):
        read_sentencepiece(tmp_path / "absent.model")


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_but_never_worse(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = bytearray(SMALL[data.draw(st.sampled_from(sorted(SMALL)))])
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("x") / "x.model"
    path.write_bytes(whole)
    try:
        tokenizer = read_sentencepiece(path)
    except FileError:
        return
    try:
        assert all(0 <= i < tokenizer.size for i in tokenizer.plain(["Ein Hund läuft ☃"])[0])
    except QkvError:  # a table that the library cannot use
        return


def small_model(rule: str) -> bytes:
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS[:300]),
        model_writer=made,
        vocab_size=90,
        minloglevel=2,
        normalization_rule_name=rule,
    )
    return made.getvalue()


SMALL = {rule: small_model(rule) for rule in ("identity", "nmt_nfkc")}


def test_kinds_that_are_not_read(tmp_path: Path) -> None:
    for options, message in (
        ({"model_type": "word"}, "neither unigram nor BPE"),
        ({"treat_whitespace_as_suffix": True}, "end of words"),
    ):
        made = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS[:300]),
            model_writer=made,
            vocab_size=90,
            minloglevel=2,
            hard_vocab_limit=False,
            **options,
        )
        (tmp_path / "x.model").write_bytes(made.getvalue())
        with pytest.raises(FileError, match=message):
            read_sentencepiece(tmp_path / "x.model")


# --- the wire format


@given(st.integers(0, 2**64 - 1))
def test_varints(number: int) -> None:
    data, rest = b"", number
    while rest >= 128:
        data, rest = data + bytes([rest & 127 | 128]), rest >> 7
    data += bytes([rest])
    assert varint(b"x" + data + b"y", 1) == (number, 1 + len(data))
    with pytest.raises(ValueError):
        varint(data[:-1], 0)


def test_fields_of_all_kinds() -> None:
    message = b"\x08\x96\x01" + b"\x12\x03abc" + b"\x1d\x00\x00\x80\x3f" + b"\x21" + b"12345678"
    assert list(fields(message)) == [(1, 150), (2, b"abc"), (3, b"\x00\x00\x80\x3f"), (4, b"12345678")]
    for broken in (b"\x12\x04abc", b"\x1d\x00", b"\x0b", b"\x02\x01a"):
        with pytest.raises(ValueError):
            list(fields(broken))


def test_pieces_are_read_with_score_and_type(files: dict[tuple[str, str], Path]) -> None:
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(files["unigram", "bytes"]))
    model = parse(files["unigram", "bytes"])
    for i, piece in enumerate(model.pieces):
        assert (piece.text, piece.score) == (theirs.id_to_piece(i), theirs.get_score(i))
        assert (piece.type == 2, piece.type == 3, piece.type == 6) == (
            theirs.is_unknown(i),
            theirs.is_control(i),
            theirs.is_byte(i),
        )


# --- text is text


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_special_tokens_in_text_are_text(kind: str) -> None:
    """A sentence that speaks of "</s>" must not end there."""
    names = ["[SEP]", "[PAD]", "[MASK]"] if kind == "wordpiece" else ["</s>", "<pad>", "<s>"]
    tokenizer: Tokenizer = train_tokenizer([*TEXTS[:400], *(f"we write {n} here" for n in [*names, *NAMES])], kind, 700)
    special = {tokenizer.id_of(name) for name in names}
    for text in names + [f"we write {name} here {name}" for name in names]:
        (ids,) = tokenizer.plain([text])
        assert ids and not special & set(ids), text
        assert kind in ("wordpiece", "words") or tokenizer.decode(ids) == text
        assert special & set(tokenizer.encode(text, special=False))  # where tokens are read, it is one


def test_a_batch_is_its_texts_one_by_one() -> None:
    tokenizer = train_tokenizer(TEXTS[:200], "bpe", 300)
    assert tokenizer.plain(TEXTS[:50]) == [tokenizer.encode(text, special=False) for text in TEXTS[:50]]
    assert tokenizer.plain([]) == []
    with pytest.raises(QkvError, match="cannot be tokenized"):
        tokenizer.plain(["\ud800"])


def test_a_character_table_cannot_announce_more_than_it_has(files: dict[tuple[str, str], Path], tmp_path: Path) -> None:
    """The library would allocate the announced gigabytes, and abort the process where it cannot."""
    good = next(path for path in files.values() if parse(path).normalizer["charsmap"])
    table = parse(good).normalizer["charsmap"]
    broken = (tmp_path / "x.model").write_bytes(good.read_bytes().replace(table, b"\xff\xff\xff\xfe" + table[4:]))
    assert broken == good.stat().st_size
    with pytest.raises(FileError, match="character table"):
        read_sentencepiece(tmp_path / "x.model")
    text = read_sentencepiece(good).to_json()
    encoded = base64.b64encode(table).decode()
    assert encoded in text
    with pytest.raises(FileError, match="character table"):
        Tokenizer.from_json(text.replace(encoded, base64.b64encode(b"\xff\xff\xff\xfe" + table[4:]).decode()))
    with pytest.raises(FileError, match="base64"):
        Tokenizer.from_json(text.replace(encoded, "?" + encoded))
