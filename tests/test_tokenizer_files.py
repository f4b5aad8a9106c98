"""Tokenizer files of other people's models: the ids that their own tokenizers give."""

import json
import os
import struct
from pathlib import Path

import pytest

import qkv
from qkv.api import Model
from qkv.config import ModelConfig
from qkv.convert.files import write_json, write_text
from qkv.convert.tokenizer_files import open_tokenizer, read_tokenizer
from qkv.errors import FileError, QkvError
from qkv.models.build import build
from qkv.text.kinds import scored_bpe
from qkv.text.tokenizer import Tokenizer

DATA = Path(os.environ.get("QKV_DATA", Path(__file__).parents[2] / "shared" / "data"))


def test_gpt2_files(tmp_path):
    vocab = {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4, "Ã": 5, "¼": 6, "<|endoftext|>": 7}
    for names in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
        folder = tmp_path / names[0]
        folder.mkdir()
        write_json(folder / names[0], vocab)
        write_text(folder / names[1], "#version: 0.2\na b\nĠ ab\n")
        tokenizer = open_tokenizer(folder)
        assert tokenizer.encode("ab ab<|endoftext|>") == [3, 4, 7]
        assert tokenizer.decode([3, 4, 5, 6, 7]) == "ab abü"
    write_text(folder / "vocab.bpe", "a b c\n")
    with pytest.raises(FileError, match="two pieces per line"):
        open_tokenizer(folder)
    write_text(folder / "vocab.bpe", "x y\n")
    with pytest.raises(FileError, match="no vocabulary for BPE"):
        open_tokenizer(folder)
    for vocab in ({"a": 0, "b": 1}, {"a": 0, "b": 5000}):
        write_json(folder / "encoder.json", vocab)
        write_text(folder / "vocab.bpe", "a b\n")
        with pytest.raises(FileError, match="lacks 'ab', which a merge makes"):
            open_tokenizer(folder)
    write_json(folder / "encoder.json", {"a": "0"})
    with pytest.raises(FileError, match="words and their ids"):
        open_tokenizer(folder)


def test_bert_files(tmp_path):
    write_text(
        tmp_path / "vocab.txt", "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "##s", "The"]) + "\n"
    )
    assert open_tokenizer(tmp_path).encode("The cats") == [2, 4, 5, 6, 3]
    write_json(tmp_path / "tokenizer_config.json", {"do_lower_case": False})
    assert open_tokenizer(tmp_path).encode("The dogs") == [2, 7, 1, 3]
    write_text(tmp_path / "vocab.txt", "the\ncat\n")
    with pytest.raises(FileError, match=r"\[UNK\], \[CLS\], \[SEP\]"):
        open_tokenizer(tmp_path)


def test_tokenizer_json(tmp_path):
    made = scored_bpe(["<unk>", "a", "\u2581"], [0.0, 0.0, 0.0])
    write_text(tmp_path / "tokenizer.json", made.to_json())
    write_text(tmp_path / "chat_template.jinja", "hello")
    again = open_tokenizer(tmp_path)
    assert again.encode("a a") == made.encode("a a") == [2, 1, 2, 1]
    assert again.chat_template == "hello" and again.size == 3 and again.id_of("a") == 1
    write_text(tmp_path / "tokenizer.json", json.dumps({"model": {"type": "BPE"}}))
    with pytest.raises(FileError, match="not a tokenizer"):
        open_tokenizer(tmp_path)
    broken = json.loads(made.to_json())  # the library panics: no Exception, but an error for whoever gave the file
    broken["model"] |= {"vocab": {"a": 0, "b": 5000}, "merges": [["a", "b"]]}
    write_text(tmp_path / "tokenizer.json", json.dumps(broken))
    with pytest.raises(FileError, match="not a tokenizer"):
        open_tokenizer(tmp_path)
    with pytest.raises(QkvError, match="cannot be tokenized"):
        made.encode("\ud800")


