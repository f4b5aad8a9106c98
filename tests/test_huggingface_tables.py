"""The Hugging Face tables are strict: other spellings are read, all else is an error of one line that names it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

hf = pytest.importorskip("transformers")

from qkv.api import load  # noqa: E402
from qkv.batch import Batch  # noqa: E402
from qkv.config import ModelConfig  # noqa: E402
from qkv.convert.huggingface import FAMILIES, from_foreign, read_config, to_foreign  # noqa: E402
from qkv.errors import ConfigError, FileError, QkvError  # noqa: E402
from qkv.models.build import build, skeleton  # noqa: E402
from qkv.models.weights import weights as stored_weights  # noqa: E402
from tests.hf_models import EVERY, close, fill, opened, read_folder, save_ours  # noqa: E402


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return opened(tmp_path_factory)


# --- other spellings of the same


def respelled(pair, name: str, keys=lambda name: name, without=(), more=None, **fields):
    """A saved model with renamed weights, other weights and other config.json keys, opened as ours."""
    config_json, tensors = read_folder(pair(name)[4])
    config_json = {key: v for key, v in {**config_json, **fields}.items() if key not in without}
    tensors = {keys(key): tensor for key, tensor in {**tensors, **(more or {})}.items()}
    again = read_config(config_json, tensors)
    return again, from_foreign(again, config_json, tensors)


def same_as_saved(pair, name: str, **changes) -> bool:
    config, weights = respelled(pair, name, **changes)
    _, expected, stored, _, _ = pair(name)
    return config == expected and all(torch.equal(weights[key], stored[key]) for key in stored)


def old_norms(name: str) -> str:
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def test_old_and_bare_names(pair):
    ids = torch.arange(30)[None]
    assert same_as_saved(pair, "bert-masked", keys=old_norms, more={"bert.embeddings.position_ids": ids})
    assert same_as_saved(pair, "bert-base", keys=lambda name: "bert." + name)
    assert same_as_saved(pair, "gpt2", keys=lambda name: name.removeprefix("transformer."))
    assert same_as_saved(pair, "gpt2", more={"transformer.h.0.attn.bias": torch.ones(1, 1, 80, 80, dtype=torch.bool)})
    assert same_as_saved(pair, "llama", keys=lambda name: name.removeprefix("model."))


def test_vision_names_of_transformers_in_memory(pair):
    theirs, config, weights, _, folder = pair("vit-classes")
    back = from_foreign(config, read_folder(folder)[0], theirs.state_dict())
    assert any(name.startswith("vit.layers.") for name in theirs.state_dict())
    assert all(torch.equal(back[name], weights[name]) for name in weights)


@pytest.mark.parametrize("name", [n for n in EVERY if n not in ("bert-classes", "bert-tags")])
def test_class_is_guessed_from_the_weights(pair, name):
    assert same_as_saved(pair, name, without=("architectures",))


def test_classes_or_tags_are_told_apart_by_the_pooler(pair):
    assert same_as_saved(pair, "bert-classes", without=("architectures",))
    assert same_as_saved(pair, "bert-tags", without=("architectures",))


def test_tied_weights_may_be_stored_twice_if_equal(pair):
    words = pair("llama-grouped-tied")[2]["embed.tokens.weight"]
    assert same_as_saved(pair, "llama-grouped-tied", more={"lm_head.weight": words})
    with pytest.raises(
        FileError, match=r"ties model.embed_tokens.weight and lm_head.weight, but they hold different numbers"
    ):
        respelled(pair, "llama-grouped-tied", more={"lm_head.weight": words + 1})


@pytest.mark.parametrize("name", ["llama-grouped-tied", "llama-3"])
def test_rotary_keys_before_transformers_5(pair, name):
    old = dict(read_folder(pair(name)[4])[0]["rope_parameters"])
    theta, kind = old.pop("rope_theta"), old.pop("rope_type")
    scaling = {"type": kind, **old} if old else None
    assert same_as_saved(pair, name, without=("rope_parameters",), rope_theta=theta, rope_scaling=scaling)


@pytest.mark.parametrize("kind", FAMILIES)
def test_missing_keys_take_their_defaults(kind):
    """A config.json that says nothing means what transformers' own default configuration says in full."""
    disentangled = {"relative_attention": True, "position_biased_input": False, "pos_att_type": "c2p|p2c"}
    # what has no default of its own, or one that is not supported
    needed = {"esm": {"vocab_size": 33}, "deberta": disentangled}.get(kind, {})
    full = {**hf.AutoConfig.for_model(kind, **needed).to_dict(), "architectures": None}
    assert read_config({"model_type": kind, **needed}, []) == read_config(full, [])


def test_t5_scaling_in_both_spellings(pair):
    new = read_folder(pair("t5-1.1")[4])[0]
    assert new["tie_word_embeddings"] is True and new["scale_decoder_outputs"] is False
    assert same_as_saved(pair, "t5-1.1", without=("scale_decoder_outputs",), tie_word_embeddings=False)
    assert not pair("t5-1.1")[1].output_scale and pair("t5")[1].output_scale
    assert pair("t5-1.1")[1].tie == "embeddings" and pair("t5")[1].tie == "all"


