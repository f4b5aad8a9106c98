"""What is exported runs in transformers: AutoTokenizer, AutoModel and generate or a pipeline give our texts, labels and tags."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Run
from test_train import recipe
from test_train import run as train

hf = pytest.importorskip("transformers")

import qkv  # noqa: E402
from qkv.api import Model  # noqa: E402
from qkv.check_export import SKIPPED  # noqa: E402
from qkv.config import ModelConfig, load_recipe  # noqa: E402
from qkv.config.usage import DecodingDefaults  # noqa: E402
from qkv.convert import rewrite  # noqa: E402
from qkv.convert.huggingface import exportable, plan  # noqa: E402
from qkv.data.grammar import pairs  # noqa: E402
from qkv.errors import QkvError  # noqa: E402
from qkv.models.build import build  # noqa: E402
from qkv.models.example import example  # noqa: E402
from qkv.models.weights import weights  # noqa: E402
from qkv.recipes import find, names  # noqa: E402
from qkv.tasks.vocabulary import special_ids  # noqa: E402
from qkv.text.tokenizer import Tokenizer  # noqa: E402
from qkv.text.train import train_tokenizer  # noqa: E402

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()


def sentences(count: int, german: bool = False) -> list[str]:
    source = pairs("test", seed=5)
    found = [next(source) for _ in range(count)]
    return [pair.target if german else pair.source for pair in found]


TEXTS = sentences(8)


@cache
def learned(kind: str) -> Tokenizer:
    return train_tokenizer(sentences(200) + sentences(200, german=True), kind, 400)


def tiny(kind: str = "bpe", **fields: Any) -> Model:
    """A random network with every weight filled, and a tokenizer trained on the grammar."""
    tokenizer = learned(kind)
    base = {"vocab_size": tokenizer.size, "d_model": 24, "n_layers": 2, "n_heads": 2, "d_ff": 40, "max_length": 128,
            "dropout": 0.0, **special_ids(tokenizer)}  # fmt: skip
    torch.manual_seed(0)
    config = ModelConfig(**{**base, **fields})
    network = build(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return Model(config, network, None if config.vocab_size == 0 else tokenizer, "cpu")


def exported(model: Model, folder: Path) -> str:
    """Write the folder; what was said of the check."""
    lines: list[str] = []
    assert model.export(folder, say=lines.append) < 1e-5
    return lines[0]


# --- rewrites change no output

PRE = {"norm_order": "pre", "embed_scale": True}
SHAPES: dict[str, tuple[rewrite.Rewrite, dict[str, Any]]] = {
    "table": (rewrite.POSITIONS_AS_TABLE, {"family": "encoder-decoder", "tie": "all", **PRE}),
    "table of an encoder": (rewrite.POSITIONS_AS_TABLE, {"family": "encoder", "head": "tags", **PRE}),
    "halves": (rewrite.CHANNELS_IN_HALVES, {"family": "encoder-decoder", "tie": "all", "attention_bias": "none"}),
    "halves, pre-norm": (rewrite.CHANNELS_IN_HALVES, {"family": "encoder-decoder", "feedforward": "swiglu", **PRE}),
    "biases": (rewrite.ZERO_BIASES, {"family": "decoder", "norm": "layer-without-bias", "attention_bias": "qkv",
                                     "ffn_bias": False, "tie": "output", **PRE}),
    "segments": (rewrite.ZERO_SEGMENTS, {"family": "encoder", "head": "masked"}),
    "scale": (rewrite.SCALED_WORDS, {"family": "encoder", "head": "classes", **PRE}),
    "scale of tied words": (rewrite.SCALED_WORDS, {"family": "decoder", "tie": "output", **PRE}),
    "scale of masked words": (rewrite.SCALED_WORDS, {"family": "encoder", "head": "masked", "tie": "output", **PRE}),
    "scores": (rewrite.UNSCALED_SCORES, {"family": "encoder-decoder", "position": "t5", "tie": "all"}),
    "words of training": (rewrite.CLASSES_ONLY, {"family": "decoder", "head": "classes-words", "pooling": "last"}),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_a_rewrite_changes_no_output(name: str) -> None:
    change, fields = SHAPES[name]
    model = tiny(**fields)
    config, used = rewrite.apply((change,), model.config)
    assert used == (change,) and change.config(config) is None  # and it is done with one
    network = build(config).eval()
    filled = rewrite.rewritten(used, model.config, weights(model.network))
    assert filled.keys() == weights(network).keys()
    with torch.no_grad():
        for key, tensor in weights(network).items():
            tensor.copy_(filled[key])
        batch = example(model.config, draw=torch.Generator().manual_seed(1))
        torch.testing.assert_close(network(batch).logits, model.network(batch).logits, atol=1e-5, rtol=1e-5)


# --- texts, labels and tags through transformers


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    """One in the shape of demo.toml after a few updates, exported."""
    folder = tmp_path_factory.mktemp("translator")
    train(folder / "run", recipe(pairs=12, dropout=0.0, steps=150, evaluate_every=150, learning_rate=0.01))
    model = qkv.load(folder / "run", device="cpu")
    assert "same" in exported(model, folder / "hf")
    return model, folder / "hf"


@pytest.mark.parametrize("beams", [None, 1, 3])
def test_a_translator_writes_the_same_texts(translator: tuple[Model, Path], beams: int | None) -> None:
    model, folder = translator
    tokenizer, network = hf.AutoTokenizer.from_pretrained(folder), hf.AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert type(network).__name__ == "BlenderbotForConditionalGeneration"
    told = {} if beams is None else {"num_beams": beams}
    found = network.generate(**tokenizer(TEXTS, return_tensors="pt", padding=True), max_new_tokens=60, **told)
    theirs = tokenizer.batch_decode(found, skip_special_tokens=True)
    ours = model.translate(TEXTS, beam=beams, max_length=60)
    ended = [
        model.config.eos_ids[0] in row for row in found.tolist()
    ]  # of what was cut, we prefer texts that have ended
    assert sum(ended) >= 3 and len(set(theirs)) > 1
    assert [text for text, end in zip(theirs, ended, strict=True) if end or beams == 1] == [
        text for text, end in zip(ours, ended, strict=True) if end or beams == 1
    ]


def test_a_translator_comes_back(translator: tuple[Model, Path]) -> None:
    model, folder = translator
    assert qkv.load(folder).translate(TEXTS) == model.translate(TEXTS)


def test_the_search_of_a_run_goes_along(translator: tuple[Model, Path], tmp_path: Path) -> None:
    model = qkv.load(translator[1].parent / "run", device="cpu")
    model.usage = model.usage.model_copy(update={"decoding": DecodingDefaults(beam=2, length_penalty=0.7)})
    model.export(tmp_path / "hf")
    told = hf.GenerationConfig.from_pretrained(tmp_path / "hf")
    assert (told.num_beams, told.length_penalty) == (2, 0.7)
    again = qkv.load(tmp_path / "hf", device="cpu")
    assert (again.task, again.languages) == (model.task, model.languages) == ("translation", ("en", "de"))
    assert model.translate(TEXTS) == model.translate(TEXTS, length_formula="power")  # what older runs mean


def test_the_length_formula_of_a_run_goes_along(translator: tuple[Model, Path]) -> None:
    """A run that was scored with GNMT's formula and input + 3 tokens searches so."""
    model = qkv.load(translator[1].parent / "run", device="cpu")
    told = DecodingDefaults(beam=3, length_penalty=0.6, length_formula="gnmt", extra_length=3)
    model.usage = model.usage.model_copy(update={"decoding": told})
    for text, one in zip(TEXTS, model.translate(TEXTS, scores=True), strict=True):
        assert one.score == pytest.approx(one.log_prob / ((5 + len(one.tokens)) / 6) ** 0.6)
        assert len(one.tokens) <= len(model.translator().read(text)[0]) + 3
    (one,) = model.translate(TEXTS[:1], scores=True, length_formula="power", beam=1)
    assert one.score == pytest.approx(one.log_prob / len(one.tokens) ** 0.6)


