"""Tokenizer files in a model's folder: tokenizer.json, or the older vocab.json + merges.txt (GPT-2, RoBERTa, BART),
vocab.txt (BERT), spiece.model (T5) and tokenizer.model (LLaMA)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, processors

from qkv.convert.files import read_json, read_text, write_json, write_text
from qkv.convert.manifest import verify
from qkv.errors import FileError
from qkv.pretrained import find
from qkv.text.kinds import byte_level_bpe, put_around, wordpiece
from qkv.text.sentencepiece_file import read_sentencepiece
from qkv.text.tokenizer import MAX_ID, Tokenizer

SENTENCEPIECE = ("spiece.model", "tokenizer.model")
"""SentencePiece files whose ids are the model's. Those of Marian (source.spm) and XLM-R (sentencepiece.bpe.model) are not:
the model counts them otherwise."""
TARGET = "target_tokenizer.json"
"""Beside tokenizer.json: that of the target language, where it has a vocabulary of its own."""
PARTS = ("vocab.json", "merges.txt", "encoder.json", "vocab.bpe")
"""Files that make a tokenizer in pairs."""


def read_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer in a tokenizer.json, a SentencePiece .model, BERT's vocab.txt, or the folder of a model or run."""
    path = find(path)
    if path.is_dir():
        if (found := open_tokenizer(path)) is not None:
            return found
        unread = ", ".join(unread_tokenizer_files(path))
        looked = ", ".join(["tokenizer.json", "vocab.json with merges.txt", "vocab.txt", *SENTENCEPIECE])
        seen = f"; found {unread}" if unread else ""
        raise FileError(f"{path} has no tokenizer that is read here: looked for {looked}{seen}")
    if path.suffix in (".model", ".spm"):
        return read_sentencepiece(path)
    if path.suffix == ".txt":
        return open_bert(path, {})
    beside = path.parent / "tokenizer_config.json"
    settings = read_json(beside) if path.name == "tokenizer.json" and beside.is_file() else {}
    return Tokenizer.from_json(read_text(path), settings, str(path))


def open_tokenizer(folder: str | Path) -> Tokenizer | None:
    """The tokenizer of a folder, None where it has none."""
    folder = Path(folder)
    verify(folder, "tokenizer.json", "tokenizer_config.json")
    settings = read_settings(folder)
    if (folder / "tokenizer.json").is_file():
        return Tokenizer.from_json(read_text(folder / "tokenizer.json"), settings, str(folder / "tokenizer.json"))
    for vocab, merges in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
        if (folder / vocab).is_file() and (folder / merges).is_file():
            return open_gpt2(folder / vocab, folder / merges, settings)
    if (folder / "vocab.txt").is_file():
        return open_bert(folder / "vocab.txt", settings)
    for name in SENTENCEPIECE:
        if (folder / name).is_file():
            return open_sentencepiece(folder / name, settings)
    return None


def unread_tokenizer_files(path: str | Path) -> list[str]:
    """Files of a tokenizer in a model's folder, of which none can be made here."""
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    return sorted(file.name for file in folder.iterdir() if file.suffix in (".spm", ".model") or file.name in PARTS)


def open_target_tokenizer(folder: str | Path) -> Tokenizer | None:
    """The tokenizer of the target language, None where it has no vocabulary of its own."""
    path = find(folder) / TARGET
    verify(path.parent, TARGET)
    return Tokenizer.from_json(read_text(path), None, str(path)) if path.is_file() else None


def save_tokenizer(folder: Path, tokenizer: Tokenizer, target: Tokenizer | None = None) -> None:
    """The tokenizer's files, and those of another one for the target language."""
    write_text(folder / "tokenizer.json", tokenizer.to_json())
    if target is not None and target is not tokenizer:
        write_text(folder / TARGET, target.to_json())
    if tokenizer.settings:
        write_json(folder / "tokenizer_config.json", tokenizer.settings)


def read_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, with the chat template that newer folders keep in a file of its own."""
    path, template = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    settings = read_json(path) if path.is_file() else {}
    if template.is_file():
        settings["chat_template"] = read_text(template)
    return settings


def open_gpt2(vocab_path: Path, merges_path: Path, settings: dict[str, Any]) -> Tokenizer:
    vocab = read_json(vocab_path)
    if not all(type(index) is int and 0 <= index < MAX_ID for index in vocab.values()):
        raise FileError(f"{vocab_path} must hold words and their ids; is it the right file?")
    lines = [line for line in read_text(merges_path).split("\n") if line and not line.startswith("#version")]
    merges = [tuple(line.split(" ")) for line in lines]
    broken = [line for line, pair in zip(lines, merges, strict=True) if len(pair) != 2]
    if broken:
        raise FileError(f"{merges_path} must hold two pieces per line, not {broken[0][:60]!r}; is it the right file?")
    special = [token for token in ("<|endoftext|>", "<s>", "<pad>", "</s>", "<unk>") if token in vocab]
    tokenizer = byte_level_bpe(vocab, merges, special, settings=settings)  # type: ignore[arg-type]
    if "<s>" in vocab and "</s>" in vocab:  # RoBERTa and BART: <s> text </s>
        ends = ("</s>", vocab["</s>"]), ("<s>", vocab["<s>"])
        tokenizer.backend.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
        if "<mask>" in vocab:  # takes the space before it
            tokenizer.backend.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
    return tokenizer


def open_sentencepiece(path: Path, settings: dict[str, Any]) -> Tokenizer:
    """T5's and LLaMA's file, with the tokens around a text that tokenizer_config.json or the family asks for."""
    config = path.parent / "config.json"
    family = read_json(config).get("model_type") if config.is_file() else None
    tokenizer = read_sentencepiece(path, settings)
    if family == "t5":  # the spans that were taken out are named <extra_id_0>, <extra_id_1> ... from the end
        names = [f"<extra_id_{i}>" for i in reversed(range(100))]
        tokenizer.backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    named = tokenizer.special_names()
    bos = named.get("bos_token") if settings.get("add_bos_token", family == "llama") else None
    eos = named.get("eos_token") if settings.get("add_eos_token", family == "t5") else None
    put_around(tokenizer.backend, bos, eos)
    return tokenizer


def open_bert(path: Path, settings: dict[str, Any]) -> Tokenizer:
    words = [line.rstrip("\r") for line in read_text(path).rstrip("\n").split("\n")]
    return wordpiece(
        words,
        lower=settings.get("do_lower_case", True) is not False,
        strip_accents=settings.get("strip_accents"),
        chinese=settings.get("tokenize_chinese_chars", True) is not False,
        settings=settings,
    )