def test_t5_activation_without_the_derived_keys(pair):
    """Older files have feed_forward_proj alone; its "gated-gelu" is the tanh form."""
    assert same_as_saved(pair, "t5-1.1", without=("dense_act_fn", "is_gated_act"))
    assert pair("t5-1.1")[1].feedforward == "geglu-tanh"
    exact, _ = respelled(pair, "t5-1.1", dense_act_fn="gelu")
    assert exact.feedforward == "geglu"


def test_marian_positions_are_dropped_and_written(pair):
    theirs, config, weights, _, _ = pair("marian")
    _, tensors = to_foreign(config, weights)
    close(tensors["model.encoder.embed_positions.weight"], theirs.model.encoder.embed_positions.weight)
    assert same_as_saved(pair, "marian", more={"model.encoder.embed_positions.weight": torch.zeros(80, 24)})


# --- strictness


def test_unknown_config_key_is_named(pair):
    with pytest.raises(FileError, match=r"unknown keys: 'router_depth' \(given 3\), 'sliding' \(given True\)"):
        respelled(pair, "llama", router_depth=3, sliding=True)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("bert-masked", "position_embedding_type", "relative_key"),
        ("bert-masked", "is_decoder", True),
        ("bert-masked", "hidden_act", "mish"),
        ("bert-masked", "hidden_size", "24"),
        ("bert-masked", "num_attention_heads", True),
        ("bert-masked", "architectures", ["BertForMultipleChoice"]),
        ("roberta-masked", "hidden_act", "relu"),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("gpt2", "hidden_size", 25),
        ("llama", "quantization_config", {"bits": 4}),
        ("llama", "rope_scaling", {"rope_type": "yarn", "factor": 2.0}),
        ("llama-3", "rope_scaling", {"rope_type": "llama3", "factor": 2.0}),
        ("t5", "is_gated_act", True),
        ("bart", "decoder_ffn_dim", 48),
        ("bart", "normalize_before", True),
        ("marian", "static_position_embeddings", False),
        ("blenderbot", "normalize_before", False),
        ("esm-masked", "token_dropout", True),
        ("esm-masked", "position_embedding_type", "relative_key"),
        ("starcoder2", "sliding_window", 16),
        ("megatron-masked", "position_embedding_type", "relative_key"),
        ("vit-base", "image_size", [12, 16]),
        ("vit-base", "qkv_bias", False),
    ],
)
def test_unsupported_value_is_named(pair, name, field, value):
    with pytest.raises(FileError) as caught:
        respelled(pair, name, **{field: value})
    key = "rope" if field == "rope_scaling" else field
    assert key in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["mamba", None, 3])
def test_other_families_are_refused_with_the_list(kind):
    with pytest.raises(
        FileError,
        match=f"model_type = {kind!r} is not supported; it is one of bert, roberta, electra, deberta, megatron-bert, esm, gpt2",
    ):
        read_config({"model_type": kind}, [])


def test_all_missing_and_unknown_weights_at_once(pair):
    _, config, _, _, folder = pair("bert-masked")
    config_json, tensors = read_folder(folder)
    gone = ["bert.encoder.layer.1.output.dense.bias", "cls.predictions.bias"]
    wrong = {k: t for k, t in tensors.items() if k not in gone} | {
        "qa.weight": torch.ones(1),
        "bert.extra": torch.ones(1),
    }
    with pytest.raises(FileError) as caught:
        from_foreign(config, config_json, wrong)
    text = str(caught.value)
    missing, unknown = text.split("missing: ")[1].split("; unknown: ")
    assert missing.split(", ") == gone
    assert unknown.split(", ") == ["bert.extra", "qa.weight"]


def test_wrong_shapes_and_types_are_named(pair):
    _, config, _, _, folder = pair("gpt2")
    config_json, tensors = read_folder(folder)
    tensors["transformer.h.0.attn.c_attn.weight"] = torch.zeros(72, 24)
    tensors["transformer.wpe.weight"] = torch.zeros(80, 24, dtype=torch.int64)
    with pytest.raises(FileError) as caught:
        from_foreign(config, config_json, tensors)
    assert "transformer.h.0.attn.c_attn.weight is (72, 24), expected (24, 72)" in str(caught.value)
    assert "wpe.weight is of type int64" in str(caught.value)


def test_layers_beyond_the_configuration_are_not_dropped_silently(pair):
    with pytest.raises(FileError, match=r"unknown: model\.layers\.1\."):
        respelled(pair, "llama", num_hidden_layers=1)


def test_two_spellings_of_one_weight_are_refused(pair):
    with pytest.raises(FileError, match=r"two spellings of one name: embed_tokens\.weight"):
        respelled(pair, "llama", more={"embed_tokens.weight": torch.zeros(60, 24)})


ODD = (0, -1, 10**30, 0.5, float("nan"), "x", None, [], [[1]], {"a": 1}, True)


