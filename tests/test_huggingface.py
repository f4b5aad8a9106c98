"""Parity with transformers on tiny random models of nine families, and strictness of the tables that make it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

hf = pytest.importorskip("transformers")

from tests.hf_models import (  # noqa: E402
    DECODERS, ENCODER_DECODERS, ENCODERS, EVERY, PAD, VISION, fill, make, open_ours, read_folder, save, save_ours,
)  # fmt: skip

from qkv.batch import Batch  # noqa: E402
from qkv.config import ModelConfig  # noqa: E402
from qkv.convert.huggingface import FAMILIES, from_foreign, read_config, to_foreign  # noqa: E402
from qkv.convert.tables import active  # noqa: E402
from qkv.errors import ConfigError, FileError  # noqa: E402
from qkv.models.build import build, skeleton  # noqa: E402
from qkv.parts.state import State  # noqa: E402
from qkv.parts.tap import record  # noqa: E402

LENGTHS = (7, 4, 1)
SIDES = ("none", "right", "left")
LIVELY = 3.0
"""Matrices so much larger, for models that do not write one word for ever."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """(theirs, our config, our weights, our network) of a name, made once."""

    @cache
    def opened(name: str, size: float = 1.0):
        theirs = make(name, size)
        folder = save(theirs, tmp_path_factory.mktemp(name))
        return theirs, *open_ours(folder), folder

    return opened


def close(ours: Tensor, theirs: Tensor, mask: Tensor | None = None) -> None:
    """Equal within 1e-5 where the mask is true."""
    assert ours.shape == theirs.shape
    difference = (ours - theirs).abs()
    difference = difference if mask is None else difference[mask]
    assert difference.max() <= 1e-5, f"largest difference {difference.max():.2e}"


def sentences(side: str, vocab: int, pad: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """ids (B, T) and mask (B, T) of sentences of different lengths, padded on a side; `none`: all equally long."""
    torch.manual_seed(seed)
    lengths = (max(LENGTHS),) * len(LENGTHS) if side == "none" else LENGTHS
    ids = torch.full((len(lengths), max(lengths)), pad)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    for i, n in enumerate(lengths):
        places = slice(-n, None) if side == "left" else slice(0, n)
        ids[i, places], mask[i, places] = torch.randint(5, vocab, (n,)), True
    return ids, mask


def places(mask: Tensor) -> Tensor:
    """Positions that count real tokens: what transformers must be told where padding stands on the left."""
    return (mask.long().cumsum(-1) - 1).clamp(min=0)


def our_states(network: nn.Module, batch: Batch, embed: str, stack: str) -> tuple[list[Tensor], object]:
    """The output of the embedding and of each block, and of the whole network."""
    names = [embed] + [f"{stack}.blocks.{i}" for i in range(len(network.get_submodule(stack).blocks))]
    with record(network, names) as kept, torch.no_grad():
        output = network(batch)
        output.logits  # noqa: B018
    return [kept[name] for name in names], output


def compare_states(ours: list[Tensor], final: Tensor | None, theirs: tuple[Tensor, ...], mask: Tensor | None = None) -> None:
    """Every hidden state; `final` is our last one where transformers returns it after the final norm."""
    ours = ours if final is None else [*ours[:-1], final]
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        close(mine, other, mask)


# --- reading families


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ENCODERS)
def test_encoder(pair, name, side):
    theirs, config, _, network, _ = pair(name)
    ids, mask = sentences(side, config.vocab_size, config.pad_id)
    segments = torch.randint(0, config.n_segments, ids.shape)
    states, output = our_states(network, Batch(inputs=ids, mask=mask, segments=segments), "embed", "stack")
    where = {} if name.startswith("roberta") else {"position_ids": places(mask)}
    with torch.no_grad():
        expected = theirs(ids, mask.long(), token_type_ids=segments, output_hidden_states=True, **where)
        alone = [theirs(i[m][None], token_type_ids=s[m][None]) for i, m, s in zip(ids, mask, segments, strict=True)]
    compare_states(states, None, expected.hidden_states, mask)
    if config.head == "none":
        close(output.logits, expected.last_hidden_state, mask)
    elif config.head in ("pooled", "classes"):  # transformers reads place 0, which on the left is padding
        close(output.logits, torch.cat([a.pooler_output if config.head == "pooled" else a.logits for a in alone]))
    else:
        scores = expected.prediction_logits if "pretraining" in name else expected.logits
        close(output.logits, scores, mask)


@pytest.mark.parametrize("name", VISION)
def test_vision(pair, name):
    theirs, config, _, network, _ = pair(name)
    images = torch.randn(2, 3, 12, 12)
    states, output = our_states(network, Batch(images=images), "embed", "stack")
    with torch.no_grad():
        expected = theirs(images, output_hidden_states=True)
    compare_states(states, None, expected.hidden_states)
    if config.head == "pooled":
        close(output.hidden, expected.last_hidden_state)
        close(output.logits, expected.pooler_output)
    else:
        close(output.logits, expected.logits)


# --- writing families


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", DECODERS)
def test_decoder(pair, name, side):
    theirs, config, _, network, _ = pair(name)
    ids, mask = sentences(side, config.vocab_size, config.pad_id)
    states, output = our_states(network, Batch(inputs=ids, mask=mask), "embed", "stack")
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.long(), position_ids=places(mask), output_hidden_states=True)
    compare_states(states, output.hidden, expected.hidden_states, mask)
    close(output.logits, expected.logits, mask)


@pytest.mark.parametrize("chunks", [(1,) * 7, (3, 1, 3)])
@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize("name", DECODERS)
def test_decoder_with_cache(pair, name, side, chunks):
    """Ours in pieces = theirs in the same pieces = theirs at once."""
    theirs, config, _, network, _ = pair(name)
    ids, mask = sentences(side, config.vocab_size, config.pad_id)
    state, past, start = network.start(Batch(inputs=ids)), None, 0
    ours, others = [], []
    with torch.no_grad():
        whole = theirs(ids, attention_mask=mask.long(), position_ids=places(mask)).logits
        for size in chunks:
            now = slice(start, start + size)
            start += size
            hidden, state = network.step(ids[:, now], state, mask[:, now])
            ours.append(network.head(hidden))
            step = theirs(ids[:, now], attention_mask=mask[:, :start].long(), position_ids=places(mask)[:, now],
                          past_key_values=past, use_cache=True)  # fmt: skip
            past = step.past_key_values
            others.append(step.logits)
    close(torch.cat(ours, 1), torch.cat(others, 1), mask)
    close(torch.cat(ours, 1), whole, mask)


# --- both halves


def source_and_target(config: ModelConfig, side: str) -> Batch:
    source, source_mask = sentences(side, config.vocab_size, config.pad_id, seed=1)
    target, target_mask = sentences(side, config.target_size, config.pad_id, seed=2)
    order = torch.tensor([1, 0, 2])  # a long source with a short target and the other way round
    return Batch(inputs=target[order], mask=target_mask[order], source=source, source_mask=source_mask)


def rows_alone(theirs: nn.Module, batch: Batch) -> list:
    """transformers' answer for each example without any padding."""
    rows = zip(batch.source, batch.source_mask, batch.inputs, batch.mask, strict=True)
    with torch.no_grad():
        return [theirs(input_ids=s[sm][None], decoder_input_ids=t[tm][None], output_hidden_states=True) for s, sm, t, tm in rows]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoder(pair, name, side):
    """Against each example alone, since BART and Marian have no way to say where left-padded words stand."""
    theirs, config, _, network, _ = pair(name)
    batch = source_and_target(config, side)
    encoder, output = our_states(network, batch, "source", "encoder")
    decoder, _ = our_states(network, batch, "target", "decoder")
    if config.has_final_norm:
        encoder[-1], decoder[-1] = network.encoder.norm(encoder[-1]), output.hidden
    for i, alone in enumerate(rows_alone(theirs, batch)):
        compare_states([x[i][batch.source_mask[i]][None] for x in encoder], None, alone.encoder_hidden_states)
        compare_states([x[i][batch.mask[i]][None] for x in decoder], None, alone.decoder_hidden_states)
        close(output.logits[i][batch.mask[i]][None], alone.logits)


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoder_padded_as_theirs(pair, name):
    """Right padding is the side on which all of them agree in one batch."""
    theirs, config, _, network, _ = pair(name)
    batch = source_and_target(config, "right")
    with torch.no_grad():
        expected = theirs(
            input_ids=batch.source, attention_mask=batch.source_mask.long(),
            decoder_input_ids=batch.inputs, decoder_attention_mask=batch.mask.long(),
        )  # fmt: skip
        close(network(batch).logits, expected.logits, batch.mask)