# --- SentencePiece


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def field(number: int, value: bytes | int | float) -> bytes:
    """One field of a protobuf message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def write_model(path: Path, names: dict[str, int], **ends: int) -> None:
    """A unigram model of special names {name: type}, "▁", "a", "b" and "▁ab"."""
    pieces = [(name, 0.0, kind) for name, kind in names.items()]
    pieces += [("\u2581", -3.0, 1), ("a", -4.0, 1), ("b", -4.5, 1), ("\u2581ab", -1.0, 1)]
    data = b"".join(field(1, field(1, t.encode()) + field(2, s) + field(3, k)) for t, s, k in pieces)
    numbers = {"bos": 41, "eos": 42, "pad": 43}
    data += field(2, field(3, 1) + b"".join(field(numbers[name], at % 2**64) for name, at in ends.items()))
    path.write_bytes(data)


def t5(folder: Path) -> Path:
    write_model(folder / "spiece.model", {"<pad>": 3, "</s>": 3, "<unk>": 2}, bos=-1, eos=1, pad=0)
    write_json(folder / "config.json", {"model_type": "t5"})
    return folder


def llama(folder: Path) -> Path:
    write_model(folder / "tokenizer.model", {"<unk>": 2, "<s>": 3, "</s>": 3}, bos=1, eos=2, pad=-1)
    write_json(folder / "config.json", {"model_type": "llama"})
    return folder


def test_t5_ends_a_text_and_names_what_was_taken_out(tmp_path):
    tokenizer = open_tokenizer(t5(tmp_path))
    assert tokenizer.encode("ab a") == [6, 3, 4, 1]
    assert tokenizer.encode("ab a", special=False) == [6, 3, 4]
    assert tokenizer.id_of("<extra_id_0>") == tokenizer.size - 1 == 106 and tokenizer.id_of("<extra_id_99>") == 7
    assert tokenizer.decode(tokenizer.encode("ab a")) == "ab a"


def test_llama_begins_a_text_unless_the_settings_say_otherwise(tmp_path):
    assert open_tokenizer(llama(tmp_path)).encode("ab") == [1, 6]
    write_json(tmp_path / "tokenizer_config.json", {"add_bos_token": False, "add_eos_token": True})
    assert open_tokenizer(tmp_path).encode("ab") == [6, 2]
    write_json(tmp_path / "tokenizer_config.json", {"add_eos_token": True, "eos_token": {"content": "b"}})
    tokenizer = open_tokenizer(tmp_path)
    assert tokenizer.encode("ab") == [1, 6, 5]
    assert tokenizer.backend.encode("ab", "ab").ids == [1, 6, 5, 1, 6, 5]
    write_json(tmp_path / "tokenizer_config.json", {"bos_token": "<begin>"})
    with pytest.raises(FileError, match="'<begin>' should stand around each text"):
        open_tokenizer(tmp_path)
    (tmp_path / "config.json").unlink()  # of no known family: nothing around
    write_json(tmp_path / "tokenizer_config.json", {})
    assert open_tokenizer(tmp_path).encode("ab") == [6]


def test_files_of_a_kind_not_read_are_named(tmp_path):
    """Marian's: source.spm cuts the text, but the ids are those of vocab.json."""
    config = ModelConfig(family="encoder-decoder", vocab_size=12, d_model=16, n_layers=1, n_heads=2, d_ff=32, bos_id=1)
    model = Model(config, build(config), device="cpu")
    with pytest.raises(QkvError, match="has no tokenizer: pass token ids"):
        model.encode("a")
    model.save(tmp_path / "m")
    write_json(tmp_path / "m" / "vocab.json", {"a": 0})
    for name in ("source.spm", "sentencepiece.bpe.model"):
        write_model(tmp_path / "m" / name, {"<unk>": 2})
    assert open_tokenizer(tmp_path / "m") is None
    found = "sentencepiece.bpe.model, source.spm, vocab.json"
    with pytest.raises(QkvError, match=rf"has no tokenizer of a supported format \(found {found}\)"):
        qkv.load(tmp_path / "m").encode("a")
    with pytest.raises(FileError, match=f"found {found}"):
        read_tokenizer(tmp_path / "m")


@pytest.mark.skipif(not (DATA / "gpt2_bpe").is_dir(), reason="the real vocabularies are not here (QKV_DATA)")
def test_real_vocabularies_against_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    text = "Hello  world!\n\tIt's 2024; naïve café ☃ don't 'RE"
    ours = open_tokenizer(DATA / "gpt2_bpe")
    vocab, merges = str(DATA / "gpt2_bpe" / "encoder.json"), str(DATA / "gpt2_bpe" / "vocab.bpe")
    theirs = transformers.GPT2Tokenizer(vocab, merges)
    assert ours.encode(text) == theirs(text).input_ids and ours.decode(ours.encode(text)) == text
    ours = open_tokenizer(DATA / "bert_vocab")
    theirs = transformers.BertTokenizer(str(DATA / "bert_vocab" / "vocab.txt"))
    assert ours.encode(text) == theirs(text).input_ids


@pytest.mark.parametrize("kind", ["WordLevel", "BPE", "WordPiece"])
def test_a_large_id_takes_no_memory(kind):
    """The library takes four bytes for each id up to the largest when it writes a tokenizer down."""
    vocab = {"a": 2**31 - 1, "[UNK]": 0}
    kinds = {"WordLevel": {"unk_token": "[UNK]"}, "BPE": {"merges": []}}
    other = {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    text = json.dumps(
        {"version": "1.0", "added_tokens": [], "model": {"type": kind, "vocab": vocab, **kinds.get(kind, other)}}
    )
    with pytest.raises(FileError, match="id 2,147,483,647"):
        Tokenizer.from_json(text)
    small = Tokenizer.from_json(text.replace(str(2**31 - 1), "1"))
    assert small.encode("a") == [1] and small.plain(["a"]) == [[1]]


def test_special_tokens_have_an_id_each():
    """The library does not check it, and returns more ids than tokens."""
    vocab = {"a": 0, "[UNK]": 1, "[CLS]": 2}
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}},
    }
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}
    text = {"version": "1.0", "added_tokens": [], "post_processor": template, "model": model}
    assert Tokenizer.from_json(json.dumps(text)).encode("a") == [2, 0]
    template["special_tokens"]["[CLS]"]["ids"] = [2, 2, 2]
    with pytest.raises(FileError, match="1 special tokens around a text, with 3 ids"):
        Tokenizer.from_json(json.dumps(text))