@pytest.mark.parametrize("kind", FAMILIES)
def test_any_value_is_read_or_refused_in_one_line(kind):
    """Whatever stands in a config.json, nothing but a configuration or a QkvError comes out."""
    full = {**hf.AutoConfig.for_model(kind).to_dict(), "architectures": None}
    refused = 0
    for key in {*full, *FAMILIES[kind].keys, *FAMILIES[kind].must, *FAMILIES[kind].aliases}:
        for value in ODD:
            try:
                read_config({**full, key: value}, ["pooler.dense.weight"])
            except QkvError as error:
                refused += 1
                assert "\n" not in str(error)
    assert refused > 100
    with pytest.raises(FileError, match="must hold an object"):
        read_config([], [])  # type: ignore[arg-type]


# --- what Hugging Face cannot hold

NO_MODEL = "no Hugging Face model that can be written has it"


def tiny(**fields) -> ModelConfig:
    return ModelConfig(**{"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "vocab_size": 40, **fields})


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (tiny(family="encoder", head="masked", mixer=("performer",)), r"mixer = \('performer',\).*" + NO_MODEL),
        (tiny(family="decoder", position="alibi", norm_order="pre"), r"position = 'alibi'.*" + NO_MODEL),
        (tiny(family="encoder-decoder", recurrent="gru"), r"recurrent = 'gru'.*" + NO_MODEL),
        (tiny(family="encoder-decoder", norm_order="pre", position="rotary"), r"position = 'rotary'.*" + NO_MODEL),
        (tiny(family="encoder-decoder", norm="rms"), r"the nearest one lacks norm = 'rms' \(marian\)"),
        (tiny(family="decoder", feedforward="bilinear"), r"feedforward = 'bilinear'.*" + NO_MODEL),
    ],
)  # fmt: skip
def test_what_no_family_has(config, reason):
    with pytest.raises(ConfigError, match=reason):
        to_foreign(config, stored_weights(build(config)))


def test_a_family_can_be_asked_for(pair):
    _, config, weights, _, _ = pair("electra-base")
    assert to_foreign(config, weights)[0]["model_type"] == "bert"  # with equal widths they are the same network
    assert to_foreign(config, weights, "electra")[0]["model_type"] == "electra"
    with pytest.raises(ConfigError, match=r"position_offset = 0 \(roberta\)"):
        to_foreign(config, weights, "roberta")
    with pytest.raises(ConfigError, match="'mamba' is not supported; it is one of bert"):
        to_foreign(config, weights, "mamba")


def test_our_weights_must_be_complete(pair):
    _, config, weights, _, _ = pair("gpt2")
    with pytest.raises(FileError, match=r"missing: embed.tokens.weight; unknown: words"):
        to_foreign(config, {"words" if k == "embed.tokens.weight" else k: t for k, t in weights.items()})


def test_effective_fields_decide_not_idle_ones(pair):
    """Fields that change no number stop no export; dropout is kept where the family has it."""
    _, config, weights, _, _ = pair("llama")
    other = config.changed(window=7, relative_distance=3, dropout=0.3)
    config_json, tensors = to_foreign(other, weights)
    assert read_config(config_json, tensors) == config
    assert all(
        torch.equal(a, b) for a, b in zip(tensors.values(), to_foreign(config, weights)[1].values(), strict=True)
    )


def test_an_export_says_what_type_its_weights_have(pair, tmp_path: Path):
    """A bfloat16 folder is read into float32 and written so; the file and config.json agree."""
    hf.AutoModelForCausalLM.from_pretrained(pair("gpt2")[4], dtype=torch.bfloat16).save_pretrained(tmp_path / "half")
    model = load(tmp_path / "half", device="cpu")
    model.export(tmp_path / "out")
    config_json, tensors = read_folder(tmp_path / "out")
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"torch." + config_json["torch_dtype"]}
    assert hf.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").dtype == torch.float32


def test_huge_skeleton_allocates_nothing():
    """The tables work on shapes alone."""
    config = read_config({"model_type": "llama", "num_hidden_layers": 2}, [])
    weights = dict(skeleton(config).named_parameters())
    config_json, tensors = to_foreign(config, weights)
    assert all(tensor.is_meta for tensor in tensors.values())
    assert from_foreign(config, config_json, tensors).keys() == weights.keys()


def test_network_of_the_folder_is_ours(pair, tmp_path: Path):
    """A network made here, not imported: transformers computes the same."""
    config = tiny(family="decoder", norm_order="pre", norm="rms", position="rotary", n_kv_heads=1, feedforward="swiglu",
                  attention_bias="none", ffn_bias=False, tie="output")  # fmt: skip
    network = build(config).eval()
    weights = {name: parameter.detach() for name, parameter in network.named_parameters()}
    theirs = hf.AutoModelForCausalLM.from_pretrained(save_ours(config, weights, tmp_path / "own")).eval()
    ids = torch.randint(0, 40, (2, 9))
    with torch.no_grad():
        close(fill(config, weights)(Batch(inputs=ids)).logits, theirs(ids).logits)
