"""The readers that fuzz_readers.py feeds: for each, good files to begin with, and what reads them.

A case is (make, read): `make(folder)` writes good files into a folder, `read(folder)` reads what has become of them, and
uses what it has read, so that a wrong number is noticed before a user meets it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from fuzz_data import DATA, Case

import qkv
from qkv.api import Model
from qkv.config import ModelConfig, TrainConfig
from qkv.convert.export import write_huggingface
from qkv.convert.gguf_file import NAMES, our_name
from qkv.convert.llama2c import HEADER, layout
from qkv.convert.manifest import seal
from qkv.convert.tokenizer_files import read_tokenizer
from qkv.models.build import build
from qkv.models.weights import weights
from qkv.presets import tiny
from qkv.text.chat import render
from qkv.text.tokenizer import Tokenizer
from qkv.text.train import train_tokenizer
from qkv.train import checkpoint
from qkv.train.loop import prepare
from qkv.vectors.space import Vectors, load_vectors
from qkv.vectors.store import save, write_file

TEXTS = ["a man rides a bicycle", "the dog runs", "über den Zaun", "A man sleeps."]
LLAMA = ModelConfig(
    family="decoder", vocab_size=264, d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, d_ff=24, max_length=20, norm="rms",
    norm_order="pre", feedforward="swiglu", attention_bias="none", ffn_bias=False, position="rotary", bos_id=1, eos_id=2,
)  # fmt: skip
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "\u2581", "a", "b", "\u2581a", "ab"]


@cache
def words(kind: str = "bpe") -> Tokenizer:
    made = train_tokenizer(TEXTS * 20, kind, 120)
    made.settings["chat_template"] = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return made


def small(name: str, **fields: Any) -> tuple[ModelConfig, Any]:
    """A preset, tiny, with the vocabulary of `words`."""
    c = tiny(name)
    if c.image_size is None:
        ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "start_id": None, "forced_id": None}
        c = c.changed(vocab_size=words().size, target_vocab_size=None, **ids)
    torch.manual_seed(0)
    return c.changed(**fields), build(c.changed(**fields)).eval()


def use(model: Model) -> None:
    """Read a text, write a few tokens."""
    c = model.config
    if c.image_size is not None:
        model.logits(torch.zeros(1, c.n_channels, c.image_size, c.image_size))
    elif model.tokenizer is None:
        model.hidden([[0, 1]], [[0]] if c.family == "encoder-decoder" else None)
    elif c.family == "encoder":
        model.embed(["a man b"])
    else:
        list(islice(model.generate("a man b", max_new_tokens=3), 5))


def load(folder: Path) -> None:
    (place,) = folder.iterdir()
    use(qkv.load(place, device="cpu"))


# --- models


def ours(name: str) -> Callable[[Path], object]:
    """Our folder without checksums, which would notice every change."""

    def make(folder: Path) -> None:
        c, network = small(name)
        Model(c, network, None if c.image_size else words(), "cpu").save(folder / "model")
        seal(folder / "model", ())
        (folder / "model" / "README.md").unlink()

    return make


def theirs(name: str, **fields: Any) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        c, network = small(name, **fields)
        (folder / "model").mkdir()
        write_huggingface(folder / "model", c, weights(network), None if c.image_size else words())

    return make


def gguf(folder: Path) -> None:
    from gguf import GGUFWriter

    torch.manual_seed(0)
    c, tensors = LLAMA, weights(build(LLAMA))
    writer = GGUFWriter(folder / "model.gguf", "llama")
    sizes = {"block_count": 1, "context_length": 20, "embedding_length": 16, "feed_forward_length": 24, "head_count": 2,
             "head_count_kv": 1, "rope_dimension_count": 8, "vocab_size": c.vocab_size, "layer_norm_rms_eps": 1e-5,
             "bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0, "tokenizer_model": "llama", "token_list": PIECES,
             "token_scores": [-float(i) for i in range(264)], "token_types": [2, 3, 3] + [6] * 256 + [1] * 5}  # fmt: skip
    for name, value in sizes.items():
        getattr(writer, f"add_{name}")(value)
    for general in NAMES:
        if (name := our_name(general.format("0"))) in tensors:
            writer.add_tensor(general.format("0"), tensors[name].detach().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama2c(folder: Path) -> None:
    c = LLAMA.changed(position="rotary-interleaved", eos_id=(1, 2), dropout=0.0)
    header = HEADER.pack(16, 24, 1, 2, 1, -264, 20)
    torch.manual_seed(0)
    body = b"".join((0.1 * torch.randn(shape)).numpy().tobytes() for _, shape in layout(c))
    tokens = [struct.pack("<fi", -float(i), len(p.encode())) + p.encode() for i, p in enumerate(PIECES)]
    (folder / "model.bin").write_bytes(header + body)
    (folder / "tok264.bin").write_bytes(struct.pack("<i", 8) + b"".join(tokens))


# --- tokenizers and templates


def tokenizer(kind: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "tokenizer.json").write_text(words(kind).to_json())


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def sentencepiece(folder: Path) -> None:
    """A unigram model, in protobuf's wire format."""
    text = lambda number, value: varint(number << 3 | 2) + varint(len(value)) + value  # noqa: E731
    whole = lambda number, value: varint(number << 3) + varint(value)  # noqa: E731
    pieces = [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("\u2581", 1), ("a", 1), ("b", 1), ("\u2581ab", 1)]
    data = b"".join(
        text(1, text(1, piece.encode()) + varint(2 << 3 | 5) + struct.pack("<f", -float(i)) + whole(3, kind))
        for i, (piece, kind) in enumerate(pieces)
    )
    (folder / "spiece.model").write_bytes(data + text(2, whole(3, 1) + whole(41, 1) + whole(42, 2)) + text(3, b""))


