"""Configurations: what is wrong is named, with what was given and what is allowed; what is accepted can be built and run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qkv.batch import Batch
from qkv.config import (
    CorpusConfig,
    DecodeConfig,
    ModelConfig,
    Recipe,
    Strict,
    TrainConfig,
    load_recipe,
    override,
    read_toml,
    validate,
)
from qkv.config.rules import config_warnings
from qkv.config.vectors import VectorsRecipe
from qkv.errors import ConfigError
from qkv.generate.beam import length_divisors
from qkv.models.build import build
from qkv.parts.masks import Mask
from qkv.presets import PRESETS, preset
from qkv.recipes import find, names
from qkv.tasks.translation import request

DECODER = {"family": "decoder", "vocab_size": 20, "d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 8}
BOTH = {**DECODER, "family": "encoder-decoder"}
ENCODER = {**DECODER, "family": "encoder", "head": "masked"}
IMAGE = {**DECODER, "family": "encoder", "head": "classes", "vocab_size": 0, "image_size": 8, "patch_size": 4}
STRETCH = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_length": 16}


def complaint(values: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(ModelConfig, values, "model")
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- one field


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("d_modle", 3, ["unknown key 'model.d_modle'", "3", "d_model"]),
        ("d_model", "16", ["'model.d_model'", "integer", "'16'"]),
        ("d_model", 16.0, ["'model.d_model'", "integer", "16.0"]),
        ("d_model", True, ["'model.d_model'", "integer", "True"]),
        ("d_model", 0, ["'model.d_model'", "greater than 0", "given 0"]),
        ("d_model", 10**9, ["'model.d_model'", "less than or equal to 1000000"]),
        ("dropout", 1.0, ["'model.dropout'", "less than 1", "given 1.0"]),
        ("dropout", float("nan"), ["'model.dropout'", "nan"]),
        ("norm_order", "middle", ["'model.norm_order'", "'pre', 'post' or 'parallel'", "'middle'"]),
        ("mixer", ["softmax", "sum"], ["model.mixer.1", "'linformer'", "'sum'"]),
        ("eos_id", "x", ["'model.eos_id'", "integer", "'x'"]),
        ("embed_scale", 1, ["'model.embed_scale'", "boolean", "given 1"]),
        ("rotary_scaling", {**STRETCH, "kind": 1}, ["model.rotary_scaling.kind"]),
    ],
)
def test_a_wrong_field_is_named_with_what_was_given(field: str, value: Any, said: list[str]) -> None:
    message = complaint({**DECODER, field: value})
    assert all(words in message for words in said), message


def test_a_missing_field_is_named() -> None:
    assert "'model.d_model' is missing" in complaint({"family": "decoder", "n_layers": 2})


def test_all_wrong_fields_are_named_at_once() -> None:
    message = complaint({**DECODER, "d_modle": 3, "dropout": 2.0, "n_layers": "two"})
    assert all(name in message for name in ("model.d_modle", "model.dropout", "model.n_layers"))


# --- combinations


IMPOSSIBLE: list[tuple[dict[str, Any], list[str]]] = [
    ({**DECODER, "mixer": ["linear", "softmax"], "share_layers": True}, ["share_layers", "'linear', 'softmax'"]),
    ({**DECODER, "mixer": "linear", "attention_dropout": 0.1}, ["attention_dropout = 0.1", "'linear'"]),
    ({**DECODER, "recurrent": "gru", "position": "none", "share_layers": True}, ["share_layers", "recurrent = 'gru'"]),
    ({**DECODER, "recurrent": "gru", "position": "none", "reverse_source": True}, ["reverse_source", "'decoder'"]),
    ({**DECODER, "n_segments": 2}, ["n_segments = 2", "'decoder'"]),
    ({**DECODER, "eos_id": -3}, ["eos_id = -3"]),
    ({**DECODER, "n_heads": 3}, ["n_heads = 3", "d_model = 16", "d_head"]),
    ({**DECODER, "n_heads": 4, "n_kv_heads": 3}, ["n_kv_heads = 3", "n_heads = 4"]),
    ({**DECODER, "position": "rotary", "d_head": 5}, ["position = 'rotary'", "(5)", "even d_head"]),
    ({**DECODER, "position": "alibi", "position_use": "every-layer"}, ["position_use = 'every-layer'", "'alibi'"]),
    ({**DECODER, "position_use": "concat"}, ["position_use = 'concat'", "d_embed below d_model = 16", "None"]),
    ({**DECODER, "position_use": "concat", "d_embed": 16}, ["d_embed below d_model = 16", "not 16"]),
    ({**DECODER, "rotary_scaling": STRETCH}, ["rotary_scaling", "'sinusoidal'"]),
    ({**DECODER, "position": "rotary", "rotary_scaling": {**STRETCH, "low_freq_factor": 4.0}}, ["low_freq_factor"]),
    ({**DECODER, "score": "low-rank"}, ["'low-rank' needs score_rank"]),
    ({**BOTH, "recurrent": "gru", "decoder_attention": "low-rank"}, ["'low-rank' needs score_rank"]),
    ({**DECODER, "n_decoder_layers": 2}, ["n_decoder_layers", "'encoder-decoder'", "'decoder'"]),
    ({**ENCODER, "target_vocab_size": 2}, ["target_vocab_size", "'encoder-decoder'", "'encoder'"]),
    ({**DECODER, "head": "masked"}, ["head = 'masked'", "'encoder'", "'decoder'"]),
    ({**ENCODER, "head": "vocabulary"}, ["'encoder'", "'masked'", "'classes'"]),
    ({**DECODER, "tie": "all"}, ["tie = 'all'", "'output' or 'none'"]),
    ({**BOTH, "tie": "all", "target_vocab_size": 30}, ["tie = 'all'", "vocab_size = 20", "30"]),
    ({**IMAGE, "patch_size": 3}, ["image_size = 8", "patch_size = 3"]),
    ({**IMAGE, "patch_size": None}, ["image_size = 8", "patch_size = None"]),
    ({**IMAGE, "family": "decoder", "head": "vocabulary"}, ["images", "'encoder'"]),
    ({**IMAGE, "head": "masked"}, ["head = 'masked'", "'classes'"]),
    ({**IMAGE, "position": "learned", "max_length": 4}, ["max_length = 4", "image_size = 8"]),
    ({**IMAGE, "position_use": "concat", "d_embed": 8}, ["position_use = 'concat'", "images"]),
    ({**BOTH, "image_size": 8, "patch_size": 4, "tie": "embeddings"}, ["tie = 'embeddings'", "image"]),
    ({**DECODER, "vocab_size": 0}, ["vocab_size = 0", "image_size"]),
    ({**DECODER, "mixer": "linformer"}, ["'linformer'", "causal", "'encoder'"]),
    ({**DECODER, "mixer": "window", "score": "additive"}, ["mixer = ('window',)", "score = 'additive'"]),
    ({**DECODER, "mixer": "linear", "position": "t5"}, ["position = 't5'", "mixer = ('linear',)", "'learned'"]),
    ({**DECODER, "mixer": "linear", "position": "rotary"}, ["position = 'rotary'", "'linear'", "'learned'"]),
    (
        {**DECODER, "mixer": ["softmax", "linear"], "position": "rotary-interleaved"},
        ["'rotary-interleaved'", "'linear'"],
    ),
    (
        {**BOTH, "mixer": "selective", "share_encoder_decoder": True},
        ["share_encoder_decoder", "selective", "direction"],
    ),
    ({**DECODER, "mixer": "s4d", "d_state": 3}, ["'s4d'", "d_state = 3"]),
    ({**DECODER, "d_key": 4}, ["d_key = 4", "'taylor' and 'gated-linear'"]),
    ({**DECODER, "mixer": "gated-linear", "position": "rotary"}, ["position = 'rotary'", "'none'"]),
    ({**DECODER, "feedforward": "none", "norm_order": "parallel"}, ["feedforward = 'none'", "'parallel'"]),
    ({**DECODER, "residual": False, "norm_order": "parallel"}, ["residual = false", "'parallel'"]),
    ({**DECODER, "projections": False, "n_kv_heads": 1}, ["projections = false", "n_kv_heads"]),
    ({**DECODER, "projections": False, "d_head": 4}, ["projections = false", "n_heads * d_head"]),
    ({**DECODER, "projections": False, "mixer": ["softmax", "s4d"]}, ["projections = false", "s4d"]),
    ({**BOTH, "prefix_mask": True}, ["prefix_mask", "'decoder'"]),
    ({**DECODER, "prefix_mask": True, "mixer": ["softmax", "window"]}, ["prefix_mask", "'softmax'", "'window'"]),
    ({**DECODER, "prefix_mask": True, "causal": False}, ["prefix_mask", "causal"]),
    ({**DECODER, "share_encoder_decoder": True}, ["share_encoder_decoder", "'encoder-decoder'"]),
    ({**BOTH, "share_encoder_decoder": True, "n_decoder_layers": 3}, ["share_encoder_decoder", "n_decoder_layers = 3"]),
    ({**BOTH, "cross_mixer": "window"}, ["cross_mixer = 'window'", "positions", "'linformer'"]),
    ({**DECODER, "cross_mixer": "linear"}, ["cross_mixer = 'linear'", "'encoder-decoder'"]),
    ({**BOTH, "cross_mixer": "linear", "score": "additive"}, ["cross_mixer = 'linear'", "score = 'additive'"]),
    ({**DECODER, "causal": False, "mixer": "selective"}, ["causal = false", "selective"]),
    ({**DECODER, "recurrent": "gru", "position": "none", "causal": True}, ["causal", "recurrent = 'gru'"]),
    ({**ENCODER, "causal": True, "mixer": "linformer"}, ["'linformer'", "causal"]),
    ({**ENCODER, "causal": True, "head": "pooled"}, ["pooling = 'first'", "causal"]),
    ({**DECODER, "bidirectional": True}, ["bidirectional", "recurrent = 'elman', 'gru' or 'lstm'"]),
    ({**DECODER, "recurrent": "gru", "bidirectional": True}, ["bidirectional", "'decoder'"]),
    ({**BOTH, "recurrent": "gru", "bidirectional": True, "d_model": 15}, ["bidirectional", "odd (15)"]),
    ({**BOTH, "recurrent": "gru", "input_feeding": True}, ["input_feeding", "decoder_attention"]),
    (
        {**BOTH, "recurrent": "gru", "fixed_context": True, "decoder_attention": "dot"},
        ["fixed_context", "leave out decoder_attention"],
    ),
    (
        {**DECODER, "recurrent": "gru", "position": "none", "fixed_context": True},
        ["fixed_context", "'encoder-decoder'"],
    ),
    (
        {**DECODER, "recurrent": "gru", "decoder_attention": "dot"},
        ["decoder_attention", "'encoder-decoder'", "'decoder'"],
    ),
    ({k: v for k, v in DECODER.items() if k != "d_ff"}, ["d_ff is missing"]),
    ({**BOTH, "norm_order": "parallel"}, ["norm_order = 'parallel'", "'pre' or 'post'"]),
    ({**DECODER, "position": "t5", "relative_buckets": 2}, ["relative_buckets", "not 2"]),
    ({**DECODER, "position": "t5", "relative_distance": 16}, ["relative_distance", "not 16"]),
]


@pytest.mark.parametrize(("values", "said"), IMPOSSIBLE, ids=[said[0] for _, said in IMPOSSIBLE])
def test_an_impossible_combination_is_named(values: dict[str, Any], said: list[str]) -> None:
    message = complaint(values)
    assert message.startswith("model: ")
    assert all(words in message for words in said), message


CHOICES: dict[str, list[Any]] = {
    "head": ["masked", "replaced", "classes", "tags", "pooled", "none"],
    "target_vocab_size": [None, 11], "n_decoder_layers": [None, 1], "n_kv_heads": [None, 1], "d_head": [None, 6],
    "d_embed": [None, 8], "feedforward": ["relu", "swiglu", "linear", "none"],
    "norm": ["layer", "rms", "layer-without-bias", "none"], "residual": [True, False], "projections": [True, False],
    "causal": [None, True, False], "prefix_mask": [False, True],
    "norm_order": ["pre", "post", "parallel"], "final_norm": [None, True, False], "embed_norm": [False, True],
    "position": ["none", "sinusoidal", "learned", "rotary", "rotary-interleaved", "relative", "t5", "alibi"],
    "position_use": ["add", "concat", "every-layer"], "position_offset": [0, 2], "relative_buckets": [3, 8, 32],
    "relative_distance": [3, 40], "score": ["scaled-dot", "dot", "bilinear", "low-rank", "additive"],
    "score_rank": [None, 2], "d_key": [None, 4], "d_state": [3, 4],
    "mixer": ["softmax", "window", "linformer", "performer", "linear", "compressed", "taylor", "gated-linear", "s4d",
              "selective", ["selective", "softmax"]],
    "cross_mixer": ["softmax", "linear", "performer", "taylor", "linformer", "window"],
    "n_global": [0, 1], "share_layers": [False, True], "share_encoder_decoder": [False, True], "recurrent": [None, "elman", "gru", "lstm"],
    "bidirectional": [False, True], "decoder_attention": [None, "additive", "low-rank"], "input_feeding": [False, True],
    "fixed_context": [False, True], "reverse_source": [False, True], "n_segments": [0, 2], "image_size": [None, 8], "patch_size": [None, 4],
    "tie": ["none", "embeddings", "output", "all"], "output_bias": [False, True], "output_scale": [False, True],
    "pooler": [True, False], "attention_bias": ["none", "qkv", "all"],
}  # fmt: skip


@st.composite
def some_config(draw: st.DrawFn) -> dict[str, Any]:
    """A base of some family with a few fields changed at random."""
    base = draw(st.sampled_from([DECODER, BOTH, ENCODER, IMAGE]))
    fields = draw(st.lists(st.sampled_from(sorted(CHOICES)), max_size=8, unique=True))
    if base["family"] != "encoder":
        fields = [field for field in fields if field != "head"]
    changes = {field: draw(st.sampled_from(CHOICES[field])) for field in fields}
    return {**base, "max_length": 16, "window": 4, "mixer_rank": 8, **changes}


def run(c: ModelConfig) -> torch.Tensor:
    torch.manual_seed(0)
    ids = torch.randint(3, 10, (2, 5))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    images = None if c.image_size is None else torch.randn(2, 3, 8, 8)
    if c.family == "encoder":
        batch = Batch(ids, mask) if images is None else Batch(images=images)
    elif images is None and c.family == "encoder-decoder":
        batch = Batch(ids, mask, source=ids, source_mask=mask)
    else:
        batch = Batch(ids, mask, images=images)
    return build(c).eval()(batch).logits


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(some_config())
def test_a_configuration_is_refused_in_words_or_it_works(values: dict[str, Any]) -> None:
    try:
        c = validate(ModelConfig, values)
    except ConfigError as error:
        assert str(error)
        return
    assert run(c).isfinite().all()


# --- there and back


@pytest.mark.parametrize("name", PRESETS)
def test_round_trip(name: str) -> None:
    """Whole or only what was set, through Python or JSON: the same configuration."""
    c = preset(name)
    assert ModelConfig(**c.model_dump()) == c
    assert validate(ModelConfig, json.loads(c.model_dump_json())) == c
    assert validate(ModelConfig, json.loads(json.dumps(c.model_dump(exclude_unset=True)))) == c


def test_changed_is_checked_again_and_leaves_the_original() -> None:
    c = ModelConfig(**DECODER)
    assert c.changed(d_ff=9).d_ff == 9
    assert c.d_ff == 8
    with pytest.raises(ConfigError, match="n_heads = 3"):
        c.changed(n_heads=3)


# --- recipes and --set

RECIPE = """
[model]
family = "decoder"
vocab_size = 20
d_model = 16
n_layers = 2
n_heads = 2
d_ff = 8
mixer = ["window", "softmax"]
eos_id = [1, 2]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def test_a_recipe_and_its_overrides(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, RECIPE), ["model.d_model=32", "model.norm=rms", "model.tie = 'output'"])
    c = recipe.model
    assert (c.d_model, c.norm, c.tie, c.d_ff) == (32, "rms", "output", 8)
    assert c.mixer == ("window", "softmax")
    assert c.eos_ids == (1, 2)