@pytest.mark.parametrize("chunks", [(1,) * 7, (3, 1, 3)])
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoder_with_cache(pair, name, chunks):
    theirs, config, _, network, _ = pair(name)
    source, source_mask = sentences("right", config.vocab_size, config.pad_id, seed=1)
    target, _ = sentences("none", config.target_size, config.pad_id, seed=2)
    ours, others, past, start = [], [], None, 0
    with torch.no_grad():
        state = network.start(Batch(source=source, source_mask=source_mask))
        read = theirs.get_encoder()(source, attention_mask=source_mask.long())
        for size in chunks:
            piece = target[:, start : start + size]
            start += size
            hidden, state = network.step(piece, state)
            ours.append(network.head(hidden))
            step = theirs(encoder_outputs=read, attention_mask=source_mask.long(), decoder_input_ids=piece,
                          past_key_values=past, use_cache=True)  # fmt: skip
            past = step.past_key_values
            others.append(step.logits)
    close(torch.cat(ours, 1), torch.cat(others, 1))


# --- greedy generation, token by token


@torch.no_grad()
def greedy(network: nn.Module, state: State, ids: Tensor, mask: Tensor | None, steps: int) -> Tensor:
    """The most probable token, `steps` times: (B, steps)."""
    written = []
    for _ in range(steps):
        hidden, state = network.step(ids, state, mask)
        ids, mask = network.head(hidden)[:, -1:].argmax(-1), None
        written.append(ids)
    return torch.cat(written, 1)