def older(folder: Path) -> None:
    (folder / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "\u0120": 3, "<|endoftext|>": 4}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")


def encode(folder: Path) -> None:
    """Both ways, and written down again."""
    found = read_tokenizer(folder if (folder / "vocab.json").exists() else next(folder.iterdir()))
    ids = found.encode("a man ab über </s>")
    found.decode(ids)
    found.plain(["a man", ""])
    assert found.size >= 0 and found.to_json()


def template(folder: Path) -> None:
    (folder / "template").write_text(
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' and loop.first %}<<{{ m.content | trim }}>>"
        "{% elif m.role in ['user', 'x'] %}{{ '[I] ' + m['content'] ~ ' [/I]' * 2 }}{% else %}{{ raise_exception('no') }}"
        "{% endif %}{% set n = namespace(i=loop.index0 ** 2) %}{{ range(n.i + 3) | list | tojson(indent=2) }}{% endfor %}"
        "{% if add_generation_prompt %}{{ strftime_now('%Y') | replace('2', '1') | center(20) }}{% endif %}"
    )


def rendered(folder: Path) -> None:
    text = (folder / "template").read_bytes().decode("utf-8", "replace")
    render(text, [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}], {"bos_token": "<s>"})


# --- word vectors, checkpoints

VECTORS = Vectors(["a", "b", "ü"], torch.arange(12.0).reshape(3, 4))


def vectors_folder(folder: Path) -> None:
    save(folder / "vectors", VECTORS)
    seal(folder / "vectors", ())


def nearest(folder: Path) -> None:
    found = load_vectors(next(folder.iterdir()))
    assert found.vectors.isfinite().all() and len(found.words) == len(found.vectors)


def training() -> checkpoint.Training:
    network = small("gpt2")[1]
    return prepare(network, TrainConfig(device="cpu", compile=False))


def saved(folder: Path) -> None:
    t = training()
    for p in t.network.parameters():
        p.grad = torch.ones_like(p)
    t.optimizer.step()
    checkpoint.save(folder / "checkpoint-0000001", t)
    seal(folder / "checkpoint-0000001", ())


def resumed(folder: Path) -> None:
    checkpoint.set_aside_damaged_checkpoints(folder, lambda _: None)
    last = checkpoint.newest(folder)
    assert last is not None
    checkpoint.inputs_of(last)
    checkpoint.load(last, training())