def test_the_2017_recipe_searches_as_its_paper_says() -> None:
    """Beam 4, alpha 0.6 in Wu et al.'s formula, at most input + 50 tokens; other recipes divide by length^penalty."""
    how = request(load_recipe(find("transformer-base")).decode)
    assert (how.beam.size, how.max_length, how.extra_length) == (4, None, 50)
    assert length_divisors(how.beam, 7)[7] == pytest.approx((5 + 7) ** 0.6 / 6**0.6)
    assert length_divisors(request(load_recipe(find("demo")).decode).beam, 7)[7] == pytest.approx(7)


def test_a_recipe_keeps_what_was_set(tmp_path: Path) -> None:
    """As a run's folder does: settings in comments are made, and later ones go before them."""
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE + '# --set "model.dropout=0.25"\n# --set "model.norm=rms"\n# --set my own words\n')
    found = load_recipe(path, ["model.dropout=0.5"]).model
    assert (found.dropout, found.norm) == (0.5, "rms")


def test_a_recipe_may_start_from_a_preset(tmp_path: Path) -> None:
    path = write(tmp_path, 'preset = "llama3.2-1b"\n[model]\nn_layers = 3\n')
    recipe = load_recipe(path, ["model.rotary_scaling.factor=4.0"])
    scaling = recipe.model.rotary_scaling
    assert scaling is not None
    assert scaling.factor == 4.0
    assert scaling.original_length == 8192
    assert recipe.model == preset("llama3.2-1b").changed(n_layers=3, rotary_scaling=scaling)
    assert load_recipe(write(tmp_path, 'preset = "gpt2"\n')).model == preset("gpt2")


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        (RECIPE, ["model.d_modle=3"], "unknown key 'model.d_modle'"),
        (RECIPE, ["model.d_model=wide"], "'model.d_model'.*'wide'"),
        (RECIPE, ["model.d_model"], "key=value"),
        (RECIPE, ["=3"], "key=value"),
        (RECIPE, ["model.d_model.x=3"], "'d_model' is a value, not a table"),
        (RECIPE, ["modle.d_model=3"], "unknown key 'modle'"),
        (RECIPE, ["model=3"], "model"),
        (RECIPE + "\n[speed]\nx = 1\n", [], "unknown key 'speed'"),
        ('preset = "gtp2"\n', [], "did you mean 'gpt2'"),
        ("preset = 3\n", [], "preset must be a name.*given 3"),
        ("[model\n", [], "is not TOML"),
        ("", [], "'model.family' is missing"),
    ],
)
def test_a_wrong_recipe_or_setting_is_named(tmp_path: Path, text: str, settings: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_recipe(write(tmp_path, text), settings)


def test_a_recipe_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"cannot read recipe nowhere\.toml"):
        load_recipe(Path("nowhere.toml"))


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("3.5", 3.5), ("true", True), ('"a b"', "a b"), ("rms", "rms"), ("[1, 2]", [1, 2]), ("", "")],
)
def test_a_setting_is_read_as_toml_or_as_text(text: str, value: Any) -> None:
    assert override({}, [f"a.b={text}"]) == {"a": {"b": value}}