def their_greedy(theirs: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """50 tokens and no end."""
    for ending in ("eos_token_id", "forced_eos_token_id", "forced_bos_token_id"):
        setattr(theirs.generation_config, ending, None)
    return theirs.generate(ids, attention_mask=mask.long(), do_sample=False, num_beams=1, min_new_tokens=50,
                           max_new_tokens=50, pad_token_id=PAD, use_cache=True)  # fmt: skip


@pytest.mark.parametrize("name", DECODERS)
def test_greedy_decoder(pair, name):
    theirs, config, _, network, _ = pair(name, LIVELY)
    ids, mask = sentences("left", config.vocab_size, config.pad_id)
    ours = greedy(network, network.start(Batch(inputs=ids)), ids, mask, 50)
    assert ours.unique().numel() > 5, "a model that repeats itself proves little"
    assert torch.equal(ours, their_greedy(theirs, ids, mask)[:, ids.size(1) :])


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_greedy_encoder_decoder(pair, name):
    theirs, config, _, network, _ = pair(name, LIVELY)
    source, mask = sentences("right", config.vocab_size, config.pad_id)
    first = torch.full((source.size(0), 1), config.first_id)
    ours = greedy(network, network.start(Batch(source=source, source_mask=mask)), first, None, 50)
    assert ours.unique().numel() > 5, "a model that repeats itself proves little"
    assert torch.equal(ours, their_greedy(theirs, source, mask)[:, 1:])


# --- the way back


@pytest.mark.parametrize("name", EVERY)
def test_round_trip(pair, name, tmp_path):
    """Ours -> folder -> transformers finds all it wants and nothing else -> its folder -> ours: the same bits."""
    theirs, config, weights, _, _ = pair(name)
    folder = save_ours(config, weights, tmp_path / "ours", theirs.config.model_type)
    kind = getattr(hf, json.loads((folder / "config.json").read_text())["architectures"][0])
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert kind is type(theirs) or "pretraining" in name
    again, back, _ = open_ours(save(model, tmp_path / "theirs"))
    assert again == config
    assert all(torch.equal(back[key], weights[key]) for key in weights)


@pytest.mark.parametrize("name", EVERY)
def test_tables_cover_every_weight_once(pair, name):
    """Each of our weights has one row, and no foreign name has two."""
    _, config, weights, _, folder = pair(name)
    family = FAMILIES[read_folder(folder)[0]["model_type"]]
    rows = active(family.table(config), weights)
    assert sorted(n for row in rows for n in row.ours) == sorted(weights)
    foreign = [row.foreign for row in rows]
    assert len(foreign) == len(set(foreign))


def test_stored_type_is_kept(pair):
    _, config, weights, _, _ = pair("gpt2")
    half = {name: tensor.bfloat16() for name, tensor in weights.items()}
    config_json, tensors = to_foreign(config, half)
    assert config_json["torch_dtype"] == "bfloat16" and {t.dtype for t in tensors.values()} == {torch.bfloat16}
    back = from_foreign(config, config_json, tensors)
    assert all(torch.equal(back[name], half[name]) and back[name].dtype == torch.bfloat16 for name in half)


def test_encoder_without_pooler_opens_without_pooler(pair, tmp_path):
    _, config, weights, _, _ = pair("bert-base")
    bare = {name: tensor for name, tensor in weights.items() if not name.startswith("head.")}
    folder = save_ours(config.changed(head="none"), bare, tmp_path / "bare")
    _, info = hf.BertModel.from_pretrained(folder, add_pooling_layer=False, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert open_ours(folder)[0].head == "none"


# --- other spellings of the same


def respelled(pair, name: str, keys=lambda name: name, without=(), more=None, **fields):
    """A saved model with renamed weights, other weights and other config.json keys, opened as ours."""
    theirs, config, weights, _, folder = pair(name)
    config_json, tensors = read_folder(folder)
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
    with pytest.raises(FileError, match=r"ties embed_tokens.weight and lm_head.weight, but they hold different numbers"):
        respelled(pair, "llama-grouped-tied", more={"lm_head.weight": words + 1})


@pytest.mark.parametrize("name", ["llama-grouped-tied", "llama-3"])
def test_rotary_keys_before_transformers_5(pair, name):
    old = dict(read_folder(pair(name)[4])[0]["rope_parameters"])
    theta, kind = old.pop("rope_theta"), old.pop("rope_type")
    scaling = {"type": kind, **old} if old else None
    assert same_as_saved(pair, name, without=("rope_parameters",), rope_theta=theta, rope_scaling=scaling)


def test_missing_keys_take_their_defaults(pair):
    """A config.json of the model's own defaults may leave them out, and they are Hugging Face's."""
    for kind, family in FAMILIES.items():
        full = hf.AutoConfig.for_model(kind).to_dict()
        names = ["final_logits_bias"]
        assert read_config({"model_type": kind}, names) == read_config({"model_type": kind, **clean(full, family)}, names)


def clean(full: dict, family) -> dict:
    """A whole default configuration as transformers prints it."""
    return {key: value for key, value in full.items() if key != "architectures"}


def test_t5_scaling_in_both_spellings(pair):
    new = read_folder(pair("t5-1.1")[4])[0]
    assert new["tie_word_embeddings"] is True and new["scale_decoder_outputs"] is False
    assert same_as_saved(pair, "t5-1.1", without=("scale_decoder_outputs",), tie_word_embeddings=False)
    assert not pair("t5-1.1")[1].output_scale and pair("t5")[1].output_scale
    assert pair("t5-1.1")[1].tie == "embeddings" and pair("t5")[1].tie == "all"


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
        ("bert-masked", "architectures", ["BertForQuestionAnswering"]),
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
    with pytest.raises(FileError, match=f"model_type = {kind!r} is not supported; it is one of bert, roberta, electra, gpt2"):
        read_config({"model_type": kind}, [])


def test_all_missing_and_unknown_weights_at_once(pair):
    _, config, _, _, folder = pair("bert-masked")
    config_json, tensors = read_folder(folder)
    gone = ["bert.encoder.layer.1.output.dense.bias", "cls.predictions.bias"]
    wrong = {k: t for k, t in tensors.items() if k not in gone} | {"qa.weight": torch.ones(1), "bert.extra": torch.ones(1)}
    with pytest.raises(FileError) as caught:
        from_foreign(config, config_json, wrong)
    text = str(caught.value)
    missing, unknown = text.split("missing: ")[1].split("; unknown: ")
    assert missing.split(", ") == ["encoder.layer.1.output.dense.bias", "cls.predictions.bias"]
    assert unknown.split(", ") == ["extra", "qa.weight"]


def test_wrong_shapes_and_types_are_named(pair):
    _, config, _, _, folder = pair("gpt2")
    config_json, tensors = read_folder(folder)
    tensors["transformer.h.0.attn.c_attn.weight"] = torch.zeros(72, 24)
    tensors["transformer.wpe.weight"] = torch.zeros(80, 24, dtype=torch.int64)
    with pytest.raises(FileError) as caught:
        from_foreign(config, config_json, tensors)
    assert "h.0.attn.c_attn.weight is (72, 24), expected (24, 72)" in str(caught.value)
    assert "wpe.weight is of type int64" in str(caught.value)


def test_layers_beyond_the_configuration_are_not_dropped_silently(pair):
    with pytest.raises(FileError, match=r"unknown: layers\.1\."):
        respelled(pair, "llama", num_hidden_layers=1)


def test_two_spellings_of_one_weight_are_refused(pair):
    with pytest.raises(FileError, match="two spellings of one name: embed_tokens.weight"):
        respelled(pair, "llama", more={"embed_tokens.weight": torch.zeros(60, 24)})


# --- what Hugging Face cannot hold


def tiny(**fields) -> ModelConfig:
    return ModelConfig(**{"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "vocab_size": 40, **fields})


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (tiny(family="encoder", head="masked", mixer=("performer",)), r"mixer = \('performer',\).*no Hugging Face model has it"),
        (tiny(family="decoder", position="alibi", norm_order="pre"), r"position = 'alibi'.*no Hugging Face model has it"),
        (tiny(family="encoder-decoder", recurrent="gru"), r"recurrent = 'gru'.*no Hugging Face model has it"),
        (tiny(family="encoder-decoder", norm_order="pre", position="learned"), r"bart has no .*norm_order = 'pre'"),
        (tiny(family="decoder", feedforward="bilinear"), r"feedforward = 'bilinear'.*no Hugging Face model has it"),
    ],
)  # fmt: skip
def test_what_no_family_has(config, reason):
    with pytest.raises(ConfigError, match=reason):
        to_foreign(config, dict(build(config).named_parameters()))


def test_a_family_can_be_asked_for(pair):
    _, config, weights, _, _ = pair("electra-base")
    assert to_foreign(config, weights)[0]["model_type"] == "bert"  # with equal widths they are the same network
    assert to_foreign(config, weights, "electra")[0]["model_type"] == "electra"
    with pytest.raises(ConfigError, match=r"roberta has no .*position_offset = 0"):
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
    assert all(torch.equal(a, b) for a, b in zip(tensors.values(), to_foreign(config, weights)[1].values(), strict=True))


def test_huge_skeleton_allocates_nothing():
    """The tables work on shapes alone."""
    config = read_config({"model_type": "llama", "num_hidden_layers": 2}, [])
    weights = {name: tensor for name, tensor in skeleton(config).named_parameters()}
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