MARIAN = {"family": "encoder-decoder", "tie": "all", "embed_scale": True}


@pytest.mark.parametrize(("fields", "kind", "name"), [
    ({**MARIAN, **PRE}, "unigram", "BlenderbotForConditionalGeneration"),
    ({**MARIAN, "attention_bias": "none"}, "wordpiece", "MarianMTModel"),  # transformer-base
    ({**MARIAN, "position": "t5", "norm": "rms", "norm_order": "pre", "embed_scale": False, "attention_bias": "none",
      "ffn_bias": False}, "byte-bpe", "T5ForConditionalGeneration"),
])  # fmt: skip
def test_other_translators(fields: dict[str, Any], kind: str, name: str, tmp_path: Path) -> None:
    model = tiny(kind, **fields)
    assert exportable(model.config) == (name, "")
    assert "AutoModelForSeq2SeqLM.generate gives the same" in exported(model, tmp_path / "hf")


CLASSES = {"head": "classes", "n_classes": 3, "labels": ("no", "yes", "maybe"), "pooler": False, "pooling": "mean"}
ENCODERS = {
    "sinusoids": {**PRE, **CLASSES},
    "rotary": {"norm_order": "pre", "position": "rotary", "feedforward": "gelu", **CLASSES},
    "bert": {"position": "learned", "embed_norm": True, "n_segments": 2, "feedforward": "gelu", **CLASSES},
    "regression": {**PRE, **CLASSES, "n_classes": 1, "labels": ()},
    "first": {**PRE, **CLASSES, "pooling": "first"},
}


