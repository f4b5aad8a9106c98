"""Other people's formats: nn.Transformer state dicts, llama2.c, GGUF, and their tokenizers, against the real thing."""

import json
import os
import pickle
import random
import struct
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import qkv
from qkv.batch import Batch
from qkv.config import ModelConfig
from qkv.convert import gguf_file, llama2c, torch_transformer
from qkv.convert.files import write_tensors
from qkv.convert.folder import weights
from qkv.engine.linear import QuantizedLinear
from qkv.errors import FileError, QkvError
from qkv.models.build import build
from qkv.parts.positions import sinusoids
from qkv.text.kinds import merges_of

# --- torch.nn.Transformer


class Around(nn.Module):
    """A model as people write it around nn.Transformer."""

    def __init__(self, norm_first=False, bias=True, shared=True):
        super().__init__()
        self.transformer = nn.Transformer(16, 4, 2, 3, 24, batch_first=True, norm_first=norm_first, bias=bias)
        self.words = nn.Embedding(11, 16)
        self.others = self.words if shared else nn.Embedding(13, 16)
        self.out = nn.Linear(16, 11 if shared else 13)
        for parameter in self.parameters():  # fresh norms and biases would hide a mistake
            nn.init.normal_(parameter, std=0.3)

    def forward(self, source, target, padding=None):
        waves = lambda ids: sinusoids(torch.arange(ids.size(1)), 16)  # noqa: E731
        causal = nn.Transformer.generate_square_subsequent_mask(target.size(1))
        x = self.transformer(
            self.words(source) + waves(source), self.others(target) + waves(target), tgt_mask=causal,
            src_key_padding_mask=padding, memory_key_padding_mask=padding,
        )  # fmt: skip
        return self.out(x)


def around(**how):
    torch.manual_seed(0)
    return Around(**how).eval()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_nn_transformer_gives_the_same(norm_first, shared, bias):
    theirs = around(norm_first=norm_first, shared=shared, bias=bias)
    state = {k: v for k, v in theirs.state_dict().items() if not (shared and k.startswith("others"))}
    _, ours = torch_transformer.read(
        state, 4, embedding="words.weight", target_embedding=None if shared else "others.weight", output="out",
        norm_order="pre" if norm_first else "post",
    )  # fmt: skip
    source, target = torch.randint(11, (3, 7)), torch.randint(11, (3, 5))
    assert (ours(Batch(inputs=target, source=source)).logits - theirs(source, target)).abs().max() < 1e-5
    real = torch.arange(7) < torch.tensor([[7], [4], [2]])
    masked = ours(Batch(inputs=target, source=source, source_mask=real)).logits
    assert (masked - theirs(source, target, ~real)).abs().max() < 1e-5


def test_state_dict_files_and_what_they_must_be(tmp_path):
    state = around().state_dict()
    names = {"embedding": "words.weight", "output": "out", "ignore": ["others.weight"]}
    torch.save(state, tmp_path / "m.pt")
    write_tensors(tmp_path / "m.safetensors", state)
    for name in ("m.pt", "m.safetensors"):
        assert torch_transformer.read(tmp_path / name, 4, **names)[0].n_decoder_layers == 3

    def refused(words, source, **changed):
        with pytest.raises(QkvError, match=words) as caught:
            torch_transformer.read(source, 4, **{**names, **changed})
        assert "\n" not in str(caught.value)

    refused("also holds others.weight", state, ignore=())
    refused("lacks embed.weight; outside of it there is words.weight", state, embedding="embed.weight")
    refused("no nn.Transformer under 'net.'", state, prefix="net.")
    refused("unknown key 'colour'", state, colour=3)
    refused("does not divide", state, d_model=18)
    refused("cannot read", tmp_path / "absent.pt")
    torch.save({"state": state, "epoch": 3}, tmp_path / "m.pt")
    refused("state_dict\\(\\) alone", tmp_path / "m.pt")
    (tmp_path / "m.pt").write_bytes((tmp_path / "m.pt").read_bytes()[:5000])
    refused("no plain state dict", tmp_path / "m.pt")
    broken = dict(state)
    del broken["transformer.decoder.layers.1.norm3.weight"]
    broken["transformer.encoder.layers.0.linear3.weight"] = torch.zeros(2)
    where = "transformer.encoder.layers.0.linear3.weight"
    refused(f"missing: transformer.decoder.layers.1.norm3.weight; unknown: {where}", broken)