def test_a_wrong_item_of_a_list_is_named_once() -> None:
    message = complaint({**DECODER, "mixer": ["selectiv"]})
    assert "'model.mixer.0'" in message and "at least 1 item" not in message


def test_there_is_always_a_mixer() -> None:
    assert "mixer" in complaint({**DECODER, "mixer": []})


# --- what can be built but hardly learns


def test_positions_that_outweigh_the_words_are_warned_of() -> None:
    (line,) = config_warnings(ModelConfig(**DECODER))
    assert "sinusoidal" in line and "model.embed_scale = true" in line and 'model.position = "rotary"' in line
    mended: list[dict[str, Any]] = [
        {"embed_scale": True},
        {"position": "rotary"},
        {"position": "none"},
        {"position": "learned"},
    ]
    for fields in mended:
        assert config_warnings(ModelConfig(**{**DECODER, **fields})) == []
    assert config_warnings(ModelConfig(**IMAGE)) == []


def test_the_warning_is_true() -> None:
    """Of a fresh network's input, the positions are most; scaled, the words are."""
    shares = []
    for scaled in (False, True):
        torch.manual_seed(0)
        c = ModelConfig(**{**ENCODER, "d_model": 64, "dropout": 0.0, "vocab_size": 500}, embed_scale=scaled)
        embed: Any = build(c).embed
        ids = torch.arange(40)[None]
        whole = embed(ids, Mask(40))
        shares.append(((embed.tokens(ids) * embed.scale).var() / whole.var()).item())
    assert shares[0] < 0.1 and shares[1] > 0.5