# --- requests


@cache
def client() -> Any:
    from starlette.testclient import TestClient

    from qkv.serve.api.service import Service
    from qkv.serve.app import create_app
    from qkv.serve.http.auth import ApiKeys
    from qkv.serve.http.limits import Limits
    from qkv.serve.scheduling.served_model import ServedModel

    lm = Model(*small("gpt2", max_length=64), words(), "cpu")
    two = Model(*small("transformer-base", max_length=64), words(), "cpu")
    eye = Model(*small("vit-b16", labels=("cat", "dog"), n_classes=2), None, "cpu")
    service = Service([ServedModel("lm", lm), ServedModel("en-de", two, "translation", ("en", "de")), ServedModel("eye", eye)],
                      Limits(), ApiKeys(()))  # fmt: skip
    made = TestClient(create_app(service), "http://localhost", raise_server_exceptions=False)
    made.__enter__()
    return made


BODIES = {
    "/v1/chat/completions": {"model": "lm", "messages": [{"role": "user", "content": "a man"}], "max_tokens": 3,
                             "temperature": 0.5, "top_p": 0.9, "seed": 1, "stop": ["x"], "logprobs": True, "n": 2},
    "/v1/completions": {"model": "lm", "prompt": ["a man"], "max_tokens": 2, "logprobs": 2, "echo": True},
    "/v1/embeddings": {"model": "lm", "input": ["a man", "b"]},
    "/translate": {"q": ["a man"], "source": "en", "target": "de", "alternatives": 1},
    "/api/classify": {"model": "eye", "images": ["iVBORw0KGgo="]},
    "/api/look/rollout": {"model": "lm", "text": "a man"},
    "/api/look/contexts": {"model": "lm", "word": "man", "texts": ["a man rides"]},
}  # fmt: skip


def body(path: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "body.json").write_text(json.dumps({"path": path, "body": BODIES[path]}))


def request(folder: Path) -> None:
    """Whatever is sent, the server answers, and not with an internal error."""
    sent = (folder / "body.json").read_bytes()
    try:
        parsed = json.loads(sent)
        path, content = parsed["path"], json.dumps(parsed["body"]).encode()
        assert path in BODIES
    except (ValueError, TypeError, KeyError, AssertionError, RecursionError):
        path, content = "/v1/completions", sent
    reply = client().post(path, content=content, headers={"content-type": "application/json"})
    if reply.status_code >= 500 and reply.status_code != 503:
        raise RuntimeError(f"{path} answers {reply.status_code}: {reply.text[:200]}")


CASES: dict[str, list[Case]] = {
    "model folder": [(ours(n), load) for n in ("transformer-base", "gpt2", "bert-base", "vit-b16", "rnnsearch", "mamba-130m")],
    "Hugging Face folder": [(theirs(n), load) for n in ("gpt2", "bert-base", "t5-small", "bart-base", "vit-b16", "llama-7b")],
    "GGUF": [(gguf, load)],
    "llama2.c": [(llama2c, lambda folder: use(qkv.load(folder / "model.bin", device="cpu")))],
    "tokenizer": [(tokenizer(k), encode) for k in ("bpe", "byte-bpe", "unigram", "wordpiece", "words")] + [(older, encode)],
    "SentencePiece": [(sentencepiece, encode)],
    "chat template": [(template, rendered)],
    **DATA,
    "word vectors": [
        (lambda folder: write_file(folder / "v.txt", VECTORS, binary=False), nearest),
        (lambda folder: write_file(folder / "v.bin", VECTORS, binary=True), nearest),
        (vectors_folder, nearest),
    ],
    "checkpoint": [(saved, resumed)],
    "HTTP body": [(body(path), request) for path in BODIES],
}  # fmt: skip
"""By the reader's name."""

if __name__ == "__main__":  # all good files are read
    import tempfile

    for reader, cases in CASES.items():
        for make, read in cases:
            with tempfile.TemporaryDirectory() as place:
                make(Path(place))
                read(Path(place))
        print(reader, len(cases))