@pytest.mark.parametrize(
    "name",
    [
        "encoder.layers.0.norm0.weight",
        "encoder.layers.0.norm3.weight",
        "encoder.layers.0.normalizer.weight",
        "encoder.layers.0.norm.weight",
        "encoder.layers.0.self_attn",
        "encoder.layers.0.self_attn.in_proj_scale",
        "encoder.layers.0.self_attn.q_proj.weight",
        "encoder.layers.0.multihead_attn.in_proj_weight",
        "encoder.layers.0.linear1.weight.weight",
        "encoder.layers.00.norm1.weight",
        "encoder.blocks.0.feedforward.layer.up.weight",
        "encoder.layers." + "9" * 5000 + ".norm1.weight",
        "decoder.norm.scale",
        "",
    ],
)
def test_names_that_are_not_of_nn_transformers_making_are_refused(name):
    state = {**around().state_dict(), f"transformer.{name}": torch.zeros(16)}
    with pytest.raises(FileError, match=r"unknown: transformer\."):
        torch_transformer.read(state, 4, embedding="words.weight", output="out", ignore=["others.weight"])


@pytest.mark.parametrize("name", ["words.weight", "transformer.encoder.layers.0.linear1.weight", "out.bias"])
def test_state_dict_tensors_without_dimensions_are_refused(name):
    state = {**around().state_dict(), name: torch.tensor(1.0)}
    with pytest.raises(FileError, match=f"lacks {name}|wrong shape"):
        torch_transformer.read(state, 4, embedding="words.weight", output="out", ignore=["others.weight"])


def test_a_pickle_with_code_in_it_is_not_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "boom"),)

    torch.save({"transformer.x": Bomb()}, tmp_path / "m.pt")
    with pytest.raises(FileError, match="no plain state dict"):
        torch_transformer.read(tmp_path / "m.pt", 4)
    (tmp_path / "m.pt").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(FileError, match="no plain state dict"):
        torch_transformer.read(tmp_path / "m.pt", 4)
    assert not (tmp_path / "boom").exists()


# --- llama2.c


def llama(tie="output", position="rotary-interleaved", **more) -> ModelConfig:
    return ModelConfig(
        family="decoder", vocab_size=270, d_model=16, n_layers=2, n_heads=4, n_kv_heads=2, d_ff=32, max_length=20,
        norm="rms", norm_order="pre", feedforward="swiglu", position=position, attention_bias="none", ffn_bias=False,
        dropout=0.0, tie=tie, init_std=0.3, **more,
    )  # fmt: skip


def random_network(config):
    torch.manual_seed(0)
    network = build(config).eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    return network


def write_llama2c(path: Path, config, network, **header) -> Path:
    """As llama2.c's export.py writes it (version 0)."""
    sizes = {"dim": 16, "hidden": 32, "layers": 2, "heads": 4, "kv": 2, "vocab": 270, "length": 20} | header
    w = weights(network)
    stacked = lambda name: [w[f"stack.blocks.{i}.{name}.weight"] for i in range(2)]  # noqa: E731
    parts = [w["embed.tokens.weight"]]
    for name in ("attention.before", "attention.layer.query", "attention.layer.key", "attention.layer.value",
                 "attention.layer.output", "feedforward.before", "feedforward.layer.gate", "feedforward.layer.down",
                 "feedforward.layer.up"):  # fmt: skip
        parts += stacked(name)
    parts += [w["stack.norm.weight"], torch.zeros(20, 2), torch.zeros(20, 2)]
    if config.tie == "none":
        parts.append(w["head.weight"])
    path.write_bytes(struct.pack("<7i", *sizes.values()) + b"".join(p.numpy().tobytes() for p in parts))
    return path


