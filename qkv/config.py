"""What a run is: strict, flat configurations. Nothing here imports torch, so the command line starts at once.

Every field has one default, written here, and one description, which is also its help text. An unknown key, a wrong
type or an impossible combination raises `ConfigError` with the field, what was given and what is allowed.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from qkv.errors import ConfigError

Family = Literal["encoder-decoder", "encoder", "decoder"]
Position = Literal["none", "sinusoidal", "learned", "rotary", "rotary-interleaved", "relative", "t5", "alibi"]
Score = Literal["dot", "scaled-dot", "bilinear", "low-rank", "additive"]
Mixer = Literal["softmax", "window", "linformer", "performer", "linear", "compressed"]
FeedForward = Literal[
    "relu", "gelu", "gelu-tanh", "silu", "reglu", "geglu", "geglu-tanh", "swiglu", "bilinear"
]
Head = Literal["vocabulary", "masked", "replaced", "classes", "tags", "pooled", "none"]


class Strict(BaseModel):
    """A frozen record that refuses unknown keys and silent conversions ("3" is not 3)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    def changed(self, **fields: Any) -> Any:
        """The same record with some fields replaced, checked again."""
        return checked(type(self), {**self.model_dump(exclude_unset=True), **fields})


class RotaryScaling(Strict):
    """Llama 3's stretching of rotary wavelengths: long ones by `factor`, short ones not, a ramp between."""

    factor: float = Field(gt=0)
    """How much longer the longest wavelengths become."""
    low_freq_factor: float = Field(gt=0)
    """Wavelengths over original_length / low_freq_factor are stretched in full."""
    high_freq_factor: float = Field(gt=0)
    """Wavelengths under original_length / high_freq_factor stay as they are."""
    original_length: int = Field(gt=0)
    """Context length before the stretching."""


