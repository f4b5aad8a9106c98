"""Tokenizer files of other people's models: the ids that their own tokenizers give."""

import json
import os
from pathlib import Path

import pytest

from qkv.convert.files import write_json, write_text
from qkv.convert.tokenizer_files import open_tokenizer
from qkv.errors import FileError, QkvError
from qkv.text.kinds import scored_bpe

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
    with pytest.raises(QkvError, match="cannot be tokenized"):
        made.encode("\ud800")


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