def prints_a_label(code: str, regression: bool) -> bool:
    """Run the lines of a card; they print a label of the model."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), torch.no_grad():
        exec(code, {})
    return out.getvalue().strip() in (("LABEL_0",) if regression else ("no", "yes", "maybe"))


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_mean_pooled_classifier(kind: str, name: str, tmp_path: Path) -> None:
    """As the card says: AutoModel, the mean of its vectors, and the matrix in 2_Dense."""
    model = tiny(kind, family="encoder", **ENCODERS[name])
    exported(model, tmp_path / "hf")
    tokenizer, network = (kind.from_pretrained(tmp_path / "hf") for kind in (hf.AutoTokenizer, hf.AutoModel))
    from safetensors.torch import load_file

    dense = load_file(tmp_path / "hf" / "2_Dense" / "model.safetensors")
    for text, answer in zip(TEXTS, model.classify(TEXTS), strict=True):
        with torch.no_grad():
            vectors = network(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        vector = vectors[0] if name == "first" else vectors.mean(0)
        logits = dense["linear.weight"] @ vector + dense["linear.bias"]
        if name == "regression":
            assert float(logits) == pytest.approx(answer.score, abs=1e-4)
        else:
            assert network.config.id2label[int(logits.argmax())] == answer.label
    code = (tmp_path / "hf" / "README.md").read_text().split("```python\n")[1].split("```")[0]
    assert prints_a_label(code.replace("this folder", str(tmp_path / "hf")), name == "regression")
    again = qkv.load(tmp_path / "hf", device="cpu")
    assert again.config.labels == model.config.labels and again.config.pooling == model.config.pooling
    assert [a.label for a in again.classify(TEXTS)] == [a.label for a in model.classify(TEXTS)]


def test_a_classifier_of_pairs(tmp_path: Path) -> None:
    model = tiny("wordpiece", family="encoder", **{**ENCODERS["sinusoids"], "pooler": True, "pooling": "first"})
    exported(model, tmp_path / "hf")
    pipe = hf.pipeline("text-classification", model=str(tmp_path / "hf"), device="cpu")
    found = [pipe({"text": a, "text_pair": b}) for a, b in pairwise(TEXTS)]
    ours = model.classify(list(pairwise(TEXTS)))
    assert [f["label"] for f in found] == [o.label for o in ours]


TAGS = {"family": "encoder", "head": "tags", "n_classes": 3, "labels": ("NOUN", "VERB", "X")}


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "wordpiece"])
@pytest.mark.parametrize("fields", [PRE, {"norm_order": "pre", "position": "rotary", "feedforward": "gelu"}])
def test_a_tagger(kind: str, fields: dict[str, Any], tmp_path: Path) -> None:
    model = tiny(kind, **TAGS, **fields)
    assert "token-classification gives the same" in exported(model, tmp_path / "hf")
    pipe = hf.pipeline("token-classification", model=str(tmp_path / "hf"), device="cpu", aggregation_strategy="none")
    for words in (text.rstrip(".?!").split() for text in TEXTS):
        pieces, text = pipe(" ".join(words)), " ".join(words)
        ends = np.cumsum([len(word) + 1 for word in words]) - 1
        first = {int(np.searchsorted(ends, piece["end"])): piece["entity"] for piece in reversed(pieces)}
        assert [first[i] for i in range(len(words))] == [tagged.tag for tagged in model.tag([words])[0]], text


DECODERS = {
    "LlamaForCausalLM": {"norm": "rms", "norm_order": "pre", "position": "rotary", "feedforward": "swiglu",
                         "attention_bias": "none", "ffn_bias": False, "tie": "output"},
    "GPT2LMHeadModel": {"norm": "layer-without-bias", "norm_order": "pre", "position": "learned", "feedforward": "gelu",
                        "attention_bias": "none", "ffn_bias": False, "tie": "output"},
    "Starcoder2ForCausalLM": {"position": "rotary", "tie": "output", **PRE},
}  # fmt: skip


@pytest.mark.parametrize("name", DECODERS)
def test_a_language_model(name: str, tmp_path: Path) -> None:
    model = tiny("byte-bpe", family="decoder", **DECODERS[name])
    assert exportable(model.config) == (name, "") and "same" in exported(model, tmp_path / "hf")
    pipe = hf.pipeline("text-generation", model=str(tmp_path / "hf"), device="cpu")
    for text in TEXTS[:4]:
        (theirs,) = pipe(text, max_new_tokens=12, return_full_text=False)
        assert theirs["generated_text"] == "".join(model.generate(text, max_new_tokens=12))


def test_a_decoder_that_classifies(tmp_path: Path) -> None:
    shape = {**DECODERS["GPT2LMHeadModel"], "head": "classes-words", "pooling": "last", "pooler": False, "n_classes": 3}
    model = tiny("byte-bpe", family="decoder", **shape)
    assert "text-classification gives the same" in exported(model, tmp_path / "hf")
    found = hf.pipeline("text-classification", model=str(tmp_path / "hf"), device="cpu")(TEXTS)
    assert [one["label"] for one in found] == [answer.label for answer in model.classify(TEXTS)]


@pytest.mark.parametrize("fields", [PRE, {"norm_order": "pre", "position": "rotary"}])
def test_a_masked_model(fields: dict[str, Any], tmp_path: Path) -> None:
    model = tiny(
        "wordpiece", family="encoder", head="masked", feedforward="gelu", tie="output", output_bias=True, **fields
    )
    assert "fill-mask gives the same" in exported(model, tmp_path / "hf")
    pipe = hf.pipeline("fill-mask", model=str(tmp_path / "hf"), device="cpu")
    text = "the man [MASK] a dog"
    assert [one["token_str"] for one in pipe(text)] == [word for word, _ in model.fill([text])[0].gaps[0]]


@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_model(channels: int, pooling: str, tmp_path: Path) -> None:
    model = tiny(family="encoder", vocab_size=0, image_size=8, patch_size=4, n_channels=channels, norm_order="pre",
                 position="learned", feedforward="gelu", max_length=5, **{**CLASSES, "pooling": pooling})  # fmt: skip
    assert "AutoModel gives the same" in exported(model, tmp_path / "hf")
    assert qkv.load(tmp_path / "hf").config.pooling == pooling


# --- the check itself


def test_without_transformers_the_check_is_skipped_and_said(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny("byte-bpe", family="decoder", **DECODERS["LlamaForCausalLM"]).save(tmp_path / "ours")
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, out, _ = run("export", tmp_path / "ours", tmp_path / "hf")
    assert code == 0 and out.splitlines()[0] == SKIPPED and "pip install transformers" in SKIPPED
    assert (tmp_path / "hf" / "generation_config.json").is_file()


@pytest.mark.parametrize("spoil", ["tokenizer.json", "generation_config.json"])
def test_an_export_that_writes_other_texts_is_refused(
    spoil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are right, and yet a user would get other texts."""
    from qkv.convert import hf_files

    def without_end(tokenizer: Any, c: Any) -> Any:
        return tokenizer.backend

    def other_start(c: Any, how: Any) -> dict[str, Any]:
        return {**right(c, how), "decoder_start_token_id": 7}

    right = hf_files.generation_json
    monkeypatch.setattr(hf_files, "framing" if spoil == "tokenizer.json" else "generation_json",
                        without_end if spoil == "tokenizer.json" else other_start)  # fmt: skip
    model = tiny(**{**MARIAN, **PRE})
    with pytest.raises(QkvError, match=r"give something else: of .* ours is .*: nothing was written"):
        model.export(tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_a_folder_that_transformers_cannot_open_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv.convert import hf_files

    right = hf_files.tokenizer_json
    spoiled = lambda tokenizer, c: {**right(tokenizer, c), "tokenizer_class": "MarianTokenizer"}  # noqa: E731
    monkeypatch.setattr(hf_files, "tokenizer_json", spoiled)
    with pytest.raises(QkvError, match=r"transformers .* cannot use the export \(.*\): nothing was written"):
        tiny("wordpiece", **{**MARIAN, **PRE}).export(tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


# --- what a folder says about writing


def bart(folder: Path, generation: dict[str, Any] | None, **fields: Any) -> tuple[Any, Any]:
    """A tiny random BART with a tokenizer: the network in transformers, and the model here."""
    tokenizer = learned("bpe")
    torch.manual_seed(1)
    sizes = {"d_model": 24, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 40,
             "decoder_attention_heads": 2, "decoder_ffn_dim": 40, "max_position_embeddings": 64}  # fmt: skip
    ids = {
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": None,
    }
    network = hf.BartForConditionalGeneration(
        hf.BartConfig(vocab_size=tokenizer.size, init_std=0.4, **sizes, **ids, **fields)
    ).eval()
    network.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer.to_json())
    path = folder / "generation_config.json"
    if generation is None:
        path.unlink(missing_ok=True)  # an old folder: the keys are in config.json
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **fields}))
    else:
        path.write_text(json.dumps({**ids, **generation}))
    return hf.BartForConditionalGeneration.from_pretrained(folder).eval(), qkv.load(folder, device="cpu")


