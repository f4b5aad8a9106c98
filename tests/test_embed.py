"""Texts become vectors: the same as Hugging Face's at every layer, alone or in a batch, and features for another model."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hf_models import close, make, opened
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

import qkv
from qkv.api import Model
from qkv.config import ModelConfig
from qkv.convert.files import read_tensors
from qkv.data.grammar_tasks import GrammarRecords, sentence_kinds
from qkv.errors import QkvError
from qkv.models.build import build
from qkv.tasks.embed import Embedder
from qkv.text.tokenizer import Tokenizer
from qkv.text.train import train_tokenizer

Run = Callable[..., tuple[int, str, str]]
TEXTS = ["a b c d", "e", "f g", "", "b b b b a", "zzz c"]
WORDS = ["<pad>", "[CLS]", "[SEP]", "[UNK]", *"abcdefgh"]


def letters(around: bool = True) -> Tokenizer:
    backend = Backend(models.WordLevel({word: index for index, word in enumerate(WORDS)}, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if around:
        backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 1), ("[SEP]", 2)])
    return Tokenizer(backend)


def made(family: str, **fields: object) -> Model:
    torch.manual_seed(0)
    c = ModelConfig(family=family, head="vocabulary" if family != "encoder" else "none", vocab_size=len(WORDS), d_model=16,
                    n_layers=3, n_heads=2, d_ff=24, position="learned", max_length=12, bos_id=1, eos_id=2, init_std=0.5,
                    **fields)  # fmt: skip
    return Model(c, build(c), letters(family != "decoder"), device="cpu")


KINDS = {
    "encoder": made("encoder"),
    "decoder": made("decoder", norm_order="pre"),
    "encoder-decoder": made("encoder-decoder", n_decoder_layers=1),
    "shared": made("encoder", share_layers=True),
}


# --- what a vector is


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable:
    return opened(tmp_path_factory)


@pytest.mark.parametrize("name", ["bert-base", "gpt2", "t5", "vit-base"])
def test_every_layer_is_hugging_faces(name: str, pair: Callable) -> None:
    theirs, config, _, network, _ = pair(name)
    draw = torch.Generator().manual_seed(0)
    if name == "vit-base":
        images = torch.randn(3, 3, 12, 12, generator=draw)
        inputs, rows = {"pixel_values": images}, images
    else:
        rows = torch.randint(3, 60, (3, 7), generator=draw).tolist()
        inputs = {"input_ids": torch.tensor(rows)}
    model = theirs.get_encoder() if name == "t5" else theirs
    with torch.no_grad():
        answer = model(**inputs, output_hidden_states=True)
    last = {} if name == "gpt2" else {"last": answer.last_hidden_state}  # of a ViT, after the final norm
    states = [*answer.hidden_states[:-1], last.get("last", answer.hidden_states[-1])]
    n = len(states) - 1
    for layer in range(-n - 1, n + 1):
        embedder = Embedder(config, network, None, layer, batch_size=2)
        with torch.no_grad():
            found = dict(embedder.read(rows))
        close(torch.stack([found[i] for i in range(3)]), states[layer])


@pytest.mark.parametrize("model", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("layer", [0, 1, 2, 3, -1, -2, -3, -4])
def test_alone_or_in_any_batch(model: Model, layer: int) -> None:
    together = {pooling: model.embed(TEXTS, pooling, batch_size=4, layer=layer) for pooling in ("mean", "cls", "last")}
    tokens = model.embed_tokens(TEXTS, normalize=False, batch_size=3, layer=layer)
    for number, text in enumerate(TEXTS):
        alone = model.hidden([model.encode(text)])[layer][0]  # (T, C)
        assert torch.allclose(tokens[number].vectors, alone, atol=1e-5)
        for pooling, vector in (("mean", alone.mean(0)), ("cls", alone[0]), ("last", alone[-1])):
            assert torch.allclose(together[pooling][number], vector / vector.norm(), atol=1e-5), (pooling, text)


def test_pieces_are_those_of_the_text() -> None:
    assert KINDS["encoder"].embed_tokens(["a  zzz b"])[0].pieces == ["[CLS]", "a", "zzz", "b", "[SEP]"]
    assert KINDS["decoder"].embed_tokens(["a b", ""])[1].pieces == ["[CLS]"]  # its token to begin with
    bytes_ = train_tokenizer(["the old man and the sea " * 3], "byte-bpe", 270)
    c = KINDS["decoder"].config.changed(vocab_size=bytes_.size, max_length=40)
    found = Model(c, build(c), bytes_, device="cpu").embed_tokens(["the sea, naïve"])[0].pieces
    assert "the" in found and "".join(found).startswith("the sea") and "ï" in found


def test_a_word_has_another_vector_in_another_context() -> None:
    model = KINDS["encoder"]
    for layer, same in ((0, True), (1, False), (3, False)):
        one, other = (found.vectors[2] for found in model.embed_tokens(["a b c", "h b g"], layer=layer))
        assert torch.allclose(one, other, atol=1e-6) == same


def test_numbers_that_are_not_normalized_and_empty_lists() -> None:
    model = KINDS["encoder"]
    plain, unit = (model.embed(TEXTS, normalize=n) for n in (False, True))
    assert torch.allclose(plain / plain.norm(dim=-1, keepdim=True), unit, atol=1e-6)
    assert model.embed([]).shape == (0, 16) and model.embed_tokens([]) == []


def test_a_recurrent_stack_has_its_embeddings_and_its_last_layer() -> None:
    c = ModelConfig(
        family="encoder", head="none", vocab_size=12, d_model=8, n_layers=2, recurrent="lstm", position="none"
    )
    model = Model(c, build(c), letters(), device="cpu")
    assert torch.allclose(model.embed(["a b"], layer=1), model.embed(["a b", "c"], layer=-1)[:1], atol=1e-6)
    with pytest.raises(QkvError, match="no layer 2"):
        model.embed(["a"], layer=2)


def test_images_have_vectors_too(pair: Callable) -> None:
    _, config, _, network, _ = pair("vit-base")
    model, images = Model(config, network, None, device="cpu"), torch.randn(5, 3, 12, 12)
    states = model.hidden(images)[-1]
    assert torch.allclose(model.embed(images, "cls", normalize=False, batch_size=2), states[:, 0], atol=1e-5)


# --- features for another model


def test_a_linear_model_learns_on_top() -> None:
    """What kind of sentence is it? The network was never trained, yet its last token has seen the others: that is what
    makes its vector one in context."""
    records = [record for _, record in GrammarRecords("train", 1000, sentence_kinds).read()]
    texts, labels = zip(*records, strict=True)
    tokenizer = train_tokenizer(list(texts), "wordpiece", 400)
    torch.manual_seed(0)
    c = ModelConfig(family="encoder", head="none", vocab_size=tokenizer.size, d_model=128, n_layers=2, n_heads=4, d_ff=64,
                    norm_order="pre")  # fmt: skip
    model = Model(c, build(c), tokenizer, device="cpu")

    def score(layer: int, pooling: str) -> float:
        features = model.embed(texts, pooling, layer=layer).numpy()
        learner = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        return learner.fit(features[:750], labels[:750]).score(features[750:], labels[750:])

    assert score(-1, "mean") > 0.8 and score(-1, "last") > 0.8
    assert score(0, "last") < 0.7  # the end token alone: as good as always saying the most frequent kind


# --- what cannot be


def test_errors_say_which_text() -> None:
    model = KINDS["encoder"]
    with pytest.raises(QkvError, match=r"text 2: 13 tokens, but this model reads at most 12"):
        model.embed(["a", "a " * 11])
    embedder = model.embedder()
    embedder.embed(["a", "b"])
    with pytest.raises(QkvError, match="text 4: 22 tokens"):
        embedder.embed(["a", "a " * 20])
    cut = model.embed_tokens(["b " + "a " * 20], truncate=True)[0]
    assert cut.pieces == ["[CLS]", "b", *"a" * 9, "[SEP]"] and len(cut.vectors) == 12
    with pytest.raises(QkvError, match="no layer 4: this model has 0"):
        model.embed(["a"], layer=4)
    with pytest.raises(QkvError, match="no layer -5"):
        model.embed_tokens(["a"], layer=-5)
    with pytest.raises(QkvError, match="pooling is one of mean, cls, last"):
        model.embed(["a"], "tokens")
    with pytest.raises(QkvError, match=r"pass \[text\]"):
        model.embed("a")
    with pytest.raises(QkvError, match="has no tokenizer"):
        Model(model.config, model.network, None, device="cpu").embed(["a"])
    without = Model(
        KINDS["decoder"].config.changed(bos_id=None), KINDS["decoder"].network, letters(False), device="cpu"
    )
    with pytest.raises(QkvError, match="text 2 has no token"):
        without.embed(["a", ""])


# --- the command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("embed") / "model"
    KINDS["encoder"].save(path)
    return path


def test_lines_in_vectors_out(folder: Path, run: Run, tmp_path: Path) -> None:
    model, text = qkv.load(folder, "cpu"), "a b c\n\nd e\n"
    expected = model.embed(["a b c", "", "d e"])
    code, out, _ = run("embed", folder, given=text)
    assert code == 0 and torch.allclose(
        torch.tensor([[float(x) for x in row.split("\t")] for row in out.splitlines()]), expected
    )
    (tmp_path / "in.txt").write_text(text)
    code, out, _ = run(
        "embed", folder, tmp_path / "in.txt", "--json", "--layer", "1", "--pooling", "last", "--no-normalize"
    )
    rows = [json.loads(line) for line in out.splitlines()]
    wanted = model.embed(["a b c", "", "d e"], "last", normalize=False, layer=1)
    assert [row["text"] for row in rows] == ["a b c", "", "d e"]
    assert torch.allclose(torch.tensor([row["vector"] for row in rows]), wanted, atol=1e-5)


def test_tokens_out(folder: Path, run: Run) -> None:
    model = qkv.load(folder, "cpu")
    _, out, _ = run("embed", folder, "-", "--pooling", "tokens", given="a b\nzzz\n")
    blocks = [[row.split("\t") for row in block.splitlines()] for block in out.split("\n\n")[:-1]]
    assert [[row[0] for row in block] for block in blocks] == [["[CLS]", "a", "b", "[SEP]"], ["[CLS]", "zzz", "[SEP]"]]
    found = torch.tensor([float(x) for x in blocks[0][2][1:]])
    assert torch.allclose(found, model.embed_tokens(["a b"])[0].vectors[2], atol=1e-6)
    one = json.loads(run("embed", folder, "--pooling", "tokens", "--json", given="a b\n")[1])
    assert one["tokens"] == ["[CLS]", "a", "b", "[SEP]"] and len(one["vectors"]) == 4


@pytest.mark.parametrize("ending", [".npy", ".safetensors", ".tsv"])
@pytest.mark.parametrize("pooling", ["mean", "tokens"])
def test_files(folder: Path, run: Run, tmp_path: Path, ending: str, pooling: str) -> None:
    texts, out = ["a b", "c", "d\te"], tmp_path / f"vectors{ending}"
    code, said, err = run("embed", folder, "--out", out, "--pooling", pooling, given="\n".join(texts) + "\n")
    assert code == 0 and "3 texts" in said, err
    model = qkv.load(folder, "cpu")
    tokens = model.embed_tokens(texts)
    expected = model.embed(texts) if pooling == "mean" else torch.cat([one.vectors for one in tokens])
    if ending == ".npy":
        found = np.load(out, allow_pickle=False)
    else:
        found = np.loadtxt(out, delimiter="\t", ndmin=2) if ending == ".tsv" else read_tensors(out)["vectors"].numpy()
    assert np.allclose(found, expected.numpy(), atol=1e-6)
    beside = tmp_path / "vectors.metadata.tsv"
    if pooling == "tokens":
        lines = beside.read_text().splitlines()
        assert lines[0] == "piece\ttext" and lines[1:6] == ["[CLS]\t1", "a\t1", "b\t1", "[SEP]\t1", "[CLS]\t2"]
        assert len(lines) == 1 + len(found)
    elif ending == ".tsv":
        assert beside.read_text() == "a b\nc\nd e\n"
    if ending == ".safetensors" and pooling == "tokens":
        assert read_tensors(out)["text"].tolist()[:5] == [1, 1, 1, 1, 2]


def test_nothing_in_and_what_the_command_refuses(folder: Path, run: Run, tmp_path: Path) -> None:
    assert run("embed", folder, "--out", tmp_path / "none.npy", given="")[0] == 0
    assert np.load(tmp_path / "none.npy").shape == (0, 16)
    assert run("embed", folder, given="")[:2] == (0, "")
    (tmp_path / "bad.txt").write_bytes(b"a\n\xff\xfe\nb\n")
    code, _, err = run("embed", folder, tmp_path / "bad.txt")
    assert code == 2 and "line 2 cannot be read (not UTF-8)" in err and err.count("\n") == 1
    code, _, err = run("embed", folder, given="a\n" + "a " * 30 + "\n")
    assert code == 2 and "text 2: 32 tokens" in err
    assert run("embed", folder, "--truncate", given="a " * 30 + "\n")[0] == 0
    code, _, err = run("embed", folder, "--out", tmp_path / "x.pkl", given="a\n")
    assert code == 2 and "end in .npy, .safetensors, .tsv" in err
    code, _, err = run("embed", folder, "--layer", "9", given="a\n")
    assert code == 2 and "no layer 9" in err
    code, _, err = run("embed", folder, tmp_path / "absent.txt")
    assert code == 2 and "absent.txt" in err


def test_the_model_is_hugging_faces_too(tmp_path: Path, run: Run) -> None:
    """A folder of theirs, its own tokenizer beside it."""
    make("bert-base").save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "tokenizer.json").write_text(letters().to_json())
    code, out, err = run("embed", tmp_path / "theirs", "--pooling", "cls", given="a b\n")
    assert code == 0 and len(out.split("\t")) == 24, err