class ModelConfig(Strict):
    """One network, whichever family: sizes, the part that fills each slot, and the special token ids."""

    # --- what it is
    family: Family
    """Which assembly: both halves, the reading half or the writing half."""
    head: Head = "vocabulary"
    """What sits on top: next word, masked word (BERT), replaced or not (ELECTRA), classes, tags, the pooled vector, nothing."""

    # --- sizes
    vocab_size: int = Field(default=0, ge=0, le=10_000_000)
    """Words the (source) embedding knows; 0 for images."""
    target_vocab_size: int | None = Field(default=None, gt=0, le=10_000_000)
    """Words of the target side where it has a vocabulary of its own (encoder-decoder); None = vocab_size."""
    d_model: int = Field(gt=0, le=1_000_000)
    """Width of the residual stream, C."""
    n_layers: int = Field(gt=0, le=10_000)
    """Blocks; of the encoder where there are two halves."""
    n_decoder_layers: int | None = Field(default=None, gt=0, le=10_000)
    """Blocks of the decoder in an encoder-decoder; None = n_layers."""
    n_heads: int = Field(default=1, gt=0, le=10_000)
    """Attention heads, H."""
    n_kv_heads: int | None = Field(default=None, gt=0, le=10_000)
    """Heads of keys and values, shared by groups of queries (grouped-query attention); None = n_heads."""
    d_head: int | None = Field(default=None, gt=0, le=1_000_000)
    """Width of one head, D; None = d_model / n_heads."""
    d_ff: int = Field(default=1, gt=0, le=10_000_000)
    """Inner width of the feed-forward layer."""
    d_embed: int | None = Field(default=None, gt=0, le=1_000_000)
    """Width of the word vectors where it differs from d_model (ELECTRA, ALBERT; the rest of d_model when positions are concatenated)."""
    max_length: int = Field(default=512, gt=0, le=100_000_000)
    """Longest sequence; learned positions have this many rows."""

    # --- parts
    feedforward: FeedForward = "relu"
    """Activation of the feed-forward layer; the ...glu ones and bilinear are gated."""
    norm: Literal["layer", "layer-without-bias", "rms"] = "layer"
    """LayerNorm, LayerNorm without its bias (PaLM), or RMSNorm."""
    norm_eps: float = Field(default=1e-5, gt=0, lt=1)
    """Added to the variance under the root."""
    norm_order: Literal["pre", "post", "parallel"] = "post"
    """Which slot of the residual is filled: before the sublayer, after the sum, or one norm before both sublayers side by side (PaLM)."""
    final_norm: bool | None = None
    """A norm at the end of each stack; None = unless post-norm."""
    embed_norm: bool = False
    """A norm on the embeddings (BERT, BART, BLOOM)."""
    embed_scale: bool = False
    """Multiply word vectors by sqrt(d_model) (2017 Transformer)."""
    position: Position = "sinusoidal"
    """How order is told."""
    position_use: Literal["add", "concat", "every-layer"] = "add"
    """What absolute positions (sinusoidal, learned) do with the word vectors."""
    position_base: float = Field(default=10_000.0, gt=1)
    """Base of the sinusoidal or rotary wavelengths (10,000 in 2017; 500,000 in Llama 3)."""
    position_layout: Literal["interleaved", "halves"] = "interleaved"
    """Sinusoids as sin cos sin cos (the paper) or all sines then all cosines (Marian, tensor2tensor)."""
    position_offset: int = Field(default=0, ge=0)
    """Rows skipped at the start of a learned table (BART 2, RoBERTa pad + 1)."""
    rotary_scaling: RotaryScaling | None = None
    """Llama 3's stretching of the wavelengths."""
    relative_distance: int = Field(default=128, gt=0)
    """Distance beyond which relative positions are all the same (T5, Shaw)."""
    relative_buckets: int = Field(default=32, gt=1)
    """T5: number of distance buckets."""
    attention_bias: Literal["none", "qkv", "all"] = "all"
    """Which attention projections have a bias vector."""
    ffn_bias: bool = True
    """Bias vectors in the feed-forward layer."""
    score: Score = "scaled-dot"
    """How a query is compared with a key."""
    score_rank: int | None = Field(default=None, gt=0)
    """Rank of the low-rank bilinear score."""
    mixer: tuple[Mixer, ...] = ("softmax",)
    """How scores become an average in self-attention; several are dealt to the layers in turn."""
    window: int = Field(default=256, gt=0)
    """Window mixer: how many tokens a query sees on each side."""
    n_global: int = Field(default=0, ge=0)
    """Window mixer: the first tokens, which see all and are seen by all (Longformer)."""
    mixer_rank: int = Field(default=64, gt=0)
    """Linformer: projected length; Performer: number of random features."""
    compression: int = Field(default=3, gt=0)
    """Compressed mixer: stride of the convolution over keys and values."""
    share_layers: bool = False
    """All layers are one and the same block (ALBERT)."""

    # --- recurrent stacks
    recurrent: Literal["elman", "gru", "lstm"] | None = None
    """A recurrent cell in place of the attention blocks."""
    bidirectional: bool = False
    """Recurrent encoder reads both ways."""
    decoder_attention: Score | None = None
    """Recurrent decoder: the score it attends to the source with at each step; None = a fixed context vector."""
    input_feeding: bool = False
    """Recurrent decoder: attend after the cell and feed the result into the next step (Luong); otherwise before it (Bahdanau)."""
    reverse_source: bool = False
    """Recurrent encoder reads the source backwards (Sutskever)."""

    # --- input and output
    n_segments: int = Field(default=0, ge=0, le=1000)
    """Rows of the segment embedding (BERT 2); 0 = none."""
    image_size: int | None = Field(default=None, gt=0, le=100_000)
    """Side of a square image (ViT); None = text."""
    patch_size: int | None = Field(default=None, gt=0, le=100_000)
    """Side of a square patch."""
    n_channels: int = Field(default=3, gt=0, le=10_000)
    """Colour channels of the image."""
    tie: Literal["none", "embeddings", "output", "all"] = "none"
    """Which word matrices are one: source and target embeddings, the (target) embedding and the output, or all three."""
    output_bias: bool = False
    """Bias vector on the output words."""
    output_scale: bool = False
    """Multiply the last vectors by d_model^-0.5 before the output words (T5 v1.0)."""
    n_classes: int = Field(default=2, gt=0, le=10_000_000)
    """Classes or tags of such a head."""
    pooler: bool = True
    """Classes: through a dense tanh layer on the first vector (BERT), or straight from it (ViT)."""

    # --- regularisation and initial weights
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """On embeddings and on each sublayer's output."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """On attention weights; above 0 the fast kernel cannot be used on a CPU."""
    ffn_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Inside the feed-forward layer, after the activation."""
    init_std: float | None = Field(default=None, gt=0)
    """Standard deviation of the initial weights; None = Xavier."""

    # --- special tokens
    pad_id: int = Field(default=0, ge=0)
    """Padding."""
    bos_id: int | None = Field(default=None, ge=0)
    """Begin of sentence."""
    eos_id: int | tuple[int, ...] | None = None
    """End of sentence; several where a model has several."""
    start_id: int | None = Field(default=None, ge=0)
    """First token of the decoder in an encoder-decoder; None = bos_id."""

    @model_validator(mode="before")
    @classmethod
    def _lists_to_tuples(cls, values: Any) -> Any:
        """JSON and TOML have lists only."""
        if isinstance(values, dict):
            values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            if isinstance(values.get("mixer"), str):
                values["mixer"] = (values["mixer"],)
        return values

    @model_validator(mode="after")
    def _possible(self) -> ModelConfig:
        for problem in impossible(self):
            raise ValueError(problem)
        return self

    # --- derived sizes, so that no other room repeats the rule
    @property
    def kv_heads(self) -> int:
        return self.n_kv_heads or self.n_heads

    @property
    def head_width(self) -> int:
        return self.d_head or self.d_model // self.n_heads

    @property
    def decoder_layers(self) -> int:
        return self.n_decoder_layers or self.n_layers

    @property
    def target_size(self) -> int:
        return self.target_vocab_size or self.vocab_size

    @property
    def has_final_norm(self) -> bool:
        return self.norm_order != "post" if self.final_norm is None else self.final_norm

    @property
    def first_id(self) -> int | None:
        """The token that opens the decoder."""
        return self.bos_id if self.start_id is None else self.start_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        if self.eos_id is None:
            return ()
        return (self.eos_id,) if isinstance(self.eos_id, int) else self.eos_id