PIECES = ["<unk>", "\n<s>\n", "\n</s>\n", *[f"<0x{i:02X}>" for i in range(256)], " ", "a", "b", " a", "ab", "ba", " ab", "aba",
          "c", "bc", "é"]  # fmt: skip
SCORES = [0.0] * 259 + [-90.0, -91.0, -92.0, -1.0, -3.0, -2.0, -4.0, -5.0, -93.0, -6.0, -94.0]


def write_tok(path: Path, pieces=PIECES, scores=SCORES) -> Path:
    body = b"".join(struct.pack("<fi", s, len(p.encode())) + p.encode() for p, s in zip(pieces, scores, strict=True))
    path.write_bytes(struct.pack("<i", max(len(p.encode()) for p in pieces)) + body)
    return path


@pytest.mark.parametrize("tie", ["output", "none"])
@torch.no_grad()
def test_llama2c_gives_the_same(tmp_path, tie):
    network = random_network(llama(tie))
    path = write_llama2c(tmp_path / "m.bin", llama(tie), network, vocab=270 if tie == "output" else -270)
    write_tok(tmp_path / "tok270.bin")
    model = qkv.load(path)
    ids = torch.randint(270, (2, 9))
    assert torch.equal(model.logits(ids), network(Batch(inputs=ids)).logits)
    assert qkv.api.read_config(path) == model.config
    assert model.config.bos_id == 1 and 2 in model.config.eos_ids
    assert model.encode("ab")[0] == 1


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"dim": 24}, "truncated"),
        ({"layers": 10_000}, "truncated"),
        ({"vocab": 2_000_000}, "truncated"),
        ({"vocab": -270}, "truncated"),
        ({"dim": -16}, "no sizes of one"),
        ({"heads": 0}, "no sizes of one"),
        ({"heads": 3}, "no sizes of one"),
        ({"dim": 2**31 - 1}, "no sizes of one"),
    ],
)
def test_llama2c_headers_that_lie(tmp_path, header, words):
    with pytest.raises(FileError, match=words):
        qkv.load(write_llama2c(tmp_path / "m.bin", llama(), random_network(llama()), **header))


def test_llama2c_cut_short(tmp_path):
    path = write_llama2c(tmp_path / "m.bin", llama(), random_network(llama()))
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(FileError, match="truncated"):
        qkv.load(path)


def test_llama2c_tokenizers_that_do_not_fit(tmp_path):
    path = write_tok(tmp_path / "tok.bin")
    for size in (269, 271):
        with pytest.raises(FileError, match="tokenizer"):
            llama2c.read_tokenizer(path, size)
    raw = bytearray(path.read_bytes())
    raw[8:12] = struct.pack("<i", 2**30)
    path.write_bytes(raw)
    with pytest.raises(FileError, match="corrupt"):
        llama2c.read_tokenizer(path, 270)


def by_score(text: str, pieces: list[str], scores: list[float]) -> list[int]:
    """llama2.c's encode, literally: characters (or bytes), then the best-scoring neighbours merged again and again."""
    known = {piece: index for index, piece in reversed(list(enumerate(pieces)))}
    ids = [1]
    for character in " " + text if text else "":
        ids += [known[character]] if character in known else [byte + 3 for byte in character.encode()]
    while True:
        best, at = -1e10, -1
        for i in range(1, len(ids) - 1):
            joined = known.get(pieces[ids[i]] + pieces[ids[i + 1]])
            if joined is not None and scores[joined] > best:
                best, at = scores[joined], i
        if at < 0:
            return ids
        ids[at : at + 2] = [known[pieces[ids[at]] + pieces[ids[at + 1]]]]