@pytest.mark.parametrize("name", sorted({*PRESETS}))
def test_no_preset_is_warned_of(name: str) -> None:
    assert config_warnings(preset(name)) == []


@pytest.mark.parametrize("name", [name for name in names() if not name.startswith("word2vec")])
def test_no_shipped_recipe_is_warned_of(name: str) -> None:
    """Those that start from a model have its weights."""
    values = read_toml(find(name))
    if not values.get("tune", {}).get("start"):
        assert config_warnings(load_recipe(find(name)).model) == []


def test_params_and_train_print_the_warning(run: Run, tmp_path: Path) -> None:
    plain = ["--set", "model.embed_scale=false"]
    code, out, err = run("params", "sentences", *plain)
    assert code == 0 and "warning: sinusoidal" in err and "warning" not in out
    small = ["--set", "train.steps=1", "--set", "data.train=[{ grammar = 50 }]", "--set", "data.test={ grammar = 20 }"]
    for name, extra, warned in (("plain", plain, True), ("scaled", [], False)):
        code, out, err = run("train", "sentences", *small, *extra, "--out", tmp_path / name)
        assert code == 0 and ("warning: sinusoidal" in err) == warned, err


# --- numbers have limits

LIMITED_ELSEWHERE = {"eos_id", "columns", "evaluate_every", "save_every"}
"""Fields that are more than a number; test_numbers_without_end_are_refused has them."""


