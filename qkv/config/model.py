"""ModelConfig: one network, whichever family, as a flat record. Each default is written once, here."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from qkv.config.rules import impossible
from qkv.config.strict import Strict

Family = Literal["encoder-decoder", "encoder", "decoder"]
Position = Literal["none", "sinusoidal", "learned", "rotary", "rotary-interleaved", "relative", "t5", "alibi"]
Score = Literal["dot", "scaled-dot", "bilinear", "low-rank", "additive"]
Mixer = Literal[
    "softmax", "window", "linformer", "performer", "linear", "taylor", "compressed", "gated-linear", "s4d", "selective"
]
FeedForward = Literal["relu", "gelu", "gelu-tanh", "silu", "reglu", "geglu", "geglu-tanh", "swiglu", "bilinear", "none"]
Head = Literal[
    "vocabulary", "masked", "masked-next", "replaced", "classes", "classes-words", "tags", "span", "pooled", "none"
]


INITIAL = ("init", "init_std", "init_embed_std", "init_residual")
"""Fields that matter for fresh weights alone."""


class RotaryScaling(Strict):
    """Llama 3's stretching of rotary wavelengths: long ones by `factor`, short ones not, a ramp between."""

    factor: float = Field(gt=0)
    """How much longer the longest wavelengths become."""
    low_freq_factor: float = Field(gt=0)
    """Wavelengths over original_length / low_freq_factor are stretched in full."""
    high_freq_factor: float = Field(gt=0)
    """Wavelengths under original_length / high_freq_factor stay as they are."""
    original_length: int = Field(gt=0, le=100_000_000)
    """Context length before the stretching."""