@settings(deadline=None)
@given(st.text("abc é\n☃", max_size=14))
def test_scored_bpe_is_llama2c_s_encode(tmp_path_factory, text):
    tokenizer = llama2c.read_tokenizer(write_tok(tmp_path_factory.getbasetemp() / "tok.bin"), 270)
    ids = tokenizer.encode(text)
    assert ids == by_score(text, PIECES, SCORES)
    assert tokenizer.decode(ids) == text


def test_merges_are_every_way_to_make_a_piece_best_first():
    vocab = {"a": 0, "b": 1, "ab": 2, "ba": 3, "aba": 4}
    assert merges_of(vocab, [0, 0, -2.0, -1.0, -3.0]) == [("b", "a"), ("a", "b"), ("a", "ba"), ("ab", "a")]


# --- GGUF


gguf = pytest.importorskip("gguf")
THEIR_NAMES = {ours: theirs for theirs, ours in gguf_file.NAMES.items()} | {
    f"stack.blocks.{{}}.{ours}.weight": f"blk.{{}}.{theirs}.weight" for theirs, ours in gguf_file.BLOCK.items()
}


def interleave(weight, heads):
    """The permutation of llama.cpp's converter: halves of a head -> neighbouring pairs."""
    return weight.reshape(heads, 2, -1, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def write_gguf(path: Path, config, network, quantised=(), arch="llama", skip=(), kind="Q8_0", **changed):
    """As llama.cpp's converter writes it; some tensors in Q8_0 or Q4_0 (blocks of 32 along the last dimension)."""
    writer = gguf.GGUFWriter(path, arch)
    fields = {
        "block_count": config.n_layers, "context_length": config.max_length, "embedding_length": config.d_model,
        "feed_forward_length": config.d_ff, "head_count": config.n_heads, "head_count_kv": config.kv_heads,
        "rope_dimension_count": config.head_width, "vocab_size": config.vocab_size, "layer_norm_rms_eps": config.norm_eps,
    } | changed  # fmt: skip
    for name, value in fields.items():
        if name not in skip:
            getattr(writer, f"add_{name}")(value)
    writer.add_rope_freq_base(config.position_base)
    writer.add_tokenizer_model("llama")
    pieces = [p.strip("\n").replace(" ", "\u2581") for p in PIECES]
    writer.add_token_list(pieces)
    writer.add_token_scores(SCORES)
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * 11)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    for name, tensor in weights(network).items():
        layer = name.split(".")[2] if name.startswith("stack.blocks") else ""
        theirs = THEIR_NAMES[name.replace(f".{layer}.", ".{}.", 1) if layer else name].format(layer)
        if theirs in skip:
            continue
        heads = {"query": config.n_heads, "key": config.kv_heads}.get(name.split(".")[-2])
        array = (interleave(tensor, heads) if heads else tensor).contiguous().numpy()
        if theirs in quantised:
            stored = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(theirs, gguf.quants.quantize(array, stored), raw_dtype=stored)
        else:
            writer.add_tensor(theirs, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("tie", ["output", "none"])
@torch.no_grad()
def test_gguf_gives_the_same(tmp_path, tie):
    config = llama(tie, "rotary", position_base=50_000.0, norm_eps=1e-6)
    network = random_network(config)
    model = qkv.load(write_gguf(tmp_path / "m.gguf", config, network))
    ids = torch.randint(270, (2, 9))
    assert torch.equal(model.logits(ids), network(Batch(inputs=ids)).logits)
    assert (model.config.norm_eps, model.config.position_base, model.config.eos_ids) == (1e-6, 50_000.0, (2,))
    assert qkv.api.read_config(tmp_path) == model.config  # a folder with one .gguf is that model
    assert model.encode("ab") == by_score("ab", PIECES, SCORES)
    assert model.chat_ids([{"role": "user", "content": "ab"}]) == model.encode("ab")[1:]


@torch.no_grad()
def test_gguf_pairs_are_turned_as_llama_cpp_turns_them(tmp_path):
    """Read as halves here = the stored rows with neighbouring pairs turned."""
    config = llama("output", "rotary")
    network = random_network(config)
    stored = {k: v.clone() for k, v in weights(network).items()}
    for name, tensor in stored.items():
        if ".query." in name or ".key." in name:
            tensor.copy_(interleave(tensor, config.n_heads if ".query." in name else config.kv_heads))
    side_by_side = build(llama("output", "rotary-interleaved")).eval()
    for name, tensor in weights(side_by_side).items():
        tensor.copy_(stored[name])
    ids = torch.randint(270, (2, 9))
    model = qkv.load(write_gguf(tmp_path / "m.gguf", config, network))
    assert torch.allclose(model.logits(ids), side_by_side(Batch(inputs=ids)).logits, atol=1e-5)


def test_gguf_quantised_tensors_are_within_half_a_step_and_the_rounding_of_the_scale(tmp_path):
    """Q8_0: 32 whole numbers times one float16 scale, which is the largest of them / 127, itself off by
    up to 2^-11: 0.5 + 127 / 2^11 steps."""
    config = llama("output", "rotary").changed(d_model=32, n_heads=4)
    network = random_network(config)
    name, ours = "blk.1.ffn_up.weight", "stack.blocks.1.feedforward.layer.up.weight"
    path = write_gguf(tmp_path / "m.gguf", config, network, quantised=[name])
    back = weights(qkv.load(path, precision="float32").network)
    for key, tensor in weights(network).items():
        if key == ours:
            steps = tensor.abs().amax(-1, keepdim=True) / 127
            assert not torch.equal(back[key], tensor)
            assert ((back[key] - tensor).abs() <= 0.57 * steps).all()
        else:
            assert torch.equal(back[key], tensor)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@torch.no_grad()
def test_gguf_blocks_are_used_as_they_are(tmp_path, kind):
    """All matrices and the embedding quantised: the integers of the file, and the outputs of the float32 version to the rounding of
    activations."""
    config = llama("output", "rotary").changed(d_model=64, n_heads=4, n_kv_heads=2, d_ff=96)
    network = random_network(config)
    matrices = {THEIR_NAMES["embed.tokens.weight"]} | {
        f"blk.{layer}.{theirs}.weight"
        for layer in range(config.n_layers)
        for theirs in gguf_file.BLOCK
        if "norm" not in theirs
    }
    path = write_gguf(tmp_path / "m.gguf", config, network, quantised=matrices, kind=kind)
    model, plain = qkv.load(path), qkv.load(path, precision="float32")
    query, up = (
        model.network.get_submodule(f"stack.blocks.1.{name}")
        for name in ("attention.layer.query", "feedforward.layer.up")
    )
    assert all(isinstance(layer, QuantizedLinear) and layer.group == 32 for layer in (query, up))
    for layer, name in ((query, "attention.layer.query"), (up, "feedforward.layer.up")):
        assert torch.equal(layer.weight, plain.network.get_submodule(f"stack.blocks.1.{name}").weight)
    ids = torch.randint(270, (2, 9))
    a, b = plain.logits(ids), model.packed()(Batch(inputs=ids)).logits
    assert torch.cosine_similarity(a, b, dim=-1).min() > 0.999
    assert list(model.generate([5, 6, 7], max_new_tokens=8))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"arch": "qwen2"}, "only 'llama'"),
        ({"block_count": 9_000}, "do not belong together"),
        ({"block_count": 20_000}, "impossible model"),
        ({"feed_forward_length": 9_000_000}, "wrong shape"),
        ({"head_count": 5}, "impossible model"),
        ({"vocab_size": 9}, "vocab_size is 9"),
        ({"rope_dimension_count": 2}, "dimension_count is 2"),
        ({"expert_count": 8}, "llama.expert_count"),
        ({"skip": ["blk.0.attn_q.weight", "output_norm.weight"]}, "attention.layer.query.weight, stack.norm.weight"),
        ({"skip": ["token_embd.weight"]}, "not a complete model"),
        ({"skip": ["layer_norm_rms_eps"]}, "does not say llama.attention.layer_norm_rms_epsilon"),
        ({"skip": ["head_count", "context_length"]}, "context_length, llama.attention.head_count"),
    ],
)
def test_gguf_that_is_something_else(tmp_path, changed, words):
    config = llama("output", "rotary")
    with pytest.raises(FileError, match=words) as caught:
        qkv.load(write_gguf(tmp_path / "m.gguf", config, random_network(config), **changed))
    assert "\n" not in str(caught.value)