FORCED = {"forced_bos_token_id": 9}


@pytest.mark.parametrize("told", [
    FORCED, {**FORCED, "num_beams": 3, "early_stopping": "never"},
    {**FORCED, "num_beams": 4, "length_penalty": 2.0, "early_stopping": "never", "min_length": 6, "max_length": 14},
    {**FORCED, "num_beams": 2, "early_stopping": True, "no_repeat_ngram_size": 2, "max_new_tokens": 12},
    {**FORCED, "num_beams": 2, "early_stopping": "never", "forced_eos_token_id": 2, "max_length": 12},
    {"num_beams": 1, "max_length": 12, "forced_eos_token_id": 2},
])  # fmt: skip
def test_generation_config_is_honoured(told: dict[str, Any], tmp_path: Path) -> None:
    """The same ids as transformers' generate, from the same folder and without a word about the search."""
    told = {"num_beams": 1, "max_length": 20, **told}
    network, model = bart(tmp_path, told)
    assert model.config.forced_id == told.get("forced_bos_token_id")
    for text in TEXTS[:4]:
        source = torch.tensor([model.translator().read(text)[0]])
        theirs = network.generate(source, suppress_tokens=[0])[0, 1:].tolist()  # padding is never written here
        ours = model.translate([text], scores=True)[0]
        ids = [model.words().id_of(token) for token in ours.tokens]
        assert ids == theirs, (text, ours.tokens)
        assert ids[0] == told.get("forced_bos_token_id", ids[0])