def impossible(c: ModelConfig) -> list[str]:
    """Each combination of fields that has no meaning, as a sentence; empty when the configuration can be built."""
    absolute = c.position in ("sinusoidal", "learned")
    image = c.image_size is not None
    rules = [
        (c.d_head is None and c.recurrent is None and c.d_model % c.n_heads != 0,
         f"n_heads = {c.n_heads} does not divide d_model = {c.d_model}: change one, or set d_head"),
        (c.n_heads % c.kv_heads != 0,
         f"n_kv_heads = {c.kv_heads} does not divide n_heads = {c.n_heads}"),
        (c.position.startswith("rotary") and c.head_width % 2 != 0,
         f"position = {c.position!r} turns pairs, but the head width is odd ({c.head_width}): set an even d_head"),
        (c.position_use != "add" and not absolute,
         f"position_use = {c.position_use!r} needs position 'sinusoidal' or 'learned', not {c.position!r}"),
        (c.position_use == "concat" and (c.d_embed is None or c.d_embed >= c.d_model),
         f"position_use = 'concat' needs d_embed below d_model = {c.d_model} (the rest holds the position), not {c.d_embed}"),
        (c.rotary_scaling is not None and not c.position.startswith("rotary"),
         f"rotary_scaling needs a rotary position, not {c.position!r}"),
        ("low-rank" in (c.score, c.decoder_attention) and c.score_rank is None,
         "score or decoder_attention = 'low-rank' needs score_rank"),
        (c.family != "encoder-decoder" and (c.n_decoder_layers is not None or c.target_vocab_size is not None),
         f"n_decoder_layers and target_vocab_size belong to family 'encoder-decoder', not {c.family!r}"),
        (c.family != "encoder" and c.head not in ("vocabulary",),
         f"head = {c.head!r} belongs to family 'encoder'; {c.family!r} has 'vocabulary'"),
        (c.family == "encoder" and c.head == "vocabulary",
         "family 'encoder' has no next word: head is one of 'masked', 'replaced', 'classes', 'tags', 'pooled', 'none'"),
        (c.tie in ("embeddings", "all") and c.family != "encoder-decoder",
         f"tie = {c.tie!r} joins two halves; family {c.family!r} can tie 'output' or 'none'"),
        (c.tie in ("embeddings", "all") and c.target_size != c.vocab_size,
         f"tie = {c.tie!r} needs one vocabulary, but vocab_size = {c.vocab_size} and target_vocab_size = {c.target_size}"),
        (image and (c.patch_size is None or c.image_size % c.patch_size != 0),  # type: ignore[operator]
         f"image_size = {c.image_size} is not a multiple of patch_size = {c.patch_size}"),
        (image and c.position == "learned" and c.max_length <= (c.image_size // (c.patch_size or 1)) ** 2,  # type: ignore[operator]
         f"max_length = {c.max_length} is too short for the patches of image_size = {c.image_size} and the [class] vector"),
        (image and c.family == "decoder", "images are read by an encoder: family 'encoder' or 'encoder-decoder'"),
        (not image and c.vocab_size == 0, "vocab_size = 0: set it (or image_size and patch_size for images)"),
        (c.family != "encoder" and "linformer" in c.mixer,
         "mixer 'linformer' mixes all positions, so it cannot be causal: use it in family 'encoder'"),
        (any(m != "softmax" for m in c.mixer) and c.score not in ("dot", "scaled-dot"),
         f"mixer = {c.mixer} works on dot products, not on score = {c.score!r}"),
        (any(m != "softmax" for m in c.mixer) and c.position in ("relative", "t5", "alibi"),
         f"position = {c.position!r} acts on scores, which mixer = {c.mixer} does not form; use 'rotary', 'learned' or 'sinusoidal'"),
        (c.recurrent is None and (c.bidirectional or c.input_feeding or c.reverse_source or c.decoder_attention is not None),
         "bidirectional, input_feeding, reverse_source and decoder_attention need recurrent = 'elman', 'gru' or 'lstm'"),
        (c.bidirectional and c.family == "decoder", "bidirectional = true reads the future: not in family 'decoder'"),
        (c.recurrent is not None and c.bidirectional and c.d_model % 2 != 0,
         f"bidirectional = true gives each direction half of d_model, which is odd ({c.d_model})"),
        (c.input_feeding and c.decoder_attention is None, "input_feeding = true needs decoder_attention"),
        (c.decoder_attention is not None and c.family != "encoder-decoder",
         f"decoder_attention looks at a source: family 'encoder-decoder', not {c.family!r}"),
        (c.recurrent is None and "d_ff" not in c.model_fields_set, "d_ff is missing: attention blocks have a feed-forward layer"),
        (c.norm_order == "parallel" and c.family == "encoder-decoder" and c.recurrent is None,
         "norm_order = 'parallel' has no slot for cross-attention: use 'pre' or 'post' in family 'encoder-decoder'"),
        (c.position == "t5" and not 2 <= c.relative_buckets // 2 < c.relative_distance,
         f"position = 't5' needs 4 or more relative_buckets, not {c.relative_buckets}, and a relative_distance above "
         f"half of them, not {c.relative_distance}"),
        (c.rotary_scaling is not None and c.rotary_scaling.low_freq_factor >= c.rotary_scaling.high_freq_factor,
         "rotary_scaling: low_freq_factor must be below high_freq_factor"),
        (image and c.tie in ("embeddings", "all"),
         f"tie = {c.tie!r} joins the words of the source, and an image has none: use 'output' or 'none'"),
        (image and c.family == "encoder" and c.head in ("vocabulary", "masked", "replaced", "tags"),
         f"head = {c.head!r} asks about words, and an image has none: use 'classes', 'pooled' or 'none'"),
        (image and c.position_use == "concat", "position_use = 'concat' is for words: use 'add' or 'every-layer' with images"),
    ]  # fmt: skip
    return [message for broken, message in rules if broken]


def checked(kind: type[Strict], values: Any, where: str = "") -> Any:
    """Build `kind` from plain values; all problems at once, in words."""
    if not isinstance(values, dict):
        raise ConfigError(f"{where!r} is a table of fields, given {values!r}")
    try:
        return kind(**values)
    except ValidationError as error:
        raise ConfigError("; ".join(_in_words(kind, problem, where) for problem in error.errors())) from None


def _in_words(kind: type[Strict], problem: Any, where: str) -> str:
    path = [str(part) for part in problem["loc"] if part not in ("int", "tuple[int, ...]")]
    name = ".".join(([where] if where else []) + path)
    if problem["type"] == "extra_forbidden":
        known = ", ".join(sorted(kind.model_fields))
        return f"unknown key {name!r} (given {problem['input']!r}); known keys: {known}"
    if problem["type"] == "missing":
        return f"{name!r} is missing"
    if problem["type"] == "value_error":
        return f"{where + ': ' if where else ''}{problem['ctx']['error']}"
    return f"{name!r}: {problem['msg'].lower()}, given {problem['input']!r}"


class Recipe(Strict):
    """What a recipe file (TOML) holds: one table per room."""

    preset: str | None = None
    """Start from this named configuration; [model] then changes fields of it."""
    model: ModelConfig
    """The network."""


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, or a ConfigError that says where it is broken."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read recipe {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


def override(values: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """Apply `a.b=value` settings to nested tables; the value is read as TOML, and as plain text where it is none."""
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path:
            raise ConfigError(f"--set takes key=value, for example model.d_model=256, not {setting!r}")
        *tables, key = path.strip().split(".")
        table = values
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set {setting}: {name!r} is a value, not a table")
        table[key] = _toml_value(text.strip())
    return values


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def merged(base: Any, changes: Any) -> Any:
    """Tables laid over tables, at every depth; anything else replaces what was there."""
    if not (isinstance(base, dict) and isinstance(changes, dict)):
        return changes
    return base | {key: merged(base.get(key), value) for key, value in changes.items()}


def load_recipe(path: Path, settings: list[str] | None = None) -> Recipe:
    """A recipe file, its preset filled in, with `--set` overrides, checked."""
    from qkv.presets import PRESETS, preset

    values = override(read_toml(path), settings or [])
    name = values.get("preset")
    if name is not None:
        base = preset(name) if isinstance(name, str) else None
        if base is None:
            raise ConfigError(f"preset must be a name ({', '.join(PRESETS)}), given {name!r}")
        values["model"] = merged(base.model_dump(exclude_unset=True), values.get("model", {}))
    model = checked(ModelConfig, values.get("model", {}), "model")
    return checked(Recipe, {**values, "model": model})