def test_gguf_cut_or_damaged(tmp_path):
    config = llama("output", "rotary")
    path = write_gguf(tmp_path / "m.gguf", config, random_network(config))
    whole = path.read_bytes()
    for length in (0, 3, 4, 10, 24, 100, 1000, 5000, len(whole) // 2, len(whole) - 64):
        path.write_bytes(whole[:length])
        with pytest.raises(FileError, match=r"truncated|not a GGUF"):
            qkv.load(path)
    # absurd counts: of tensors, of fields, and of an array's items must not be counted through
    array = whole.index(b"tokenizer.ggml.scores") + len(b"tokenizer.ggml.scores") + 8
    for at in (8, 16, array):
        path.write_bytes(whole[:at] + struct.pack("<Q", 2**60) + whole[at + 8 :])
        with pytest.raises(FileError, match="truncated or corrupt"):
            qkv.load(path)


def test_gguf_with_any_damage_is_corrupt_or_read(tmp_path):
    """Random bytes in the header, and lists within lists that no reader can unfold."""
    config = llama("output", "rotary")
    path = write_gguf(tmp_path / "m.gguf", config, random_network(config))
    whole, draw = path.read_bytes(), random.Random(0)
    header = whole.index(b"tokenizer.ggml.model")
    for _ in range(40):
        damaged = bytearray(whole)
        at = draw.randrange(4, header)
        damaged[at : at + 8] = draw.choice([bytes(8), b"\xff" * 8, struct.pack("<Q", 2**40), draw.randbytes(8)])
        path.write_bytes(damaged)
        with suppress(FileError):
            qkv.load(path)
    name, nested = b"llama.nested", struct.pack("<IQ", 9, 1) * 5000  # 9: a list, here with one list in it
    field = struct.pack("<Q", len(name)) + name + struct.pack("<I", 9) + nested
    path.write_bytes(whole[:16] + struct.pack("<Q", 1) + field + whole[24:])
    with pytest.raises(FileError, match="truncated or corrupt"):
        qkv.load(path)


def test_a_bug_of_the_gguf_reader_is_no_corrupt_file(tmp_path, monkeypatch):
    config = llama("output", "rotary")
    path = write_gguf(tmp_path / "m.gguf", config, random_network(config))
    for bug in (AttributeError, TypeError, NameError, AssertionError):
        monkeypatch.setattr(gguf.GGUFReader, "_build_tensors", Mock(side_effect=bug("a bug")))
        with pytest.raises(bug):
            qkv.load(path)


# --- a real one

DATA = Path(os.environ.get("QKV_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.mark.skipif(not (DATA / "stories260K").is_dir(), reason="the real model is not here (QKV_DATA)")
def test_stories260K():
    model = qkv.load(DATA / "stories260K" / "stories260K.bin")
    golden = json.loads((DATA / "stories260K" / "golden.json").read_text())
    first = model.logits([golden["prompt_ids"]])[0, -1]
    assert np.abs(first.numpy() - np.array(golden["first_step_logits"])).max() < 1e-4
    assert model.tokenizer.decode(golden["greedy_ids_200"]) == golden["text"]