def test_an_old_folder_says_it_in_config_json(tmp_path: Path) -> None:
    _, model = bart(tmp_path, None, forced_bos_token_id=9, num_beams=3, length_penalty=0.5, no_repeat_ngram_size=3)
    assert (model.config.forced_id, model.defaults.beam, model.defaults.length_penalty) == (9, 3, 0.5)
    assert model.defaults.no_repeat_ngram == 3
    assert all(one.tokens[0] == model.words().backend.id_to_token(9) for one in model.translate(TEXTS, scores=True))
    assert all(one.tokens[0] == model.words().backend.id_to_token(9) for one in model.summarize(TEXTS))
    assert next(iter(model.generate([5, 6, 2], max_new_tokens=3))) != 9  # it stands before what is new


def test_settings_of_a_search_make_the_round_trip(tmp_path: Path) -> None:
    _, model = bart(tmp_path / "a", {**FORCED, "num_beams": 3, "length_penalty": 0.5, "max_length": 30, "min_length": 4,
                                     "no_repeat_ngram_size": 3, "early_stopping": True, "forced_eos_token_id": 2})  # fmt: skip
    model.export(tmp_path / "b")
    again = qkv.load(tmp_path / "b")
    assert again.defaults == model.defaults and again.config.forced_id == 9


def test_a_wrong_generation_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(QkvError, match="num_beams = 'many' must be int or null"):
        bart(tmp_path, {"num_beams": "many"})


# --- recipes


@pytest.mark.parametrize("name", names())
def test_a_shipped_recipe_can_be_exported_or_says_why_not(name: str) -> None:
    head = [line for line in find(name).read_text().splitlines() if line.startswith("#")]
    reasons = [line for line in head if line.startswith("# Hugging Face: ")]
    if 'task = "vectors"' in find(name).read_text():
        assert len(reasons) == 1, "word vectors are no network: say so"
        return
    found, why = exportable(load_recipe(find(name)).model.changed(bos_id=1, eos_id=2))  # as its tokenizer sets them
    assert (found is None) == bool(reasons), why or f"it is exported as {found}: remove the line"
    assert len(reasons) <= 1


def test_exportable_names_what_prevents_it() -> None:
    config = load_recipe(find("demo")).model
    assert exportable(config) == ("BlenderbotForConditionalGeneration", "")
    assert plan(config).rewrites == (rewrite.POSITIONS_AS_TABLE,)
    found, why = exportable(config.changed(position="rotary"))
    assert found is None and "position = 'rotary'" in why and "\n" not in why
    big = config.changed(d_model=65_536, d_ff=262_144, n_layers=96, n_heads=128)
    assert exportable(big)[0] is not None  # no weights are made