class ModelConfig(Strict):
    """One network, whichever family: sizes, the part that fills each slot, and the special token ids."""

    # --- what it is
    family: Family
    """Which assembly: both halves, the reading half or the writing half."""
    head: Head = "vocabulary"
    """What sits on top: the next word, a masked word (BERT; masked-next: also whether the second sentence follows), replaced
    or not (ELECTRA), classes (classes-words: also the next word, as GPT), tags, the span of an answer, the pooled vector, nothing."""

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
    d_key: int | None = Field(default=None, gt=0, le=1_000_000)
    """Mixers taylor and gated-linear: width of a head's queries and keys; None = that of its values, d_head."""
    d_state: int = Field(default=16, gt=1, le=1_000_000)
    """Mixers s4d and selective: numbers that each channel remembers, N."""
    d_ff: int = Field(default=1, gt=0, le=10_000_000)
    """Inner width of the feed-forward layer."""
    d_embed: int | None = Field(default=None, gt=0, le=1_000_000)
    """Width of the word vectors where it differs from d_model (ELECTRA, ALBERT; the rest of d_model when positions are concatenated)."""
    max_length: int = Field(default=512, gt=0, le=100_000_000)
    """Longest sequence; learned positions have this many rows."""

    # --- parts
    feedforward: FeedForward = "relu"
    """Activation of the feed-forward layer; the ...glu ones and bilinear are gated. none: no such layer (Mamba)."""
    norm: Literal["layer", "layer-without-bias", "rms"] = "layer"
    """LayerNorm, LayerNorm without its bias (PaLM), or RMSNorm."""
    norm_eps: float = Field(default=1e-5, gt=0, lt=1)
    """Added to the variance under the root."""
    head_norm_eps: float = Field(default=1e-3, gt=0, lt=1)
    """Mixer gated-linear: the same for the norm of each head. The first token of a text gives it (q . k) v, which may be anything
    near 0, and whose rounding a small number magnifies; GLA's own code has 1e-6."""
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
    position_offset: int = Field(default=0, ge=0, le=1_000_000)
    """Rows skipped at the start of a learned table (BART 2, RoBERTa pad + 1)."""
    rotary_scaling: RotaryScaling | None = None
    """Llama 3's stretching of the wavelengths."""
    relative_distance: int = Field(default=128, gt=0, le=100_000_000)
    """Distance beyond which relative positions are all the same (T5, Shaw)."""
    relative_per_head: bool = False
    """Shaw: each head of a layer has vectors of its own (the paper's base model), or all share them (its big one)."""
    relative_buckets: int = Field(default=32, gt=1, le=1_000_000)
    """T5: number of distance buckets."""
    attention_bias: Literal["none", "qkv", "all"] = "all"
    """Which attention projections have a bias vector."""
    ffn_bias: bool = True
    """Bias vectors in the feed-forward layer."""
    score: Score = "scaled-dot"
    """How a query is compared with a key."""
    score_rank: int | None = Field(default=None, gt=0, le=1_000_000)
    """Rank of the low-rank bilinear score."""
    mixer: tuple[Mixer, ...] = Field(default=("softmax",), min_length=1)
    """How a token sees the others: an average by scores, or (gated-linear, s4d, selective) a state that is carried along;
    several are dealt to the layers in turn."""
    window: int = Field(default=256, gt=0, le=100_000_000)
    """Window mixer: how many tokens a query sees on each side."""
    n_global: int = Field(default=0, ge=0, le=100_000_000)
    """Window mixer: the first tokens, which see all and are seen by all (Longformer)."""
    mixer_rank: int = Field(default=64, gt=0, le=1_000_000)
    """Linformer: projected length; Performer: number of random features."""
    compression: int = Field(default=3, gt=0, le=1_000_000)
    """Compressed mixer: stride of the convolution over keys and values."""
    share_layers: bool = False
    """All layers are one and the same block (ALBERT)."""

    # --- recurrent stacks
    recurrent: Literal["elman", "gru", "lstm"] | None = None
    """A recurrent cell in place of the attention blocks and of all that is in them: heads, feed-forward layers, norms, and
    positions that act there (rotary, relative, t5, alibi)."""
    bidirectional: bool = False
    """Recurrent encoder reads both ways."""
    decoder_attention: Score | None = None
    """Recurrent decoder: the score it attends to the source with at each step; None = it does not."""
    input_feeding: bool = False
    """Recurrent decoder: attend after the cell and feed the result into the next step (Luong); otherwise before it (Bahdanau)."""
    fixed_context: bool = False
    """Recurrent decoder without attention: the encoder's last vector enters every step beside the word (Cho); otherwise it
    only starts the decoder (Sutskever)."""
    reverse_source: bool = False
    """Recurrent encoder reads the source backwards (Sutskever)."""

    # --- input and output
    n_segments: int = Field(default=0, ge=0, le=1000)
    """Rows of the segment embedding (BERT 2); 0 = none."""
    bigram_buckets: int = Field(default=0, ge=0, le=10_000_000)
    """Encoders of text: rows of a table of vectors for pairs of neighbouring tokens, which are added to the word vectors; pairs
    share rows by a hash (fastText). They help a classifier with little data; 0 = none."""
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
    """Classes: through a dense tanh layer on the pooled vector (BERT), or straight from it (ViT)."""
    pooling: Literal["first", "mean", "last"] = "first"
    """Classes: which vector stands for the sequence; a decoder's last one has seen it all."""
    keep: Literal["start", "ends"] = "start"
    """Classes: what is read of a text that is too long, its start or its two ends (Sun et al. 2019)."""
    labels: tuple[str, ...] = ()
    """Names of the classes or tags, in their order."""

    # --- regularisation and initial weights
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """On embeddings and on each sublayer's output."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """On attention weights; above 0 the fast kernel cannot be used on a CPU."""
    ffn_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Inside the feed-forward layer, after the activation."""
    init: Literal["xavier", "lecun", "torch"] = "xavier"
    """Initial matrices (out, in): uniform with variance 2 / (in + out), normal with variance 1 / in (T5, PaLM), or uniform within
    1 / sqrt(in), PyTorch's default (Mamba). With score = "dot" queries start smaller by sqrt(d_head)."""
    init_std: float | None = Field(default=None, gt=0)
    """Standard deviation of the initial matrices and embeddings, whatever their sizes and `init`; None = as `init` says."""
    init_embed_std: float | None = Field(default=None, gt=0)
    """Standard deviation of the initial word vectors; None = init_std, or 1 / sqrt(width) without one."""
    init_residual: bool = False
    """Divide the initial output map of each sublayer by the square root of the number of sublayers in the stack, so that the
    residual stream does not grow with depth (GPT-2, Mamba). No effect in recurrent networks."""

    # --- special tokens
    pad_id: int = Field(default=0, ge=0, lt=10_000_000)
    """Padding."""
    bos_id: int | None = Field(default=None, ge=0, lt=10_000_000)
    """Begin of sentence."""
    eos_id: int | tuple[int, ...] | None = None
    """End of sentence; several where a model has several."""
    start_id: int | None = Field(default=None, ge=0, lt=10_000_000)
    """First token of the decoder in an encoder-decoder; None = bos_id."""
    forced_id: int | None = Field(default=None, ge=0, lt=10_000_000)
    """Token that every output of an encoder-decoder begins with, after start_id (BART's forced_bos_token_id)."""

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