@pytest.mark.parametrize("kind", [Recipe, VectorsRecipe], ids=lambda kind: kind.__name__)
def test_every_integer_has_a_largest_value(kind: type[Strict]) -> None:
    schema = kind.model_json_schema()
    unlimited = [
        name
        for record in (schema, *schema["$defs"].values())
        for name, field in record["properties"].items()
        for one in (field, *field.get("anyOf", ()))
        if one.get("type") == "integer" and not {"maximum", "exclusiveMaximum"} & one.keys()
    ]
    assert set(unlimited) <= LIMITED_ELSEWHERE


@pytest.mark.parametrize("number", [2**31, 2**63, 2**64, 10**40])
def test_numbers_without_end_are_refused(number: int) -> None:
    for name in ("position_offset", "eos_id", "bos_id", "pad_id", "start_id", "forced_id", "window", "d_model"):
        with pytest.raises(ConfigError, match=name):
            validate(ModelConfig, {**DECODER, name: number})
    with pytest.raises(ConfigError, match="eos_id"):
        validate(ModelConfig, {**DECODER, "eos_id": [1, number]})
    for columns in ([number], [-number], [0, -1]):
        with pytest.raises(ConfigError, match="columns"):
            validate(CorpusConfig, {"table": "a.tsv", "columns": columns})
    with pytest.raises(ConfigError, match="interval"):
        validate(TrainConfig, {"save_every": number * 10**4})


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_refused(number: float) -> None:
    for kind, name in (
        (ModelConfig, "position_base"),
        (TrainConfig, "learning_rate"),
        (DecodeConfig, "length_penalty"),
    ):
        with pytest.raises(ConfigError, match=name):
            validate(kind, {**(DECODER if kind is ModelConfig else {}), name: number})


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 2000 + "]" * 2000, "{ a = " * 2000])
def test_toml_that_python_cannot_hold_is_refused_in_one_line(value: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(f"[model]\nd_model = {value}\n")
    with pytest.raises(ConfigError, match="is not TOML") as caught:
        load_recipe(tmp_path / "recipe.toml")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError):
        validate(ModelConfig, override({}, [f"d_model={value}"]))
